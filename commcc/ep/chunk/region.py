"""Plans one module's chunks: what every value is in a chunk, and how what leaves the body becomes whole again.

For each chunk size the body is run on fake tensors (:mod:`commcc.ep.chunk.lab`), which shows where the tokens are in
every value; :mod:`commcc.ep.chunk.rules` says what that makes of it. Then, of what leaves the body:

1. slices are concatenated, parts of a sum added up; anything else is refused;
2. a part of a sum that goes into a reduction over ranks is added up before it, in that reduction's dtype, so that
   there is one reduction as before, and one that is rounded to another dtype is added up before that; views and
   reductions behind it stay whole.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx

from commcc.base.terms import Kind
from commcc.ep.chunk.call import Call
from commcc.ep.chunk.lab import CannotRun, Lab
from commcc.ep.chunk.refuse import Refused, described, named, refuse, shape_text
from commcc.ep.chunk.resize import Sizes, resizes
from commcc.ep.chunk.rules import state_of
from commcc.ep.chunk.state import SUM, State
from commcc.graph import ops
from commcc.graph.ops.arithmetic import ADDITIVE
from commcc.graph.ops.collective_table import ALL_REDUCE
from commcc.graph.ops.counting import BY_LENGTH
from commcc.graph.ops.indexing import ADDING, PUTTING
from commcc.graph.ops.libraries import OWN
from commcc.graph.ops.products import SCORES
from commcc.graph.ops.twins import functional
from commcc.graph.ops.views import RESHAPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.ep.chunk.body import Draft
    from commcc.ep.chunk.grid import Grid
    from commcc.ep.chunk.resize import Resized
    from commcc.ep.chunk.state import States
    from commcc.ep.chunk.view import View

_LINEAR = ("sum", "avg")
_ATTENTION = re.compile(r"(^|\.)(self_)?att(ention|n)(\.|$)")


class Trial:
    """The body of both directions of one module, run at one chunk size.

    states: by node. resized: sizes to be rewritten. after: nodes behind a reduction of a part of a sum, which stay
    whole. chained: writes to a buffer that is not the body's own. places: the dimension that is cut of each tensor,
    and how many blocks of tokens lie in it.
    """

    def __init__(self, view: View, root: str, grid: Grid, part: int) -> None:
        self.view, self.root, self.grid = view, root, grid
        self.lab = Lab(view.ranges, grid, part)
        self.states: dict[fx.Node, States] = {}
        self.resized: dict[int, tuple[Resized, ...]] = {}
        self.after: set[int] = set()
        self.chained: dict[int, int] = {}
        self.members: set[int] = set()
        self.places: dict[fx.Node, tuple[int | None, int]] = {}

    def run(self, draft: Draft) -> None:
        """Run the body of one direction; refuses what cannot be cut."""
        nodes = self.view.nodes
        for entered, dim in draft.enters.items():
            if dim is not None and nodes[entered] not in self.states:
                self.lab.give(nodes[entered], dim)
                self.states[nodes[entered]] = State("rows", dim)
        if self.grid.axis:
            self._check_attention(draft)
        self.members.update(draft.body)
        for node in draft.body:
            late = [pred for pred in self.view.index.data_preds[node] if self.view.notes[pred].backward]
            late = [] if draft.backward else [pred for pred in late if self.view.calls(pred)]
            if late:  # a forward body that reads what the backward pass made could not be run before it
                what = f"belongs to the forward pass, and reads {named(nodes[pred] for pred in late)} of the backward"
                refuse(self.root, nodes[node], what, "mark it as backward (autograd_backward), or leave it outside")
            if self._is_after(node):
                self.after.add(node)
            else:
                self._run_node(node)

    def _check_attention(self, draft: Draft) -> None:
        """Attention reads all tokens of a sample; where the sequence is cut, it cannot be inside."""
        for number in draft.body:
            node, module = self.view.nodes[number], self.view.notes[number].module
            op = ops.op_name(node.target)
            if "attention" in op or (_ATTENTION.search(module) and op in SCORES):
                where = f" of '{module}'" if module else ""
                refuse(
                    self.root,
                    node,
                    f"is in the attention{where}, over the sequence that is cut",
                    self._without_attention(),
                )

    def _without_attention(self) -> str:
        """What to do where attention is inside: it needs all tokens of a sample."""
        if self.grid.axis:
            return "attention needs all tokens of a sample: use dim=batch, or modules without attention"
        if self.grid.inner == 1:
            return (
                f"what comes in has samples and sequence folded into {self.grid.extent} rows, and attention needs all "
                "rows of a sample: choose modules without attention, as layers.*.moe, or dump the model with inputs "
                "[samples, sequence, features]"
            )
        return "attention needs all tokens of a sample: choose modules without attention"

    def _is_after(self, node: int) -> bool:
        """Whether a node is, or depends on, a reduction over ranks of a part of a sum."""
        view = self.view
        if any(pred in self.after for pred in view.index.data_preds[node]):
            return True
        launch = view.index.launches.get(node)
        if launch is None or view.exchanges(node):
            return False
        states = [self.states.get(view.nodes[pred]) for pred in launch.inputs]
        if launch.reduction in _LINEAR and all(isinstance(s, State) and s.kind == "sum" for s in states):
            return True
        tokens = {"rows", "folded", "routed"}
        alike = all(isinstance(state, State) and state.kind in tokens for state in states)
        if alike and states and ops.op_name(view.nodes[node].target) == ALL_REDUCE:
            return False  # what is done to each element alone is done chunk by chunk
        users = named(view.nodes[user] for user in view.index.users[node])
        kinds = sorted({state.kind for state in states if isinstance(state, State)})
        words = {**dict.fromkeys(("rows", "folded", "routed"), "tokens of a chunk"), "sum": "a part of a sum"}
        why = next((state.why for state in states if isinstance(state, State) and state.why), "")
        if why:  # what came before is the reason
            what = f"reduces what depends on {why} in group '{launch.group}'; used by {users}"
            mixer = next(state.mixer for state in states if isinstance(state, State) and state.why)
            refuse(self.root, view.nodes[node], what, "a module that mixes its tokens cannot be cut", mixer)
        about = " and ".join(dict.fromkeys(words.get(kind, "values of a chunk") for kind in kinds)) or "shared values"
        hint = "choose modules without it: of collectives, all-to-alls and all-reduces of tokens may be inside"
        if launch.kind is Kind.ALL_GATHER:
            hint = (
                "tokens that every rank gathers (experts without exchanges, sequence parallelism) cannot be chunked: "
            )
            hint += "send them with all-to-alls, or choose modules without it"
        return refuse(
            self.root,
            view.nodes[node],
            f"communicates on group '{launch.group}' about {about} inside the region; used by {users}",
            hint,
        )

    def _run_node(self, number: int) -> None:
        node = self.view.nodes[number]
        self._check(number, node)
        # States of the tensor operands that differ by chunk.
        states = {source: self.states.get(source) for source in node._input_nodes}
        tensors = {source for source in states if isinstance(source.meta.get("val"), torch.Tensor)}
        operands = {s: state for s, state in states.items() if isinstance(state, State) and s in tensors}
        writes = self.view.index.writes.get(number, ())
        shared = [self.view.nodes[target] for target in writes if self.view.nodes[target] not in self.states]
        if shared:
            self._check_written(node, operands, shared)
        self._check_entered(number, [target for target in writes if self.view.nodes[target] in self.states])
        first = next(iter(node._input_nodes), None)
        shape = tuple(first.meta["val"].shape) if first in tensors else ()
        state = operands.get(first) if first is not None else None
        if state is not None and first is not None and state.dim is None:  # what it is made of is not known, only where
            dim, apart = self.places.get(first, (None, 1))
            state = State(state.kind, dim, state.why, apart)
        try:
            edits = resizes(Sizes(self.root, node, self.grid, state, shape))
        except Refused as refusal:
            refusal.mixer = next((state.mixer for state in operands.values() if state.mixer), None)
            raise
        if edits:
            self.resized[number] = edits
        try:
            value = self._as_long(node, self.lab.run(node, edits))
        except CannotRun as reason:
            self._cannot_run(node, operands, str(reason))
        if shared:
            self.chained[number] = writes[0]
        self.states[node] = State("last") if shared else self._state(node, operands, value)
        for target in () if shared else writes:
            self._written(number, target)

    def _as_long(self, node: fx.Node, value: Any) -> Any:
        """Counts are as long in a chunk as in the whole, where that is as short as they may be: no number is larger."""
        val = node.meta.get("val")
        least = ops.argument(node, "minlength", 0) if ops.op_name(node.target) == BY_LENGTH else 0
        if least > 1 and isinstance(val, torch.Tensor) and type(val.shape[0]) is int and val.shape[0] == least:
            value = self.lab.values[node] = self.lab.ctx.tensor([least], [1], val.dtype, val.device)
        return value

    def _cannot_run(self, node: fx.Node, operands: dict[fx.Node, State], reason: str) -> NoReturn:
        """A sum over all tokens may have been given to each of them again; else a size may be in the way."""
        mixer = next((state.mixer for state in operands.values() if state.mixer), None)
        spread = next((s for s, state in operands.items() if state.kind == "sum" and self._spread(s)), None)
        while spread is not None and mixer is not spread:
            mixer = spread
            spread = next((s for s in mixer._input_nodes if self.states.get(s) == SUM and self._spread(s)), mixer)
        both = f"operands: {', '.join(map(self._both, node._input_nodes))}"
        if mixer is not None:
            what = f"reads what depends on {described(mixer)}, for which all tokens are needed; {both}"
            refuse(self.root, node, what, "leave this module whole", mixer)
        hint = "a size written into the graph may be of tokens: write it with x.shape or -1 in the model"
        refuse(self.root, node, f"cannot run on a chunk ({reason}); {both}", hint)

    def _spread(self, node: fx.Node) -> bool:
        """Whether a value is as long as there are tokens."""
        val = node.meta.get("val")
        return isinstance(val, torch.Tensor) and self.grid.dim_of(val.shape) is not None

    def _check_entered(self, number: int, targets: Sequence[int]) -> None:
        """A write to an activation from outside is one to the chunk's own slice of it, unless the slice is a copy."""
        view = self.view
        for target in targets:
            owners = [view.by_storage[storage][0] for storage in view.index.storages[target]]
            for owner in (view.nodes[owner_number] for owner_number in owners if owner_number not in self.members):
                state, val = self.states.get(owner), owner.meta.get("val")
                # Slices of the first dimension are views; those of another one are made dense, which copies them.
                slices = isinstance(state, State) and (state.kind, state.dim) == ("rows", 0)
                if not (slices and isinstance(val, torch.Tensor) and val.is_contiguous()):
                    what = f"writes to '{view.index.names[target]}', in the storage of '{owner.name}' from outside"
                    hint = "only what is cut along its first dimension can be written: write to a copy in the module"
                    refuse(self.root, view.nodes[number], f"{what}, which all chunks see", hint)

    def _written(self, number: int, target: int) -> None:
        """What the chunk has in that storage is now what was written: all of the target, a part of its other views."""
        index, nodes = self.view.index, self.view.nodes
        state = self.states[nodes[number]]
        state = state if isinstance(state, State) else State("own", None, f"'{index.names[number]}'")
        whole = getattr(nodes[target].meta.get("val"), "shape", None)
        for node in self.view.sharing(target):
            old = self.states.get(nodes[node])
            if node >= number or old is None:
                continue
            if node == target or (state.kind == "own" and getattr(nodes[node].meta.get("val"), "shape", None) == whole):
                self.states[nodes[node]] = state
            elif state.kind == "own" or not isinstance(old, State) or old.kind != state.kind:
                self.states[nodes[node]] = State("own", None, f"'{index.names[number]}', which writes to a part of it")

    def _both(self, operand: fx.Node) -> str:
        chunk = self.lab.values.get(operand)
        return described(operand) + ("" if chunk is None else f" with{shape_text(chunk)[1:]} in a chunk")

    def _check(self, number: int, node: fx.Node) -> None:
        index = self.view.index
        if number in index.held:
            refuse(self.root, node, "is held in place by a control edge", "chunk before control edges are added")
        own = ops.described_as(node.target)
        if number in index.barriers or (own is not None and own.communicates):
            how = "in an unknown way" if own is None else "through channels of its own"
            refuse(self.root, node, f"communicates {how}", "choose modules without it")
        if _is_custom(node.target):
            what = f"is a custom op, and there is no rule for {ops.op_name(node.target)}"
            hint = "say in a file what it does (--ops FILE), or choose modules without it"
            refuse(self.root, node, what, hint)
        if ops.draws(node):
            hint = "chunks would draw other numbers than the whole: turn it off or choose modules without it"
            refuse(self.root, node, "draws random numbers", hint)

        if node in self.view.numbering:
            hint = "dump it with torch.compile, which hands the mask's tables to the op, or choose modules without it"
            refuse(self.root, node, "has a mask that looks up the number of the sample in a table of its own", hint)

    def _state(self, node: fx.Node, operands: dict[fx.Node, State], value: Any) -> States:
        recorded = node.meta.get("val")
        targets = self.view.index.writes.get(self.view.number[node], ())
        if recorded is None and len(targets) == 1:
            # An op that returns nothing: what it writes stands for its result.
            target = self.view.nodes[targets[0]]
            return self._of_tensor(node, operands, target.meta.get("val"), self.lab.values[target])
        if ops.is_getitem(node.target):
            source, place = node.args
            assert isinstance(source, fx.Node) and isinstance(place, int)
            whole = self.states.get(source)
            return whole[place] if isinstance(whole, tuple) else whole
        if isinstance(recorded, (list, tuple)):
            return tuple(self._of_tensor(node, operands, r, v) for r, v in zip(recorded, value, strict=False))
        return self._of_tensor(node, operands, recorded, value)

    def _of_tensor(self, node: fx.Node, operands: dict[fx.Node, State], recorded: Any, value: Any) -> State:
        if not isinstance(recorded, torch.Tensor):
            return State("own", None, f"'{node.name}'")
        cut, counted = self._cut(node, recorded.shape, value.shape)
        if len(cut) > 1:
            refuse(
                self.root,
                node,
                f"has the tokens in dimensions {' and '.join(map(str, cut))} ({list(recorded.shape)} becomes "
                f"{list(value.shape)}), as attention over the chunked dimension does",
                self._without_attention(),
            )
        dim, shape = cut[0] if cut else None, tuple(recorded.shape)
        if recorded is node.meta.get("val"):
            self.places[node] = dim, self._blocks(node, operands, shape, dim)
        # What is in place computes as its functional twin does.
        op = ops.op_name(functional(node.target))
        if "attention" in op and dim not in (None, 0):
            refuse(self.root, node, f"is attention over dimension {dim}, which is cut", self._without_attention())
        shapes = {source: tuple(source.meta["val"].shape) for source in operands}
        samples = self.grid.outer if self.grid.axis else 1
        folds = samples > 1 and dim is not None and self.grid.multiple(shape[dim], samples)
        return state_of(Call(node, op, operands, shapes, shape, dim, counted, samples, folds, self.states))

    def _blocks(self, node: fx.Node, operands: Iterable[fx.Node], shape: Sequence[Any], dim: int | None) -> int:
        """How many blocks of tokens lie in the dimension that is cut, as far as shapes tell."""
        given = [(source, *self.places[source]) for source in operands if source in self.places]
        if dim is None or not given:
            return 1
        source, place, blocks = max(given, key=lambda entry: entry[2])
        sizes = (*source.meta["val"].shape[:place], *shape[:dim])
        if ops.op_name(node.target) not in RESHAPES or any(type(size) is not int for size in sizes):
            return blocks
        outside, before = prod(map(int, sizes[: len(sizes) - dim])), prod(map(int, shape[:dim]))
        return max(1, outside * blocks // max(before, 1))

    def _cut(self, node: fx.Node, whole: Sequence[Any], part: Sequence[Any]) -> tuple[list[int], bool]:
        """Dimensions that are smaller in a chunk, and whether the one found is a number of tokens that came in."""
        if len(whole) != len(part):
            what = f"has {len(part)} dimensions in a chunk and {len(whole)} in the whole"
            refuse(self.root, node, what, "cut in fewer chunks, so that none is of one token")
        cut, counted = [], False
        for place, (before, after) in enumerate(zip(whole, part, strict=True)):
            if type(before) is int and type(after) is not int:  # what it was in the whole says nothing of a chunk
                what = f"is {before} long in dimension {place}, and in a chunk as long as only a run can tell"
                hint = "give it its size in the model (torch._check, or another op), or leave this module whole"
                refuse(self.root, node, what, hint)
            if type(before) is int and before != after:
                cut.append(place)
                if not self.grid.multiple(before) or after != self.grid.scaled(before, self.lab.part):
                    what = f"is {before} long in dimension {place}, and {after} in a chunk of {self.lab.part}"
                    hint = f"only whole multiples of the {self.grid.extent} that are cut can be"
                    refuse(self.root, node, what, hint)
            elif type(before) is not int and any(s.name in self.lab.fresh for s in before.node.expr.free_symbols):
                cut.append(place)
                counted = True
        return cut, counted

    def _check_written(self, node: fx.Node, operands: dict[fx.Node, State], shared: list[fx.Node]) -> None:
        """To a buffer that the chunks share, nothing but sums over tokens may be added, or tokens to their places."""
        added = node.args[1] if len(node.args) > 1 else None
        state = operands.get(added) if isinstance(added, fx.Node) else None
        twin = ops.op_name(functional(node.target))
        adds = twin in ADDITIVE and state is not None and state.kind == "sum"
        puts = twin in ADDING or (twin in PUTTING and ops.argument(node, "accumulate") is True)
        puts = puts and {operand_state.kind for operand_state in operands.values()} <= {"rows", "folded", "routed"}
        if shared != [node.args[0]] or not (adds or puts):
            refuse(
                self.root,
                node,
                f"writes to {named(shared)}, which all chunks share, something else than a sum over tokens",
                "only buffers that sums over tokens are added to can be chunked",
                next((operand_state.mixer for operand_state in operands.values() if operand_state.mixer), None),
            )
        if not adds:
            return
        sums, kept = (operand.meta["val"].dtype for operand in node.args[1::-1])  # type: ignore[union-attr]
        if sums.is_floating_point and torch.promote_types(sums, kept) != kept:
            what = f"rounds what it adds to {named(shared)}, which would be rounded chunk by chunk"
            refuse(self.root, node, what, "add it outside of the module, or keep the buffer as exact as the sum")


def _is_custom(target: Any) -> bool:
    """Whether an op is of a library that is not PyTorch's, and no file describes it."""
    if ops.described_as(target) is not None:
        return False
    return isinstance(target, (ops.OpaqueOp, torch._ops.OpOverload)) and ops.library_of(target) not in OWN
