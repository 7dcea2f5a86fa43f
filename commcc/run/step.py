"""A forward and its backward as one step: what the first saves and launches, the second reads and waits for.

    links = link(forward, backward)     # which input is which output
    step = join(forward, backward, links)
    step.program                # one graph: the nodes of the forward, then those of the backward
    step.carried["mm_3"]        # 'mm_3': the node of the forward that is the backward's input

A step is for looking at: it is simulated, and its memory is measured, as one graph. Passes run on its two halves, since
two graphs is what PyTorch will run. What is in flight between them, and what the forward saves, follows from the step
(:meth:`Step.outside`).

An input of the backward is an output of the forward of the same name; where names were lost, the last outputs of the
forward are the first inputs of the backward, sizes ahead of tensors, as AOTAutograd orders them. Shapes and dtypes must
be equal. All that is left, such as tangents, are inputs of the step.

Limits: a symbol of both graphs stands for one size; the optimizer is no part of the step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from commcc.base.errors import InputError
from commcc.graph import ops
from commcc.graph.copying import copy_node
from commcc.graph.index.outside import Outside
from commcc.graph.memory import MemoryModel
from commcc.graph.program import Program
from commcc.serialization.attributes import find, put
from commcc.serialization.shapes import format_val

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from commcc.run.pipeline import RunResult
    from commcc.timing.snapshot import Snapshot

    Runner = Callable[[Program, Outside], RunResult]

_HINT = "give the forward first, then its backward, both of one compilation"
#: How AOTAutograd's own descriptors and names tell inputs of the backward that no forward saves.
_NEW = ("TangentAOTInput", "PhiloxBackward", "BackwardSeed")
_NEW_NAMES = ("tangents_", "bwd_rng_state", "bwd_seed", "bwd_base_offset")


@dataclass(frozen=True)
class Step:
    """program: both graphs as one. carried: nodes of the forward by the backward's input that they are. inner: nodes
    of the step by the node of the backward, inputs left out. fresh: inputs of the backward that no forward gives.
    """

    program: Program
    carried: Mapping[str, str]
    inner: Mapping[str, str]
    fresh: tuple[str, ...]

    @property
    def carried_over(self) -> tuple[str, ...]:
        """Launches of the forward that only the backward waits for."""
        nodes = {node.name: node for node in self.program.graph.nodes}
        sources = [nodes[name] for name in dict.fromkeys(self.carried.values())]
        sources = [node for node in sources if node.op == "call_function" and not ops.is_wait(node.target)]
        return tuple(node.name for node in sources if any(ops.is_wait(user.target) for user in node.users))

    def outside(self, seen: Snapshot) -> Outside:
        """What the step, of which this is the snapshot, does to the backward: when what the forward launched has
        ended, what it saved for the backward alone, and what lives on next to it.
        """
        index, memory = seen.index, MemoryModel(seen.index)
        # What the caller gave, and what the forward returns to it, lives on whatever the backward does.
        owned = memory.inputs | memory.kept
        of = {name: index.estimates.buffers[index.position[source]] for name, source in self.carried.items()}
        freed = frozenset(name for name, buffers in of.items() if owned.isdisjoint(buffers))
        fresh = {b for name in self.fresh for b in index.estimates.buffers[index.position[self.inner[name]]]}
        inner_buffers = {b for node in self.inner.values() for b in index.estimates.buffers[index.position[node]]}
        elsewhere = owned.difference(fresh, inner_buffers, *(of[name] for name in of))
        resident = sum(memory.size[b] for b in elsewhere)
        buffers = {name: (ids[0], memory.size[ids[0]]) for name, ids in of.items() if len(ids) == 1}
        sizes = {hint.symbol: hint.value for hint in index.estimates.hints}
        return Outside(self._ends(seen), buffers, freed, resident, sizes)

    def _ends(self, seen: Snapshot) -> dict[str, int]:
        """Of launches that the backward takes as inputs, the end from the moment at which the backward begins."""
        if seen.prediction is None:
            return {}
        index, timeline = seen.index, seen.prediction.timeline
        ours = (index.position[node] for name, node in self.inner.items() if name not in self.fresh)
        begins = min((timeline.start[node] for node in ours), default=timeline.step_ns)
        spans = {index.names[launch]: span for launch, span in timeline.spans.items()}
        ends = {name: spans[source].end - begins for name, source in self.carried.items() if source in spans}
        return {name: ns for name, ns in ends.items() if ns > 0}


def is_backward_of(forward: Program, backward: Program) -> bool:
    """Whether names say that the second graph is the backward of the first: most of its inputs are outputs of that.

    A graph after a rewrite takes the inputs that it took before.
    """
    saved = {node.name for node in _outputs(forward) if isinstance(node, fx.Node)}
    ours, theirs = ([n for n in p.graph.nodes if n.op == "placeholder"] for p in (forward, backward))
    old = [node.name for node in theirs if not _is_new(node)]
    same = [node.name for node in ours] == [node.name for node in theirs]
    return bool(old) and not same and 2 * sum(name in saved for name in old) > len(old)


def pairs(programs: Mapping[str, Program]) -> list[tuple[str, str]]:
    """Names of forwards with those of their backwards. Of several that fit, the one that is called most alike."""
    matches: list[tuple[str, str]] = []
    for name, backward in programs.items():
        fitting = [other for other in programs if other != name and _fits(programs[other], backward)]
        alike = [_alike(other, name) for other in fitting]
        if fitting and alike.count(max(alike)) == 1:
            matches.append((fitting[alike.index(max(alike))], name))
    forwards = Counter(forward for forward, _ in matches)
    return [(forward, backward) for forward, backward in matches if forwards[forward] == 1]


def _alike(name: str, other: str) -> int:
    """How many letters two names begin with alike."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(name, other, strict=False)))


