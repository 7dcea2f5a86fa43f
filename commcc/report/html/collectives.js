// The table of all collectives of one side, sorted and filtered as the reader likes.

const MOST_ROWS = 25;

class CollectiveTable {
  constructor(sides, pick) {
    this.sides = sides;
    this.side = sides[sides.length - 1];
    this.table = new SortableTable(byId("collectives-table"), collectiveColumns(() => this.side, pick), MOST_ROWS);
    this.filter = make("input", {
      type: "search",
      placeholder: "Filter by name, kind, role, group or module",
      "aria-label": "Filter the collectives",
      autocomplete: "off",
      spellcheck: "false",
      input: () => this.show(),
    });
    this.count = make("p", { class: "range", role: "status" });
    this.tabs = sides.length > 1 ? sides.map((side) => this.tab(side)) : [];
    if (!sides.some((side) => side.collectives.length)) {
      byId("collectives-table").append(make("p", { class: "lead" }, "No collectives."));
      return;
    }
    const tools = byId("collectives-tools");
    tools.append(make("div", { class: "search" }, this.filter));
    if (this.tabs.length) tools.append(make("div", { class: "buttons", role: "group", "aria-label": "Graph" }, ...this.tabs));
    tools.append(this.count);
    this.show();
  }

  tab(side) {
    const choose = () => {
      this.side = side;
      this.show();
    };
    return make("button", { type: "button", click: choose }, side.label);
  }

  show() {
    const { side } = this;
    this.tabs.forEach((tab, k) => tab.setAttribute("aria-pressed", String(this.sides[k] === side)));
    const wanted = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const rows = side.collectives.filter((each) => {
      const text = [side.name[each.node], each.kind, spelled(each.kind), each.role, each.group, side.module(each.node)].join(" ").toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
    this.count.textContent = `${grouped(rows.length)} of ${plural(side.collectives.length, "collective")}`;
    this.table.show(rows);
  }
}

/** side(): the side that is shown. */
function collectiveColumns(side, pick) {
  const time = (label, value) => ({ label, number: true, value, text: (each) => duration(value(each), side().step) });
  const spent = (label, value) => ({ label, number: true, value, text: (each) => (value(each) ? duration(value(each)) : duration(0)) });
  const length = (each) => each.end - each.start;
  const hidden = (each) => (length(each) ? 1 - each.exposed / length(each) : -1);
  return [
    {
      label: "collective",
      class: "name",
      value: (each) => side().name[each.node],
      cell: (each) => link(side().name[each.node], () => pick(side(), each.node), "show on the timeline"),
    },
    { label: "kind", value: (each) => spelled(each.kind) },
    { label: "role", value: (each) => each.role },
    { label: "group", value: (each) => each.group },
    { label: "sent", number: true, value: (each) => each.bytes, text: (each) => leastBytes(each.bytes, each.unknown) },
    time("launched", (each) => each.queued),
    spent("queued", (each) => each.start - each.queued),
    spent("time", length),
    spent("exposed", (each) => each.exposed),
    { label: "hidden", number: true, value: hidden, text: (each) => percent(hidden(each) < 0 ? null : hidden(each)) },
    { label: "merged", number: true, value: (each) => each.merged.length, text: (each) => (each.merged.length ? grouped(each.merged.length) : "") },
    { label: "module", value: (each) => side().module(each.node) ?? "" },
    { label: "priced by", value: (each) => [pricedBy(side(), each.node), each.how].filter(Boolean).join(": ") },
  ];
}
