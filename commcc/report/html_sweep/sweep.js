// The page of a sweep: a plot of all settings, what each value allows, and a table.

const MARGIN = { left: 92, right: 44, top: 20, bottom: 52 };
/** Equal settings that are listed by name. */
const MOST_EQUAL = 8;
/** What a label below the plot takes, with the gap to the next one. */
const TICK_WIDTH = 60;

/** The figures of a setting: key, label, value from metrics, text. Less is better in all of them. */
function figuresOf(data) {
  const ms = (value) => duration(value * 1e6);
  const figures = [
    { key: "step", label: "step time", value: (m) => m.step_ms, text: ms },
    { key: "exposed", label: "exposed communication", value: (m) => m.exposed_ms, text: ms },
    { key: "peak", label: "peak memory", value: (m) => m.peak_bytes, text: bytes },
    { key: "in-flight", label: "in flight", value: (m) => m.in_flight_bytes, text: bytes },
    { key: "launches", label: "launches", value: (m) => sum(Object.values(m.collectives)), text: grouped },
  ];
  const kind = data.max_consecutive_of;
  if (kind) {
    const about = `most compute nodes in a row without a ${spelled(kind)}`;
    figures.push({ key: "consecutive", label: "max consecutive", about, value: (m) => m.max_consecutive_compute[kind], text: grouped });
  }
  return figures;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** An element of a picture. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** From a stretch of values to a stretch of the picture, with round places for ticks. */
class Scale {
  constructor(values, from, to) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    // A stretch of at least 2 % of the value, so that a difference of nothing does not look like one.
    const room = Math.max((high - low) * 0.06, (Math.abs(high) * 0.02 - (high - low)) / 2) || 1;
    [this.low, this.high, this.from, this.to] = [low - room, high + room, from, to];
  }

  at(value) {
    return this.from + ((value - this.low) / (this.high - this.low)) * (this.to - this.from);
  }

  /** A few round values, `most` of them at most. `binary`: round in powers of two, for bytes. */
  ticks(binary, most = 7) {
    const span = this.high - this.low;
    const base = binary ? 2 : 10;
    let step = base ** Math.floor(Math.log(span / 5) / Math.log(base));
    for (const times of binary ? [1, 2, 4, 8] : [1, 2, 5, 10, 20, 50]) {
      if (span / (step * times) <= most) {
        step *= times;
        break;
      }
    }
    this.step = step;
    const found = [];
    for (let k = Math.ceil(this.low / step); k * step <= this.high; k += 1) found.push(k * step);
    return found;
  }
}

/** Labels of ticks: with the digits that tell one from the next. */
function tickText(figure, scale, value) {
  if (figure.text !== bytes) return figure.key === "step" || figure.key === "exposed" ? moment(value * 1e6, scale.step * 1e6, scale.high * 1e6) : plain(value);
  const power = Math.max(0, Math.min(SIZE_UNITS.length - 1, Math.floor(Math.log2(Math.max(1, scale.high)) / 10)));
  const share = scale.step / 1024 ** power;
  const places = [0, 1, 2].find((digits) => Number.isInteger(share * 10 ** digits)) ?? 3;
  return `${grouped(value / 1024 ** power, places)}${GAP}${SIZE_UNITS[power]}`;
}

/** Positions of the points that no other is at most equal to on both axes and below on one. */
function frontOf(points) {
  const ordered = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const front = [];
  for (const point of ordered) if (!front.length || point.y < front.at(-1).y) front.push(point);
  return front;
}

class SweepPage {
  constructor(data) {
    this.data = data;
    this.figures = figuresOf(data);
    this.settings = data.settings.map((setting, number) => ({ ...setting, number })).filter((setting) => !setting.error);
    this.results = this.distinct();
    this.axes = this.tellingAxes();
    this.selected = null;
    this.withBefore = false;
    this.tooltip = make("div", { class: "tooltip", hidden: true });
    document.body.append(this.tooltip);
  }

