// The rows of one timeline: compute, one for each lane, live memory, bytes in flight.

const ROW_HEIGHTS = { compute: 34, lane: 22, live: 62, flight: 44 };
const ROW_GAP = 8;
const MARKER_STRIP = 18;
const MOST_LANES = 12;

/** Rows with { type, label, about, box: { top, height } }, with spans or a curve; scales: highest bytes. */
function rowsOf(side, palette, scales) {
  const rows = [computeRow(side, palette), ...laneRows(side, palette)];
  const peak = Math.max(0, ...[side.metrics.peak_bytes ?? 0]);
  rows.push({ type: "live", label: "live memory", about: `peak ${leastBytes(peak, side.unknown)}`, curve: side.curves.live, highest: scales.live });
  const flight = side.metrics.in_flight_bytes ?? 0;
  if (side.collectives.length) {
    rows.push({ type: "flight", label: "in flight", about: `peak ${leastBytes(flight, side.unknown)}`, curve: side.curves.flight, highest: scales.flight });
  }
  let top = MARKER_STRIP;
  for (const row of rows) {
    row.box = { top, height: ROW_HEIGHTS[row.type] };
    top += row.box.height + ROW_GAP;
  }
  return rows;
}

function heightOf(rows) {
  const { top, height } = rows[rows.length - 1].box;
  return top + height + 2;
}

/** Every node that takes time, its waiting apart from its work, and the tail in which only collectives run. */
function computeRow(side, palette) {
  const found = [];
  for (let node = 0; node < side.count; node += 1) {
    if (side.end[node] <= side.start[node]) continue;
    const waits = side.end[node] - (side.stall.get(node) ?? 0);
    const category = palette.number.get(side.family[node]) ?? palette.number.get("other");
    if (waits > side.start[node]) found.push([side.start[node], waits, category, node]);
    if (side.end[node] > waits) found.push([waits, side.end[node], palette.exposed, node]);
  }
  if (side.step > side.finish) found.push([side.finish, side.step, palette.exposed, -1]);
  return { type: "compute", label: "compute", about: plural(side.count, "node"), spans: new Spans(found) };
}

/** One row a lane; of very many, the first ones, and one row for all others. */
function laneRows(side, palette) {
  const shown = side.lanes.length > MOST_LANES ? side.lanes.slice(0, MOST_LANES - 1) : side.lanes;
  const rows = shown.map((lane) => laneRow(side, palette, lane.members, ...laneWords(side, lane)));
  const others = side.lanes.slice(shown.length);
  if (others.length) {
    const members = others.flatMap((lane) => lane.members).sort((a, b) => a.start - b.start);
    rows.push(laneRow(side, palette, members, plural(others.length, "more group"), "in one row, may overlap"));
  }
  return rows;
}

function laneRow(side, palette, members, label, about) {
  const numbers = new Map(side.collectives.map((each, number) => [each, number]));
  const found = [];
  let free = 0; // members of several lanes may overlap; the first one is seen
  for (const each of members) {
    const start = Math.max(free, each.start);
    if (each.end > start) found.push([start, each.end, palette.ofCollective(each), numbers.get(each)]);
    free = Math.max(free, each.end);
  }
  return { type: "lane", label, about, spans: new Spans(found) };
}

/** What to call a lane: its group's description, or its own name where groups share it. */
function laneWords(side, lane) {
  const names = [...new Set(lane.members.map((each) => each.group))];
  const groups = names.map((name) => side.groups.find((group) => group.name === name) ?? { name });
  if (groups.length > 1 || groups[0].name !== lane.name) {
    return [lane.name, `groups ${names.join(", ")}`];
  }
  const [group] = groups;
  const size = group.size ? `, ${plural(group.size, "rank")}` : "";
  return group.description ? [group.description, `group ${group.name}${size}`] : [`group ${group.name}`, size.slice(2)];
}
