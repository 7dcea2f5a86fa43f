"""The one table of op facts: which ops communicate, which compute, what each reads, writes, shares and does besides.

Nothing else in commcc compares target names or counts argument positions::

    fact = facts(node.target)                  # OpFacts, in a closed world: commcc.graph.ops.table
    collective_of(node.target)                 # CollectiveOp or None
    argument(node, "group_name")
    is_compute(node.target)                    # has a FLOP formula

The functions below ask for one fact each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from commcc.graph.ops.collective_table import WAIT
from commcc.graph.ops.communication import collective_of, is_local, is_unknown_communication, is_wait
from commcc.graph.ops.names import (
    OpaqueOp,
    argument,
    argument_names,
    is_getitem,
    library_of,
    op_name,
    overload,
    set_argument,
)
from commcc.graph.ops.table import ALL, OpFacts, facts

__all__ = [
    "ALL",
    "COMPUTE",
    "WAIT",
    "Aliasing",
    "OpFacts",
    "OpaqueOp",
    "aliasing",
    "argument",
    "argument_names",
    "collective_of",
    "facts",
    "is_assertion",
    "is_compute",
    "is_effect",
    "is_getitem",
    "is_host_sync",
    "is_local",
    "is_random",
    "is_unknown_communication",
    "is_wait",
    "library_of",
    "only_computes",
    "op_name",
    "overload",
    "set_argument",
]

#: Ops with a FLOP formula: the matmul family, attention, convolution, grouped matmul.
COMPUTE = frozenset(
    {
        *(f"aten.{n}" for n in ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "addmv", "linear", "matmul", "einsum")),
        *(f"aten.{n}" for n in ("_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm")),
        *(f"aten.{n}" for n in ("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable")),
        *(f"aten.{n}" for n in ("convolution_backward", "_slow_conv2d_forward", "scaled_dot_product_attention")),
        *(
            f"aten._scaled_dot_product_{n}attention{suffix}"
            for n in ("flash_", "efficient_", "cudnn_", "fused_", "math_")
            for suffix in ("", "_backward", "_for_cpu", "_for_cpu_backward")
        ),
        "aten._scaled_dot_product_fused_attention_overrideable",
        "aten._scaled_dot_product_fused_attention_overrideable_backward",
        *(f"aten._{n}_attention_{way}" for n in ("flash", "efficient") for way in ("forward", "backward")),
        *("symm_mem.fused_all_gather_matmul", "symm_mem.fused_matmul_reduce_scatter"),
        "higher_order.flex_attention",
        "higher_order.flex_attention_backward",
    }
)


@lru_cache(maxsize=4096)
def is_compute(target: Any) -> bool:
    """Whether the op has a FLOP formula (DESIGN: a *compute node*)."""
    return op_name(target) in COMPUTE


def is_random(target: Any) -> bool:
    """Whether the op draws from a random-number generator, so that its order decides its result."""
    return facts(target).random


def is_host_sync(target: Any) -> bool:
    """Whether the host waits for the op."""
    return facts(target).host_sync


def is_effect(target: Any) -> bool:
    """Whether the op does something besides computing its result: asserts, prints, ops of unknown libraries."""
    fact = facts(target)
    return fact.effect or fact.assertion


def is_assertion(target: Any) -> bool:
    """Whether the op only checks something and stops the program when it does not hold."""
    return facts(target).assertion


def only_computes(target: Any) -> bool:
    """Whether an op is known to do nothing but compute its result, so that it may go when nobody uses it."""
    return facts(target).pure


@dataclass(frozen=True)
class Aliasing:
    """Which arguments an op writes, and which arguments its results may share storage with.

    writes, views: argument names, in schema order. ``writes_keywords``: all tensors in keyword
    arguments are written (triton kernels).
    """

    writes: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    writes_keywords: bool = False

    @property
    def pure(self) -> bool:
        return not self.writes and not self.writes_keywords


@lru_cache(maxsize=4096)
def aliasing(target: Any) -> Aliasing:
    """Writes and views of :func:`facts`."""
    fact = facts(target)
    return Aliasing(fact.writes, fact.views, fact.writes_keywords)
