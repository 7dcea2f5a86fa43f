// Puts the page together.

class Page {
  constructor(json) {
    this.sides = json.sides.map((side, number) => new Side(side, number));
    this.palette = new Palette(this.sides);
    this.view = new View(Math.max(...this.sides.map((side) => side.step)));
    fillHead(json.title, this.sides, json.options.passes);
    fillCards(this.sides);
    this.makeStage();
    this.makeTools();
    const pick = (side, node) => this.pick(side, node);
    fillWorst(json.explanations, this.sides, pick);
    fillFigures(json.figures, this.sides);
    fillSources(this.sides);
    fillBounds(this.sides);
    fillOptions(json.options);
    fillHints(this.sides);
    fillWarnings(this.sides);
    this.table = new CollectiveTable(this.sides, pick);
    this.view.onChange(() => this.draw());
    this.watch();
  }

  makeStage() {
    const { view, palette, sides } = this;
    const most = (key) => Math.max(0, ...sides.map((side) => side.metrics[key] ?? 0));
    const scales = { live: most("peak_bytes"), flight: most("in_flight_bytes") };
    const pageScroll = new PageScroll(byId("stage"), view);
    this.tooltip = new Tooltip(palette);
    this.axis = new Axis(byId("axis"), view, palette);
    this.tracks = sides.map((side) => new Track(byId("tracks"), side, view, palette, scales));
    this.overview = new Overview(byId("overview"), this.tracks, view, palette);
    new OverviewDragging(this.overview, view);
    new Dragging(this.axis.canvas, view, pageScroll, { pans: true, onMove: (event, ns) => this.point(event, ns, null) });
    for (const track of this.tracks) {
      new Dragging(track.canvas, view, pageScroll, {
        onClick: (x, y) => this.click(track, x, y),
        onMove: (event, ns) => this.point(event, ns, track),
      });
      track.canvas.addEventListener("dblclick", (event) => this.doubleClick(track, event));
    }
  }

  makeTools() {
    const { view, sides } = this;
    this.search = new Search(byId("search"), view, sides);
    this.legend = new Legend(byId("legend"), this.tracks, view, this.palette);
    this.details = new Details(byId("details"), view, sides);
    this.address = new Address(view, sides);
    const acts = {
      "zoom-in": () => view.zoom(KEY_ZOOM),
      "zoom-out": () => view.zoom(1 / KEY_ZOOM),
      "zoom-all": () => view.reset(),
      "next-stall": () => this.step(1),
      "previous-stall": () => this.step(-1),
    };
    if (!sides.some((side) => side.stall.size)) byId("stalls").hidden = true;
    for (const [id, act] of Object.entries(acts)) byId(id).addEventListener("click", act);
    listenToKeys(view, { "/": () => this.search.focus(), n: () => this.step(1), p: () => this.step(-1) });
  }

  /** Sizes, colours and the address may change at any time. */
  watch() {
    new ResizeObserver(() => this.view.changed()).observe(byId("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette.refresh();
      this.view.changed();
    });
    this.address.read();
  }

  draw() {
    const begin = performance.now();
    const { view } = this;
    for (const part of [this.axis, ...this.tracks, this.overview, this.legend, this.details]) part.draw();
    const stretch = `${moment(view.t0, view.span / 1e4, view.t1)} to ${moment(view.t1, view.span / 1e4, view.t1)}`;
    byId("range").textContent = view.whole ? `whole step, ${duration(Math.max(...this.sides.map((side) => side.step)))}` : `${stretch} (${duration(view.span)})`;
    const record = document.documentElement.dataset;
    record.t0 = view.t0;
    record.t1 = view.t1;
    record.drawMs = Math.max(Number(record.drawMs ?? 0), performance.now() - begin).toFixed(2);
    record.draws = Number(record.draws ?? 0) + 1;
  }

  /** The pointer is over a track, over the axis (track null), or gone (event null). */
  point(event, ns, track) {
    const hit = event && track ? track.at(event.offsetX, event.offsetY) : null;
    this.view.pointer = ns;
    this.view.hover = hit ? { side: track.side, node: hit.node } : null;
    if (hit) this.tooltip.show(event, track, hit);
    else this.tooltip.hide();
    this.view.changed();
  }

  click(track, x, y) {
    const hit = track.at(x, y);
    this.view.select(hit && hit.node >= 0 ? track.side : null, hit?.node);
  }

  doubleClick(track, { offsetX, offsetY }) {
    const hit = track.at(offsetX, offsetY);
    if (hit && hit.node >= 0) showNode(this.view, track.side, hit.node);
    else this.view.reset();
  }

  /** Selects a node, zooms to it and scrolls it into sight. */
  pick(side, node) {
    this.view.select(side, node);
    showNode(this.view, side, node);
    byId("timeline").scrollIntoView({ block: "start", behavior: "smooth" });
  }

  /** To the next (1) or previous (-1) exposed wait of the side of the selection. */
  step(way) {
    const side = this.view.selected?.side ?? this.sides[this.sides.length - 1];
    const stalls = [...side.stall.keys()].sort((a, b) => a - b);
    const from = this.view.selected ? this.view.selected.node : way > 0 ? -1 : side.count;
    const next = way > 0 ? stalls.find((node) => node > from) : stalls.findLast((node) => node < from);
    if (next === undefined) return;
    this.view.select(side, next);
    showNode(this.view, side, next);
  }
}

/** What went wrong is said on the page, and kept where a test can read it. */
function fail(text) {
  const record = document.documentElement.dataset;
  record.errors = [record.errors, text].filter(Boolean).join("; ");
  byId("failure").textContent = `This page has a fault: ${record.errors}`;
  byId("failure").hidden = false;
}

window.addEventListener("error", (event) => fail(event.message));
window.addEventListener("unhandledrejection", (event) => fail(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => fail(`blocked ${event.violatedDirective}`));

const page = new Page(JSON.parse(byId("data").textContent));
const record = document.documentElement.dataset;
record.nodes = page.sides.map((side) => side.count).join(",");
record.collectives = page.sides.map((side) => side.collectives.length).join(",");
record.ready = "yes";
