// Wheel, pointer and keys.

const CLICK_REACH = 4; // pixels that a pointer may move in a click
const SCROLL_PAUSE = 250; // ms after which a wheel over a timeline means zooming, not scrolling the page on
const WHEEL_ZOOM = 1.0016;
const KEY_ZOOM = 0.6;
const KEY_PAN = 0.2;

/** Makes a canvas whose width is the shown stretch answer to wheel and drag; onClick(x, y) for a click. */
class Dragging {
  constructor(canvas, view, pageScroll, { onClick = null, onMove = null, pans = false }) {
    Object.assign(this, { canvas, view, pageScroll, onClick, onMove, pans });
    this.from = null;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => this.cancel());
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  scale() {
    return new Scale(this.view, this.canvas.clientWidth);
  }

  down(event) {
    if (event.button > 1) return;
    this.canvas.setPointerCapture(event.pointerId);
    const pan = this.pans || event.shiftKey || event.button === 1 || event.pointerType === "touch";
    this.from = { x: event.offsetX, ns: this.scale().ns(event.offsetX), pan, moved: false };
  }

  move(event) {
    const { view, from } = this;
    const ns = this.scale().ns(event.offsetX);
    if (!from) {
      this.onMove?.(event, ns);
      return;
    }
    from.moved ||= Math.abs(event.offsetX - from.x) > CLICK_REACH;
    if (!from.moved) return;
    if (from.pan) view.pan(from.ns - ns);
    else view.dragged = [from.ns, ns];
    view.changed();
  }

  up(event) {
    const { view, from } = this;
    const stretch = view.dragged;
    this.cancel();
    if (from && !from.moved) this.onClick?.(event.offsetX, event.offsetY);
    else if (from && stretch) view.show(Math.min(...stretch), Math.max(...stretch));
  }

  cancel() {
    this.from = null;
    this.view.dragged = null;
    this.view.changed();
  }

  leave() {
    if (!this.from) this.onMove?.(null, null);
  }

  wheel(event) {
    const { view } = this;
    if (this.pageScroll.owns(event)) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? 16 : 1;
    const [dx, dy] = event.shiftKey ? [event.deltaX + event.deltaY, 0] : [event.deltaX, event.deltaY];
    const scale = this.scale();
    if (Math.abs(dx) > Math.abs(dy)) view.pan((dx * pixels) / scale.perNs);
    else view.zoom(WHEEL_ZOOM ** (dy * pixels), scale.ns(event.offsetX));
  }
}

/** Tells wheels that scroll the page from those that zoom: one that began outside the stage goes on scrolling. */
class PageScroll {
  constructor(stage, view) {
    this.view = view;
    this.last = Number.NEGATIVE_INFINITY;
    const watch = (event) => {
      if (!stage.contains(event.target)) this.last = event.timeStamp;
    };
    document.addEventListener("wheel", watch, { passive: true });
  }

  /** Whether the page is being scrolled, or nothing is left to zoom out of. */
  owns(event) {
    const goesOn = event.timeStamp - this.last < SCROLL_PAUSE;
    const nothing = this.view.whole && event.deltaY > 0 && event.deltaY >= Math.abs(event.deltaX);
    if (event.ctrlKey || !(goesOn || nothing)) return false;
    this.last = event.timeStamp;
    return true;
  }
}

/** Drags the stretch that is shown along the overview. */
class OverviewDragging {
  constructor(overview, view) {
    const { canvas } = overview;
    let grip = null;
    const ns = (event) => overview.scale().ns(event.offsetX / overview.surface.unit);
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const at = ns(event);
      grip = at >= view.t0 && at <= view.t1 && !view.whole ? at - view.t0 : view.span / 2;
      view.show(at - grip, at - grip + view.span);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (grip !== null) view.show(ns(event) - grip, ns(event) - grip + view.span);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (grip = null));
  }
}

/** Keys, unless something is being typed. */
function listenToKeys(view, actions) {
  const keys = {
    ArrowLeft: () => view.pan(-KEY_PAN * view.span),
    ArrowRight: () => view.pan(KEY_PAN * view.span),
    "+": () => view.zoom(KEY_ZOOM),
    "=": () => view.zoom(KEY_ZOOM),
    "-": () => view.zoom(1 / KEY_ZOOM),
    0: () => view.reset(),
    Escape: () => view.select(null),
    ...actions,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea") || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}