def _fits(forward: Program, backward: Program) -> bool:
    try:
        return is_backward_of(forward, backward) and bool(link(forward, backward))
    except InputError:  # shapes of the same name differ
        return False


def join(forward: Program, backward: Program, links: Mapping[str, int]) -> Step:
    """One graph of both, by what :func:`link` says of them or of the graphs that they were rewritten from."""
    outputs = _outputs(forward)
    ours, theirs = _Part(forward, set()), _Part(backward, {node.name for node in forward.graph.nodes})
    graph, root = fx.Graph(), torch.nn.Module()
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    fresh = [node for node in inputs if node.name not in links]
    # Where the forward has waited already, the backward's wait finds it done.
    taken = {node: _awaited(outputs[links[node.name]]) for node in inputs if node.name in links}
    for part, nodes in ((ours, forward.graph.nodes), (theirs, fresh)):
        part.copy([node for node in nodes if node.op == "placeholder"], graph, root)
    ours.copy([node for node in forward.graph.nodes if node.op not in ("placeholder", "output")], graph, root)
    theirs.env.update({node: ours.env[source] for node, source in taken.items()})
    inner = [node for node in backward.graph.nodes if node.op not in ("placeholder", "output")]
    theirs.copy(inner, graph, root)
    saved = set(links.values())
    returned = [ours.value(leaf) for place, leaf in enumerate(outputs) if place not in saved]
    graph.output((*returned, *map(theirs.value, _outputs(backward))))
    symbols = {**_symbols(backward), **_symbols(forward)}
    program = Program(
        graph,
        root,
        groups={**backward.groups, **forward.groups},
        header={**forward.header, **({"symbols": symbols} if symbols else {})},
        source=forward.source,
    )
    return Step(
        program,
        {node.name: ours.env[source].name for node, source in taken.items()},
        {node.name: theirs.env[node].name for node in (*fresh, *inner)},
        tuple(node.name for node in fresh),
    )


def _awaited(leaf: Any) -> Any:
    """An output, or the wait for it in the same graph."""
    waits = (user for user in leaf.users if user.op == "call_function" and ops.is_wait(user.target))
    return next(waits, leaf)


