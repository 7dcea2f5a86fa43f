// Numbers as people read them, always with their unit. Times are in nanoseconds, sizes in bytes.

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const GAP = "\u00a0"; // keeps a number and its unit on one line
const MISSING = "\u2013";

/** The largest unit that leaves at least one digit before the point: [nanoseconds, name]. */
function timeUnit(ns) {
  return TIME_UNITS.find(([size]) => Math.abs(ns) >= size) ?? TIME_UNITS[3];
}

/** "12.35 ms", in the unit that fits `like`, with the decimals that fit `fine`; for figures that stand together. */
function duration(ns, like = ns, fine = Math.max(ns, like)) {
  if (!ns && !like) return `0${GAP}ms`;
  const [size, unit] = timeUnit(like);
  return `${grouped(ns / size, size === 1 ? 0 : decimals(fine / size))}${GAP}${unit}`;
}

/** Decimals that give a number four significant digits. */
function decimals(value) {
  const digits = Math.max(1, Math.floor(Math.log10(Math.max(1, Math.abs(value)))) + 1);
  return Math.max(0, 4 - digits);
}

/** A moment on the axis, exact to `step` nanoseconds. */
function moment(ns, step, like) {
  const [size, unit] = timeUnit(Math.max(Math.abs(like), 1));
  const places = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return `${grouped(ns / size, places)}${GAP}${unit}`;
}

/** "25.0 MiB" */
/** Bytes of a figure that misses sizes which nobody knows. */
function leastBytes(count, unknown) {
  if (!unknown) return bytes(count);
  return count ? `>= ${bytes(count)}` : "?";
}

function bytes(count) {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < SIZE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${grouped(value, unit ? 1 : 0)}${GAP}${SIZE_UNITS[unit]}`;
}

function grouped(value, places = 0) {
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** "93.4 %" */
function percent(share) {
  return share === null || share === undefined ? MISSING : `${grouped(100 * share, 1)}${GAP}%`;
}

/** "-12.3 %", "=" when nothing changed; of a share the difference in points. */
function change(before, after, isShare) {
  if (before === null || after === null) return "";
  if (before === after) return "=";
  const sign = after > before ? "+" : "\u2212";
  if (isShare) return `${sign}${grouped(100 * Math.abs(after - before), 1)}${GAP}points`;
  if (!before) return "new";
  return `${sign}${grouped(100 * Math.abs((after - before) / before), 1)}${GAP}%`;
}

/** "1 node", "2 nodes" */
function plural(count, noun) {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A name in words: all_gather -> all-gather. */
function spelled(word) {
  return word.replaceAll("_", "-");
}

/** A JSON value as one line. */
function plain(value) {
  if (value === null || value === undefined) return "none";
  if (value === true || value === false) return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? grouped(value) : String(value);
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (typeof value === "object") return Object.keys(value).length ? JSON.stringify(value) : "none";
  return String(value);
}

/** A name cut to `most` characters, its number kept where there is room: "reduce_sca\u2026_420". */
function shortened(name, most) {
  if (name.length <= most) return name;
  const number = /_\d+$/.exec(name)?.[0] ?? "";
  const head = most - 1 - number.length;
  return head >= 4 ? `${name.slice(0, head)}\u2026${number}` : `${name.slice(0, Math.max(1, most - 1))}\u2026`;
}
