// The page of the gate: findings to filter, the graphs that were checked, and the rules.

const MOST_FINDINGS = 50;
const MOST_SPOTS = 6;
const SEVERITIES = ["error", "warning", "info"];

/** All findings of all graphs, the most severe first. */
function findingsOf(data) {
  const graphs = [...data.graphs, { graph: "all graphs together", rules: data.across }];
  const findings = graphs.flatMap(({ graph, rules }) =>
    rules.flatMap((outcome) => outcome.findings.map((finding) => ({ ...finding, graph, rule: outcome.rule }))));
  return findings.sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
}

function place(spot) {
  const line = spot.line === null ? "" : `line ${spot.line}`;
  return [spot.node, line, spot.module, spot.source].filter(Boolean).join(", ");
}

function whatOf(finding) {
  const spots = finding.nodes.slice(0, MOST_SPOTS).map((spot) => make("li", {}, place(spot)));
  const more = finding.nodes.length - spots.length;
  if (more > 0) spots.push(make("li", {}, `and ${plural(more, "other node")}`));
  return make("div", {},
    make("p", {}, finding.text),
    finding.details.length ? make("p", { class: "details-lines" }, finding.details.join("\n")) : null,
    finding.remedy ? make("p", { class: "remedy" }, finding.remedy) : null,
    spots.length ? make("ul", { class: "spots" }, ...spots) : null);
}

class Findings {
  constructor(data) {
    this.rows = findingsOf(data);
    const outcomes = [...data.graphs.flatMap((graph) => graph.rules), ...data.across];
    this.unlisted = outcomes.reduce((sum, outcome) => sum + outcome.more, 0);
    this.words = [];
    this.hidden = new Set();
    this.several = data.graphs.length > 1 || data.across.length > 0;
    const paths = data.graphs.map((graph) => graph.graph);
    const names = new Map(shortNames(paths).map((name, place) => [paths[place], name]));
    const named = (graph) => names.get(graph) ?? baseName(graph);
    const columns = [
      { label: "severity", value: (row) => SEVERITIES.indexOf(row.severity), cell: (row) => make("span", { class: `chip ${row.severity}` }, row.severity) },
      { label: "rule", value: (row) => row.rule, class: "mono" },
      ...(this.several ? [{ label: "graph", value: (row) => row.graph, cell: (row) => make("span", { title: row.graph }, ...breakable(named(row.graph))), class: "mono" }] : []),
      { label: "what", value: (row) => row.text, cell: whatOf, class: "prose" },
    ];
    this.table = new SortableTable(byId("findings-table"), columns, MOST_FINDINGS);
    this.count = make("p", { class: "range", role: "status" });
    this.field = filterField("Filter by rule, graph, node or text", (words) => {
      this.words = words;
      this.show();
    });
    const used = SEVERITIES.filter((severity) => this.rows.some((row) => row.severity === severity));
    const counted = used.map((severity) => [severity, `${severity}, ${grouped(this.rows.filter((row) => row.severity === severity).length)}`]);
    const buttons = toggles(counted, (hidden) => {
      this.hidden = hidden;
      this.show();
    });
    byId("findings-tools").append(this.field, ...buttons, this.count);
    byId("findings-tools").hidden = !this.rows.length;
    if (this.rows.length) this.show();
    else byId("findings-table").append(make("p", { class: "lead" }, "Nothing was found."));
  }

  /** Those of one graph or rule: its name goes into the field. */
  only(text) {
    const input = this.field.querySelector("input");
    input.value = text;
    input.dispatchEvent(new Event("input"));
    byId("all-findings").scrollIntoView({ block: "start", behavior: "smooth" });
  }

  show() {
    const textOf = (row) => [row.severity, row.rule, row.graph, row.text, row.remedy ?? "", ...row.nodes.map(place)].join(" ");
    const rows = this.rows.filter((row) => !this.hidden.has(row.severity) && hasWords(textOf(row), this.words));
    const unlisted = this.unlisted ? `, ${grouped(this.unlisted)} more not listed` : "";
    this.count.textContent = `${grouped(rows.length)} of ${plural(this.rows.length, "finding")}${unlisted}`;
    this.table.show(rows);
    document.documentElement.dataset.shown = rows.length;
  }
}

