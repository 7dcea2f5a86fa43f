// The page of a diff: figures before and after, a picture of what went where, and a table for each kind of change.

const PICTURE_HEIGHT = 220;
const RAIL = { top: 34, bottom: PICTURE_HEIGHT - 34 };
const MOST_ROWS = 25;
/** Lines of a picture: more would be a solid area. */
const MOST_LINES = 4000;

/** Numbers of nodes that something passed: "+3", "-12 to +4". */
function passed(ends) {
  if (!ends) return "";
  const signed = (number) => (number > 0 ? `+${grouped(number)}` : number < 0 ? `\u2212${grouped(-number)}` : "0");
  return ends[0] === ends[1] ? signed(ends[0]) : `${signed(ends[0])} to ${signed(ends[1])}`;
}

/** The lines of the picture: [place before, place after] of all that moved and of all that was merged. */
class Places {
  constructor(data) {
    this.data = data;
    this.hidden = new Set();
    this.chosen = null;
    const moved = [...data.moved].sort((a, b) => Math.abs(b.passed) - Math.abs(a.passed));
    const members = data.merged.flatMap((merge, number) => merge.places.map((place) => ({ before: place, after: merge.place, merge: number })));
    this.lines = {
      earlier: moved.filter((move) => move.passed < 0),
      later: moved.filter((move) => move.passed >= 0),
      merged: members,
    };
    byId("picture").hidden = !moved.length && !members.length;
    const labels = { earlier: "moved to the front", later: "moved to the back", merged: "merged" };
    const pairs = Object.entries(labels).filter(([key]) => this.lines[key].length);
    const buttons = toggles(pairs.map(([key, label]) => [key, `${label}, ${grouped(this.lines[key].length)}`]), (hidden) => {
      this.hidden = hidden;
      this.draw();
    });
    buttons.forEach((button) => button.prepend(make("i", { class: `swatch ${button.dataset.key}` })));
    byId("picture-tools").append(...buttons);
    this.surface = new Surface(byId("places"), PICTURE_HEIGHT, "Places of nodes before and after");
    const most = Math.max(...Object.values(this.lines).map((lines) => lines.length));
    if (most > MOST_LINES) byId("picture-note").textContent = `Of each kind the ${grouped(MOST_LINES)} that went farthest are drawn.`;
    new ResizeObserver(() => this.draw()).observe(byId("places"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  choose(number) {
    this.chosen = this.chosen === number ? null : number;
    this.draw();
    byId("picture").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  draw() {
    const context = this.surface.begin();
    const { width } = this.surface;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const { before, after } = this.data.lengths;
    const most = Math.max(before, after, 1);
    const at = (place) => 4 + (place / most) * (width - 8);
    context.font = `12px ${style.getPropertyValue("--sans")}`;
    context.fillStyle = colour("muted");
    context.fillText(`before, ${plural(before, "node")}`, 4, 14);
    context.fillText(`after, ${plural(after, "node")}`, 4, PICTURE_HEIGHT - 6);
    context.fillStyle = colour("pointwise");
    context.fillRect(4, RAIL.top - 8, at(before) - 4, 8);
    context.fillRect(4, RAIL.bottom, at(after) - 4, 8);
    const kinds = { earlier: "all-gather-1", later: "attention", merged: "reduce-scatter-1" };
    for (const [kind, name] of Object.entries(kinds)) {
      if (this.hidden.has(kind)) continue;
      const lines = this.lines[kind].slice(0, MOST_LINES);
      context.strokeStyle = colour(name);
      context.lineWidth = lines.length > 400 ? 0.6 : 1;
      context.globalAlpha = this.chosen !== null ? 0.08 : lines.length > 400 ? 0.35 : 0.7;
      this.strokes(context, lines, at);
      context.globalAlpha = 1;
      if (this.chosen === null || kind !== "merged") continue;
      context.lineWidth = 2;
      this.strokes(context, lines.filter((line) => line.merge === this.chosen), at);
    }
    document.documentElement.dataset.chosen = this.chosen ?? "";
  }

  strokes(context, lines, at) {
    context.beginPath();
    for (const { before, after } of lines) {
      context.moveTo(at(before), RAIL.top);
      context.bezierCurveTo(at(before), RAIL.top + 60, at(after), RAIL.bottom - 60, at(after), RAIL.bottom);
    }
    context.stroke();
  }
}

/** The tables: id, heading, rows, columns. Lists that are empty have none. */
function listsOf(data, choose) {
  const text = (label, key, more = {}) => ({ label, value: (row) => row[key], class: "mono", ...more });
  const number = (label, value, shown) => ({ label, number: true, value, text: shown ?? ((row) => grouped(value(row))) });
  const names = (label, key) => ({ label, value: (row) => row[key].join(", "), class: "mono" });
  const ends = (label, key) => number(label, (row) => (row[key] ? row[key][0] : 0), (row) => passed(row[key]));
  const into = { label: "into", value: (row) => row.into, cell: (row) => link(row.into, () => choose(row.number), "show in the picture") };
  const ops = data.added.map((group) => ({ ...group, what: "added" })).concat(data.removed.map((group) => ({ ...group, what: "removed" })));
  const merged = data.merged.map((merge, k) => ({ ...merge, number: k }));
  const rewired = data.rewired.map((name) => ({ name }));
  return [
    ["merged", `merged ${grouped(merged.reduce((sum, merge) => sum + merge.members.length, 0))} into ${grouped(merged.length)}`, merged, [
      into, { label: "kind", value: (row) => spelled(row.kind), class: "kind" }, { label: "group", value: (row) => row.group },
      number("of", (row) => row.members.length), number("span", (row) => row.span),
      ends("launch passed", "launch_moved"), ends("wait passed", "wait_moved"), names("members", "members"),
    ]],
    ["split", `split ${grouped(data.split.length)}`, data.split, [text("source", "source"), text("group", "group"), names("parts", "parts")]],
    ["replaced", `replaced ${grouped(data.replaced.length)}`, data.replaced, [text("collective", "name"), text("before", "before"), text("after", "after")]],
    ["moved", `moved ${grouped(data.moved.length)}`, data.moved, [
      text("node", "name"), { label: "op", value: (row) => row.op },
      number("passed", (row) => Math.abs(row.passed), (row) => passed([row.passed, row.passed])),
      number("before", (row) => row.before), number("after", (row) => row.after),
    ]],
    ["ops", "added and removed", ops, [
      text("op", "op"), { label: "", value: (row) => row.what }, number("nodes", (row) => row.nodes.length),
      { label: "names", value: (row) => row.nodes.slice(0, 12).join(", ") + (row.nodes.length > 12 ? ` and ${grouped(row.nodes.length - 12)} more` : ""), class: "mono" },
    ]],
    ["renamed", `renamed ${grouped(data.renamed.length)}`, data.renamed, [text("before", "before"), text("after", "after"), text("op", "op")]],
    ["changed", `other constants ${grouped(data.changed.length)}`, data.changed, [text("node", "name"), text("op", "op"), text("before", "before"), text("after", "after")]],
    ["rewired", `other operands ${grouped(rewired.length)}`, rewired, [text("node", "name")]],
    ["retyped", `other results ${grouped(data.retyped.length)}`, data.retyped, [text("node", "name"), text("op", "op"), text("before", "before"), text("after", "after")]],
    ["groups", `other ranks ${grouped(data.groups.length)}`, data.groups, [text("group", "name"), text("before", "before"), text("after", "after")]],
  ].filter(([, , rows]) => rows.length);
}

function showLists(lists) {
  const shown = lists.map(([id, heading, rows, columns]) => {
    const box = make("div", {});
    const panel = make("section", { id, class: "panel", "aria-label": heading }, make("h2", {}, heading), box);
    byId("lists").append(panel);
    byId("contents").append(make("a", { href: `#${id}` }, heading));
    const table = new SortableTable(box, columns, MOST_ROWS);
    table.show(rows);
    return { panel, table, rows, columns };
  });
  if (!lists.length) return;
  const filter = filterField("Filter by name, op, kind or group", (words) => {
    for (const { panel, table, rows, columns } of shown) {
      const fitting = rows.filter((row) => hasWords(columns.map((column) => column.value(row)).join(" "), words));
      panel.hidden = !fitting.length;
      table.show(fitting);
    }
  });
  byId("changes-tools").append(filter);
}

function showCards({ before, after }) {
  const launches = (metrics) => Object.values(metrics.collectives).reduce((sum, number) => sum + number, 0);
  const time = (value) => duration(value * 1e6);
  const cards = [
    { key: "nodes", label: "nodes", of: (m) => m.nodes },
    { key: "launches", label: "collectives", of: launches, better: -1 },
    { key: "step", label: "step time", of: (m) => m.step_ms ?? null, text: time, better: -1 },
    { key: "exposed", label: "exposed communication", of: (m) => m.exposed_ms ?? null, text: time, better: -1 },
    { key: "peak", label: "peak memory", of: (m) => m.peak_bytes ?? null, text: bytes, better: -1 },
  ];
  for (const { of, ...card } of cards) {
    if (of(after) === null || of(before) === null) continue;
    byId("cards").append(figureCard({ ...card, value: of(after), before: of(before) }));
  }
}

begin((data) => {
  byId("title").append(shortNames([data.inputs.before, data.inputs.after]).join(" \u2192 "));
  byId("subtitle").append(...modelLine(data.cost_model));
  byId("verdict").hidden = !data.identical;
  byId("verdict").textContent = "The same nodes in the same order.";
  showCards(data);
  const columns = ["", "before", "after"].map((label, k) => ({ label, number: k > 0, value: (row) => row[k] }));
  columns.push(changeColumn("change", (row) => row[3]));
  byId("figures-table").append(makeTable(columns, data.figures));
  const places = new Places(data);
  showLists(listsOf(data, (number) => places.choose(number)));
  byId("changes").hidden = data.identical;
  places.draw();
});
