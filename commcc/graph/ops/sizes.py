"""Ops on sizes: those that ask a tensor for them, and those that say what a symbol may be."""

from __future__ import annotations

#: Numbers of a tensor, or symbols, never elements.
ASKING = frozenset(f"aten.{name}" for name in ("sym_size", "sym_numel", "sym_stride", "sym_storage_offset"))
#: Bounds of a symbol.
RANGES = frozenset({"aten.sym_constrain_range", "aten.sym_constrain_range_for_size"})
#: The size of a dimension, and the number of elements.
EXTENTS = ("aten.sym_size.int", "aten.sym_numel.default")
#: Something that must hold of symbols.
ASSERTED = frozenset({"aten._assert_scalar"})
#: Ops with a size among their arguments, and the argument's name, by which chunks are made smaller.
REPEAT, RANGE = "aten.repeat_interleave", "aten.arange"
NUMBERED = {REPEAT: "output_size", RANGE: "end"}
#: Gradients of slices: as large as what the slice was taken from.
GRADIENTS = frozenset({"aten.slice_backward", "aten.select_backward"})
