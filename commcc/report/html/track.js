// The timeline of one graph: labels on the left, a canvas with all its rows on the right.

class Track {
  constructor(parent, side, view, palette, scales) {
    this.side = side;
    this.view = view;
    this.palette = palette;
    this.rows = rowsOf(side, palette, scales);
    const height = heightOf(this.rows);
    const labels = make("div", { class: "gutter" });
    for (const row of this.rows) {
      const label = make("div", { class: `row-label ${row.type}`, title: `${row.label}, ${row.about}` }, make("b", {}, row.label), make("span", {}, row.about));
      label.style.top = `${row.box.top / 10}rem`;
      label.style.height = `${row.box.height / 10}rem`;
      labels.append(label);
    }
    labels.style.height = `${height / 10}rem`;
    const plot = make("div", { class: "plot" });
    parent.append(make("figure", { class: "track" }, headingOf(side), make("div", { class: "lined" }, labels, plot)));
    this.surface = new Surface(plot, height, summaryOf(side));
    this.canvas = this.surface.canvas;
  }

  draw() {
    const { view, palette, surface } = this;
    const context = surface.begin();
    const scale = (this.scale = new Scale(view, surface.width));
    this.strip = new Strip(context, surface.width, palette.font);
    this.paintGround(context, scale);
    paintReach(context, this, scale);
    for (const row of this.rows) {
      if (row.spans) this.paintSpanRow(context, row, scale);
      else this.paintCurveRow(context, row, scale);
    }
    paintMarkers(context, this, scale);
    paintHighlights(context, this, scale);
    if (view.pointer !== null) paintLine(context, scale.x(view.pointer), MARKER_STRIP - 4, surface.height, palette.muted);
    if (view.dragged) paintStretch(context, view.dragged, scale, surface.height, palette);
  }

  /** Grid, row grounds, and what lies beyond the end of this graph's step. */
  paintGround(context, scale) {
    const { palette, surface, side } = this;
    const end = Math.min(surface.width, scale.x(side.step));
    for (const row of this.rows) {
      context.fillStyle = palette.grid;
      if (end > 0) context.fillRect(0, row.box.top, end, row.box.height);
    }
    for (const ns of ticks(scale).at) paintLine(context, scale.x(ns), MARKER_STRIP, surface.height, palette.line);
    if (end < surface.width) {
      context.fillStyle = palette.beyond;
      context.fillRect(Math.max(0, end), MARKER_STRIP, surface.width - Math.max(0, end), surface.height);
    }
  }

  paintSpanRow(context, row, scale) {
    const { palette, view, side, surface } = this;
    const look = { fill: palette.fill, hidden: view.hidden, pixel: surface.pixel };
    const wide = paintSpans(context, row.spans, row.box, scale, look);
    paintNames(context, wide, row.box, palette, (k) => {
      const category = row.spans.category[k];
      if (category === palette.exposed) return ["exposed", category, true];
      return [side.name[this.nodeOf(row, k)] ?? "", category, false];
    });
  }

  paintCurveRow(context, row, scale) {
    const { palette, side } = this;
    const color = row.type === "live" ? palette.memory : palette.accent;
    if (side.count) paintCurve(context, row.curve, row.highest, row.box, scale, color);
  }

  /** The node that a span of a row stands for, -1 for the tail of the step. */
  nodeOf(row, k) {
    const item = row.spans.item[k];
    return row.type === "lane" ? this.side.collectives[item].node : item;
  }

  /** What lies under a point of the canvas: { row, node, k }; node is -1 where there is none, k counts spans or values. */
  at(left, down) {
    const [x, y] = [left / this.surface.unit, down / this.surface.unit];
    const row = this.rows.find(({ box }) => y >= box.top - ROW_GAP / 2 && y < box.top + box.height + ROW_GAP / 2);
    if (!row || !this.scale) return null;
    const ns = this.scale.ns(x);
    if (ns < 0 || ns > this.side.step) return null;
    if (row.curve) {
      const k = Math.min(firstAbove(row.curve.end, ns), row.curve.values.length - 1);
      return { row, node: k < this.side.count ? k : -1, k };
    }
    const k = this.spanNear(row.spans, ns);
    return k < 0 ? { row, node: -1, k } : { row, node: this.nodeOf(row, k), k };
  }

  /** The longest shown span within a pixel of a moment, -1 for none. */
  spanNear(spans, ns) {
    const reach = 1 / this.scale.perNs;
    let best = -1;
    for (let k = spans.after(ns - reach); k < spans.length && spans.start[k] <= ns + reach; k += 1) {
      if (this.view.hidden.has(spans.category[k])) continue;
      if (spans.start[k] <= ns && ns < spans.end[k] && spans.end[k] - spans.start[k] > 3 * reach) return k;
      if (best < 0 || spans.end[k] - spans.start[k] > spans.end[best] - spans.start[best]) best = k;
    }
    return best;
  }
}

function headingOf(side) {
  const { exposed_ms: exposed, hidden_share: hidden } = side.metrics;
  const facts = [
    `step ${duration(side.step)}`,
    side.collectives.length ? `exposed ${duration(exposed * 1e6, side.step)}` : "no communication",
    hidden === null ? null : `${percent(hidden)} of communication hidden`,
  ];
  return make("figcaption", {}, make("b", {}, side.label), ` ${facts.filter(Boolean).join("  \u00b7  ")}`);
}

/** What the canvas shows, for those who cannot see it. */
function summaryOf(side) {
  const lanes = side.lanes.map((lane) => `${lane.name}: ${plural(lane.members.length, "collective")}`);
  return `Timeline ${side.label}: step ${duration(side.step)}, ${plural(side.count, "node")}; ${lanes.join("; ")}. The tables below hold the figures.`;
}
