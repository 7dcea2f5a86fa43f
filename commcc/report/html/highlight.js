// What is drawn over a timeline: markers, the node under the pointer, and the selection with what it depends on.

/** The lower bound, the end of the step and the peaks of memory. */
function paintMarkers(context, track, scale) {
  const { side, palette, surface } = track;
  const bound = { x: scale.x(side.bound.ns), text: `lower bound ${duration(side.bound.ns)}`, color: palette.ink, dash: [4, 3] };
  const end = { x: scale.x(side.step), text: `end ${duration(side.step)}`, color: palette.muted, dash: [] };
  context.font = palette.font;
  for (const mark of [bound, end]) {
    mark.seen = mark.x >= 0 && mark.x <= surface.width + 1;
    if (mark.seen) paintLine(context, Math.min(mark.x, surface.width - 1), 4, surface.height, mark.color, mark.dash);
  }
  if (!track.view.dragged) placeMarkLabels(track.strip, bound, end);
  for (const row of track.rows) if (row.curve) paintPeak(context, track, row, scale);
}

/** The labels in the strip over the rows: each takes the first of its places that is free, or none. */
class Strip {
  constructor(context, width, font) {
    Object.assign(this, { context, width, font, taken: [] });
  }

  /** places: [x, "left" or "right" of it]. Returns where the label begins, null when it has no place. */
  put(text, color, ...places) {
    const { context } = this;
    context.font = this.font;
    const length = context.measureText(text).width;
    const spans = places.map(([x, way]) => (way === "left" ? [x - length, x] : [x, x + length]));
    const free = ([left, right]) => left >= 0 && right <= this.width && this.taken.every(([a, b]) => right < a || left > b);
    const found = spans.find(free);
    if (!found) return null;
    this.taken.push([found[0] - 8, found[1] + 8]);
    context.clearRect(found[0] - 3, 0, length + 6, MARKER_STRIP); // no line crosses a label
    context.fillStyle = color;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, found[0], MARKER_STRIP / 2 + 1);
    return found[0];
  }
}

/** The end is named beside its line; the bound beside its own, or before the name of the end. */
function placeMarkLabels(strip, bound, end) {
  const begin = end.seen ? strip.put(end.text, end.color, [end.x + 6, "right"], [end.x - 6, "left"]) : null;
  if (!bound.seen) return;
  const beforeEnd = [(begin ?? strip.width) - 12, "left"];
  strip.put(bound.text, bound.color, [bound.x - 6, "left"], [bound.x + 6, "right"], beforeEnd);
}