class _Part:
    """One of the two graphs on its way into the step. taken: names and constants that are not free."""

    def __init__(self, program: Program, taken: set[str]) -> None:
        self.program, self.taken = program, taken
        self.env: dict[fx.Node, fx.Node] = {}

    def copy(self, nodes: Iterable[fx.Node], graph: fx.Graph, root: torch.nn.Module) -> None:
        """Append these nodes under their names, or the next that is free; with the constants that they read."""
        for node in nodes:
            copy = copy_node(graph, node, self.env)
            copy.name = self._free(node.name)
            self.env[node] = copy
            if node.op == "get_attr":
                held = find(self.program.root, str(node.target))
                copy.target = f"{copy.name}_constant"
                if isinstance(held, (torch.Tensor, torch.nn.Module)):
                    put(root, copy.target, held)

    def _free(self, name: str) -> str:
        if name not in self.taken:
            return name
        number = next(n for n in count(1) if f"{name}_bw{n}" not in self.taken)
        self.taken.add(f"{name}_bw{number}")
        return f"{name}_bw{number}"

    def value(self, leaf: Any) -> Any:
        """An output, in the step."""
        return self.env[leaf] if isinstance(leaf, fx.Node) else leaf


@dataclass(frozen=True)
class StepRun:
    """Passes that ran on both halves. first, last: the step before and after. carried_over: see :class:`Step`."""

    first: Snapshot
    last: Snapshot
    carried_over: tuple[str, ...]
    forward: RunResult
    backward: RunResult

    @property
    def verified(self) -> str:
        """``proved`` when both halves are."""
        return "proved" if self.forward.verified == self.backward.verified == "proved" else "unproved"


def run_both(forward: Program, backward: Program, run: Runner, take: Callable[[Program], Snapshot]) -> StepRun:
    """Run passes on the forward, then on the backward under what the new forward saves and has in flight.

    run: of one graph in the step; take: its snapshot, with costs.
    """
    links = link(forward, backward)
    own = join(forward, backward, links)
    first = take(own.program)
    ahead = run(forward, Outside())
    between = join(ahead.program, backward, links)
    behind = run(backward, between.outside(take(between.program)))
    return StepRun(first, take(join(ahead.program, behind.program, links).program), own.carried_over, ahead, behind)


def _outputs(program: Program) -> list[Any]:
    """What a graph returns, one by one."""
    last = next(iter(reversed(program.graph.nodes)), None)
    return [] if last is None or last.op != "output" else tree_leaves(last.args[0], is_leaf=lambda leaf: leaf is None)


def _symbols(program: Program) -> dict[str, Any]:
    table = program.header.get("symbols")
    return dict(table) if isinstance(table, dict) else {}


def _is_new(node: fx.Node) -> bool:
    """Whether AOTAutograd says that no forward saves this input."""
    return node.name.startswith(_NEW_NAMES) or any(word in str(node.meta.get("desc", "")) for word in _NEW)


def link(forward: Program, backward: Program) -> dict[str, int]:
    """For inputs of the backward, by name, the place among the outputs of the forward.

    Raises :class:`InputError` where the inputs cannot be told from each other, or are not what the forward returns.
    """
    outputs = _outputs(forward)
    by_name = {leaf.name: (place, leaf) for place, leaf in enumerate(outputs) if isinstance(leaf, fx.Node)}
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    taken = {node: by_name[node.name] for node in inputs if node.name in by_name}
    lost = [node for node in inputs if node not in taken and not _is_new(node)]
    if lost and not taken:
        taken = _by_place(lost, outputs)
    elif lost:
        _refuse(lost[0], "is no output of the forward")
    for node, (_, source) in taken.items():
        theirs, ours = (format_val(side.meta.get("val")) for side in (node, source))
        if theirs and ours and theirs != ours:
            _refuse(node, f"is {theirs}, and '{source.name}' of the forward is {ours}")
    if not taken:
        raise InputError("the second graph takes nothing that the first one returns", hint=_HINT)
    return {node.name: place for node, (place, _) in taken.items()}


def _by_place(lost: Sequence[fx.Node], outputs: Sequence[Any]) -> dict[fx.Node, tuple[int, fx.Node]]:
    """The last outputs of the forward are sizes behind tensors; of the backward's inputs the sizes come first."""
    last = list(enumerate(outputs))[-len(lost) :]
    if len(last) < len(lost) or not all(isinstance(leaf, fx.Node) for _, leaf in last):
        _refuse(lost[0], "is no output of the forward, and there are too few to go by their order")
    ordered = sorted(last, key=lambda item: isinstance(item[1].meta.get("val"), torch.Tensor))
    return dict(zip(lost, ordered, strict=True))


def _refuse(node: fx.Node, why: str) -> NoReturn:
    raise InputError(f"no step of both graphs: the backward's input '{node.name}' {why}", hint=_HINT)
