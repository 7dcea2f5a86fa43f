"""Ops that make values out of nothing, or overwrite all of their target."""

from __future__ import annotations

from commcc.graph.ops.undeclared import ALLOCATIONS

ZEROS = frozenset({"aten.zeros", "aten.zeros_like", "aten.new_zeros"})
#: Ops that are given the size of their result, with the argument's name ``size``.
SIZED = frozenset(f"aten.{new}{name}" for new in ("", "new_") for name in ("zeros", "ones", "empty", "full"))
STRIDED = frozenset({"aten.empty_strided", "aten.new_empty_strided"})
#: Numbers everywhere the same, or undefined ones.
FILLED = SIZED | STRIDED | {f"aten.{name}_like" for name in ("zeros", "ones", "full", "empty")}
#: Ops that say nothing about where data comes from.
SOURCELESS = SIZED | {"aten.scalar_tensor", "aten.arange", "get_attr"}
#: Ops that read no tensor, even where one is named for its shape.
UNREAD = (FILLED - ALLOCATIONS - {"aten.new_empty_strided"}) | {
    *(f"aten.{name}" for name in ("scalar_tensor", "arange", "eye", "linspace")),
    "prims.iota",
}
#: Ops that may make the gradient of a loss, which is one, where a backward pass is traced with its forward.
SEEDS = (FILLED & UNREAD) - ZEROS
#: Ops that overwrite their targets with the elements of their sources; a list of them one after the other.
COPIES = frozenset({"aten.copy_", "aten._foreach_copy_"})
#: Ops that write all of their target and read none of it.
OVERWRITES = COPIES | {
    *(f"aten.{name}" for name in ("fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")),
    "aten._foreach_zero_",
}
#: As those, by their functional twins.
REPLACING = frozenset({"aten.copy", "aten.fill", "aten.zero"})
#: A number among the arguments decides how large the result is, and so how long the op takes.
SIZED_BY_NUMBERS = frozenset(
    {
        *(f"aten.new_{n}" for n in ("empty", "empty_strided", "zeros", "ones", "full")),
        *(f"aten.{n}" for n in ("repeat", "repeat_interleave", "constant_pad_nd", "expand", "as_strided", "resize_")),
        *(f"aten.{n}" for n in ("slice_backward", "select_backward", "unfold_backward", "diagonal_backward")),
        *(f"aten.{n}" for n in ("embedding_dense_backward", "one_hot", "bincount")),
    }
)
#: Ops that count 0, 1, 2, ..., or in other steps; with the argument that says how far.
COUNTING_UP = {"aten.arange": "end", "prims.iota": "length"}
