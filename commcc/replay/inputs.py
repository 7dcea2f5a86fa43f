"""Inputs that a graph can be run with, worked out from the graph: seeded, finite, indices within bounds.

::

    maker = InputMaker(prepared, ident, layout, seed=0)
    maker.of_rank(2)             # {'primals_1': tensor(...), 'u0': 32, ...}

Values depend on the seed, on the input's name and on which rank's they are, on nothing else. Matrices are small (0.1,
less for wide ones and for weights of convolutions), vectors and what is divided by are near 1, the gradient that a
backward graph is given is 1, complex numbers have modulus 1, masks have both values in every row, integers obey
:mod:`commcc.replay.input_constraints`. Sizes known only at run time get their hints, or one number where there are
none, the same on all ranks.

Which ranks get equal values of an input, as they would in the program that the graph comes from, is told by the roles
of the collectives and, where the graph has them, by the descriptors of its inputs:

=====================  ==================================================================================
a parameter            differs along the group that gathers it and, as a matrix, along groups of tensor
                       parallelism; equal along groups that only reduce gradients (DDP, HSDP)
a buffer, a scalar     equal on all ranks
token ids, labels      equal along groups of tensor parallelism, which work on the same tokens
anything else          saved activations: every rank has its own
=====================  ==================================================================================

Limits: values that a forward graph would have saved are synthetic: shapes and ranges fit, the numbers do not belong
together. A device mesh, which has no value, is None. Without descriptors a parameter that nobody gathers is known by
its name only (``primals_*``).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError
from commcc.base.terms import Kind, Role
from commcc.graph.collectives.derive import walk_back
from commcc.graph.index.hints import SizeHints
from commcc.replay.calls import widened
from commcc.replay.input_constraints import InputConstraints, constraints_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.replay.layout import Layout, Parts
    from commcc.replay.prepare import Prepared


#: Of a larger tensor so many numbers are drawn, a prime number of them, and repeated: rows of any width begin at other
#: ones. Drawing takes 8 ns for each on a CPU, and minutes for the inputs of a production graph.
_DRAWN = 131_071
#: What a size is that nothing tells: many layers cut it in 2, 4, 8 or 16 parts.
ANY_SIZE = 16


class InputMaker:
    """Makes the inputs of one graph; raises :class:`InputError` for one that cannot be worked out.

    positive: matrices have positive numbers only, as moments of an optimizer have.
    """

    def __init__(
        self,
        prepared: Prepared,
        ident: Identification,
        layout: Layout,
        seed: int,
        hints: Mapping[str, int] | None = None,
        *,
        positive: bool = False,
    ) -> None:
        self._prepared = prepared
        self._positive = positive
        self._seed = seed
        self._size = _sizes(prepared, hints or {}).value
        sharing = Sharing(prepared.index, ident, layout)
        self._vals = {node: node.meta.get("val") for node in prepared.inputs}
        self._keys = {node: sharing.keys(node, val) for node, val in self._vals.items()}
        self._constraints = {
            node: self._constrained(node) for node, val in self._vals.items() if isinstance(val, torch.Tensor)
        }
        self.assumed = _assumed(self._vals.values(), prepared, hints or {})

    def of_rank(self, rank: int) -> dict[str, Any]:
        """The inputs of one rank, by name."""
        return {node.name: self._value(node, rank) for node in self._prepared.inputs}

    def check(self) -> None:
        """Raise what :meth:`of_rank` would, without making what takes memory or time: numbers of which any will do."""
        for node, val in self._vals.items():
            if isinstance(val, torch.Tensor) and (val.dtype.is_floating_point or val.dtype.is_complex):
                self._layout(node, val)
            elif isinstance(val, torch.Tensor):
                self._numbers(node, val, torch.Generator())
            else:
                self._value(node, 0)

    def guessed(self) -> list[str]:
        """Inputs of whole numbers about which no op says what they may be."""
        whole = (n for n, v in self._vals.items() if isinstance(v, torch.Tensor) and not v.dtype.is_floating_point)
        return [node.name for node in whole if node.meta["val"].dtype != torch.bool and not self._constraints[node].why]

    def constraints(self, name: str) -> InputConstraints:
        """What the graph asks of an input that is a tensor."""
        return next(asked for node, asked in self._constraints.items() if node.name == name)

    def _constrained(self, node: fx.Node) -> InputConstraints:
        try:
            return constraints_of(node, self._size, self._prepared.program.root)
        except ValueError as error:
            raise _impossible(node, str(error)) from error

    def _value(self, node: fx.Node, rank: int) -> Any:
        val = self._vals[node]
        if isinstance(val, torch.Tensor):
            text = f"{self._seed}/{node.name}/{self._keys[node][rank]}"
            number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
            numbers = self._numbers(node, val, torch.Generator().manual_seed(number)).to(val.dtype)
            shape, strides = self._layout(node, val)
            home = self._prepared.home(node)
            # The state of a generator has the size that one of this device has.
            few = numbers.numel() == _DRAWN < math.prod(shape)
            whole = _repeated(numbers.to(home), shape) if few else numbers
            return widened(_laid_out(whole, strides, home), self._prepared.wide)
        if val is None:
            # What has no value (a device mesh) can only be returned as it is.
            if any(user.op != "output" for user in node.users):
                if "val" not in node.meta:
                    raise _impossible(node, "the graph does not say its shape", hint=_WITH_SHAPES)
                raise _impossible(node, "the graph does not say what it is")
            return None
        if isinstance(val, (bool, int, float, str, complex)):
            return val
        if isinstance(val, torch.SymInt):
            return self._number(node, val)
        raise _impossible(node, f"a {type(val).__name__} is neither a number nor a tensor")

    def _number(self, node: fx.Node, val: Any) -> int:
        number = self._size(val)
        if number is None:
            symbols = sorted(map(str, val.node.expr.free_symbols)) if isinstance(val, torch.SymInt) else []
            given = " ".join(f"--hint {symbol}=512" for symbol in symbols[:3])
            raise _impossible(node, f"its size {val} has no number", hint=f"give one: {given}" if given else None)
        return number

    def _layout(self, node: fx.Node, val: torch.Tensor) -> tuple[list[int], list[int]]:
        """Shape and strides."""
        shape = [self._number(node, extent) for extent in val.shape]
        return shape, [self._number(node, stride) for stride in val.stride()]

    def _numbers(self, node: fx.Node, val: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """All of them, or of a large tensor the first ``_DRAWN`` in a row."""
        asked = self._constraints[node]
        if asked.state:
            return generator.get_state()
        shape, _ = self._layout(node, val)
        if val.dtype == torch.bool:
            # Both values in every row of two or more: no row of an attention mask hides everything or nothing.
            mask = torch.randint(0, 2, shape, generator=generator).bool()
            if shape and shape[-1] > 1:
                mask[..., 0] = True
                mask[..., -1] = False
            return mask
        drawn = [_DRAWN] if math.prod(shape) > _DRAWN else shape
        if val.dtype.is_complex:
            return torch.polar(torch.ones(drawn), torch.rand(drawn, generator=generator) * 2 * math.pi)
        if not val.dtype.is_floating_point:
            return integers(shape, asked, generator)
        noise = torch.randn(drawn, generator=generator)
        if not shape:
            # The gradient that a backward graph is given.
            return torch.ones(()) if node.name.startswith("tangents") else 1.0 + 0.1 * noise.abs()
        if asked.log_sums is not None:
            return math.log(max(1, asked.log_sums)) + 0.1 * noise
        if asked.positive or len(shape) == 1:
            return 1.0 + 0.1 * noise.clamp(-3, 3)
        noise = noise.abs() + 0.1 if self._positive else noise
        return noise * min(0.1, 1 / math.sqrt(asked.fan or shape[-1] or 1))


def _sizes(prepared: Prepared, hints: Mapping[str, int]) -> SizeHints:
    sizes = SizeHints(hints, prepared.program.header)
    sizes.assume_balanced(prepared.nodes)
    sizes.assume_rest(ANY_SIZE)
    return sizes


def _assumed(vals: Iterable[Any], prepared: Prepared, hints: Mapping[str, int]) -> tuple[str, ...]:
    """One line about the sizes that inputs have without saying so."""
    sizes = _sizes(prepared, hints)
    sizes.used.clear()
    for val in vals:
        for size in (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,):
            sizes.value(size)
    told = ", ".join(f"{hint.symbol} = {hint.value}" for hint in sizes.used.values())
    return (f"sizes known only at run time: {told}",) if told else ()


_WITH_SHAPES = (
    "print the graph with its shapes: gm.print_readable(print_output=False, include_stride=True, include_device=True)"
)


def _impossible(node: fx.Node, reason: str, hint: str | None = None) -> InputError:
    user = next(iter(node.users), None)
    used = f"'{user.name}' ({user.target}) uses it" if user is not None else "nothing uses it"
    return InputError(f"no value for input '{node.name}' can be worked out: {reason}; {used}", hint=hint)


def integers(shape: list[int], asked: InputConstraints, generator: torch.Generator) -> torch.Tensor:
    """Integers that obey ``asked``; 0 and 1 where nothing indexes with them."""
    if asked.exactly is not None:
        return torch.full(shape, asked.exactly)
    if asked.places and [len(along) for along in asked.places] == shape[-len(asked.places) :]:
        return torch.stack(torch.meshgrid(*map(torch.tensor, asked.places), indexing="ij")).sum(0).expand(shape)
    total = asked.ends if asked.ends is not None else asked.counts
    if total is not None and shape:
        last = torch.full([*shape[:-1], 1], total)
        ends = torch.randint(0, total + 1, [*shape[:-1], max(0, shape[-1] - 1)], generator=generator)
        ends = torch.cat([ends.sort(-1).values, last], -1)[..., : shape[-1]]
        return ends if asked.ends is not None else ends.diff(dim=-1, prepend=torch.zeros_like(last))
    high = asked.high if asked.high is not None else asked.low + 2
    if not asked.once or not shape:
        return torch.randint(asked.low, high, shape, generator=generator)
    return _distinct(shape, asked.once_dim, high - asked.low, generator) + asked.low


def _distinct(shape: list[int], dim: int | None, choices: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers below ``choices``, none twice along ``dim`` (at all: None), as far as there are enough."""
    wide, count = ([math.prod(shape)], math.prod(shape)) if dim is None else ([*shape], shape[dim])
    wide[dim or 0] = choices * -(-count // choices)
    order = torch.rand(wide, generator=generator).argsort(dim or 0) % choices
    return order.narrow(dim or 0, 0, count).reshape(shape)


def _repeated(block: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor of this shape with the numbers of a block in order, again and again."""
    whole = torch.empty(shape, dtype=block.dtype, device=block.device)
    flat, count = whole.view(-1), block.numel()
    blocks = flat.numel() // count
    flat[: blocks * count].view(blocks, count).copy_(block)
    flat[blocks * count :].copy_(block[: flat.numel() - blocks * count])
    return whole


def _laid_out(value: torch.Tensor, strides: list[int], home: torch.device) -> torch.Tensor:
    """``value`` on a device with these strides; along a stride of 0 the first element stands for all."""
    if [*value.stride()] == strides and value.device.type == home.type:
        return value
    repeated = [dim for dim, stride in enumerate(strides) if stride == 0 and value.shape[dim] > 1]
    single = value
    for dim in repeated:
        single = single.narrow(dim, 0, 1)
    out = torch.empty_strided(single.shape, strides, dtype=value.dtype, device=home).copy_(single)
    return out.expand(value.shape) if repeated else out


# Who shares values


class Sharing:
    """Answers, for one graph, whose values are equal."""

    def __init__(self, index: GraphIndex, ident: Identification, layout: Layout) -> None:
        self._index = index
        self._layout = layout
        self._gathered = _gathered(index, ident)
        self._replicas = _groups(ident, (Role.FSDP, Role.DDP), Kind.ALL_REDUCE)
        self._tensor_parallel = _groups(ident, (Role.TP,), None)

    def keys(self, placeholder: fx.Node, val: object) -> tuple[int, ...]:
        """One number for each rank; ranks with the same number get the same values."""
        everyone = tuple(0 for _ in range(self._layout.world))
        if not isinstance(val, torch.Tensor) or val.dim() == 0:
            return everyone
        described = self._index.descriptors.get(self._index.position[placeholder.name], "")
        if "BufferAOTInput" in described:
            return everyone
        replicated = placeholder.name.startswith("primals") and val.dtype.is_floating_point and bool(self._replicas)
        if placeholder.name in self._gathered or "ParamAOTInput" in described or replicated:
            own = [self._layout.parts[group] for group in self._gathered.get(placeholder.name, ())]
            along = (*self._replicas, *(self._tensor_parallel if val.dim() == 1 else ()))
            return self._equal_along(group for group in along if not self._overlaps(group, own))
        counting = not val.dtype.is_floating_point and not val.dtype.is_complex
        return self._equal_along(self._tensor_parallel if counting else ())

    def _overlaps(self, group: str, others: Iterable[Parts]) -> bool:
        """Whether two ranks are together in this group and in one of the others."""
        mine = self._layout.parts[group]
        return any(len(set(a) & set(b)) > 1 for parts in others for a in mine for b in parts)

    def _equal_along(self, groups: Iterable[str]) -> tuple[int, ...]:
        """Ranks that share a part of any of these groups have the lowest rank among them as their number."""
        lowest = list(range(self._layout.world))
        parts = [part for group in groups for part in self._layout.parts[group]]
        for _ in parts:
            before = list(lowest)
            for part in parts:
                least = min(lowest[rank] for rank in part)
                for rank in part:
                    lowest[rank] = least
            if lowest == before:
                break
        return tuple(lowest)


def _gathered(index: GraphIndex, ident: Identification) -> dict[str, tuple[str, ...]]:
    """Groups that gather a parameter, by the input's name."""
    result: dict[str, dict[str, None]] = {}
    for collective in ident.collectives:
        if collective.kind is Kind.ALL_GATHER and collective.role is Role.FSDP:
            source = walk_back(index, index.launches[collective.launch].inputs, joining=True)
            for place in source.inputs if source is not None else ():
                result.setdefault(index.names[place], {})[collective.group] = None
    return {name: tuple(groups) for name, groups in result.items()}


def _groups(ident: Identification, roles: tuple[Role, ...], kind: Kind | None) -> tuple[str, ...]:
    fitting = (c.group for c in ident.collectives if c.role in roles and kind in (None, c.kind))
    return tuple(dict.fromkeys(fitting))
