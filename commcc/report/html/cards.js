// The head of the page: what is shown, and the key figures.

/** Figures of the cards; better: -1 when less is better, 1 when more is, 0 when neither. */
/** Bytes of a figure that misses sizes which nobody knows. */
function least(m, key, name) {
  const unknown = m.unknown_sizes?.[name] ?? 0;
  return unknown ? `>= ${bytes(m[key] ?? 0)}, ${plural(unknown, "size")} unknown` : bytes(m[key] ?? 0);
}

/** Times count what is known where sizes are not. */
function unknownNote(m) {
  const unknown = m.unknown_sizes?.values ?? 0;
  return unknown ? `, ${plural(unknown, "size")} unknown` : "";
}

const CARDS = [
  { label: "Step time", key: "step_ms", better: -1, note: (m) => `compute ${ms(m.compute_ms)}${unknownNote(m)}` },
  { label: "Exposed", key: "exposed_ms", better: -1, note: exposedNote },
  { label: "Hidden share", key: "hidden_share", better: 1, note: (m) => `of ${ms(m.communication_ms)} communication` },
  { label: "Lower bound", key: "lower_bound_ms", better: 0, note: boundNote },
  { label: "Peak memory", key: "peak_bytes", better: -1, note: (m) => `in flight at most ${least(m, "in_flight_bytes", "values")}` },
];

function exposedNote({ exposed_ms: exposed, step_ms: step }) {
  return step ? `${percent(exposed / step)} of the step` : "nothing takes time";
}

function boundNote({ lower_bound_ms: bound, step_ms: step }) {
  return bound ? `step is ${grouped(step / bound, 2)} \u00d7 this` : "nothing takes time";
}

function fillHead(title, sides, passes) {
  byId("title").append(title);
  const models = [...new Set(sides.map((side) => `${side.model.name} ${side.model.hash}`))];
  const parts = models.map((_, k) => [sides[k].model.name, sides[k].model.hash]);
  const whose = (side) => (sides.length > 1 ? ` ${side.label}` : "");
  const nodes = sides.map((side, k) => `${k ? grouped(side.count) : plural(side.count, "node")}${whose(side)}`);
  const line = byId("subtitle");
  line.append("cost model ");
  for (const [name, hash] of parts) line.append(make("b", {}, name), " ", make("code", { title: "hash of the cost model" }, hash), "  \u00b7  ");
  line.append(nodes.join(", "));
  if (passes) line.append("  \u00b7  passes ", make("code", {}, String(passes)));
}

function fillCards(sides) {
  const last = sides[sides.length - 1];
  const first = sides.length > 1 ? sides[0] : null;
  byId("cards").append(...CARDS.map((card) => cardOf(card, first, last)));
}

function cardOf(card, first, last) {
  const value = last.metrics[card.key] ?? null;
  const largest = Math.max(value ?? 0, first?.metrics[card.key] ?? 0);
  const [number, unit] = splitUnit(shown(card.key, value, largest, last.unknown));
  const parts = [
    make("p", { class: "card-label" }, card.label),
    make("p", { class: "card-value" }, number, make("small", {}, unit && ` ${unit}`)),
  ];
  if (first) parts.push(changeLine(card, first, first.metrics[card.key] ?? null, value));
  parts.push(make("p", { class: "card-note" }, value === null ? "no communication" : card.note(last.metrics)));
  return make("article", { class: "card", "data-key": card.key }, ...parts);
}

/** "-12.3 %  before 217.9 ms", in green or red where that means something. */
function changeLine(card, first, before, after) {
  const badge = changeBadge(before, after, card.better, card.key.endsWith("_share"));
  return make("p", { class: "card-change" }, badge, " ", make("span", {}, `${first.label} ${shown(card.key, before, Math.max(before ?? 0, after ?? 0), first.unknown)}`));
}

function shown(key, value, like, unknown) {
  if (value === null) return MISSING;
  if (key.endsWith("_ms")) return ms(value, like);
  return key.endsWith("_share") ? percent(value) : leastBytes(value, unknown);
}

function splitUnit(text) {
  const at = text.lastIndexOf(GAP);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function ms(value, like = value) {
  return duration(value * 1e6, like * 1e6, value * 1e6);
}
