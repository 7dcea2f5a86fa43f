// The legend: one button for each category that occurs; pressing it hides the category.

class Legend {
  constructor(box, tracks, view, palette) {
    this.view = view;
    this.palette = palette;
    const used = usedCategories(tracks);
    this.buttons = new Map();
    palette.entries.forEach((entry, category) => {
      if (!used.has(category)) return;
      const swatch = make("i", { class: "swatch" });
      const label = `${entry.label}, ${duration(used.get(category))} in ${tracks.length > 1 ? "both graphs together" : "all"}`;
      const button = make("button", { type: "button", title: label, click: () => view.toggle(category) }, swatch, entry.label);
      this.buttons.set(category, { button, swatch });
      box.append(button);
    });
  }

  draw() {
    for (const [category, { button, swatch }] of this.buttons) {
      swatch.style.background = this.palette.fill[category];
      button.setAttribute("aria-pressed", String(!this.view.hidden.has(category)));
    }
  }
}

/** Time by category, over all rows. */
function usedCategories(tracks) {
  const used = new Map();
  for (const { spans } of tracks.flatMap((track) => track.rows)) {
    for (let k = 0; spans && k < spans.length; k += 1) {
      const category = spans.category[k];
      used.set(category, (used.get(category) ?? 0) + spans.end[k] - spans.start[k]);
    }
  }
  return used;
}
