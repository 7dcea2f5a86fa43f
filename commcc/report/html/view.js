// What is shown and what is selected: one state for both timelines, mirrored in the address of the page.

const NARROWEST_NS = 100;

class View {
  /** total: ns of the longer step. */
  constructor(total) {
    this.total = Math.max(total, NARROWEST_NS);
    this.t0 = 0;
    this.t1 = this.total;
    this.selected = null; // { side, node }
    this.hover = null; // { side, node, collective, x } of what is under the pointer
    this.pointer = null; // ns under the pointer
    this.dragged = null; // [ns, ns] of the stretch being dragged
    this.hidden = new Set();
    this.listeners = [];
    this.pending = false;
  }

  get span() {
    return this.t1 - this.t0;
  }

  get whole() {
    return this.t0 <= 0 && this.t1 >= this.total;
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /** Tells everybody, once for each picture. */
  changed() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      for (const listener of this.listeners) listener(this);
    });
  }

  /** Show a stretch; it is moved and cut to lie in the step. */
  show(t0, t1) {
    const span = Math.min(this.total, Math.max(NARROWEST_NS, t1 - t0));
    const middle = (t0 + t1) / 2;
    this.t0 = Math.min(Math.max(0, middle - span / 2), this.total - span);
    this.t1 = this.t0 + span;
    this.changed();
  }

  /** Zoom by a factor (below 1: closer) while the moment `at` stays where it is. */
  zoom(factor, at = (this.t0 + this.t1) / 2) {
    const span = Math.min(this.total, Math.max(NARROWEST_NS, this.span * factor));
    const left = at - ((at - this.t0) / this.span) * span;
    this.show(left, left + span);
  }

  pan(ns) {
    this.show(this.t0 + ns, this.t1 + ns);
  }

  reset() {
    this.show(0, this.total);
  }

  select(side, node) {
    this.selected = side === null ? null : { side, node };
    this.changed();
  }

  toggle(category) {
    if (!this.hidden.delete(category)) this.hidden.add(category);
    this.changed();
  }
}

/** Mirrors the view in the address: #t0=1.5&t1=20&select=mm_3&side=after, times in ms. */
class Address {
  constructor(view, sides) {
    this.view = view;
    this.sides = sides;
    this.timer = null;
    window.addEventListener("hashchange", (event) => this.read(new URL(event.newURL).hash));
    view.onChange(() => this.later());
  }

  /** The fragment may have been written over by `write` before its event arrives, so it comes with the event. */
  read(fragment = location.hash) {
    const wanted = new URLSearchParams(fragment.slice(1));
    const [t0, t1] = ["t0", "t1"].map((key) => Number.parseFloat(wanted.get(key)) * 1e6);
    if (t1 > t0) this.view.show(t0, t1);
    if (!wanted.has("select")) return;
    const found = findNode(this.sides, wanted.get("select"), wanted.get("side"));
    if (!found) return;
    this.view.select(found.side, found.node);
    if (!(t1 > t0)) showNode(this.view, found.side, found.node);
  }

  /** Soon, not on every picture of a gesture. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), 150);
  }

  write() {
    const { view } = this;
    const parts = new URLSearchParams();
    if (!view.whole) {
      parts.set("t0", shortMs(view.t0));
      parts.set("t1", shortMs(view.t1));
    }
    if (view.selected) {
      const { side, node } = view.selected;
      parts.set("select", side.name[node]);
      if (this.sides.length > 1) parts.set("side", side.label);
    }
    const wanted = parts.size ? `#${parts}` : "";
    if (wanted === location.hash || (!wanted && !ownHash())) return;
    history.replaceState(null, "", wanted || location.pathname + location.search);
  }
}

/** Whether the address points into the timeline, and not at a part of the page. */
function ownHash() {
  return /(^#|&)(t0|select)=/.test(location.hash);
}

function shortMs(ns) {
  return String(Number((ns / 1e6).toFixed(6)));
}

/** A node by name, in the side of that label if it is there, else in the last that has it. */
function findNode(sides, name, label = null) {
  const named = sides.filter((side) => side.byName.has(name));
  const side = named.find((each) => each.label === label) ?? named[named.length - 1];
  return side ? { side, node: side.byName.get(name) } : null;
}

/** Zooms to a node; to the whole way from launch to wait for a collective. */
function showNode(view, side, node) {
  const collective = side.collectiveOf.get(node);
  const marks = [side.start[node], side.end[node]];
  if (collective) {
    marks.push(collective.queued, collective.start, collective.end);
    for (const wait of collective.waits) marks.push(side.start[wait], side.end[wait]);
  }
  const [first, last] = [Math.min(...marks), Math.max(...marks)];
  const margin = Math.max((last - first) * 0.25, collective ? 5e3 : 20 * (last - first), 5e3);
  view.show(first - margin, last + margin);
}