  /** The first of the settings that give the same, with all of them. The best is the first of its own. */
  distinct() {
    const groups = new Map();
    for (const setting of this.settings) {
      const first = setting.same_as ?? setting.number;
      groups.set(first, [...(groups.get(first) ?? []), setting]);
    }
    return [...groups.values()].map((members) => {
      const distinct = this.data.parameters.map((_, k) => [...new Set(members.map((member) => member.values[k]))]);
      // All values where the settings are every combination of them, else those of the first.
      const whole = distinct.reduce((product, values) => product * values.length, 1) === members.length;
      const values = whole ? distinct.map((values) => values.join(" | ")) : members[0].values;
      return { ...members[0], members, values, whole };
    });
  }

  varies(figure) {
    return new Set(this.results.map((result) => figure.value(result.metrics))).size > 1;
  }

  /** What tells the results apart: step time if it does, then memory, then the others in this order. */
  tellingAxes() {
    const order = ["step", "peak", "consecutive", "exposed", "in-flight", "launches"];
    const known = order.map((key) => this.figures.find((figure) => figure.key === key)).filter(Boolean);
    const telling = [...known.filter((figure) => this.varies(figure)), ...known.filter((figure) => !this.varies(figure))];
    return { x: telling[0], y: telling[1], colour: telling[2] };
  }

  show() {
    byId("title").append(make("span", { title: this.data.input }, this.data.input.split("/").at(-1)));
    const results = this.results.length < this.settings.length ? `, ${plural(this.results.length, "different result")}` : "";
    byId("subtitle").textContent = `${this.data.pipeline}, ${plural(this.data.settings.length, "setting")}${results}`;
    byId("model").textContent = `Times are simulated with ${this.data.cost_model.name}, hash ${this.data.cost_model.hash}.`;
    byId("best-yaml").textContent = this.data.best_yaml ?? "no setting could be run";
    this.showCards();
    this.showTools();
    this.showEffects();
    this.showFailed();
    this.table = new SortableTable(byId("settings-table"), this.columns(), 200);
    this.table.show(this.results);
    this.select(this.data.best);
  }

  showCards() {
    if (this.data.best === null) return;
    const metrics = this.data.settings[this.data.best].metrics;
    for (const figure of this.figures) {
      const [old, now] = [figure.value(this.data.before), figure.value(metrics)];
      byId("cards").append(
        make("div", { class: "card", "data-key": figure.key, title: figure.about },
          make("div", { class: "card-label" }, figure.label),
          make("div", { class: "card-value" }, figure.text(now)),
          make("div", { class: "card-change" }, changeBadge(old, now, -1), " from ", figure.text(old))),
      );
    }
  }

  showTools() {
    const labels = { x: "across", y: "up", colour: "colour" };
    for (const [axis, label] of Object.entries(labels)) {
      const options = this.figures.map((figure) => {
        const text = this.varies(figure) ? figure.label : `${figure.label} (equal)`;
        return make("option", { value: figure.key, selected: figure === this.axes[axis] }, text);
      });
      const pick = (event) => {
        this.axes[axis] = this.figures.find((figure) => figure.key === event.target.value);
        this.drawPlot();
      };
      byId("tools").append(make("label", {}, label, make("select", { id: `axis-${axis}`, change: pick }, ...options)));
    }
    const toggle = (event) => {
      this.withBefore = !this.withBefore;
      event.target.setAttribute("aria-pressed", this.withBefore);
      this.drawPlot();
    };
    const button = make("button", { type: "button", id: "with-before", "aria-pressed": "false", click: toggle }, "Show the input graph");
    byId("tools").append(make("div", { class: "buttons" }, button));
  }

  /** Column of the table of settings: the number selects. */
  columns() {
    const number = (row) => {
      const current = row.number === this.selected ? "true" : null;
      const button = make("button", { type: "button", class: "link", "aria-current": current, click: () => this.select(row.number) }, String(row.number));
      const more = row.members.length - 1;
      return more ? make("span", {}, button, make("span", { class: "about" }, ` and ${grouped(more)} equal`)) : button;
    };
    const marks = (row) => (row.number === this.data.best ? "best" : row.front ? "front" : "");
    return [
      { label: "#", value: (row) => row.number, cell: number },
      { label: "", value: marks },
      ...this.data.parameters.map((parameter, k) => ({ label: parameter.name, value: (row) => row.values[k] })),
      ...this.figures.map((figure) => ({ label: figure.label, number: true, value: (row) => figure.value(row.metrics), text: (row) => figure.text(figure.value(row.metrics)) })),
    ];
  }

