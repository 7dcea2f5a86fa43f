// Tables: columns are { label, value(row), text(row) | cell(row), number }, rows anything.

/** A plain table. A column without `text` and `cell` shows its value. */
function makeTable(columns, rows, attributes = {}) {
  const head = columns.map((column) => make("th", { scope: "col", class: column.number ? "number" : null }, column.label));
  const body = rows.map((row) => makeRow(columns, row));
  return make("div", { class: "scroll" }, make("table", attributes, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

/** A column of changes as the command line shows them, with a minus sign like that of the cards. */
function changeColumn(label, value) {
  return { label, number: true, value: (row) => value(row).replace(/^-/, "\u2212") };
}

function makeRow(columns, row) {
  const cells = columns.map((column, k) => {
    const content = column.cell ? column.cell(row) : column.text ? column.text(row) : column.value(row);
    const attributes = { class: [column.number ? "number" : "", column.class ?? ""].join(" ").trim() || null };
    return k ? make("td", { ...attributes, "data-label": column.label || null }, content) : make("th", { scope: "row", ...attributes }, content);
  });
  return make("tr", {}, ...cells);
}

/** A table that sorts by a click on its head, and shows the rows that fit a filter. */
class SortableTable {
  constructor(box, columns, most) {
    this.box = box;
    this.columns = columns;
    this.most = most;
    this.rows = [];
    this.sorted = { column: null, down: false };
    this.all = false;
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  sort(column) {
    const down = this.sorted.column === column ? !this.sorted.down : Boolean(column.number);
    this.sorted = { column, down };
    this.draw(column);
  }

  draw(focused = null) {
    const rows = this.inOrder();
    const shown = this.all ? rows : rows.slice(0, this.most);
    const heads = this.columns.map((column) => this.head(column));
    const table = make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...heads)),
      make("tbody", {}, ...shown.map((row) => makeRow(this.columns, row))),
    );
    const parts = [make("div", { class: "scroll" }, table)];
    if (shown.length < rows.length) parts.push(this.moreButton(rows.length));
    if (!rows.length) parts.push(make("p", { class: "lead" }, "nothing fits"));
    this.box.replaceChildren(...parts);
    if (focused) heads[this.columns.indexOf(focused)].firstChild.focus();
  }

  inOrder() {
    const { column, down } = this.sorted;
    if (!column) return this.rows;
    const sign = down ? -1 : 1;
    const keyed = this.rows.map((row, k) => ({ row, k, key: column.value(row) }));
    keyed.sort((a, b) => sign * compareKeys(a.key, b.key) || a.k - b.k);
    return keyed.map(({ row }) => row);
  }

  head(column) {
    const { column: by, down } = this.sorted;
    const state = by === column ? (down ? "descending" : "ascending") : "none";
    const button = make("button", { type: "button", class: "sort", click: () => this.sort(column) }, column.label);
    return make("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": state }, button);
  }

  moreButton(count) {
    const showAll = () => {
      this.all = true;
      this.draw();
    };
    return make("button", { type: "button", class: "more", click: showAll }, `Show all ${grouped(count)}`);
  }
}

function compareKeys(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
}
