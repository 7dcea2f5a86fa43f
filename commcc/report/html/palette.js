// Categories of spans and their colours, which are those of the style sheet.

const COMPUTE_CATEGORIES = [
  { key: "matmul", label: "matmul" },
  { key: "attention", label: "attention" },
  { key: "other", label: "other kernels" },
  { key: "pointwise", label: "memory-bound" },
  { key: "launch", label: "launch" },
  { key: "exposed", label: "exposed wait" },
];
const ROLES = ["fsdp", "ddp", "tp", "ep", "ep_count", "other"];
const KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"];
const SHADES = 3;

/** All categories on the page: those of compute, then one for each kind and role of collectives. */
class Palette {
  constructor(sides) {
    this.entries = COMPUTE_CATEGORIES.map((entry) => ({ ...entry, color: `--${entry.key}`, compute: true }));
    this.number = new Map(this.entries.map((entry, number) => [entry.key, number]));
    const pairs = new Map();
    for (const side of sides) for (const { kind, role } of side.collectives) pairs.set(pairKey(kind, role), { kind, role });
    const rank = ({ kind, role }) => 10 * place(KINDS, kind) + place(ROLES, role);
    const sorted = [...pairs].sort(([a, one], [b, two]) => rank(one) - rank(two) || (a < b ? -1 : 1));
    const shades = new Map();
    for (const [key, { kind, role }] of sorted) {
      const hue = KINDS.includes(kind) ? kind : "other-kind";
      const shade = shades.get(hue) ?? 1;
      shades.set(hue, Math.min(SHADES, shade + 1));
      this.number.set(key, this.entries.length);
      this.entries.push({ key, label: `${role} ${spelled(kind)}`, color: `--${spelled(hue)}-${shade}`, compute: false });
    }
    this.exposed = this.number.get("exposed");
    this.refresh();
  }

  /** Reads the colours again, after a change between light and dark. */
  refresh() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.fill = this.entries.map((entry) => read(entry.color));
    this.text = this.fill.map((color) => (luminance(color) > 0.36 ? "#16181c" : "#ffffff"));
    this.ink = read("--ink");
    this.muted = read("--muted");
    this.line = read("--line");
    this.grid = read("--grid");
    this.paper = read("--paper");
    this.accent = read("--accent");
    this.accentWash = read("--accent-wash");
    this.alarm = read("--exposed");
    this.memory = read("--memory");
    this.beyond = read("--beyond");
    this.font = `11px ${read("--sans")}`;
    this.mono = `10.5px ${read("--mono")}`;
  }

  ofCollective(collective) {
    return this.number.get(pairKey(collective.kind, collective.role));
  }
}

function pairKey(kind, role) {
  return `${kind}/${role}`;
}

function place(list, word) {
  const at = list.indexOf(word);
  return at < 0 ? list.length : at;
}

/** Relative luminance of "#rrggbb", 0 to 1 (WCAG 2). */
function luminance(color) {
  const parts = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16) / 255);
  const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
