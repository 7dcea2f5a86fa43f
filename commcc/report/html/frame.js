// What pages of tables share: cards, what is said where nothing is drawn, faults that a test can read.

/** A card of a figure; before: its value before, for the change. better: -1 less is, 1 more is, 0 neither. */
function figureCard({ key, label, value, before = null, text = grouped, better = 0, note = null, tone = null }) {
  const parts = [make("div", { class: "card-label" }, label), make("div", { class: tone ? `card-value ${tone}` : "card-value" }, text(value))];
  if (before !== null) {
    parts.push(make("div", { class: "card-change" }, changeBadge(before, value, better), " ", make("span", {}, `from ${text(before)}`)));
  }
  if (note !== null) parts.push(make("div", { class: "card-change" }, note));
  return make("article", { class: "card", "data-key": key }, ...parts);
}

/** Buttons of which each hides or shows something: [key, label] pairs; change(hidden) is told the keys that are off. */
function toggles(pairs, change) {
  const hidden = new Set();
  return pairs.map(([key, label]) => {
    const press = (event) => {
      if (!hidden.delete(key)) hidden.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(key)));
      change(hidden);
    };
    return make("button", { type: "button", class: "toggle", "aria-pressed": "true", "data-key": key, click: press }, label);
  });
}

/** A field that filters; show(words) gets what is in it, in lower case. */
function filterField(placeholder, show) {
  const attributes = { type: "search", placeholder, "aria-label": placeholder, autocomplete: "off", spellcheck: "false" };
  const words = (event) => event.currentTarget.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  return make("div", { class: "search" }, make("input", { ...attributes, input: (event) => show(words(event)) }));
}

function hasWords(text, words) {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}

/** "cost model h100-sxm 6f5d13d3f533", or that there is none. */
function modelLine(model) {
  if (!model) return [make("span", {}, "without a cost model")];
  return ["cost model ", make("b", {}, model.name), " ", make("code", { title: "hash of the cost model" }, model.hash)];
}

/** The last part of a path. */
function baseName(path) {
  return path.split("/").filter(Boolean).at(-1) ?? path;
}

/** Files by the last parts of their paths, as few as tell them apart. */
function shortNames(paths) {
  const parts = paths.map((path) => path.split("/").filter(Boolean));
  const cut = (depth) => parts.map((each) => each.slice(-depth).join("/"));
  const most = Math.max(1, ...parts.map((each) => each.length));
  let depth = 1;
  while (depth < most && new Set(cut(depth)).size < new Set(paths).size) depth += 1;
  return cut(depth).map((name, place) => name || paths[place]);
}

/** What went wrong is said on the page, and kept where a test can read it. */
function faulty(text) {
  const record = document.documentElement.dataset;
  record.errors = [record.errors, text].filter(Boolean).join("; ");
  byId("failure").textContent = `This page has a fault: ${record.errors}`;
  byId("failure").hidden = false;
}

/** Draws the page from its data. */
function begin(draw) {
  window.addEventListener("error", (event) => faulty(event.message));
  document.addEventListener("securitypolicyviolation", (event) => faulty(`blocked ${event.violatedDirective}`));
  draw(JSON.parse(byId("data").textContent));
  document.documentElement.dataset.ready = "yes";
  document.documentElement.dataset.draws = "1";
}
