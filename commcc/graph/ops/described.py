"""What a user's file says of an op of another library: which op of PyTorch it is like, or what it does.

    Description("mylib.put", ("self", "index", "src"), like=aten.scatter_add.default, constants=(("dim", 0),))
    Description("mylib.glu", ("x", "gate"), shape="x", tokens=(("x", 0), ("gate", 0), ("result", 0)), flops="9 * x[0]")
    Description("deepep.combine", ("x", "handle"), communicates=True)

An op that is *like* another one is that op for everything that is asked of it: its name in the table of op facts, its
arguments by name, its shape, its FLOPs. One that is described by itself computes its results, and nothing else but the
writes that are named; one that communicates keeps its place among all that has effects, and is never removed. Sizes in
formulas are ``x[0]``, dimension 0 of argument ``x``.

Limits: shape and tokens are of one result, a tensor; a formula has whole numbers, sizes, ``+``, ``-``, ``*`` and
``//``.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.graph.ops.guards import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
#: Characters of a formula, or of a call.
LONGEST = 500
#: In place of an argument's name: the result.
RESULT = "result"


@dataclass(frozen=True)
class Description:
    """name: library and op. arguments: names in order; those of ``like`` where there is one, whose other arguments are
    ``constants``. writes: arguments that are written. tokens: in which dimension of arguments and of the result
    tokens lie, row by row. shape: the argument that the result is as large as, or a formula for each size. flops: a
    formula. communicates: with other ranks, through channels of its own, so that collectives may pass it. runs: the op
    itself, where it can be loaded.
    """

    name: str
    arguments: tuple[str, ...]
    like: Any = None
    constants: tuple[tuple[str, Any], ...] = ()
    writes: tuple[str, ...] = ()
    tokens: tuple[tuple[str, int], ...] = ()
    shape: str | tuple[str, ...] | None = None
    flops: str | None = None
    communicates: bool = False
    runs: Any = None

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, constants included."""
        return {**dict(self.constants), **dict(zip(self.arguments, args, strict=False)), **kwargs}

    def as_like(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the op takes them that it is like."""
        bound = self.bound(args, kwargs)
        names = [a.name for a in self.like._schema.arguments if not a.kwarg_only]
        count = next((i for i, name in enumerate(names) if name not in bound), len(names))
        return [bound[name] for name in names[:count]], {k: v for k, v in bound.items() if k not in names[:count]}

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the op computes: by itself where it can be loaded, else by the op that it is like."""
        if self.communicates:
            raise NotImplementedError(f"{self.name} communicates with other ranks")
        if self.runs is not None:
            return self.runs(*args, **kwargs)
        if self.like is None:
            raise NotImplementedError(f"{self.name} is not registered with this PyTorch")
        own, named = self.as_like(args, kwargs)
        return guarded(self.like)(*own, **named)

    def sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, list[Any]] | None:
        """The argument that the result takes its dtype and device from, and its shape; None where neither is said."""
        bound = self.bound(args, kwargs)
        if isinstance(self.shape, str):
            return bound[self.shape], list(bound[self.shape].shape)
        if self.shape is None:
            return None
        shapes = {name: value.shape for name, value in bound.items() if hasattr(value, "shape")}
        first = next(value for value in bound.values() if hasattr(value, "shape"))
        return first, [evaluated(size, shapes) for size in self.shape]


def evaluated(formula: str, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """The value of a formula, given the shapes of arguments by name; ValueError for anything that is none, or that has
    no value for these shapes.
    """
    if len(formula) > LONGEST:
        raise ValueError(f"a formula has at most {LONGEST} characters")
    try:
        return _value(ast.parse(formula, mode="eval").body, shapes)
    except ZeroDivisionError:
        raise ValueError(f"'{formula}' divides by 0") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{formula[:80]}' is no formula") from None


def _value(tree: ast.expr, shapes: Mapping[str, Sequence[Any]]) -> Any:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_value(tree.left, shapes), _value(tree.right, shapes))
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id in shapes:
        place = _value(tree.slice, shapes)
        if isinstance(place, int) and 0 <= place < len(shapes[tree.value.id]):
            return shapes[tree.value.id][place]
    raise ValueError(f"'{ast.unparse(tree)}' is no whole number and no size of an argument, as in x[0]")
