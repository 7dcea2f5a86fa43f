// The data of the page, unpacked: one Side for each graph. Nodes are numbers, in order of execution.

/** Spans that follow each other on one row: start and end in ns, category, and what they stand for. */
class Spans {
  constructor(rows) {
    this.length = rows.length;
    this.start = Float64Array.from(rows, (row) => row[0]);
    this.end = Float64Array.from(rows, (row) => row[1]);
    this.category = Uint16Array.from(rows, (row) => row[2]);
    this.item = Int32Array.from(rows, (row) => row[3]);
  }

  /** The first span that ends after `ns`; its number is the length when there is none. */
  after(ns) {
    return firstAbove(this.end, ns);
  }
}

/** The first position in a rising array that holds more than `value`. */
function firstAbove(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

class Side {
  constructor(json, number) {
    this.number = number;
    this.label = json.label;
    this.step = json.step;
    this.peak = json.peak;
    this.metrics = json.metrics;
    // Figures of memory miss these sizes.
    this.unknown = json.metrics.unknown_sizes?.values ?? 0;
    this.model = json.model;
    this.bound = json.bound;
    this.groups = json.groups;
    this.hints = json.hints;
    this.warnings = json.warnings;
    this.collectives = json.collectives;
    this.readNodes(json.nodes, json.families);
    this.readCollectives();
  }

  readNodes(nodes, families) {
    this.count = nodes.name.length;
    this.name = nodes.name;
    this.op = words(nodes.op);
    this.module = words(nodes.module);
    this.result = words(nodes.result);
    this.source = nodes.source;
    this.family = nodes.family.map((number) => families[number]);
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    let now = 0;
    for (let node = 0; node < this.count; node += 1) {
      this.start[node] = now + nodes.gap[node];
      now = this.end[node] = this.start[node] + nodes.ns[node];
    }
    this.finish = now;
    this.live = summed(nodes.live);
    this.inFlight = summed(nodes.in_flight);
    this.curves = {
      live: { start: this.start, end: this.end, values: this.live },
      flight: afterwards(this.start, this.end, this.inFlight, this.step),
    };
    this.stall = sparse(nodes.stall);
    this.flops = sparse(nodes.flops);
    this.byName = new Map(this.name.map((name, node) => [name, node]));
  }

  readCollectives() {
    this.collectiveOf = new Map();
    this.mergedInto = new Map();
    for (const each of this.collectives) {
      this.collectiveOf.set(each.node, each);
      for (const wait of each.waits) this.collectiveOf.set(wait, each);
      for (const name of each.merged) this.mergedInto.set(name, each.node);
    }
    this.lanes = lanesOf(this.collectives);
  }

  /** Nodes of this side that are, went into, or were made from a node of the other side. */
  counterparts(other, node) {
    const collective = other.collectiveOf.get(node);
    const names = [other.name[node], ...(collective?.node === node ? collective.merged : [])];
    const found = names.flatMap((name) => [this.byName.get(name), this.mergedInto.get(name)]);
    return [...new Set(found.filter((at) => at !== undefined))];
  }
}

/** Rows of collectives that run one after the other, in order of first use. */
function lanesOf(collectives) {
  const lanes = new Map();
  for (const each of collectives) {
    if (!lanes.has(each.lane)) lanes.set(each.lane, { name: each.lane, members: [] });
    lanes.get(each.lane).members.push(each);
  }
  for (const lane of lanes.values()) lane.members.sort((a, b) => a.start - b.start || a.end - b.end);
  return [...lanes.values()];
}

/** A function from node to word, or null. */
function words(packed) {
  return (node) => packed.table[packed.column[node]] ?? null;
}

function summed(differences) {
  let sum = 0;
  return Float64Array.from(differences, (difference) => (sum += difference));
}

/** A curve of values that hold from the end of each node on, up to the end of the step. */
function afterwards(start, end, values, step) {
  const last = end.length ? end[end.length - 1] : 0;
  return { start: joined(start, [last]), end: joined(end, [step]), values: joined([0], values) };
}

function joined(first, second) {
  const all = new Float64Array(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}

function sparse([positions, values]) {
  return new Map(positions.map((position, k) => [position, values[k]]));
}
