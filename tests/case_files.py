"""Text cases: a graph before, what to do with it, and everything that comes out, compared whole.

A file in ``tests/cases`` holds cases of this form::

    [case merges two gathers]
    [run] bucket{groups=all}          or: [run] identify
    [groups] {"0": {"size": 2}}       optional
    [cost] units,fused=no             optional: a cost model; units is tests/data/units.yaml
    [in]
    def forward(self, p0: "f32[4, 8]", ...):
        ...
    [out]
    what :func:`render` prints

``make golden`` (``python -m tests.case_files``) rewrites every ``[out]`` and refuses to in CI.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES = Path(__file__).parent / "cases"
_HEAD = re.compile(r"^\[(case|run|groups|cost|in|out)(?: (.*?))?\](?: (.*))?$")


@dataclass(frozen=True)
class Case:
    """One case; ``out`` is None where the file has none yet."""

    file: str
    name: str
    run: str
    groups: str
    cost: str
    text: str
    out: str | None


def read_cases(path: Path) -> list[Case]:
    """The cases of one file; a section that is misspelt is an error, not a comment."""
    found: list[dict[str, Any]] = []
    section: list[str] | None = None
    for line in path.read_text().splitlines():
        head = _HEAD.match(line)
        if head is not None:
            section = _open_section(found, head[1], head[2] or head[3] or "")
        elif section is not None:
            section.append(line)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{path.name}: text outside a section: {line}")
    return [_case(path.name, entry) for entry in found]


def _open_section(found: list[dict[str, Any]], kind: str, rest: str) -> list[str] | None:
    if kind == "case":
        found.append({"name": rest})
        return None
    if kind in ("run", "groups", "cost"):
        found[-1][kind] = rest
        return None
    section: list[str] = []
    found[-1][kind] = section
    return section


def _case(file: str, entry: dict[str, Any]) -> Case:
    out = "\n".join(entry["out"]).strip("\n") if "out" in entry else None
    text = "\n".join(entry["in"]).strip("\n")
    return Case(file, entry["name"], entry["run"], entry.get("groups", ""), entry.get("cost", ""), text, out)


def load_case(case: Case) -> Any:
    """The case's graph as a Program."""
    from commcc.graph.program import ProcessGroup
    from commcc.serialization.fx import parse_text
    from commcc.serialization.propagate import propagate

    body = case.text if case.text.startswith("class") else "class GraphModule(torch.nn.Module):\n" + _indent(case.text)
    program = parse_text(body, f"{case.file}[{case.name}]")
    if case.run.startswith("ep-chunk"):
        program = propagate(program)  # as reading a file does
    if not case.groups:
        return program
    table = {
        name: ProcessGroup(name, facts.get("size"), tuple(facts["ranks"]) if "ranks" in facts else None)
        for name, facts in json.loads(case.groups).items()
    }
    return replace(program, groups={**program.groups, **table})


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()) + "\n"


def actual(case: Case) -> str:
    """Run the case and print everything that came out of it."""
    from commcc.base.errors import CommccError

    try:
        return _run(case)
    except CommccError as error:
        return f"error: {error}"


def _run(case: Case) -> str:
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.passes.options import parse_pipeline
    from commcc.run.pipeline import run

    program = load_case(case)
    if case.run == "identify":
        index = build_index(program)
        return "\n".join(_identified(index, identify(index)))
    result = run(program, parse_pipeline(case.run), model=_model(case.cost))
    lines = [line for step in result.steps for line in _step(step)]
    lines += [f"verified: {result.verified}" if result.changed else "nothing changed"]
    return "\n".join([*lines, "", *graph_lines(result.program.graph)] if result.changed else lines)


def _model(text: str) -> Any:
    from commcc.timing.cost import load_model

    if not text:
        return None
    device, comma, rest = text.partition(",")
    path = str(CASES.parent / "data" / "units.yaml") if device == "units" else device
    return load_model(path + comma + rest)


def _identified(index: Any, ident: Any) -> list[str]:
    lines = []
    for c in ident.collectives:
        module = f" in {c.module}" if c.module else ""
        lines.append(f"{index.names[c.launch]}: {c.role} {c.kind} on '{c.group}'{module}: {c.evidence}")
    for g in ident.groups:
        roles = ", ".join(f"{count} {role}" for role, count in g.roles.items())
        lines.append(f"group '{g.name}': size {g.size}, {roles}")
    lines.append(f"primary: {ident.primary}")
    return lines + [f"warning: {text}" for text in ident.warnings]


def _step(step: Any) -> list[str]:
    names = step.before.index.names
    lines = [step.options_text]
    plan, parts = step.plan, dict(step.plan.parts())
    lines += [f"  tag {names[t.launch]}: {t.role}: {t.evidence}" for t in parts["tags"]]
    lines += [f"  group {g.name}: copy of '{g.origin}': {g.reason}" for g in parts["groups"]]
    lines += [f"  move {names[m.launch]} to '{m.group}'" for m in parts["regroups"]]
    lines += [f"  keep {names[d.keep]}, {_gone(names, d)}: {d.reason}" for d in parts["duplicates"]]
    lines += [f"  remove {', '.join(names[n] for n in d.nodes)}: {d.reason}" for d in parts["dead"]]
    lines += [f"  drop metadata {', '.join(parts['metadata'])}"] if parts["metadata"] else []
    lines += [f"  hold {names[e.node]} behind {names[e.after]}: {e.reason}" for e in parts["control"]]
    lines += [f"  bucket {', '.join(names[m] for m in b.members)}: {b.reason}" for b in parts["buckets"]]
    lines += [f"  left out {names[e.launch]}: {e.reason}" for e in plan.left_out]
    lines += [f"  move {names[m.node]} to the place of {names[m.at]}: {m.reason}" for m in parts["moves"]]
    lines += [
        f"  {names[c.node]} {'no longer blocks' if c.non_blocking else 'blocks'}: {c.reason}"
        for c in parts["host_copies"]
    ]
    lines += [line for region in parts["chunked"] for line in _cut(names, region)]
    if step.name == "ep-schedule":
        lines += [f"  {r['root']} {r['direction']}: {r['strip']}" for r in step.report["regions"]]
    if step.name == "bucket":
        lines += _bucketing(step.report)
    if step.name == "reorder":
        lines += _scheduled(step.report)
    return lines


