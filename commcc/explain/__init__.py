"""Why a collective is exposed: what could hide it, what stops that, what it costs, what would change it.

    context = Context(index, ident, prediction, model, Limits(), program)
    found = explain(context, "all_gather_into_tensor_7")
    found.summary                   # one line
    found.reasons[0].text, found.reasons[0].path
    for found in explain_worst(context, count=10): ...

The prediction must be of the graph in its own order. Savings are not estimates: each one is the
difference between the simulated step and that of a step in which one thing is changed (a launch moved
to a legal place, a queue of its own, no latency). They do not add up, since hiding one collective takes
compute that could have hidden another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import OptionError, closest
from commcc.base.gc_pause import no_collection
from commcc.explain.context import Context, Scene, launch_side, scene_of, wait_side
from commcc.explain.findings import investigate
from commcc.explain.knobs import knobs
from commcc.explain.moves import Search
from commcc.explain.observed import overlap, picture, possible, timing
from commcc.explain.reasons import Case, reasons
from commcc.explain.types import Advice, Explanation, Knob, Limits, Reason

if TYPE_CHECKING:
    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex

__all__ = ["Context", "Explanation", "Knob", "Limits", "Reason", "explain", "explain_worst", "find", "Scene"]


@no_collection()
def explain(context: Context, name: str) -> Explanation:
    """Explain the collective that ``name``, a launch or a wait, belongs to.

    Raises OptionError when no node is called that, or when it is neither.
    """
    return _explain(context, find(context.index, context.ident, name))


@no_collection()
def explain_worst(context: Context, count: int = 10) -> list[Explanation]:
    """Explain the ``count`` collectives with most exposed time, the worst first; hidden ones never."""
    exposed = context.timeline.exposed
    worst = sorted(
        (c for c in context.ident.collectives if exposed.get(c.launch)), key=lambda c: (-exposed[c.launch], c.launch)
    )
    return [_explain(context, collective) for collective in worst[:count]]


def find(index: GraphIndex, ident: Identification, name: str) -> Collective:
    """The collective of a launch or a wait; OptionError with the nearest name, or with what the node is."""
    node = index.position.get(name)
    known = [index.names[n] for c in ident.collectives for n in (c.launch, *c.waits)]
    if node is None:
        hint = "'commcc inspect GRAPH --all' lists the collectives" if known else "the graph has no collectives"
        raise OptionError(f"no node '{name}' in the graph{closest(name, known)}", hint=hint)
    collective = ident.by_launch.get(index.wait_of.get(node, node))
    if collective is not None:
        return collective
    hint = "name a launch or its wait; 'commcc inspect GRAPH --all' lists them"
    raise OptionError(f"'{name}' is no collective but {index.ops[node]}", hint=hint)


def _explain(context: Context, collective: Collective) -> Explanation:
    index, costs = context.index, context.costs
    launch = collective.launch
    scene = scene_of(context, collective)
    sides = (launch_side(context, scene), wait_side(context, scene))
    search = Search(context, scene, context.timeline.exposed.get(launch, 0))
    paths, jobs = context.paths, context.jobs
    through = paths.head[launch] + jobs.compute[launch] + jobs.transfer[launch] + paths.landed[launch]
    longest = max(h + c + t for h, c, t in zip(paths.head, jobs.compute, paths.tail, strict=True))
    case = Case(search, investigate(search, sides), timing(context, scene), possible(context, scene), sides)
    best, advice = case.findings.best, None
    if best is not None:
        advice = Advice(
            earlier=best.earlier,
            above=case.name(best.above),
            later=best.later,
            below=case.name(best.below - 1) if best.below is not None else None,
            within=best.trial.within,
            saves_ns=best.saves_ns,
            exposed_ns=best.trial.exposed_ns,
            peak_bytes=search.peak(best),
        )
    return Explanation(
        name=index.names[launch],
        waits=context.names(collective.waits),
        kind=collective.kind,
        group=collective.group,
        group_size=collective.group_size,
        stream=context.timeline.spans[launch].stream,
        role=collective.role,
        module=collective.module,
        input_bytes=collective.input_bytes,
        output_bytes=collective.output_bytes,
        unknown_size=collective.unknown,
        total_ns=costs.ns[launch],
        latency_ns=costs.latency_ns.get(launch, 0),
        how=costs.how.get(launch, ""),
        priced_by=costs.sources[costs.priced_by[launch]] if costs.priced_by[launch] >= 0 else "",
        exposed_ns=search.exposed_ns,
        cost_ns=case.findings.cost,
        slack_ns=max(0, longest - through),
        timing=case.timing,
        overlap=overlap(context, scene),
        possible=case.possible,
        launch_side=sides[0],
        wait_side=sides[1],
        advice=advice,
        reasons=reasons(case),
        knobs=knobs(case),
        picture=picture(context, scene),
    )
