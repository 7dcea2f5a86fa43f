"""Ops on sizes: those that ask a tensor for them, and those that say what a symbol may be."""

from __future__ import annotations

from commcc.graph.ops.collective_table import EXCHANGE
from commcc.graph.ops.constants import COUNTING_UP, SIZED
from commcc.graph.ops.views import EXPAND, RESHAPES, SPLITS

#: Numbers of a tensor, or symbols, never elements.
ASKING = frozenset(f"aten.{name}" for name in ("sym_size", "sym_numel", "sym_stride", "sym_storage_offset"))
#: Bounds of a symbol.
RANGES = frozenset({"aten.sym_constrain_range", "aten.sym_constrain_range_for_size"})
#: The size of a dimension, and the number of elements.
EXTENTS = ("aten.sym_size.int", "aten.sym_numel.default")
#: Something that must hold of symbols.
ASSERTED = frozenset({"aten._assert_scalar"})
#: Ops with a size among their arguments, and the argument's name, by which chunks are made smaller.
REPEAT = "aten.repeat_interleave"
NUMBERED = {REPEAT: "output_size", **COUNTING_UP}
#: What a number of rows is compared with where a graph asserts how many there are.
COMPARED = {"operator.eq": "1"}
#: Arguments that hold sizes of dimensions of the result, by op, and those that hold sizes of parts of the first.
DIMENSIONS = {
    **dict.fromkeys((*RESHAPES, *SIZED, EXPAND), "size"),
    "aten.reshape": "shape",
    **NUMBERED,
    "aten.slice": "end",
    **{f"aten.{name}_backward": "input_sizes" for name in ("slice", "select", "unfold", "diagonal")},
}
PARTS = {**dict.fromkeys(SPLITS, ("split_sizes",)), EXCHANGE: ("output_split_sizes", "input_split_sizes")}
#: Arguments that say which rows of a tensor are taken.
TAKEN = {"aten.split_with_sizes": ("split_sizes",), "aten.slice": ("start", "end")}
#: Gradients of slices: as large as what the slice was taken from.
GRADIENTS = frozenset({"aten.slice_backward", "aten.select_backward"})
#: Tensors that one op may give, as an upper bound for files: ``split`` of a large tensor could ask for any number.
MOST_RESULTS = 65_536
