// The most exposed collectives, with the reasons that were found. Keys may be missing.

const MOST_PATH = 8;

function fillWorst(explanations, sides, pick) {
  const given = explanations.length ? explanations : mostExposed(sides[sides.length - 1]);
  if (!given.length) {
    byId("worst-table").append(make("p", { class: "lead" }, "No communication is exposed."));
    return;
  }
  const worst = Math.max(...given.map((each) => each.exposed_ms ?? 0));
  const columns = [
    { label: "collective", cell: (each) => headOf(each, sides, pick) },
    { label: "exposed", cell: (each) => barOf(each, worst), number: true },
  ];
  if (given.some((each) => each.reasons?.length || each.knobs?.length)) {
    columns.push({ label: "why, and what would change it", cell: (each) => whyOf(each, sides, pick), class: "prose" });
  }
  byId("worst-table").append(makeTable(columns, given, { class: "worst" }));
}

/** Without explanations: the ten most exposed, without reasons. */
function mostExposed(side) {
  const exposed = side.collectives.filter((each) => each.exposed > 0);
  exposed.sort((a, b) => b.exposed - a.exposed || a.node - b.node);
  return exposed.slice(0, 10).map((each) => ({
    name: side.name[each.node],
    kind: each.kind,
    group: each.group,
    role: each.role,
    exposed_ms: each.exposed / 1e6,
    total_ms: (each.end - each.start) / 1e6,
  }));
}

/** A link to the node on the timeline, or its name where no graph has it. */
function nameOf({ name = "" }, sides, pick) {
  const found = findNode(sides, name);
  return found ? link(name, () => pick(found.side, found.node), "show on the timeline") : name;
}

/** The name over what it is. */
function headOf(each, sides, pick) {
  const what = [each.role, spelled(each.kind ?? ""), each.group && `group ${each.group}`].filter(Boolean).join(", ");
  return make("div", {}, nameOf(each, sides, pick), make("p", { class: "about" }, what));
}

/** The exposed time over a bar as long as its share of the largest one, and what it is a part of. */
function barOf({ exposed_ms: exposed = 0, total_ms: total }, worst) {
  const bar = make("i", { class: "bar" });
  bar.style.width = `${worst ? (100 * exposed) / worst : 0}%`;
  const whole = total === undefined ? null : make("p", { class: "about" }, `of ${ms(total, exposed || total)}`);
  return make("div", { class: "barred" }, ms(exposed), bar, whole);
}

function whyOf({ reasons = [], knobs = [] }, sides, pick) {
  const because = reasons.map((reason) => {
    const text = reason.text ?? String(reason);
    const chip = reason.kind ? make("span", { class: "chip" }, spelled(reason.kind)) : null;
    const line = make("li", {}, chip, ...withLinks(text, sides, pick));
    const path = text.includes(" -> ") ? [] : (reason.path ?? []);
    if (path.length) line.append(pathOf(path.map((name) => nameOf({ name }, sides, pick))));
    return line;
  });
  const change = knobs.map((knob) => {
    const text = knob.text ?? String(knob);
    const none = /^(for the rest )?none\b/.test(text);
    const chip = make("span", { class: none ? "chip" : "chip knob" }, none ? "nothing else" : "would help");
    return make("li", {}, chip, ...withLinks(text, sides, pick));
  });
  return make("ul", {}, ...because, ...change);
}

/** A text in which names of nodes are links; only names that no word of the language and no part of an op can be. */
function withLinks(text, sides, pick) {
  const tokens = text.replaceAll(" -> ", " \u2192 ").split(/((?<![\w.])[A-Za-z_]\w*[_\d]\w*(?!\w|\.\w))/);
  return tokens.map((token, k) => (k % 2 ? nameOf({ name: token }, sides, pick) : token));
}

/** Nodes with arrows between them; the middle of a long path is left out. */
function pathOf(path) {
  const half = MOST_PATH / 2;
  const kept = path.length > MOST_PATH ? [...path.slice(0, half), `${grouped(path.length - 2 * half)} more`, ...path.slice(-half)] : path;
  const steps = kept.flatMap((step, k) => (k ? [make("span", { class: "arrow", "aria-hidden": "true" }, "\u2192"), step] : [step]));
  return make("span", { class: "path" }, ...steps);
}
