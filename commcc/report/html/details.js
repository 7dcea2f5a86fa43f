// The panel under the timelines, or over their end where they are taller than the window: all about the selected node.

/** Of a timeline the compute and the first groups have to be seen beside the details; over it stays the axis. */
const [MOST_ROWS_PX, AXIS_PX] = [120, 48];

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
    this.box.scrollTop = 0;
    if (selected) this.uncover(selected.side);
  }

  /** Scrolls the page where the panel lies over the rows of the selection, once it is there to be seen. */
  async uncover(side) {
    const { shown } = this;
    await Promise.allSettled(this.box.getAnimations().map((animation) => animation.finished));
    if (this.shown !== shown) return;
    const rows = document.querySelectorAll("#tracks canvas")[side.number].getBoundingClientRect();
    const covered = Math.min(rows.bottom, rows.top + MOST_ROWS_PX) + 8 - this.box.getBoundingClientRect().top;
    // Down to the rows, and never so far that they leave at the top.
    if (covered > 0) window.scrollBy({ top: Math.min(covered, rows.top - AXIS_PX), behavior: "smooth" });
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
