// The box next to the pointer.

class Tooltip {
  constructor(palette) {
    this.palette = palette;
    this.box = make("div", { class: "tooltip", role: "tooltip", hidden: true });
    document.body.append(this.box);
  }

  /** Show what a track has under the pointer; hit as from Track.at. */
  show(event, track, hit) {
    if (!hit || (hit.node < 0 && hit.k < 0)) {
      this.hide();
      return;
    }
    this.box.replaceChildren(...this.content(track, hit));
    this.box.hidden = false;
    const { clientX, clientY } = event;
    const { offsetWidth, offsetHeight } = this.box;
    const room = document.documentElement.clientWidth;
    const left = clientX + 16 + offsetWidth > room ? clientX - offsetWidth - 16 : clientX + 16;
    const below = clientY + 18 + offsetHeight > window.innerHeight ? clientY - offsetHeight - 12 : clientY + 18;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, below)}px`;
  }

  hide() {
    this.box.hidden = true;
  }

  content(track, { row, node, k }) {
    const { side } = track;
    if (row.curve) {
      const facts = [["while", node < 0 ? "the last collectives run" : side.name[node]], ["module", node < 0 ? null : side.module(node)]];
      return [this.title(null, `${row.label} ${bytes(row.curve.values[k])}`), rowsOfFacts(known(facts))];
    }
    const category = row.spans.category[k];
    if (node < 0) {
      const tail = row.spans.end[k] - row.spans.start[k];
      return [this.title(category, "the last collectives"), rowsOfFacts([["exposed", [`${duration(tail)} after the last node`]]])];
    }
    const facts = briefFacts(side, node).map(([label, parts]) => [label, parts.map((part) => part.side ? `${part.side.name[part.node]} ` : part)]);
    return [this.title(category, side.name[node]), rowsOfFacts(facts)];
  }

  title(category, text) {
    const line = make("p", { class: "tooltip-title" });
    if (category !== null) {
      const swatch = make("i", { class: "swatch" });
      swatch.style.background = this.palette.fill[category];
      line.append(swatch);
    }
    line.append(text);
    return line;
  }
}

/** Facts as a list of terms; links are made by `makeLink(part)`. */
function rowsOfFacts(facts, makeLink = null) {
  const list = make("dl", { class: "facts" });
  for (const [label, parts] of facts) {
    const values = parts.map((part) => (part.side ? makeLink(part) : part));
    list.append(make("div", {}, make("dt", {}, label), make("dd", {}, ...values)));
  }
  return list;
}