  showEffects() {
    const rows = this.data.parameters.flatMap((parameter, k) =>
      parameter.values.map((value) => ({ name: parameter.name, value, of: this.settings.filter((setting) => setting.values[k] === value) })));
    const best = (figure) => (row) => Math.min(...row.of.map((setting) => figure.value(setting.metrics)));
    const figures = this.figures.map((figure) => ({
      label: figure.label, number: true, value: best(figure),
      text: (row) => (row.of.length ? figure.text(best(figure)(row)) : MISSING),
    }));
    const columns = [{ label: "parameter", value: (row) => row.name }, { label: "value", value: (row) => row.value }, ...figures];
    byId("effects-table").append(makeTable(columns, rows));
  }

  showFailed() {
    const failed = this.data.settings.filter((setting) => setting.error);
    byId("failed").hidden = !failed.length;
    byId("failed-list").append(...failed.map((setting) => make("li", {}, `${setting.pipeline}: ${setting.error}`)));
  }

  drawPlot() {
    const unit = unitSize();
    if (this.results.length === 1) {
      byId("plot").replaceChildren(make("p", { class: "notice even" }, `All ${plural(this.settings.length, "setting")} give the same result: there is nothing to choose between.`));
      this.drawn();
      return;
    }
    const [width, height] = [byId("plot").clientWidth / unit, byId("plot").clientHeight / unit];
    const { x, y, colour } = this.axes;
    const points = this.results.map((setting) => ({ setting, x: x.value(setting.metrics), y: y.value(setting.metrics) }));
    const before = this.withBefore ? [{ x: x.value(this.data.before), y: y.value(this.data.before) }] : [];
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${plural(points.length, "result")}: ${y.label} over ${x.label}` });
    if (points.length) {
      const across = new Scale([...points, ...before].map((point) => point.x), MARGIN.left, width - MARGIN.right);
      const up = new Scale([...points, ...before].map((point) => point.y), height - MARGIN.bottom, MARGIN.top);
      picture.append(...this.axisLines(across, up, width, height));
      const front = frontOf(points);
      const steps = front.flatMap((point, k) => [...(k ? [[point.x, front[k - 1].y]] : []), [point.x, point.y]]);
      const corners = steps.map(([a, b]) => `${across.at(a)},${up.at(b)}`);
      picture.append(draw("polyline", { class: "front", points: corners.join(" ") }));
      for (const point of before) picture.append(draw("rect", { class: "before", x: across.at(point.x) - 5, y: up.at(point.y) - 5, width: 10, height: 10 }));
      const shades = new Scale(points.map((point) => colour.value(point.setting.metrics)), 0, 1);
      for (const point of points) picture.append(this.mark(point, across, up, shades));
    }
    byId("plot").replaceChildren(picture);
    this.showLegend();
    this.drawn();
  }

  drawn() {
    document.documentElement.dataset.draws = Number(document.documentElement.dataset.draws ?? 0) + 1;
  }

  axisLines(across, up, width, height) {
    const { x, y } = this.axes;
    const parts = [];
    const most = Math.max(2, Math.min(7, Math.floor((across.to - across.from) / TICK_WIDTH)));
    for (const value of across.ticks(x.text === bytes, most)) {
      const at = across.at(value);
      parts.push(draw("line", { class: "grid", x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom }));
      parts.push(draw("text", { x: at, y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, tickText(x, across, value)));
    }
    for (const value of up.ticks(y.text === bytes)) {
      const at = up.at(value);
      parts.push(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
      parts.push(draw("text", { x: MARGIN.left - 10, y: at + 4, "text-anchor": "end" }, tickText(y, up, value)));
    }
    parts.push(draw("text", { class: "axis-name", x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 8, "text-anchor": "middle" }, x.label));
    const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
    parts.push(draw("text", { class: "axis-name", x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, y.label));
    return parts;
  }

  mark(point, across, up, shades) {
    const { setting } = point;
    const names = ["point"];
    if (setting.front) names.push("on-front");
    if (setting.number === this.data.best) names.push("best");
    if (setting.number === this.selected) names.push("selected");
    const choose = () => this.select(setting.number);
    const mark = draw("circle", {
      class: names.join(" "), cx: across.at(point.x), cy: up.at(point.y), r: setting.number === this.data.best ? 8 : 6,
      tabindex: 0, role: "button", "data-number": setting.number, "aria-label": this.inWords(setting),
      click: choose,
      keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } },
      pointerenter: (event) => this.hover(setting, event),
      pointerleave: () => { this.tooltip.hidden = true; },
    });
    mark.style.setProperty("--point", shade(shades.at(this.axes.colour.value(setting.metrics))));
    return mark;
  }

  showLegend() {
    const values = this.settings.map((setting) => this.axes.colour.value(setting.metrics));
    if (!values.length) return;
    const { label, text } = this.axes.colour;
    if (!this.varies(this.axes.colour)) {
      byId("legend").replaceChildren(`${label}: ${text(values[0])} with every setting`);
      return;
    }
    const ramp = make("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(to right, ${shade(0)}, ${shade(0.5)}, ${shade(1)})`;
    byId("legend").replaceChildren(`${label}: `, text(Math.min(...values)), ramp, text(Math.max(...values)));
  }

