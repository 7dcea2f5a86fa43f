// Painting spans, curves and grids. What is narrower than a pixel is added up by column.

const NARROW = 1.5; // device pixels below which a span is merged with its neighbours
const CLOSEST_TICKS = 64; // CSS pixels; their labels do not touch

/** Where time is on a canvas: from ns to CSS pixels and back. */
class Scale {
  constructor(view, width) {
    this.t0 = view.t0;
    this.t1 = view.t1;
    this.width = width;
    this.perNs = width / view.span;
  }

  x(ns) {
    return (ns - this.t0) * this.perNs;
  }

  ns(x) {
    return this.t0 + x / this.perNs;
  }
}

/** Paints a row of spans into box {top, height}; look: { fill, hidden, pixel }. Returns the wide ones. */
function paintSpans(context, spans, box, scale, look) {
  const column = new Column(context, box, look);
  const wide = [];
  for (let k = spans.after(scale.t0); k < spans.length && spans.start[k] < scale.t1; k += 1) {
    if (look.hidden.has(spans.category[k])) continue;
    const left = Math.max(-2, scale.x(spans.start[k]));
    const right = Math.min(scale.width + 2, scale.x(spans.end[k]));
    const width = right - left;
    if (width < NARROW * look.pixel) {
      column.add(left, right, spans.category[k]);
      continue;
    }
    column.flush();
    context.fillStyle = look.fill[spans.category[k]];
    context.fillRect(left, box.top, width > 4 ? width - 0.75 : width, box.height);
    if (width > 40) wide.push({ k, left: Math.max(0, left), right: Math.min(scale.width, right) });
  }
  column.flush();
  return wide;
}

/** One column of pixels: how much of its time each category has. Painted as a stack, the alarm on top. */
class Column {
  constructor(context, box, look) {
    this.context = context;
    this.box = box;
    this.look = look;
    this.at = -1;
    this.share = new Float64Array(look.fill.length);
  }

  add(left, right, category) {
    const { pixel } = this.look;
    let from = left / pixel;
    const to = right / pixel;
    while (from < to) {
      const at = Math.floor(from);
      if (at !== this.at) {
        this.flush();
        this.at = at;
      }
      const part = Math.min(to, at + 1);
      this.share[category] += part - from;
      from = part;
    }
  }

  flush() {
    if (this.at < 0) {
      this.share.fill(0);
      return;
    }
    const { context, box, look } = this;
    let bottom = box.top + box.height;
    for (let category = 0; category < this.share.length; category += 1) {
      if (!this.share[category]) continue;
      const height = box.height * Math.min(1, this.share[category]);
      context.fillStyle = look.fill[category];
      context.fillRect(this.at * look.pixel, bottom - height, look.pixel, height);
      bottom -= height;
    }
    this.share.fill(0);
    this.at = -1;
  }
}

/** Names inside the spans that have room for them; describe(k): [name, category, whether only whole]. */
function paintNames(context, wide, box, palette, describe) {
  context.font = palette.mono;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const { k, left, right } of wide) {
    const room = Math.floor((right - left - 8) / 6.4);
    const [name, category, whole] = describe(k);
    if (room < (whole ? name.length : Math.min(name.length, 9))) continue;
    context.fillStyle = palette.text[category];
    context.fillText(shortened(name, room), left + 4, box.top + box.height / 2 + 0.5);
  }
}

const CURVE_HEADROOM = 15; // pixels over a curve, for the label of its peak

/** Where a value is in the box of a curve; highest: bytes at its top. */
function curveY(value, highest, box) {
  return box.top + box.height - (highest ? (value / highest) * (box.height - CURVE_HEADROOM) : 0);
}

/** Paints bytes over time as an area. */
function paintCurve(context, { start, end, values }, highest, box, scale, color) {
  const y = (value) => curveY(value, highest, box);
  const first = Math.max(0, firstAbove(end, scale.t0) - 1);
  const outline = new Path2D();
  let column = Number.NEGATIVE_INFINITY;
  let top = 0;
  outline.moveTo(Math.max(0, scale.x(start[first])), y(values[first]));
  let right = 0;
  for (let k = first; k < values.length && start[k] <= scale.t1; k += 1) {
    const x = scale.x(start[k]);
    right = scale.x(end[k]);
    top = Math.max(top, values[k]);
    if (x < column + 0.5 && right < column + 0.5 && k + 1 < values.length) continue;
    outline.lineTo(x, y(top));
    outline.lineTo(x, y(values[k]));
    outline.lineTo(right, y(values[k]));
    column = right;
    top = 0;
  }
  context.strokeStyle = color;
  context.lineWidth = 1.25;
  context.lineJoin = "round";
  context.stroke(outline);
  outline.lineTo(right, box.top + box.height);
  outline.lineTo(scale.x(start[first]), box.top + box.height);
  context.globalAlpha = 0.14;
  context.fillStyle = color;
  context.fill(outline);
  context.globalAlpha = 1;
}

/** Moments for grid lines, 1, 2 or 5 times a power of ten apart: { step, at }. Where that gives one, which tells no
 *  scale, they stand closer. */
function ticks(scale, apart = 96) {
  const rough = Math.max(1, apart / scale.perNs);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const at = [];
  for (let k = Math.ceil(scale.t0 / step); k * step <= scale.t1; k += 1) at.push(k * step);
  return at.length < 2 && apart > CLOSEST_TICKS ? ticks(scale, CLOSEST_TICKS) : { step, at };
}

/** A vertical line on whole pixels of the screen. */
function paintLine(context, left, top, bottom, color, dash = []) {
  const pixels = context.getTransform().a; // to a unit
  const width = Math.max(1, Math.round(pixels));
  const x = (Math.round(left * pixels) + width / 2) / pixels;
  context.strokeStyle = color;
  context.lineWidth = width / pixels;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.setLineDash([]);
}
