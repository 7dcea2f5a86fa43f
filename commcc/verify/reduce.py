"""A pair of graphs that differ, or are not proved, reduced for a report.

    small = reduced(before, after)
    verify(*small).status        # as before, with a finding of the rule that came first

Both return the node that the verifier names first, or else as few of their outputs as show the difference; ops in
front of it become inputs of both graphs; what nobody needs any more is left out. The verifier is asked after each step.

Limits: no smallest pair is looked for; at most :data:`TRIES` questions are asked. Weights and the signature of
``.pt2`` files are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.graph.ops import facts
from commcc.graph.program import copy_node
from commcc.verify import verify
from commcc.verify.normalise import check_order
from commcc.verify.terms import Tensor, Terms
from commcc.verify.tracer import Tracer
from commcc.verify.verdict import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.program import Program
    from commcc.verify.verdict import Finding

Pair = tuple["Program", "Program"]
TRIES = 160


def reduced(before: Program, after: Program) -> Pair:
    """A smaller pair with the same status and a finding of the same rule; the pair itself where nothing can go."""
    return _Reduction((before, after)).run()


class _Reduction:
    """pair: the smallest so far. status, first: what the verifier must go on saying. tries: questions left."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.status, said = _said(pair)
        self.first = said[0] if said else None
        self.tries = TRIES

    def run(self) -> Pair:
        self._try(tuple(replace(each, carrier=None, provenance=(), format="memory") for each in self.pair))
        named = [_named(each.graph, "" if self.first is None else self.first.node) for each in self.pair]
        if None not in named:  # return what the difference is about, and nothing behind it
            self._try(_rebuilt(self.pair, set(), [(node,) for node in named]))
        self._halve_outputs()
        self._most(_alike(*self.pair))
        return self.pair

    def _try(self, pair: Any) -> bool:
        """Whether a pair still shows the difference; it is then the one to go on with."""
        self.tries -= 1
        status, said = _said(pair) if self.tries >= 0 else ("", [])
        if self.first is None or status != self.status or all(self.first.rule != other.rule for other in said):
            return False
        self.pair = pair
        return True

    def _halve_outputs(self) -> None:
        """Return as little as possible: half of the outputs, again and again."""
        shown = True
        while shown:
            returned = [_outputs(each.graph) for each in self.pair]
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
                self._try(_rebuilt(self.pair, chosen, [_outputs(each.graph) for each in self.pair]))
            size //= 2


def _said(pair: Pair) -> tuple[str, list[Finding]]:
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
    if not all(check_order(each.graph, Report(), "") for each in (before, after)):
        return []
    table = Terms.of(before, after)
    walks = [Tracer(table, each.root, first=each is before) for each in (before, after)]
    values: list[dict[str, Tensor]] = []
    for walk, each in zip(walks, (before, after), strict=True):
        walk.walk(each.graph)
        nodes = (node for node in each.graph.nodes if node.op == "call_function" and not facts(node.target).views)
        values.append({node.name: made for node in nodes if isinstance(made := walk.env[node], Tensor)})
    old, new = values
    return [name for name, made in old.items() if name in new and new[name].content == made.content]


def _rebuilt(pair: Pair, inputs: set[str], returned: Sequence[Sequence[Any]]) -> Pair:
    """Both programs with the results of some nodes as inputs, other outputs, and what these need."""
    needed = [_needed(each.graph, inputs, outputs) for each, outputs in zip(pair, returned, strict=True)]
    given = {node.name for nodes in needed for node in nodes if node.op == "placeholder" or node.name in inputs}
    taken = [node.name for node in pair[0].graph.nodes if node.name in given]  # in one order in both
    made = []
    for each, nodes, outputs in zip(pair, needed, returned, strict=True):
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        names = {node.name: node for node in each.graph.nodes}
        for name in taken:
            place = env[names[name]] = graph.placeholder(name)
            place.name, place.meta = name, dict(names[name].meta)
        for node in (n for n in each.graph.nodes if n in nodes and n.op != "output" and n.name not in given):
            env[node] = copy_node(graph, node, env)
        graph.output(fx.node.map_arg(tuple(outputs), lambda node, env=env: env[node]))  # type: ignore[misc]
        made.append(replace(each, graph=graph))
    return made[0], made[1]


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
