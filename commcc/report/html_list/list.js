// The page of several graphs: what each takes, and a link to its own page.

const MOST_ROWS = 100;

function launches(metrics) {
  return Object.values(metrics.collectives).reduce((sum, number) => sum + number, 0);
}

/** "290 all-gather, 291 reduce-scatter" */
function kinds(metrics) {
  return Object.entries(metrics.collectives).filter(([, number]) => number).map(([kind, number]) => `${grouped(number)} ${spelled(kind)}`).join(", ");
}

/** A bar as long as the step, the exposed part of it red. */
function barOf(metrics, longest) {
  const part = (share, name) => {
    const bar = make("i", { class: name });
    bar.style.width = `${100 * share}%`;
    return bar;
  };
  const { step_ms: step, exposed_ms: exposed } = metrics;
  const box = make("div", { class: "stacked" });
  if (longest) box.append(part((step - exposed) / longest, "busy"), part(exposed / longest, "exposed"));
  return box;
}

function showCards(rows) {
  const time = (value) => duration(value * 1e6);
  const named = (row) => make("div", {}, ...breakable(row.name));
  const most = (key) => rows.reduce((a, b) => (b.metrics[key] > a.metrics[key] ? b : a));
  const longest = most("step_ms");
  const exposed = most("exposed_ms");
  const peak = most("peak_bytes");
  const shortest = Math.min(...rows.map((row) => row.metrics.step_ms));
  const spread = { value: shortest ? longest.metrics.step_ms / shortest : 1, text: (value) => (shortest ? grouped(value, 2) : MISSING) };
  byId("cards").append(
    figureCard({ key: "graphs", label: "graphs", value: rows.length }),
    figureCard({ key: "step", label: "longest step", value: longest.metrics.step_ms, text: time, note: named(longest) }),
    figureCard({ key: "spread", label: "longest over shortest", ...spread }),
    figureCard({ key: "exposed", label: "most exposed", value: exposed.metrics.exposed_ms, text: time, note: named(exposed) }),
    figureCard({ key: "peak", label: "highest peak memory", value: peak.metrics.peak_bytes, text: bytes, note: named(peak) }),
  );
}

function columnsOf(rows) {
  const longest = Math.max(...rows.map((row) => row.metrics.step_ms));
  const number = (label, value, text) => ({ label, number: true, value: (row) => value(row.metrics) ?? -1, text: (row) => text(value(row.metrics)) });
  const time = (value) => duration(value * 1e6);
  const before = rows.some((row) => row.before) ? [{
    label: "step before", number: true, value: (row) => row.before?.step_ms ?? -1, text: (row) => (row.before ? time(row.before.step_ms) : ""),
  }] : [];
  return [
    { label: "graph", value: (row) => row.name, cell: (row) => make("a", { href: row.page }, ...breakable(row.name)), class: "mono" },
    { label: "collectives", number: true, value: (row) => launches(row.metrics), cell: (row) => make("span", { title: kinds(row.metrics) }, grouped(launches(row.metrics))) },
    { label: "", value: (row) => row.metrics.step_ms, cell: (row) => barOf(row.metrics, longest) },
    ...before,
    number("step", (metrics) => metrics.step_ms, time),
    number("exposed", (metrics) => metrics.exposed_ms, time),
    number("hidden", (metrics) => metrics.hidden_share, percent),
    number("peak memory", (metrics) => metrics.peak_bytes, bytes),
    number("nodes", (metrics) => metrics.nodes, grouped),
  ];
}

begin((data) => {
  byId("title").append(data.title);
  byId("subtitle").append(...modelLine(data.cost_model));
  const rows = data.graphs.filter((graph) => graph.error === null);
  const unread = data.graphs.filter((graph) => graph.error !== null);
  byId("unread").hidden = !unread.length;
  byId("unread-list").append(...unread.map((graph) => make("li", {}, make("b", {}, graph.name), `: ${graph.error}`)));
  if (!rows.length) {
    byId("graphs-table").append(make("p", { class: "lead" }, "No graph could be read."));
    return;
  }
  showCards(rows);
  const table = new SortableTable(byId("graphs-table"), columnsOf(rows), MOST_ROWS);
  const filter = filterField("Filter by name", (words) => table.show(rows.filter((row) => hasWords(row.name, words))));
  byId("graphs-tools").append(filter);
  table.show(rows);
});
