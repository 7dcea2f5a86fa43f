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
Process groups are compared by name, those split off others by their origin (:mod:`commcc.verify.normalise`).
Modules that AFTER cut in chunks are compared clone by clone (:mod:`commcc.verify.chunks`).
Where AFTER was fixed to sizes, BEFORE is taken for inputs of that size (:mod:`commcc.verify.boundary`).

Besides, a pair that differs can be made smaller for a report, and AFTER's peak memory, worked out anew from the graphs
alone, held against a bound::

    small = reduced(before, after)
    verify(*small).status           # as before, with a finding of the rule that came first
    peak = compare_peaks(before, after, lambda own: own + (1 << 30))
    peak.within, peak.after_bytes, peak.at

Limits of these: no smallest pair is looked for, and at most :data:`TRIES` questions are asked; weights and the
signature of ``.pt2`` files are left out. Peaks have the limits of :mod:`commcc.graph.memory`; sizes known only at run
time need hints.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.callables import also_a_function
from commcc.base.errors import GraphError
from commcc.base.gc_pause import no_collection
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.ops import facts
from commcc.graph.program import check_size
from commcc.verify import boundary, compare
from commcc.verify.annotations import compare_annotations
from commcc.verify.barriers import compare_barriers
from commcc.verify.chunks import folded
from commcc.verify.kernels import compare_kernels
from commcc.verify.normalise import check_order, compare_edges, compare_groups, unfolded, without_edges
from commcc.verify.pair import Pair
from commcc.verify.reach import reaches_unseen
from commcc.verify.regions import calls_of, without_calls
from commcc.verify.reordered import reordered
from commcc.verify.same import alike, identical
from commcc.verify.subgraphs import meeting
from commcc.verify.terms import Tensor, Terms
from commcc.verify.tracer import Tracer, trace_program
from commcc.verify.verdict import Finding, Report, Verdict, Ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.verify.trace import Event


#: What a file may leave out, and how differences in it begin.
_GUESSES = {"strides": "strides", "devices": "device"}
#: How often AFTER is looked at again when contents turn out to be equal that have different normal forms.
ROUNDS = 8

__all__ = ["Finding", "Verdict", "compare_peaks", "contradictions", "reduced", "verify"]


@no_collection()
def verify(before: Program, after: Program, *, same_constants: bool = False) -> Verdict:
    """Compare two programs; never raises for a graph that is merely wrong.

    same_constants: take constants of one name to be the same where neither file has their values, as dumps have none.
    """
    try:
        check_size(before)
        check_size(after)
    except GraphError as error:
        report = Report()
        report.gap("value", "", error.what)
        return report.verdict()
    calls, others = zip(calls_of(before), calls_of(after), strict=True)
    # Of what is called and not in a file nothing can be said.
    if calls[0] != calls[1] and others[0] == others[1]:
        return _verdict(without_calls(before), without_calls(after), same_constants)
    verdict = _verdict(before, after, same_constants)
    if verdict.status != "proved" and any(calls):
        plain = _verdict(without_calls(before), without_calls(after), same_constants)
        return plain if plain.status == "proved" else verdict
    return verdict


def _verdict(before: Program, after: Program, same_constants: bool) -> Verdict:
    report = Report()
    try:
        _compare(before, after, report, same_constants)
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


