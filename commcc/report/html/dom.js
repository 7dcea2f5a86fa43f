// Making elements. Text goes in as text nodes, never as markup: it may come from a file.

/** An element; attributes that are functions become listeners, children that are not nodes become text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The parts of a file's name, which lines may break behind "/", "_" and "." rather than anywhere. */
function breakable(name) {
  return name.split(/(?<=[/_.])/).flatMap((part) => [part, make("wbr")]);
}

function byId(id) {
  return document.getElementById(id);
}

/** A button that looks like a link and selects a node. */
function link(text, act, about = null) {
  return make("button", { type: "button", class: "link", title: about, click: act }, text);
}

/** CSS pixels to a unit of a picture: 1, or more where the style makes everything larger. */
function unitSize() {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 10 || 1;
}

/** A canvas that keeps the size of its box, in pixels of the screen; sizes are in units. */
class Surface {
  constructor(parent, height, label) {
    this.canvas = make("canvas", { role: "img", "aria-label": label });
    this.canvas.style.height = `${height / 10}rem`;
    this.height = height;
    this.width = 0;
    this.unit = 1;
    parent.append(this.canvas);
  }

  /** A context with an empty picture. */
  begin() {
    const pixels = window.devicePixelRatio || 1;
    this.unit = unitSize();
    const ratio = pixels * this.unit;
    const width = this.canvas.clientWidth / this.unit;
    const size = [Math.max(1, Math.round(width * ratio)), Math.round(this.height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) [this.canvas.width, this.canvas.height] = size;
    this.width = width;
    this.pixel = 1 / ratio;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.height);
    return context;
  }
}

/** How a figure changed, in green or red where that means something: better -1 when less is, 1 when more is, 0 when neither. */
function changeBadge(before, after, better, isShare = false) {
  const text = change(before, after, isShare);
  const slight = /^.0\.0/.test(text);
  const way = slight || before === null || after === null ? 0 : Math.sign(after - before) * better;
  return make("span", { class: `badge ${way > 0 ? "good" : way < 0 ? "bad" : "even"}` }, text === "=" ? "unchanged" : text);
}
