"""Is AFTER the same program as BEFORE: proved, different, or not decided. Trusts neither graph.

Both graphs are run on terms instead of tensors (:mod:`commcc.verify.tracer`). Gathers, reductions, casts
and layout are written element-wise over the tensors they come from, so a merged collective and its
members are the same terms; memory is versioned, random ops are numbered. What is left is to compare::

    verdict = verify(before, after)
    verdict.status        # 'proved', 'unproved', 'different'
    verdict.findings      # Finding(rule='value', node='mm_3', text="argument 'mat2' is ...", way=('mm_3', 'output 0'))

Covered: the same ops on the same operands, no launch twice; merged collectives expand exactly to their
members; order, waits, mutation, random numbers and effects; inputs, outputs and aliasing. Linear in the
size of the graphs.

Limits: structural, nothing is executed; floating-point sums may associate differently inside a merged
reduction. Launch order is a function of the graph alone, so it is the same on all ranks of an SPMD program.
Process groups are compared by name, those split off others by what they were split off (:mod:`commcc.verify.declared`).
Modules that AFTER cut in chunks are compared clone by clone (:mod:`commcc.verify.chunks`).
Where AFTER was fixed to sizes, BEFORE is taken for inputs of that size (:mod:`commcc.verify.symbols`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.base.gc_pause import no_collection
from commcc.verify import boundary, compare
from commcc.verify.chunks import folded
from commcc.verify.declared import compare_exported, compare_groups
from commcc.verify.normalise import check_order, compare_edges, unfolded, without_edges
from commcc.verify.pair import Pair
from commcc.verify.symbols import fixed_sizes
from commcc.verify.terms import Terms
from commcc.verify.tracer import trace_program
from commcc.verify.verdict import Finding, Report, Verdict, Ways

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify.trace import Event

#: How often AFTER is looked at again when contents turn out to be equal that have different normal forms.
ROUNDS = 8

__all__ = ["Finding", "Verdict", "contradictions", "verify"]


@no_collection()
def verify(before: Program, after: Program) -> Verdict:
    """Compare two programs; never raises for a graph that is merely wrong."""
    report = Report()
    try:
        _compare(before, after, report)
    except RecursionError:
        report.gap("value", "", "arguments are nested too deeply to compare")
    return report.verdict(Ways(after.graph, before.graph))


def contradictions(program: Program) -> tuple[Finding, ...]:
    """What is wrong with a graph taken alone: results whose ``val`` is not what their op gives, reads before waits."""
    report = Report()
    if check_order(program.graph, report, ""):
        trace = trace_program(Terms(), program, first=True)
        for event in trace.events:
            if not event.doubt:
                report.differs(event.rule, event.node, event.text)
    return report.verdict().findings


def _compare(before: Program, after: Program, report: Report) -> None:
    fine = check_order(before.graph, report, " (in BEFORE)")
    if not check_order(after.graph, report, "") or not fine:
        return
    compare_exported(before, after, report)
    stands_for = compare_groups(before, after, report)
    whole = folded(before, after, report, stands_for)
    if whole is None:
        return
    if whole is not after:  # what is illegal in AFTER as it stands, whose clones are not looked at below
        table = Terms.of(before, after)
        old, new = trace_program(table, before, first=True), trace_program(table, after, first=False)
        _compare_events(Pair(table, old, new, report, {}, {}, {}))
    after = whole
    before, after = unfolded(before), unfolded(after)
    before, held = without_edges(before)
    after, holds = without_edges(after)
    renamed = boundary.match_inputs(before.graph, after.graph, report)
    fixed = fixed_sizes(before, after, report)
    new_nodes = {node.name: node for node in after.graph.nodes}
    compare_edges(held, holds, set(new_nodes), report)
    table = Terms.of(before, after)
    old = trace_program(table, before, first=True, fixed=fixed)
    old_nodes = {node.name: node for node in before.graph.nodes}
    for _ in range(ROUNDS):
        new = trace_program(table, after, first=False, inputs=renamed, groups=stands_for, fixed=fixed)
        pair = Pair(table, old, new, Report(), old_nodes, new_nodes, renamed)
        _compare_traces(pair)
        if not pair.same:
            break
        table.same.update(pair.same)
    else:
        report.gap("value", "", f"elements in other orders of writing them down, one after another, {ROUNDS} deep")
    report.absorb(pair.report)


def _compare_traces(pair: Pair) -> None:
    boundary.compare_inputs(pair)
    boundary.compare_outputs(pair)
    compare.compare_sequences(pair)
    _compare_events(pair)
    compare.report_causes(pair)
    compare.compare_ops(pair)
    compare.compare_elements(pair)
    compare.compare_barriers(pair)
    compare.compare_layouts(pair)
    _conclude(pair)


def _compare_events(pair: Pair) -> None:
    """What is illegal in AFTER and was not already so in BEFORE; one finding for each launch and mistake."""
    old = Counter(event.key for event in pair.before.events)
    new: dict[tuple[object, ...], list[Event]] = {}
    for event in pair.after.events:
        if old[event.key] > 0:
            old[event.key] -= 1
            pair.report.note(event.rule, event.node, f"{event.text}; so it is in BEFORE")
        else:
            new.setdefault((event.rule, *event.key[:2]), []).append(event)
    for trace in (pair.before, pair.after):
        for doubt, node in trace.doubts.items():
            pair.report.gap("mutation", node, f"writes memory: {doubt}")
    for name in pair.after.idle[len(pair.before.idle) :]:
        pair.report.note("wait", name, "waits for what no launch fills, or fills no more, which does nothing")
    for first, *others in new.values():
        more = f" (and {len(others)} more)" if others else ""
        doubts = [event.doubt or _unseen(pair, event) for event in (first, *others)]
        if all(doubts):
            pair.report.gap(first.rule, first.node, f"{first.text}{more}; not decided: {doubts[0]}")
        else:
            pair.report.differs(first.rule, first.node, f"{first.text}{more}")


def _unseen(pair: Pair, event: Event) -> str:
    """Why a mistake may do no harm; empty where something depends on it."""
    trace = pair.after
    if event.filled is not None:
        harmless = event.filled not in trace.read
    elif event.launch:
        harmless = event.launch not in trace.live
    else:
        harmless = (event.rule == "wait" or event.key[0] == "val") and event.node not in trace.live
    return "nothing that can be seen from outside depends on it" if harmless else ""


def _conclude(pair: Pair) -> None:
    report = pair.report
    checked = {
        "nodes_before": pair.before.nodes,
        "nodes_after": pair.after.nodes,
        "launches_before": pair.before.launches,
        "launches_after": pair.after.launches,
        "waits_before": pair.before.waits,
        "waits_after": pair.after.waits,
        "copies_before": pair.before.copies,
        "copies_after": pair.after.copies,
        "terms": len(pair.table.keys),
    }
    report.checked.update(checked)
    if pair.changed and not report.findings and not report.unproved and not pair.same:
        text = "; ".join(pair.consequences) or "the graphs differ"
        report.differs("value", "", f"{text}, for a reason that was not found")
