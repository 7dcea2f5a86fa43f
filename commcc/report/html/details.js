// The panel under the timelines: everything about the selected node.

class Details {
  constructor(box, view, sides) {
    this.box = box;
    this.view = view;
    this.sides = sides;
    this.shown = null;
  }

  draw() {
    const { selected } = this.view;
    const key = selected && `${selected.side.number} ${selected.node}`;
    if (key === this.shown) return;
    this.shown = key;
    document.documentElement.dataset.selected = selected ? selected.side.name[selected.node] : "";
    this.box.replaceChildren(...(selected ? this.content(selected) : []));
  }

  content({ side, node }) {
    const label = this.sides.length > 1 ? make("span", { class: "chip" }, side.label) : null;
    const head = make(
      "div",
      { class: "details-head" },
      make("h3", {}, side.name[node]),
      label,
      make("button", { type: "button", click: () => showNode(this.view, side, node) }, "Zoom to it"),
      make("button", { type: "button", click: () => this.view.select(null) }, "Deselect"),
    );
    const facts = rowsOfFacts(factsOf(side, node), (part) => this.link(part));
    return [head, facts, this.elsewhere(side, node)].filter(Boolean);
  }

  /** Links to the same node, or its members or bucket, in the other graph. */
  elsewhere(side, node) {
    const other = this.sides.find((each) => each !== side);
    const nodes = other?.counterparts(side, node) ?? [];
    if (!nodes.length) return null;
    const shown = nodes.slice(0, 8).map((each) => this.link({ side: other, node: each }));
    const more = nodes.length > 8 ? `and ${grouped(nodes.length - 8)} more` : null;
    return make("p", { class: "elsewhere" }, make("span", {}, other.label), ...shown, more);
  }

  link({ side, node }) {
    return link(side.name[node], () => {
      this.view.select(side, node);
      if (!inSight(this.view, side, node)) showNode(this.view, side, node);
    });
  }
}

function inSight(view, side, node) {
  return side.start[node] >= view.t0 && side.end[node] <= view.t1;
}
