"""Inputs that a graph can be run with, worked out from the graph: seeded, finite, indices within bounds.

::

    maker = InputMaker(prepared, ident, layout, seed=0)
    maker.of_rank(2)             # {'primals_1': tensor(...), 'u0': 32, ...}

Values depend on the seed, on the input's name and on which rank's they are (:mod:`commcc.replay.sharing`), on
nothing else. Matrices are small (0.1, less for wide ones), vectors and what is divided by are near 1, the gradient
that a backward graph is given is 1, complex numbers have modulus 1, masks have both values in every row, integers
obey :mod:`commcc.replay.input_constraints`. Sizes known only at run time get their hints, the same on all ranks.

Limits: values that a forward graph would have saved are made up: shapes and ranges fit, the numbers do not belong
together. A device mesh, which has no value, is None.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError
from commcc.graph.index.hints import SizeHints
from commcc.replay.input_constraints import Demands, demands_of
from commcc.replay.prepare import widened
from commcc.replay.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from commcc.graph.collectives import Identification
    from commcc.replay.layout import Layout
    from commcc.replay.prepare import Prepared


class InputMaker:
    """Makes the inputs of one graph; raises :class:`InputError` for one that cannot be worked out."""

    def __init__(
        self,
        prepared: Prepared,
        ident: Identification,
        layout: Layout,
        seed: int,
        hints: Mapping[str, int] | None = None,
    ) -> None:
        self._prepared = prepared
        self._seed = seed
        self._size = _sizes(prepared, hints or {}).value
        sharing = Sharing(prepared.index, ident, layout)
        self._vals = {node: node.meta.get("val") for node in prepared.inputs}
        self._keys = {node: sharing.keys(node, val) for node, val in self._vals.items()}
        self._demands = {node: self._asked(node) for node, val in self._vals.items() if isinstance(val, torch.Tensor)}
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
        return [node.name for node in whole if node.meta["val"].dtype != torch.bool and not self._demands[node].why]

    def demands(self, name: str) -> Demands:
        """What was found out about an input that is a tensor."""
        return next(asked for node, asked in self._demands.items() if node.name == name)

    def _asked(self, node: fx.Node) -> Demands:
        try:
            return demands_of(node, self._size)
        except ValueError as error:
            raise _impossible(node, str(error)) from error

    def _value(self, node: fx.Node, rank: int) -> Any:
        val = self._vals[node]
        if isinstance(val, torch.Tensor):
            text = f"{self._seed}/{node.name}/{self._keys[node][rank]}"
            number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
            made = self._tensor(node, val, torch.Generator().manual_seed(number))
            return widened(made, self._prepared.wide)
        if val is None:
            return _nothing(node)
        if isinstance(val, (bool, int, float, str, complex)):
            return val
        if isinstance(val, torch.SymInt):
            return self._number(node, val)
        raise _impossible(node, f"a {type(val).__name__} cannot be made up")

    def _number(self, node: fx.Node, val: Any) -> int:
        number = self._size(val)
        if number is None:
            raise _impossible(node, f"its size {val} has no number", hint=f"give one: --hint {val}=512")
        return number

    def _layout(self, node: fx.Node, val: torch.Tensor) -> tuple[list[int], list[int]]:
        """Shape and strides."""
        return [self._number(node, extent) for extent in val.shape], [self._number(node, each) for each in val.stride()]

    def _tensor(self, node: fx.Node, val: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        _, strides = self._layout(node, val)
        return _laid_out(self._numbers(node, val, generator).to(val.dtype), strides, self._prepared.home(node))

    def _numbers(self, node: fx.Node, val: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        shape, _ = self._layout(node, val)
        asked = self._demands[node]
        if val.dtype == torch.bool:
            return _mask(shape, generator)
        if val.dtype.is_complex:
            return torch.polar(torch.ones(shape), torch.rand(shape, generator=generator) * 2 * math.pi)
        if val.dtype.is_floating_point:
            return _floats(node.name, shape, asked, generator)
        return integers(shape, asked, generator)


def _sizes(prepared: Prepared, hints: Mapping[str, int]) -> SizeHints:
    sizes = SizeHints(hints, prepared.program.header)
    sizes.assume_balanced(prepared.nodes)
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


def _impossible(node: fx.Node, reason: str, hint: str | None = None) -> InputError:
    user = next(iter(node.users), None)
    used = f"'{user.name}' ({user.target}) uses it" if user is not None else "nothing uses it"
    return InputError(f"no value for input '{node.name}' can be worked out: {reason}; {used}", hint=hint)


def _nothing(node: fx.Node) -> None:
    """What has no value (a device mesh) can only be handed back."""
    if any(user.op != "output" for user in node.users):
        raise _impossible(node, "the graph does not say what it is")


def _floats(name: str, shape: list[int], asked: Demands, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if not shape:
        return torch.ones(()) if name.startswith("tangents") else 1.0 + 0.1 * noise.abs()
    if asked.log_sums is not None:
        return math.log(max(1, asked.log_sums)) + 0.1 * noise
    if asked.positive or len(shape) == 1:
        return 1.0 + 0.1 * noise.clamp(-3, 3)
    return noise * min(0.1, shape[-1] ** -0.5 if shape[-1] else 0.1)


def _mask(shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Both values in every row of two or more: no row of an attention mask hides everything or nothing."""
    made = torch.randint(0, 2, shape, generator=generator).bool()
    if made.dim() and shape[-1] > 1:
        made[..., 0] = True
        made[..., -1] = False
    return made


def integers(shape: list[int], asked: Demands, generator: torch.Generator) -> torch.Tensor:
    """Integers that obey ``asked``; 0 and 1 where nothing indexes with them."""
    if asked.exactly is not None:
        return torch.full(shape, asked.exactly)
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


def _laid_out(value: torch.Tensor, strides: list[int], home: torch.device) -> torch.Tensor:
    """``value`` on a device with these strides; along a stride of 0 the first element stands for all."""
    repeated = [dim for dim, stride in enumerate(strides) if stride == 0 and value.shape[dim] > 1]
    single = value
    for dim in repeated:
        single = single.narrow(dim, 0, 1)
    out = torch.empty_strided(single.shape, strides, dtype=value.dtype, device=home).copy_(single)
    return out.expand(value.shape) if repeated else out