def _compare(before: Program, after: Program, report: Report, same_constants: bool) -> None:
    fine = check_order(before.graph, report, " (in BEFORE)")
    if not check_order(after.graph, report, "") or not fine:
        return
    boundary.compare_exported(before, after, report)
    compare_kernels(before, after, report)
    stands_for = compare_groups(before, after, report)
    whole = folded(before, after, report, stands_for)
    if whole is None:
        return
    table = old = None
    if whole is not after:  # what is illegal in AFTER as it stands, whose clones are not looked at below
        table = Terms.of(before, after)
        old = trace_program(table, before, first=True)
        apart = table.copy()  # what AFTER adds is not to be seen below
        new = trace_program(apart, after, first=False)
        # What BEFORE says too is compared below, with what it is about.
        known = {(event.rule, event.node, event.text) for event in old.events}
        new.events[:] = [event for event in new.events if (event.rule, event.node, event.text) not in known]
        _compare_events(Pair(apart, old, new, report, {}, {}, {}))
    after, traced, exported = whole, before, before.carrier is not None
    before, after = unfolded(before, before), unfolded(after, before)
    before, held = without_edges(before)
    after, holds = without_edges(after)
    renamed = boundary.match_inputs(before.graph, after.graph, report)
    fixed = boundary.fixed_sizes(before, after, report)
    new_nodes = {node.name: node for node in after.graph.nodes}
    compare_edges(held, holds, set(new_nodes), report)
    fresh = Terms.of(before, after)
    if table is None or old is None or before is not traced or fixed or not fresh.as_declared(table):
        table = fresh
        old = trace_program(table, before, first=True, fixed=fixed)
    old_nodes = {node.name: node for node in before.graph.nodes}
    meetings = frozenset(node.name for each in (before, after) for node in meeting(each.graph, each.root))
    assumed = [{note.assumed for note in program.notes} for program in (before, after)]
    guessed = frozenset(_GUESSES.keys() & (assumed[0] ^ assumed[1]))
    # A walk over the very same nodes, where there is nothing to complain of, would find the same once more.
    plain = not old.events and not stands_for and all(name == own for name, own in renamed.items())
    again = plain and (identical(before, after) or reordered(before, after))
    for _ in range(ROUNDS):
        new = old
        if not again:
            new = trace_program(table, after, first=False, inputs=renamed, groups=stands_for, fixed=fixed)
        pair = Pair(table, old, new, Report(), old_nodes, new_nodes, renamed, meetings, guessed, same_constants)
        _compare_traces(pair)
        if not pair.same:
            break
        table.same.update(pair.same)
    else:
        report.gap("value", "", f"elements in other orders of writing them down, one after another, {ROUNDS} deep")
    if exported:
        boundary.compare_detached(pair)
    report.absorb(pair.report)
    call = None if again else reaches_unseen(after) or reaches_unseen(before)
    if call is not None and not alike(before, after):
        report.gap("memory", call, "its sub-graph reaches memory that it is not given (see docs/verify.md)")


def _compare_traces(pair: Pair) -> None:
    boundary.compare_inputs(pair)
    boundary.compare_outputs(pair)
    compare.compare_sequences(pair)
    compare.compare_bare(pair)
    _compare_events(pair)
    compare.report_causes(pair)
    compare.compare_ops(pair)
    compare.compare_elements(pair)
    compare_barriers(pair)
    compare_annotations(pair)
    compare.compare_layouts(pair)
    _conclude(pair)


class _Numbers:
    """A number for each key. What many keys share, such as the operands of one launch, is hashed once, not for each.

    The keys are kept by who asks.
    """

    def __init__(self) -> None:
        self._by_id: dict[tuple[int, int], int] = {}
        self._by_value: dict[tuple[int, object], int] = {}

    def of(self, part: object, depth: int = 4) -> int:
        at = id(part), depth
        known = self._by_id.get(at)
        if known is None:
            looks = tuple(self.of(inner, depth - 1) for inner in part) if depth and isinstance(part, tuple) else part
            known = self._by_id[at] = self._by_value.setdefault((depth, looks), len(self._by_value))
        return known


def _compare_events(pair: Pair) -> None:
    """What is illegal in AFTER and was not already so in BEFORE; one finding for each launch and mistake."""
    number = _Numbers().of
    old = Counter(number(event.key) for event in pair.before.events)
    new: dict[tuple[object, ...], list[Event]] = {}
    for event in pair.after.events:
        key = number(event.key)
        if old[key] > 0:
            old[key] -= 1
            pair.report.note(event.rule, event.node, f"{event.text}; so it is in BEFORE")
        else:
            new.setdefault((event.rule, *event.key[:2]), []).append(event)
    for event in pair.before.events:  # what is said wrongly in BEFORE alone
        if event.key[0] == "val" and event.node in pair.before.live and old[number(event.key)] > 0:
            old[number(event.key)] -= 1
            pair.report.gap(event.rule, event.node, f"{event.text} (in BEFORE)")
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
    """Why a mistake may do no harm, or be none; empty where something depends on it."""
    trace = pair.after
    for what in pair.guessed:
        if event.key[0] == "val" and event.text.startswith(f"its val says {_GUESSES[what]} "):
            return f"one of the two files does not tell {what}; dump it with them"
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
    elif pair.uncaused and not report.findings and not report.unproved and not pair.same:
        report.gap("value", pair.uncaused, "works on what BEFORE does not have, for a reason that was not found")


