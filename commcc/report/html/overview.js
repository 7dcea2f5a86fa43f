// The whole step in small, with the stretch that is shown; and the axis above the timelines.

const OVERVIEW_ROW = 16;
const OVERVIEW_GAP = 4;
const AXIS_HEIGHT = 24;

class Overview {
  constructor(parent, tracks, view, palette) {
    this.tracks = tracks;
    this.view = view;
    this.palette = palette;
    this.height = tracks.length * (OVERVIEW_ROW + OVERVIEW_GAP) + OVERVIEW_GAP;
    const plot = make("div", { class: "plot" });
    parent.append(make("div", { class: "gutter" }, make("div", { class: "row-label plain" }, make("span", {}, "whole step"))), plot);
    this.surface = new Surface(plot, this.height, "Overview of the whole step; drag to move the stretch that is shown");
    this.canvas = this.surface.canvas;
  }

  /** The scale of the whole step. */
  scale() {
    return new Scale({ t0: 0, t1: this.view.total, span: this.view.total }, this.surface.width);
  }

  draw() {
    const { palette, view, surface } = this;
    const context = surface.begin();
    const scale = this.scale();
    const look = { fill: palette.fill, hidden: view.hidden, pixel: surface.pixel };
    this.tracks.forEach((track, k) => {
      const box = { top: OVERVIEW_GAP + k * (OVERVIEW_ROW + OVERVIEW_GAP), height: OVERVIEW_ROW };
      paintSpans(context, track.rows[0].spans, box, scale, look);
    });
    if (view.whole) return;
    const [left, right] = [scale.x(view.t0), Math.max(scale.x(view.t1), scale.x(view.t0) + 3)];
    context.fillStyle = palette.paper;
    context.globalAlpha = 0.72;
    context.fillRect(0, 0, left, this.height);
    context.fillRect(right, 0, surface.width - right, this.height);
    context.globalAlpha = 1;
    context.strokeStyle = palette.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left, 0.75, right - left, this.height - 1.5);
  }
}

class Axis {
  constructor(parent, view, palette) {
    this.view = view;
    this.palette = palette;
    const plot = make("div", { class: "plot" });
    parent.append(make("div", { class: "gutter" }), plot);
    this.surface = new Surface(plot, AXIS_HEIGHT, "Time axis");
    this.canvas = this.surface.canvas;
  }

  draw() {
    const { palette, view, surface } = this;
    const context = surface.begin();
    const scale = new Scale(view, surface.width);
    const { step, at } = ticks(scale);
    context.font = palette.font;
    context.textBaseline = "middle";
    context.fillStyle = palette.muted;
    const covered = view.pointer === null ? null : this.pointerLabel(context, scale, step);
    for (const ns of at) {
      const x = scale.x(ns);
      paintLine(context, x, AXIS_HEIGHT - 6, AXIS_HEIGHT, palette.muted);
      const text = moment(ns, step, view.t1);
      const width = context.measureText(text).width;
      const left = Math.min(Math.max(0, x - width / 2), surface.width - width);
      if (covered && left < covered.left + covered.width + 6 && left + width > covered.left - 6) continue;
      context.textAlign = "left";
      context.fillText(text, left, 9);
    }
    if (covered) this.paintPointer(context, covered);
  }

  /** The moment under the pointer, and where it is written. */
  pointerLabel(context, scale, step) {
    const { view, surface } = this;
    const text = moment(view.pointer, step / 100, view.t1);
    const width = context.measureText(text).width + 12;
    const left = Math.min(Math.max(0, scale.x(view.pointer) - width / 2), surface.width - width);
    return { text, width, left };
  }

  paintPointer(context, { text, width, left }) {
    const { palette } = this;
    context.fillStyle = palette.ink;
    context.beginPath();
    context.roundRect(left, 0, width, 18, 4);
    context.fill();
    context.fillStyle = palette.paper;
    context.fillText(text, left + 6, 9);
  }
}