/** A dot with the bytes at the highest point of a curve. */
function paintPeak(context, track, row, scale) {
  const { side, palette, surface } = track;
  row.peak ??= row.type === "live" && side.peak !== null ? side.peak : highestOf(row.curve.values);
  if (row.peak < 0 || !row.highest) return;
  const x = scale.x(row.curve.start[row.peak]);
  if (x < 0 || x > surface.width) return;
  const value = row.curve.values[row.peak];
  const y = curveY(value, row.highest, row.box);
  context.fillStyle = palette.paper;
  context.strokeStyle = row.type === "live" ? palette.memory : palette.accent;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(Math.min(Math.max(4, x), surface.width - 4), y, 3, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  const text = `peak ${leastBytes(value, side.unknown)}`;
  context.font = palette.font;
  const end = scale.x(side.step);
  const length = context.measureText(text).width + 12;
  const behind = (x < end && end < surface.width ? end : surface.width) - x > length;
  // Rather beyond the end of the step than cut off at the left.
  const right = behind || (x < length && surface.width - x > length);
  context.fillStyle = palette.ink;
  context.textBaseline = "middle";
  context.textAlign = right ? "left" : "right";
  // Lines that cross it are drawn already.
  context.strokeStyle = palette.paper;
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeText(text, right ? x + 7 : x - 7, y - 7);
  context.fillText(text, right ? x + 7 : x - 7, y - 7);
}

function highestOf(values) {
  let best = -1;
  for (let node = 0; node < values.length; node += 1) if (best < 0 || values[node] > values[best]) best = node;
  return best;
}

/** The selection on this side, its counterparts on the other, and the span under the pointer. */
function paintHighlights(context, track, scale) {
  const { view, side } = track;
  if (view.selected) {
    const { side: chosen, node } = view.selected;
    const own = chosen === side;
    const nodes = own ? [node] : side.counterparts(chosen, node);
    for (const each of nodes) paintSelected(context, track, each, scale, own);
  }
  if (view.hover?.side === side && view.hover.node >= 0) outlineNode(context, track, view.hover.node, scale, track.palette.ink, 1);
}

function paintSelected(context, track, node, scale, own) {
  const { side, palette } = track;
  const collective = side.collectiveOf.get(node);
  if (!collective) {
    outlineNode(context, track, node, scale, palette.accent, 2);
    return;
  }
  for (const part of [collective.node, ...collective.waits]) outlineNode(context, track, part, scale, palette.accent, 2);
  if (own) paintFlow(context, track, collective, scale);
}

/** Outlines a node on the compute row and, for a launch, its span in its lane. */
function outlineNode(context, track, node, scale, color, width) {
  const { side, rows } = track;
  outline(context, rows[0].box, scale, side.start[node], side.end[node], color, width);
  const collective = side.collectiveOf.get(node);
  const row = collective && rowOf(track, collective);
  if (row && collective.node === node) outline(context, row.box, scale, collective.start, collective.end, color, width);
}

function outline(context, box, scale, start, end, color, width) {
  const left = scale.x(start);
  const right = Math.max(left + 2, scale.x(end));
  if (right < -5 || left > scale.width + 5) return;
  context.strokeStyle = color;
  context.lineWidth = width;
  context.strokeRect(Math.max(-4, left) - 0.5, box.top - 1.5, Math.min(scale.width + 4, right) - Math.max(-4, left) + 1, box.height + 3);
}

/** The row in which a collective ran; found once. */
function rowOf(track, collective) {
  track.laneRows ??= new Map();
  if (!track.laneRows.has(collective)) {
    const number = track.side.collectives.indexOf(collective);
    const row = track.rows.find((each) => each.type === "lane" && each.spans.item.includes(number));
    track.laneRows.set(collective, row ?? null);
  }
  return track.laneRows.get(collective);
}

/** Under the rows: from where the selected collective could be launched to where its result is needed. */
function paintReach(context, track, scale) {
  const { selected } = track.view;
  const collective = selected?.side === track.side && track.side.collectiveOf.get(selected.node);
  if (!collective) return;
  const { side, palette, rows, surface } = track;
  const from = collective.ready === null ? 0 : side.end[collective.ready];
  const until = collective.needed === null ? side.finish : side.start[collective.needed];
  const row = rowOf(track, collective) ?? rows[0];
  const [left, right] = [Math.max(0, scale.x(from)), Math.min(surface.width, scale.x(Math.max(until, collective.end)))];
  if (right < left) return;
  context.fillStyle = palette.accentWash;
  context.fillRect(left, rows[0].box.top - 5, right - left, row.box.top + row.box.height + 10 - rows[0].box.top);
  paintReachLabel(context, "ready", scale.x(from), track, "left");
  paintReachLabel(context, "needed", scale.x(until), track, "right");
}

function paintReachLabel(context, text, x, { palette, rows, surface, strip }, way) {
  if (x < 0 || x > surface.width) return;
  const below = rows[0].box.top + rows[0].box.height;
  paintLine(context, x, rows[0].box.top - 5, below + 5, palette.accent);
  const places = [[x - 4, "left"], [x + 4, "right"]];
  strip.put(text, palette.accent, ...(way === "left" ? places : places.reverse()));
}

/** From the launch to the span in its lane, and from its end to the wait. */
function paintFlow(context, track, collective, scale) {
  const row = rowOf(track, collective);
  if (!row) return;
  const compute = track.rows[0].box.top + track.rows[0].box.height;
  const middle = row.box.top;
  context.strokeStyle = track.palette.accent;
  context.lineWidth = 1.5;
  context.beginPath();
  curve(context, scale.x(collective.queued), compute + 1, scale.x(collective.start), middle - 1);
  for (const wait of collective.waits) {
    curve(context, scale.x(collective.end), middle - 1, scale.x(track.side.end[wait]), compute + 1);
  }
  context.stroke();
}

function curve(context, x0, y0, x1, y1) {
  const half = (y0 + y1) / 2;
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0, half, x1, half, x1, y1);
}

/** The stretch that is being dragged, with its length. */
function paintStretch(context, [from, to], scale, height, palette) {
  const [left, right] = [scale.x(Math.min(from, to)), scale.x(Math.max(from, to))];
  context.fillStyle = palette.accentWash;
  context.fillRect(left, 0, right - left, height);
  paintLine(context, left, 0, height, palette.accent);
  paintLine(context, right, 0, height, palette.accent);
  context.font = palette.font;
  context.fillStyle = palette.accent;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(duration(Math.abs(to - from)), (left + right) / 2, MARKER_STRIP / 2 + 1);
}