Both = tuple["Program", "Program"]
TRIES = 160


def reduced(
    before: Program,
    after: Program,
    shows: Callable[[Program, Program], bool] | None = None,
    tries: int = TRIES,
    nodes: Iterable[str] = (),
) -> Both:
    """A smaller pair that still shows what this one shows; the pair itself where nothing can go.

    shows: asked of every smaller pair, at most ``tries`` times; without it a pair shows the same where the verifier's
    status is the same, and a finding of the same rule is there. nodes: names at which the difference may be seen.
    """
    status, said = _said((before, after)) if shows is None else ("", [])
    if shows is not None:
        return _Reduction((before, after), shows, tries).run(nodes, _of_one_name(before, after))
    if not said:
        return before, after

    def same(old: Program, new: Program) -> bool:
        now, findings = _said((old, new))
        return now == status and any(finding.rule == said[0].rule for finding in findings)

    return _Reduction((before, after), same, tries).run([said[0].node], None)


class _Reduction:
    """pair: the smallest so far. shows: what must go on. tries: questions left."""

    def __init__(self, pair: Both, shows: Callable[[Program, Program], bool], tries: int) -> None:
        self.pair, self.shows, self.tries = pair, shows, tries

    def run(self, nodes: Iterable[str], cuts: list[str] | None) -> Both:
        """cuts: nodes that may become inputs; None for those that the verifier finds to be the same."""
        self._try(tuple(replace(program, carrier=None, provenance=(), format="memory") for program in self.pair))
        self._return_one(nodes)
        self._halve_outputs()
        self._most(_alike(*self.pair) if cuts is None else cuts)
        self._return_one(cuts or ())
        return self.pair

    def _return_one(self, names: Iterable[str]) -> None:
        """Return what the difference is about, and nothing behind it: the first node that shows it."""
        for name in names:
            named = [_named(program.graph, name) for program in self.pair]
            if None not in named and self._try(_rebuilt(self.pair, set(), [(node,) for node in named])):
                return

    def _try(self, pair: Any) -> bool:
        """Whether a pair still shows the difference; it is then the one to go on with."""
        self.tries -= 1
        if self.tries < 0 or not self.shows(*pair):
            return False
        self.pair = pair
        return True

    def _halve_outputs(self) -> None:
        """Return as little as possible: half of the outputs, again and again."""
        shown = True
        while shown:
            returned = [_outputs(program.graph) for program in self.pair]
            count, half = len(returned[0]), len(returned[0]) // 2
            if count < 2 or len(returned[1]) != count:
                return
            halves = ([outputs[part] for outputs in returned] for part in (slice(half), slice(half, None)))
            shown = any(self._try(_rebuilt(self.pair, set(), some)) for some in halves)

    def _most(self, names: list[str]) -> None:
        """Make inputs of as many nodes as possible: in ever smaller groups."""
        size = len(names) // 2
        while size and self.tries > 0:
            for start in range(0, len(names), size):
                chosen = set(names[start : start + size])
                self._try(_rebuilt(self.pair, chosen, [_outputs(program.graph) for program in self.pair]))
            size //= 2


def _said(pair: Both) -> tuple[str, list[Finding]]:
    """Status, and what it rests on."""
    verdict = verify(*pair)
    return verdict.status, [*(verdict.findings or verdict.unproved)]


def _named(graph: fx.Graph, name: str) -> fx.Node | None:
    return next((node for node in graph.nodes if node.name == name and node.op == "call_function"), None)