function countOf(rules, severity) {
  return rules.reduce((sum, outcome) => {
    const more = outcome.severity === severity ? outcome.more : 0;
    return sum + more + outcome.findings.filter((finding) => finding.severity === severity).length;
  }, 0);
}

function showGraphs(data, findings) {
  const launches = (metrics) => (metrics.collectives ? Object.values(metrics.collectives).reduce((sum, number) => sum + number, 0) : null);
  const textOf = (value, text) => ((value ?? null) === null ? "" : text(value));
  const number = (label, value, text = grouped) => ({
    label, number: true, value: (row) => value(row) ?? -1, text: (row) => textOf(value(row), text),
  });
  const time = (value) => duration(value * 1e6);
  const columns = [
    { label: "graph", value: (row) => row.graph, cell: (row) => link(row.graph, () => findings.only(row.graph), "show its findings") },
    ...SEVERITIES.map((severity) => number(severity, (row) => (row.error === null ? countOf(row.rules, severity) : null))),
    number("nodes", (row) => row.metrics.nodes),
    number("collectives", (row) => launches(row.metrics)),
    number("step", (row) => row.metrics.step_ms, time),
    number("exposed", (row) => row.metrics.exposed_ms, time),
    number("peak memory", (row) => row.metrics.peak_bytes, bytes),
  ];
  new SortableTable(byId("graphs-table"), columns, MOST_FINDINGS).show(data.graphs);
}

function showRules(data, findings) {
  const outcomes = [...data.graphs.flatMap((graph) => graph.rules), ...data.across];
  const rows = data.rules.map((rule) => {
    const own = outcomes.filter((outcome) => outcome.rule === rule.id);
    const skipped = own.find((outcome) => outcome.skipped)?.skipped ?? null;
    const ran = own.filter((outcome) => !outcome.skipped).length;
    const total = own.reduce((sum, outcome) => sum + outcome.findings.length + outcome.more, 0);
    return { ...rule, total, state: ran ? `checked in ${plural(ran, "graph")}` : (skipped ?? "not asked for") };
  });
  const columns = [
    {
      label: "rule",
      value: (row) => row.id,
      cell: (row) => (row.total ? link(row.id, () => findings.only(row.id), "show its findings") : make("span", { class: "mono" }, row.id)),
    },
    { label: "finds", value: (row) => row.summary, cell: (row) => make("span", { title: row.about }, row.summary) },
    { label: "findings", number: true, value: (row) => row.total, text: (row) => grouped(row.total) },
    { label: "state", value: (row) => row.state, class: "about" },
  ];
  new SortableTable(byId("rules-table"), columns, MOST_FINDINGS).show(rows);
}

begin((data) => {
  byId("title").append(data.graphs.length === 1 ? baseName(data.graphs[0].graph) : plural(data.graphs.length, "graph"));
  byId("subtitle").append(...modelLine(data.cost_model));
  byId("verdict").textContent = data.passed ? `Passed: ${data.summary}` : `Failed: ${data.summary}`;
  byId("verdict").className = data.passed ? "verdict good" : "verdict";
  for (const severity of SEVERITIES) {
    const value = data.counts[severity];
    const label = { error: "errors", warning: "warnings", info: "notes" }[severity];
    byId("cards").append(figureCard({ key: severity, label, value, tone: severity === "error" && value ? "bad" : null }));
  }
  const note = data.counts.unread ? `${grouped(data.counts.unread)} could not be read` : null;
  byId("cards").append(figureCard({ key: "graphs", label: "graphs", value: data.graphs.length, note }));
  const unread = data.graphs.filter((graph) => graph.error !== null);
  byId("unread").hidden = !unread.length;
  byId("unread-list").append(...unread.map((graph) => make("li", {}, make("b", {}, graph.graph), `: ${graph.error}`)));
  const findings = new Findings(data);
  showGraphs(data, findings);
  showRules(data, findings);
});
