"""Ops run on small tensors, to see what they really do: share memory, write, look at strides or storage, draw.

    seen = observe(torch.ops.aten.unsafe_split.Tensor, (torch.randn(4, 3), 2))
    seen.shares                # {"self"}: a result lives in the storage of that argument

Every tensor is put into a storage of its own with elements around it. The op runs as it is, again on equal inputs
with other elements around them, and again with other strides.
Limits: what an op does only for other inputs than these is not seen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from commcc.graph.ops.guards import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.ops import OpFacts

#: Elements of a buffer before and after a tensor's own.
MARGIN = 5


class CannotRun(Exception):
    """The op does not take these arguments."""


@dataclass
class Observed:
    """What was seen. shares, writes, moved: names of arguments.

    moved: arguments whose sizes, strides or storage are others afterwards. joined: arguments that are in the storage
    of another one afterwards. copied: a result is in the storage of no argument. outside: arguments around which
    something was written. strides, storage: the values of the results change with those of inputs. repeats: whether
    equal inputs give equal results.
    """

    shares: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    joined: set[tuple[str, str]] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)
    strides: bool = False
    storage: bool = False
    copied: bool = False
    random: bool = False
    repeats: bool = True


def observe(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Observed:
    """Run an op several times; raises :class:`CannotRun` where it refuses its arguments as they are."""
    seen = Observed()
    first, again = (_Run(op, args, kwargs or {}, as_it_is) for _ in range(2))
    first.look(seen)
    seen.random = first.drew
    seen.repeats = equal(first.values, again.values)
    for layout in (other_margins, other_strides):
        try:
            run = _Run(op, args, kwargs or {}, layout)
        except CannotRun:
            continue
        run.look(seen)
        # A tensor that was made larger holds what lay around it before; an op without tensors looks at none.
        told = seen.repeats and not seen.random and not seen.moved and run.takes_tensors
        if told and not equal(first.values, run.values):
            setattr(seen, "storage" if layout is other_margins else "strides", True)
    return seen


def contradictions(fact: OpFacts, seen: Observed) -> list[str]:
    """What was seen that the facts do not allow."""
    found = [f"shares {name}" for name in sorted(seen.shares - {*fact.views})]
    found += [f"writes {name}" for name in sorted(seen.writes - {*fact.writes})]
    found += [f"changes the shape or storage of {name}" for name in sorted(seen.moved - {*fact.writes})]
    found += [f"writes around {name}" for name in sorted(seen.outside - {*fact.writes})]
    found += [f"joins {one} with {other}" for one, other in sorted(seen.joined) if fact.joins != (one, other)]
    if fact.looks and seen.copied:
        found.append("gives a result in a storage of its own")
    if seen.random and not fact.random:
        found.append("draws random numbers")
    if not fact.allocates:
        found += ["looks at strides"] if seen.strides and not fact.strides else []
        found += ["looks at storage"] if seen.storage and not fact.storage else []
    return found


class _Run:
    """One call, on copies of the arguments. values: of results and arguments, afterwards."""

    def __init__(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], layout: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        copies: dict[int, torch.Tensor] = {}

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
                raise CannotRun("not a plain tensor")
            return copies.setdefault(id(leaf), layout(leaf.detach()))

        args, kwargs = tree_map(copied, (args, kwargs))
        names = [argument.name for argument in op._schema.arguments]
        given = [*zip(names, args, strict=False), *kwargs.items()]
        self._before = [
            _Before(name, t) for name, value in given for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)
        ]
        self.takes_tensors = bool(self._before)
        torch.manual_seed(7)
        state = torch.get_rng_state()
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                self.results = tree_flatten(guarded(op)(*args, **kwargs))[0]
        except Exception as error:
            raise CannotRun(f"{type(error).__name__}: {str(error)[:200]}") from None
        self.drew = not torch.equal(state, torch.get_rng_state())
        self.values = [_value(leaf) for leaf in (*self.results, *(before.tensor for before in self._before))]

    def look(self, seen: Observed) -> None:
        """Add what this call has done."""
        for result in self.results:
            if isinstance(result, torch.Tensor) and result.layout is torch.strided:
                where = _storage(result)
                bases = {before.name for before in self._before if before.storage == where}
                seen.shares |= bases
                seen.copied |= not bases and bool(result.numel())
        for before in self._before:
            own, around = before.changed()
            if own or before.tensor._version != before.version:
                seen.writes.add(before.name)
            if around:
                seen.outside.add(before.name)
            if _view(before.tensor) != before.view:
                seen.moved.add(before.name)
            if _storage(before.tensor) != before.storage:
                seen.moved.add(before.name)
                now = _storage(before.tensor)
                seen.joined |= {(before.name, other.name) for other in self._before if other.storage == now}


class _Before:
    """A tensor as it was before the call."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor = tensor
        self.storage = _storage(tensor)
        self.held = tensor.untyped_storage()  # so that no new storage gets its address
        self.view = _view(tensor)
        self.version = tensor._version
        self._whole = self._elements().clone()
        self._own = torch.zeros(len(self._whole), dtype=torch.bool)
        if tensor.numel():
            self._own.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)

    def _elements(self) -> torch.Tensor:
        size = self.tensor.element_size()
        raw = torch.tensor([], dtype=torch.uint8).set_(self.held)
        return raw[: len(raw) // size * size].view(-1, size)

    def changed(self) -> tuple[bool, bool]:
        """Whether elements of its own have changed, and whether others in its storage."""
        now = self._elements()
        if len(now) < len(self._whole):
            return True, True
        different = (now[: len(self._whole)] != self._whole).any(1)
        return bool((different & self._own).any()), bool((different & ~self._own).any())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _value(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
        return None
    return leaf.detach().clone().contiguous()


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether values are the same, but for the rounding of another order of sums."""
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and (one == other or one != one)
    if not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.is_floating_point or one.dtype.is_complex:
        wide = torch.complex128 if one.dtype.is_complex else torch.float64
        return torch.allclose(one.to(wide), other.to(wide), rtol=1e-3, atol=1e-4, equal_nan=True)
    return torch.equal(one, other)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """Its own strides where its elements are apart from each other, in a larger storage."""
    return _placed(tensor, _strides(tensor), _Filling.ONES)


def other_margins(tensor: torch.Tensor) -> torch.Tensor:
    """The same one element further on, with other elements around it."""
    return _placed(tensor, _strides(tensor), _Filling.TWOS, more=2)


def other_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with dimensions the other way round in memory, every second element."""
    steps, step = [], 2
    for size in tensor.shape:
        steps.append(step)
        step *= max(1, size)
    return _placed(tensor, tuple(steps), _Filling.ONES)


class _Filling:
    ONES, TWOS = 1, 2


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    apart = torch._debug_has_internal_overlap(tensor) == 0
    return tensor.stride() if apart else tensor.contiguous().stride()


def _placed(tensor: torch.Tensor, strides: tuple[int, ...], filling: int, more: int = 0) -> torch.Tensor:
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) if tensor.numel() else 0
    whole = torch.full((extent + 2 * MARGIN + more,), filling, dtype=torch.float32).to(tensor.dtype)
    # With more around it, it also begins elsewhere.
    begin = MARGIN + more // 2
    made = whole.as_strided(tensor.shape, strides, begin)
    made.copy_(tensor)
    # Not a view of ``whole`` for autograd or version counters.
    return torch.empty(0, dtype=tensor.dtype).set_(whole.untyped_storage(), begin, tensor.shape, strides)
