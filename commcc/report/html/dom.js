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

function byId(id) {
  return document.getElementById(id);
}

/** A button that looks like a link and selects a node. */
function link(text, act, about = null) {
  return make("button", { type: "button", class: "link", title: about, click: act }, text);
}

/** A canvas that keeps the size of its box, in pixels of the screen. */
class Surface {
  constructor(parent, height, label) {
    this.canvas = make("canvas", { role: "img", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    this.height = height;
    this.width = 0;
    parent.append(this.canvas);
  }

  /** A context with an empty picture, one unit to the CSS pixel. */
  begin() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const pixels = [Math.max(1, Math.round(width * ratio)), Math.round(this.height * ratio)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) [this.canvas.width, this.canvas.height] = pixels;
    this.width = width;
    this.pixel = 1 / ratio;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.height);
    return context;
  }
}