def _outputs(graph: fx.Graph) -> tuple[Any, ...]:
    returned = next((node.args[0] for node in graph.nodes if node.op == "output" and node.args), ())
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _alike(before: Program, after: Program) -> list[str]:
    """Tensors that both graphs compute under one name, of one content, each in storage of its own."""
    if not all(check_order(program.graph, Report(), "") for program in (before, after)):
        return []
    table = Terms.of(before, after)
    walks = [Tracer(table, program.root, first=program is before) for program in (before, after)]
    values: list[dict[str, Tensor]] = []
    for walk, program in zip(walks, (before, after), strict=True):
        walk.walk(program.graph)
        nodes = (node for node in program.graph.nodes if node.op == "call_function" and not facts(node.target).views)
        values.append({node.name: tensor for node in nodes if isinstance(tensor := walk.env[node], Tensor)})
    old, new = values
    return [name for name, tensor in old.items() if name in new and new[name].content == tensor.content]


def _of_one_name(before: Program, after: Program) -> list[str]:
    """Nodes that have one name and one shape in both graphs and launch nothing, in the order of BEFORE."""
    shapes = [{node.name: str(node.meta.get("val")) for node in program.graph.nodes} for program in (before, after)]
    plain = (node for node in before.graph.nodes if node.op == "call_function" and not facts(node.target).launch)
    return [node.name for node in plain if shapes[0][node.name] == shapes[1].get(node.name)]


def _rebuilt(pair: Both, inputs: set[str], returned: Sequence[Sequence[Any]]) -> Both:
    """Both programs with the results of some nodes as inputs, other outputs, and what these need."""
    needed = [_needed(program.graph, inputs, outputs) for program, outputs in zip(pair, returned, strict=True)]
    given = {node.name for nodes in needed for node in nodes if node.op == "placeholder" or node.name in inputs}
    taken = [node.name for node in pair[0].graph.nodes if node.name in given]  # in one order in both
    programs = []
    for program, nodes, outputs in zip(pair, needed, returned, strict=True):
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        names = {node.name: node for node in program.graph.nodes}
        for name in taken:
            place = env[names[name]] = graph.placeholder(name)
            place.name, place.meta = name, dict(names[name].meta)
        for node in (n for n in program.graph.nodes if n in nodes and n.op != "output" and n.name not in given):
            env[node] = copy_node(graph, node, env)
        graph.output(fx.node.map_arg(tuple(outputs), lambda node, env=env: env[node]))  # type: ignore[misc]
        programs.append(replace(program, graph=graph))
    return programs[0], programs[1]


def _needed(graph: fx.Graph, inputs: set[str], returned: Sequence[Any]) -> set[fx.Node]:
    """Nodes that outputs and effects need, where some nodes are inputs."""
    needed: set[fx.Node] = set()
    fx.node.map_arg(tuple(returned), needed.add)
    for node in reversed(graph.nodes):
        fact = facts(node.target) if node.op == "call_function" else None
        # A collective that nobody needs can go with its wait, unless it fills a buffer that it is given.
        acts = fact is not None and not (fact.pure or ((fact.wait or fact.launch) and not fact.writing))
        if node.name not in inputs and (node in needed or acts):
            needed.add(node)
            needed.update(node.all_input_nodes)
    return needed


@dataclass(frozen=True)
class Peak:
    """Highest live bytes of both graphs, and what AFTER may have. at: the node of AFTER that reaches its peak."""

    before_bytes: int
    after_bytes: int
    budget_bytes: int
    at: str
    within: bool

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


def compare_peaks(
    before: Program, after: Program, budget: Callable[[int], int], hints: Mapping[str, int] | None = None
) -> Peak:
    """Peak memory of both graphs; ``budget`` gives the bytes that AFTER may have from BEFORE's own peak."""
    index = build_index(after, hints=hints)
    old, new = live_bytes(build_index(before, hints=hints)), live_bytes(index)
    allowed = budget(old.peak_bytes)
    at = "" if new.peak_at is None else index.names[new.peak_at]
    return Peak(old.peak_bytes, new.peak_bytes, allowed, at, new.peak_bytes <= allowed)


also_a_function(__name__, "commcc.api")
