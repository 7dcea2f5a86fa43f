"""What the reports of passes for expert and tensor parallelism say, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import count, milliseconds, plural, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Document = Mapping[str, Any]

#: How many pairs are named.
_SHOWN = 4


def fusions(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the async-tp pass."""
    made = ", ".join(f"{count(number)} {kind}" for kind, number in report["fused"].items())
    total = report["collectives"]
    yield "fused", f"{made or 'none'} of {plural(total, 'collective')}, {plural(report['matmuls_fused'], 'matmul')}"
    pairs = report["pairs"]
    for pair in pairs[:_SHOWN]:
        yield "", f"{pair['launch']} with {', '.join(pair['matmuls'])}"
    if len(pairs) > _SHOWN:
        yield "", f"and {len(pairs) - _SHOWN:,} more"
    label = f"left {sum(report['left'].values()):,}"
    for reason, number in report["left"].items():
        yield label, f"{number:,} x {reason}"
        label = ""
    for remark in report["remarks"]:
        yield "remark", remark


def chunks(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the ep-chunk pass; regions that are alike share one."""
    label = "regions"
    for alike in _alike(report["regions"], "module"):
        first = alike[0]
        sizes = "+".join(map(str, first["sizes"]))
        made = [f"{count(first[key])} {key}" for key in ("split", "concatenated", "added") if first[key]]
        body = f"{plural(first['body'], 'node')} with {plural(first['exchanges'], 'exchange')}"
        yield label, f"{_named(alike, 'module')} {first['direction']}: {body}, cut {sizes}; {', '.join(made)}"
        label = ""
    if report.get("tried_ms"):
        steps = (f"{plural(int(n), 'chunk')} {milliseconds(ms)}" for n, ms in report["tried_ms"].items())
        yield "steps", f"{', '.join(steps)}; taken: {count(report['chunks'])}"
    if report["skipped"]:
        yield "skipped", f"without exchanges: {', '.join(map(str, report['skipped']))}"
    if report["by_annotation"]:
        yield "remark", "no all-to-all is in the graph; modules were told by their annotations"


def schedule(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the ep-schedule pass."""
    for remark in report.get("remarks", ()):
        yield "remark", remark
    if not report["regions"]:
        return
    flight = report["in_flight"]
    yield (
        "chunks",
        f"{count(report['chunks'])}, in flight {flight['forward']} forward and {flight['backward']} backward",
    )
    for alike in _alike(report["regions"], "root", "soft_order"):
        yield f"{_named(alike, 'root')} {alike[0]['direction']}", alike[0]["strip"]
    if "exposed_exchange_ms" in report:
        before, after = report["exposed_exchange_ms"]
        shares = [share(value) or "none" for value in report["hidden_share_of_exchanges"]]
        total = milliseconds(report["exchange_ms"])
        yield (
            "exchanges",
            f"{total}, exposed {milliseconds(before)} -> {milliseconds(after)}; hidden {' -> '.join(shares)}",
        )
    if report.get("tried"):
        yield "tried", plural(len(report["tried"]), "order")


def concrete(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the ep-concretize pass."""
    yield "fixed", report["fixed"]
    if report["symbols"]:
        gone = f"{plural(report['sizes_gone'], 'size')} and {plural(report['guards_gone'], 'guard')} gone"
        yield "values", f"{count(report['values_rewritten'])} rewritten, {gone}"


def _alike(rows: Sequence[Document], *differ: str) -> list[list[Document]]:
    """Rows that are the same but for these keys, in order of the first of each sort."""
    groups: dict[str, list[Document]] = {}
    for row in rows:
        groups.setdefault(repr([value for key, value in row.items() if key not in differ]), []).append(row)
    return list(groups.values())


def _named(rows: Sequence[Document], key: str) -> str:
    names = [str(row[key]) for row in rows]
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"
