// What can be said of one node, as rows of [label, parts]; a part is a text or { side, node } for a link.

/** Facts for the panel under the timelines, by what the node is. */
function factsOf(side, node) {
  const collective = side.collectiveOf.get(node);
  if (!collective) return computeFacts(side, node);
  return collective.node === node ? collectiveFacts(side, collective) : waitFacts(side, node, collective);
}

function computeFacts(side, node) {
  const ns = side.end[node] - side.start[node];
  const flops = side.flops.get(node);
  // Waits for this graph's own launches have facts of their own.
  const stall = side.stall.get(node);
  return known([
    ["op", side.op(node)],
    ["result", side.result(node)],
    ["module", side.module(node)],
    ["start", at(side, side.start[node])],
    ["time", ns ? duration(ns) : "none: runs nothing"],
    ["stalls", stall ? `${duration(stall)}, for what another graph launched` : null],
    ["work", flops && ns ? `${grouped(flops / 1e9, 1)} GFLOP at ${grouped(flops / ns / 1e3, 1)} TFLOP/s` : null],
    ["priced by", pricedBy(side, node)],
    ["overlaps with", ns ? namesOf(side, collectivesBeside(side, side.start[node], side.end[node])) : null],
    ["live memory", leastBytes(side.live[node], side.unknown)],
  ]);
}

function collectiveFacts(side, each) {
  const { node } = each;
  const total = each.end - each.start;
  const hidden = workBeside(side, each.start, each.end);
  return known([
    ["kind", `${spelled(each.kind)}, ${each.role}`],
    ["group", groupWords(side, each)],
    ["sent by one rank", `${leastBytes(each.bytes, each.unknown)}, ${each.dtype}`],
    ["module", side.module(node)],
    ["time", `${duration(total)}, latency ${duration(each.latency, total)}`],
    ["priced by", [pricedBy(side, node), each.how].filter(Boolean).join(": ")],
    ["exposed", each.exposed ? `${duration(each.exposed, total)} (${percent(each.exposed / total)})` : "nothing"],
    ["ready", each.ready === null ? "from the start" : [{ side, node: each.ready }, ` at ${at(side, side.end[each.ready])}`]],
    ["launched", at(side, each.queued)],
    ["ran", `${at(side, each.start)} to ${at(side, each.end)}${each.start > each.queued ? `, queued ${duration(each.start - each.queued)}` : ""}`],
    ["waited for", each.waits.length ? each.waits.map((wait) => ({ side, node: wait })) : "at the launch, or by nobody"],
    ["needed by", each.needed === null ? "nothing that takes time" : [{ side, node: each.needed }, ` at ${at(side, side.start[each.needed])}`]],
    ["overlapped by", hidden.nodes.length ? [`${duration(hidden.ns)} in ${plural(hidden.nodes.length, "node")}, longest `, { side, node: hidden.nodes[0] }] : "none"],
    ["merged from", each.merged.length ? plural(each.merged.length, "collective") : null],
  ]);
}

function waitFacts(side, node, collective) {
  const stall = side.stall.get(node) ?? 0;
  return known([
    ["waits for", [{ side, node: collective.node }]],
    ["kind", `${spelled(collective.kind)}, ${collective.role}`],
    ["stalls", stall ? duration(stall) : "not at all: the result is there"],
    ["start", at(side, side.start[node])],
    ["module", side.module(node)],
    ["in flight after it", leastBytes(side.inFlight[node], side.unknown)],
  ]);
}

/** The few lines of the tooltip. */
function briefFacts(side, node) {
  const collective = side.collectiveOf.get(node);
  if (!collective) return computeFacts(side, node).filter(([label]) => !["overlaps with", "live memory"].includes(label));
  const labels = ["kind", "group", "sent by one rank", "module", "time", "exposed", "priced by", "ran", "waits for", "stalls"];
  return factsOf(side, node).filter(([label]) => labels.includes(label));
}

function known(rows) {
  return rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([label, value]) => [label, Array.isArray(value) ? value : [value]]);
}

/** A moment to within a ten thousandth of the step. */
function at(side, ns) {
  return moment(ns, 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, side.step))) - 5), side.step);
}

function pricedBy(side, node) {
  return side.model.sources[side.source[node]]?.name ?? null;
}

function groupWords(side, collective) {
  const group = side.groups.find((each) => each.name === collective.group);
  const parts = [collective.group, group?.description, group?.size ? plural(group.size, "rank") : null];
  return parts.filter(Boolean).join(", ");
}

function namesOf(side, collectives) {
  if (!collectives.length) return "no collective";
  const shown = collectives.slice(0, 3).flatMap((each) => [{ side, node: each.node }]);
  return collectives.length > 3 ? [...shown, ` and ${grouped(collectives.length - 3)} more`] : shown;
}

function collectivesBeside(side, start, end) {
  return side.collectives.filter((each) => each.start < end && each.end > start);
}

/** Nodes that compute in a stretch, longest first, and for how long they do. */
function workBeside(side, start, end) {
  const nodes = [];
  let ns = 0;
  for (let node = firstAbove(side.end, start); node < side.count && side.start[node] < end; node += 1) {
    if (side.collectiveOf.has(node)) continue;
    const part = Math.min(end, side.end[node]) - Math.max(start, side.start[node]);
    if (part <= 0) continue;
    ns += part;
    nodes.push([part, node]);
  }
  nodes.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  return { ns, nodes: nodes.map(([, node]) => node) };
}
