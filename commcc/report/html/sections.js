// The tables of figures, sources, bounds, options, hints and warnings.

function fillFigures(figures, sides) {
  const columns = [{ label: "", value: ([label]) => label }];
  const columnOf = (label, k) => ({ label, number: true, value: (row) => row[k] });
  if (sides.length > 1) columns.push(columnOf(sides[0].label, 1), columnOf(sides[1].label, 2), changeColumn("change", (row) => row[3]));
  else columns.push(columnOf("value", 1));
  byId("figures-table").append(makeTable(columns, figures));
}

function fillSources(sides) {
  const last = sides[sides.length - 1].model;
  byId("model").append("Cost model ", make("b", {}, last.name), ", hash ", make("code", {}, last.hash), ".");
  const names = [...new Set(sides.flatMap((side) => side.model.sources.map((source) => source.name)))];
  const columns = [{ label: "source", value: (name) => name }];
  for (const side of sides) {
    const of = (name) => side.model.sources.find((source) => source.name === name);
    const suffix = sides.length > 1 ? ` ${side.label}` : "";
    columns.push({ label: `nodes${suffix}`, number: true, value: (name) => grouped(of(name)?.nodes ?? 0) });
    columns.push({ label: `time${suffix}`, number: true, value: (name) => ms(of(name)?.ms ?? 0) });
  }
  byId("sources-table").append(makeTable(columns, names));
}

function fillBounds(sides) {
  const names = [...new Set(sides.flatMap((side) => Object.keys(side.bound.parts)))];
  const largest = (side, name) => (side.bound.name === name ? "largest" : "");
  const columns = [{ label: "bound", value: (name) => name }];
  for (const side of sides) {
    const cell = (name) => make("span", { class: largest(side, name) }, duration(side.bound.parts[name] ?? 0, side.step));
    columns.push({ label: sides.length > 1 ? side.label : "time", number: true, cell });
  }
  byId("bounds-table").append(makeTable(columns, names));
}

function fillOptions(options) {
  const columns = [
    { label: "option", value: ([name]) => name },
    { label: "value", value: ([, value]) => plain(value), class: "value" },
  ];
  const rows = leaves(options);
  byId("options-table").append(rows.length ? makeTable(columns, rows) : make("p", { class: "lead" }, "None."));
}

/** [path, value] of everything in a nested mapping. */
function leaves(mapping, prefix = "") {
  return Object.entries(mapping).flatMap(([key, value]) => {
    const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;
    return nested ? leaves(value, `${prefix}${key}.`) : [[prefix + key, value]];
  });
}

/** Sizes that got the same number for the same reason share a row. */
function fillHints(sides) {
  const symbols = new Map();
  for (const { symbol, value, source } of sides.flatMap((side) => side.hints)) {
    const key = JSON.stringify([value, source]);
    symbols.set(key, (symbols.get(key) ?? new Set()).add(symbol));
  }
  if (!symbols.size) return;
  const rows = [...symbols].map(([key, names]) => [...JSON.parse(key), [...names]]);
  const columns = [
    { label: "sizes", value: ([, , names]) => firstOf(names) },
    { label: "taken to be", number: true, value: ([value]) => value, text: ([value]) => grouped(value) },
    { label: "because", value: ([, source]) => HINT_SOURCES[source] ?? source },
  ];
  new SortableTable(byId("hints-table"), columns, MOST_HINTS).show(rows);
  byId("hints").hidden = false;
}

const MOST_HINTS = 12;
const HINT_SOURCES = { given: "given with --hint", file: "the graph file says so", balanced: "an even share is assumed" };

/** "u0, u1, u2 and 237 more" */
function firstOf(names, most = 5) {
  const more = names.length > most ? ` and ${grouped(names.length - most)} more` : "";
  return names.slice(0, most).join(", ") + more;
}

function fillWarnings(sides) {
  const labels = new Map();
  for (const side of sides) for (const text of side.warnings) labels.set(text, [...(labels.get(text) ?? []), side.label]);
  if (!labels.size) return;
  const items = [...labels].map(([text, found]) => {
    const whose = found.length < sides.length ? make("span", { class: "chip" }, found.join(", ")) : null;
    return make("li", {}, whose, text);
  });
  byId("warnings-list").append(make("ul", {}, ...items));
  byId("warnings").hidden = false;
}
