// The search box: nodes of all sides whose name holds what was typed.

const MOST_FOUND = 12;

class Search {
  constructor(box, view, sides) {
    this.view = view;
    this.sides = sides;
    this.found = [];
    this.active = 0;
    this.list = make("ul", { id: "found", role: "listbox", "aria-label": "Nodes found", hidden: true });
    this.input = make("input", {
      type: "search",
      placeholder: "Search a node  ( / )",
      "aria-label": "Search a node by name",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": "found",
      autocomplete: "off",
      spellcheck: "false",
      input: () => this.look(),
      keydown: (event) => this.key(event),
      blur: () => this.close(),
    });
    box.append(this.input, this.list);
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  look() {
    const wanted = this.input.value.trim().toLowerCase();
    this.found = wanted ? findNodes(this.sides, wanted) : [];
    this.active = 0;
    this.draw(wanted);
  }

  draw(wanted) {
    const several = this.sides.length > 1;
    const options = this.found.slice(0, MOST_FOUND).map(({ side, node }, k) =>
      make(
        "li",
        { role: "option", id: `found-${k}`, "aria-selected": String(k === this.active), pointerdown: (event) => this.choose(k, event) },
        make("span", { class: "name" }, side.name[node]),
        make("span", { class: "about" }, [side.op(node), several ? side.label : null].filter(Boolean).join(", ")),
      ),
    );
    const more = this.found.length - MOST_FOUND;
    if (more > 0) options.push(make("li", { class: "more" }, `and ${grouped(more)} more`));
    if (wanted && !this.found.length) options.push(make("li", { class: "more" }, "no node has this in its name"));
    this.list.replaceChildren(...options);
    this.list.hidden = !options.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.input.setAttribute("aria-activedescendant", this.found.length ? `found-${this.active}` : "");
  }

  key(event) {
    const shown = Math.min(this.found.length, MOST_FOUND);
    if (event.key === "Escape") {
      this.input.value = "";
      this.input.blur();
    } else if (event.key === "Enter" && shown) this.choose(this.active, event);
    else if (shown && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.active = (this.active + (event.key === "ArrowDown" ? 1 : shown - 1)) % shown;
      this.draw(this.input.value);
    }
  }

  choose(k, event) {
    event.preventDefault();
    const { side, node } = this.found[k];
    this.view.select(side, node);
    showNode(this.view, side, node);
    this.input.blur();
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }
}

/** Exact names first, then those that begin with the text, then the others; in order of execution. */
function findNodes(sides, wanted) {
  const found = [];
  for (const side of sides) {
    side.name.forEach((name, node) => {
      const where = name.toLowerCase().indexOf(wanted);
      if (where >= 0) found.push({ side, node, rank: name.length === wanted.length ? 0 : where ? 2 : 1 });
    });
  }
  return found.sort((a, b) => a.rank - b.rank || a.side.number - b.side.number || a.node - b.node);
}
