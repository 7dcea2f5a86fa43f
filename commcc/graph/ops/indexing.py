"""Ops that take rows or elements by index, or put them somewhere.

INDEXED["aten.gather"]            # ("self", "index", "dim"): names of the table, the index, and the dimension
"""

from __future__ import annotations

#: Ops with one index: names of the table, of the index, and of the dimension (None: the first).
INDEXED = {
    "aten.embedding": ("weight", "indices", None),
    "aten.index_select": ("self", "index", "dim"),
    "aten.gather": ("self", "index", "dim"),
    "aten.scatter": ("self", "index", "dim"),
    "aten.scatter_add": ("self", "index", "dim"),
    "aten.scatter_reduce": ("self", "index", "dim"),
    "aten.index_add": ("self", "index", "dim"),
    "aten.index_copy": ("self", "index", "dim"),
    "aten.take_along_dim": ("self", "indices", "dim"),
}
#: As those, and a mask keeps what is outside away.
MASKED = frozenset({"aten._unsafe_masked_index", "aten._unsafe_masked_index_put_accumulate"})
#: Ops with an index for each of the first dimensions of ``self``, called ``indices``.
BY_DIMENSION = MASKED | {
    f"aten.{name}" for name in ("index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put")
}
#: Losses whose ``target`` is a class of ``self``.
CLASSES = frozenset({"aten.nll_loss_forward", "aten.nll_loss_backward", "aten.nll_loss2d_forward"})
#: Results are rows or elements of a table.
PICKING = frozenset({"aten.index", "aten.index_select", "aten.gather", "aten.embedding", "aten.take_along_dim"})
#: An index for each element of the result, not for each row.
BY_ELEMENT = frozenset({"aten.gather", "aten.take_along_dim"})
LOOKUPS = PICKING | {"aten._unsafe_index", "aten.take"}
#: Results are a table with something put in, or added.
PUTTING = frozenset(
    f"aten.{n}" for n in ("index_add", "index_put", "_unsafe_index_put", "index_copy", "scatter", "scatter_add")
)
ADDING = frozenset({"aten.index_add", "aten.scatter_add"})
#: Each place is written once, so that no index may come twice.
ONCE = frozenset({"aten.scatter", "aten.index_copy"})
#: The same unless told to accumulate.
ONCE_OR_ADDED = frozenset({"aten.index_put", "aten.index_put_", "aten._unsafe_index_put"})
#: How often each number comes, or a sum over its places.
COUNTING = frozenset({"aten.histc", "aten.bincount", "aten.embedding_dense_backward"})
#: Only what is given is written, not the whole target.
IN_PLACE = frozenset(
    f"aten.{name}"
    for name in ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_")
)