  inWords(setting) {
    return this.data.parameters.map((parameter, k) => `${parameter.name}=${setting.values[k]}`).join(", ");
  }

  facts(setting) {
    return this.figures.map((figure) => make("div", {}, make("dt", {}, figure.label), make("dd", {}, figure.text(figure.value(setting.metrics)))));
  }

  hover(setting, event) {
    this.tooltip.replaceChildren(make("div", { class: "tooltip-title" }, this.inWords(setting)), make("dl", { class: "facts" }, ...this.facts(setting)));
    this.tooltip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tooltip;
    this.tooltip.style.left = `${Math.max(8, Math.min(event.clientX + 16, innerWidth - offsetWidth - 8))}px`;
    this.tooltip.style.top = `${Math.max(8, Math.min(event.clientY + 16, innerHeight - offsetHeight - 8))}px`;
  }

  /** The other settings that give the same. */
  equals({ number, members }) {
    const others = members.filter((member) => member.number !== number).slice(0, MOST_EQUAL);
    const more = members.length - 1 - others.length;
    const items = others.map((member) => make("li", {}, this.inWords(member)));
    if (more) items.push(make("li", {}, `and ${grouped(more)} more`));
    return make("div", { class: "equals" }, make("p", { class: "lead" }, `${plural(members.length - 1, "other setting")} with the same result:`), make("ul", {}, ...items));
  }

  select(number) {
    this.selected = number;
    const setting = this.results.find((each) => each.number === number);
    if (setting) {
      const chip = number === this.data.best ? "best" : setting.front ? "on the front" : `setting ${number}`;
      byId("details").replaceChildren(
        make("div", { class: "details-head" }, make("span", { class: "chip" }, chip), make("h3", {}, this.inWords(setting))),
        make("dl", { class: "facts" }, ...this.facts(setting)),
        make("pre", { class: "code", id: "command" }, `commcc run ${this.data.input} --passes '${setting.pipeline}'`),
        setting.whole ? "" : this.equals(setting),
      );
    }
    document.documentElement.dataset.selected = number ?? "";
    this.table.draw();
    this.drawPlot();
  }
}

/** A colour between calm and loud, for a share from 0 to 1. */
function shade(share) {
  const within = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
  return `color-mix(in oklab, var(--reduce-scatter-1) ${Math.round(100 * (1 - within))}%, var(--exposed))`;
}

function main() {
  const page = new SweepPage(JSON.parse(byId("data").textContent));
  page.show();
  addEventListener("resize", () => page.drawPlot());
  document.documentElement.dataset.ready = "yes";
}

try {
  main();
} catch (error) {
  document.documentElement.dataset.errors = String(error.stack ?? error);
  byId("failure").textContent = `This page could not be drawn: ${error.message}`;
  byId("failure").hidden = false;
}