def _cut(names: Sequence[str], region: Any) -> list[str]:
    way = "backward" if region.backward else "forward"
    lines = [f"  cut {region.root} {way}: {region.extent} in {', '.join(map(str, region.sizes))}"]
    lines += [f"    clone {', '.join(names[n] for n in region.body)}"]
    lines += [f"    split {names[c.node]} along {c.dim}" for c in region.cuts]
    lines += [f"    {j.how} {names[j.node]}{'' if j.dim is None else f' along {j.dim}'}" for j in region.joins]
    lines += [f"    {r.argument} of {names[r.node]}[{r.place}]: {r.per} for each" for r in region.resized]
    return lines + [f"    chain {names[n]}" for n in region.chained]


def _scheduled(r: Any) -> list[str]:
    step, exposed = (_arrow(*r[key]) for key in ("step_ms", "exposed_ms"))
    before, after = r["peak_bytes"]
    lines = [
        f"  step {step}, lower bound {_us(r['lower_bound_ms'])}; exposed {exposed}; peak {before} -> {after} bytes"
    ]
    return lines + [f"  remark: {text}" for text in r["remarks"]]


def _us(ms: float) -> str:
    return f"{1000 * ms:g} us"


def _arrow(before: float, after: float) -> str:
    return f"{_us(before)} -> {_us(after)}"


def _bucketing(r: Any) -> list[str]:
    lines = [f"  {_row(row)}" for row in r.get("modules", ())]
    if "closed" in r:
        closed = ", ".join(f"{k} {v}" for k, v in r["closed"].items() if v) or "none"
        dormant = ", ".join(k for k, v in r["knobs"].items() if v["dormant"]) or "none"
        lines.append(f"  largest span {r['largest_span']}; closed: {closed}; dormant: {dormant}; copies {r['copies']}")
    if "hidden" in r:
        said = [f"{k} {v}" for part in (r["refused"], r["not_kept"]) for k, v in part.items() if v]
        lines.append(f"  hidden {r['hidden']}; refused: {', '.join(said) or 'none'}")
        lines.append(
            f"  copies {_us(r['copies_ms'])}, latency {_us(r['latency_ms'])}; step {_arrow(*r['step_ms'].values())}"
        )
    if "scheduled_step_ms" in r:
        caps = ", ".join(f"{key} {cap}" for key, cap in r["caps_mb"].items())
        lines.append(f"  scheduled {_arrow(*r['scheduled_step_ms'].values())}; caps in MiB: {caps}")
    return lines + [f"  remark: {text}" for text in r["remarks"]]


def _row(row: Any) -> str:
    beside = [f", {key.replace('_', ' ')} {row[key]}" for key in ("prefetched_by", "waits_behind") if row.get(key)]
    counted = f"{row['members']} in {row['launches']}, {row['bytes']} bytes"
    return f"module {row['entry']}: {row['kind']} {counted}{''.join(beside)}"


def _gone(names: Sequence[str], duplicate: Any) -> str:
    gone = ", ".join(names[n] for n in (*duplicate.drop, *duplicate.dead))
    return f"which serves {gone}; wait at {names[duplicate.wait]}, not {', '.join(names[n] for n in duplicate.waits)}"


def graph_lines(graph: fx.Graph) -> list[str]:
    """One line for each node: name, op, operands, value; and what commcc recorded."""
    from commcc.graph.ops import op_name
    from commcc.graph.program import record_of
    from commcc.serialization.shapes import format_val

    lines = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"return {node.args[0]}")
            continue
        val = node.meta.get("val")
        shape = f"  # {format_val(val)}" if isinstance(val, torch.Tensor) else ""
        kwargs = "".join(f", {k}={v}" for k, v in node.kwargs.items())
        args = ", ".join(map(str, node.args))
        what = "input" if node.op == "placeholder" else f"{op_name(node.target)}({args}{kwargs})"
        record = record_of(node)
        merged = f"  <- {', '.join(record.merged_from)}" if record.merged_from else ""
        lines.append(f"{node.name} = {what}{shape}{merged}")
    return lines


def all_cases() -> list[Case]:
    return [case for path in sorted(CASES.glob("*.test")) for case in read_cases(path)]


def rewrite(path: Path) -> int:
    """Write the actual output of every case of ``path`` into it; returns how many changed."""
    lines, changed = [], 0
    for case in read_cases(path):
        out = actual(case)
        changed += out != case.out
        groups = [f"[groups] {case.groups}"] if case.groups else []
        cost = [f"[cost] {case.cost}"] if case.cost else []
        lines += [f"[case {case.name}]", f"[run] {case.run}", *groups, *cost, "[in]", case.text, "[out]", out, ""]
    path.write_text("\n".join(lines))
    return changed


def main() -> int:
    if os.environ.get("CI"):
        sys.stderr.write("golden files are not rewritten in CI\n")
        return 2
    for path in sorted(CASES.glob("*.test")):
        sys.stdout.write(f"{path.name}: {rewrite(path)} changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
