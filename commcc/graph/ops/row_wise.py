"""What ops do to rows: which look from one row at another, and which leave each row to itself.

    ROW_RULES["aten.mm"]            # RowRule.PRODUCT
    is_elementwise(torch.ops.aten.silu.default)

Ops that are not here and do not work element by element mix rows, as far as anybody knows.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

import torch

from commcc.graph.ops.constants import COUNTING_UP


class RowRule(Enum):
    """How a result is made of the rows of the operands; :mod:`commcc.verify.tokens` says what each means."""

    KEEP = auto()
    RESHAPE = auto()
    TURN = auto()
    SWAP = auto()
    PERMUTE = auto()
    UNSQUEEZE = auto()
    SQUEEZE = auto()
    EXPAND = auto()
    SLICE = auto()
    SELECT = auto()
    INTO = auto()
    PARTS = auto()
    UNBIND = auto()
    JOIN = auto()
    STACK = auto()
    ALONG = auto()
    SORT = auto()
    REDUCE = auto()
    PRODUCT = auto()
    BATCHED = auto()
    GROUPED = auto()
    PICK = auto()
    PICK_ROWS = auto()
    PUT_ROWS = auto()
    COPY_ROWS = auto()
    ADD_ROWS = auto()
    COUNT = auto()
    REPEAT = auto()
    LIKE = auto()
    FILLED = auto()
    SIZE = auto()
    ITEM = auto()
    EXCHANGE = auto()
    SHARE = auto()
    ACCUMULATE = auto()
    SCATTER = auto()
    SCATTER_ADD = auto()
    RANGE = auto()
    EVERY = auto()
    CLAIM = auto()
    AT_LEAST = auto()
    AT_MOST = auto()
    ALL_OF = auto()
    ADD_SIZES = auto()
    TAKE_SIZES = auto()

    @property
    def takes_sizes(self) -> bool:
        """Whether the rule sees to sizes that differ from chunk to chunk."""
        own = ["AT_LEAST", "AT_MOST", "ALL_OF", "ADD_SIZES", "TAKE_SIZES", "PARTS", "SLICE", "INTO"]
        return self.name in ["RESHAPE", "EXPAND", "FILLED", "EXCHANGE", "REPEAT", "RANGE", *own]


def _aten(rule: RowRule, *names: str) -> dict[str, RowRule]:
    return {f"aten.{name}": rule for name in names}


#: By name without overload.
ROW_RULES: dict[str, RowRule] = {
    **_aten(RowRule.KEEP, "clone", "contiguous", "detach", "alias", "_to_copy"),
    "prims.convert_element_type": RowRule.KEEP,
    "_c10d_functional.wait_tensor": RowRule.KEEP,
    **_aten(RowRule.RESHAPE, "view", "_unsafe_view", "reshape"),
    **_aten(RowRule.TURN, "t"),
    **_aten(RowRule.SWAP, "transpose"),
    **_aten(RowRule.PERMUTE, "permute"),
    **_aten(RowRule.UNSQUEEZE, "unsqueeze"),
    **_aten(RowRule.SQUEEZE, "squeeze"),
    **_aten(RowRule.EXPAND, "expand"),
    **_aten(RowRule.SLICE, "slice"),
    **_aten(RowRule.SELECT, "select"),
    **_aten(RowRule.INTO, "slice_scatter", "select_scatter", "slice_backward", "select_backward"),
    **_aten(RowRule.PARTS, "split", "split_with_sizes", "chunk"),
    **_aten(RowRule.UNBIND, "unbind"),
    **_aten(RowRule.JOIN, "cat"),
    **_aten(RowRule.STACK, "stack"),
    **_aten(RowRule.ALONG, "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    **_aten(RowRule.ALONG, "cumsum", "topk"),
    **_aten(RowRule.SORT, "sort"),
    **_aten(RowRule.REDUCE, "sum", "mean", "amax", "amin"),
    **_aten(RowRule.PRODUCT, "mm"),
    **_aten(RowRule.BATCHED, "bmm"),
    **_aten(RowRule.GROUPED, "_grouped_mm"),
    **_aten(RowRule.PICK, "gather"),
    **_aten(RowRule.SCATTER, "scatter"),
    **_aten(RowRule.SCATTER_ADD, "scatter_add"),
    **_aten(RowRule.PICK_ROWS, "index", "index_select"),
    **_aten(RowRule.PUT_ROWS, "index_put", "_unsafe_masked_index_put_accumulate"),
    **_aten(RowRule.COPY_ROWS, "index_copy"),
    **_aten(RowRule.ADD_ROWS, "index_add"),
    **_aten(RowRule.COUNT, "histc", "bincount"),
    **_aten(RowRule.REPEAT, "repeat_interleave"),
    **_aten(RowRule.LIKE, "zeros_like", "ones_like", "full_like", "empty_like"),
    **_aten(RowRule.FILLED, "new_zeros", "new_ones", "new_full", "zeros", "ones", "full"),
    **_aten(RowRule.FILLED, "new_empty", "empty"),
    **dict.fromkeys(COUNTING_UP, RowRule.RANGE),
    **_aten(RowRule.EVERY, "all", "any"),
    **_aten(RowRule.CLAIM, "_assert_async", "_assert_scalar"),
    "operator.ge": RowRule.AT_LEAST,
    "operator.le": RowRule.AT_MOST,
    "operator.eq": RowRule.ALL_OF,
    **dict.fromkeys(("operator.add", "torch.sym_sum"), RowRule.ADD_SIZES),
    "operator.sub": RowRule.TAKE_SIZES,
    **_aten(RowRule.SIZE, "sym_size", "sym_numel"),
    **_aten(RowRule.ITEM, "_local_scalar_dense"),
    "_c10d_functional.all_to_all_single": RowRule.EXCHANGE,
    **_aten(RowRule.SHARE, "floor_divide"),
    **_aten(RowRule.ACCUMULATE, "add_"),
}
#: Element by element, and a sum of results is the result of the sum, for one operand or for all.
LINEAR_IN_ALL = frozenset({"aten.add", "aten.sub", "aten.neg"})
LINEAR_IN_ONE = frozenset({"aten.mul"})
#: How a table of numbers 0, 1, ... is repeated.
REPEATED = "aten.repeat"


@lru_cache(maxsize=1024)
def is_elementwise(target: object) -> bool:
    """Whether PyTorch says that an op works element by element; random and in-place ones do not count, nor does what
    gives one answer for all elements (``equal``).
    """
    tags = getattr(target, "tags", ())
    schema = getattr(target, "_schema", None)
    if schema is None or any(a.alias_info is not None for a in schema.arguments):
        return False
    tensors = bool(schema.returns) and all(str(result.type) == "Tensor" for result in schema.returns)
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags and tensors


@lru_cache(maxsize=1024)
def is_reduction(target: object) -> bool:
    """Whether an op makes one number, or one of each of its results, of all those along dimensions of its one tensor:
    it may keep these dimensions.
    """
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    arguments = {argument.name: str(argument.type) for argument in schema.arguments}
    one = sum("Tensor" in kind for kind in arguments.values()) == 1 and arguments.get("self") == "Tensor"
    return (
        one
        and "keepdim" in arguments
        and arguments.get("dim", "") in ("int", "Optional[int]", "List[int]", "Optional[List[int]]")
    )
