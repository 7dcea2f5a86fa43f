"""The one table of op facts: which ops communicate, which compute, which only look at memory.

Nothing else in commcc compares target names or counts argument positions::

    fact = collective_of(node.target)          # CollectiveOp or None
    argument(node, fact.arguments, "group_name")
    is_compute(node.target)                    # has a FLOP formula
    aliasing(node.target)                      # which results share storage, which arguments are written

Limits: an op that is not registered with PyTorch is an :class:`OpaqueOp`; it is taken to compute
without side effects unless its name or arguments say that it communicates.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.graph.ops.collective_table import COLLECTIVES, CollectiveOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx


@dataclass(frozen=True)
class OpaqueOp:
    """An op named in a file that this PyTorch does not know; never executed."""

    qualified_name: str

    @property
    def __name__(self) -> str:
        return self.qualified_name.replace(".", "_")

    def __call__(self, *_args: object, **_kwargs: object) -> Any:
        raise NotImplementedError(f"{self.qualified_name} is not registered with this PyTorch")


WAIT = "_c10d_functional.wait_tensor"

#: Ops of FSDP's eager runtime that only copy; their schemas declare what they write.
FSDP_COPIES = frozenset({"fsdp.all_gather_copy_in", "fsdp.chunk_cat", "fsdp.copy_", "fsdp.split_with_sizes_copy"})

_COMMUNICATION_NAMESPACES = frozenset(
    {
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"),
        *("symm_mem", "_dtensor", "nccl", "deep_ep", "torchcomms"),
    }
)
#: Ops of those namespaces, or with a group argument, that only compute or copy.
_NOT_COMMUNICATION = frozenset(
    {
        *(WAIT, "_dtensor.mesh_get_process_group", "_c10d_functional._wrap_tensor_autograd", "c10d.check_for_nan"),
        *("bucketing._pre_bucket_all_gather", "bucketing._pre_bucket_reduce_scatter"),
    }
    | FSDP_COPIES
)
#: Namespaces of PyTorch that never communicate, whatever their ops are called.
_LOCAL_NAMESPACES = frozenset({"aten", "prims", "inductor", "inductor_prims", "higher_order", "operator", "fsdp"})
#: Namespaces of ops whose schemas say all that they do; the last ones hold arithmetic on sizes.
_PURE_NAMESPACES = frozenset({"aten", "prims", "_c10d_functional", "operator", "math", "builtins", "torch"})
_SOUNDS_LIKE_COMMUNICATION = re.compile(
    r"all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|(^|_)(a2a|nccl|nvshmem|isend|irecv|send|recv|barrier)(_|$)"
)
_GROUP_ARGUMENTS = frozenset({"group_name", "process_group"})

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

#: Reads of device data by the host: the host stands still until the value is there.
_HOST_SYNCS = frozenset({"aten.item", "aten._local_scalar_dense", "aten.is_nonzero", "aten.equal"})
#: Nodes whose only purpose is to fail at run time, or to tell the shape environment something.
_ASSERTS = frozenset(
    {
        *(f"aten.{n}" for n in ("_assert_scalar", "_assert_async", "_functional_assert_scalar")),
        *(f"aten.{n}" for n in ("sym_constrain_range", "sym_constrain_range_for_size", "_assert_tensor_metadata")),
    }
)
#: Higher-order ops whose effect is not in their data edges.
_EFFECT_WRAPPERS = frozenset({"higher_order.with_effects", "higher_order.print", "higher_order.inductor_compiled_code"})
_RANDOM_WRAPPERS = frozenset(
    {
        *(
            f"higher_order.{n}"
            for n in ("run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state")
        ),
        "higher_order.run_dtensor_rng_op",
    }
)
#: Higher-order ops that write every tensor handed to them by keyword.
_WRITES_KEYWORDS = frozenset({"higher_order.triton_kernel_wrapper_mutation"})
#: Views whose schema does not say that they are.
_UNDECLARED_VIEWS = frozenset({"aten._unsafe_view", "_c10d_functional._wrap_tensor_autograd"})


@lru_cache(maxsize=4096)
def op_name(target: Any) -> str:
    """Namespace and op without the overload: ``aten.mm``, ``higher_order.cond``, ``operator.getitem``."""
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return str(target).rsplit(".", 1)[0]
    if isinstance(target, OpOverloadPacket):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target._name}"
    if isinstance(target, OpaqueOp):
        parts = target.qualified_name.split(".")
        return ".".join(parts[:2])
    module = getattr(target, "__module__", None) or ""
    prefix = "operator" if module == "_operator" else module
    return f"{prefix}.{getattr(target, '__name__', repr(target))}"


def collective_of(target: Any) -> CollectiveOp | None:
    """The table entry of a collective launch, None for anything else."""
    return COLLECTIVES.get(op_name(target))


def is_wait(target: Any) -> bool:
    return op_name(target) == WAIT


def is_getitem(target: Any) -> bool:
    return target is operator.getitem


@lru_cache(maxsize=4096)
def is_compute(target: Any) -> bool:
    """Whether the op has a FLOP formula (DESIGN: a *compute node*)."""
    return op_name(target) in COMPUTE


@lru_cache(maxsize=4096)
def is_unknown_communication(target: Any) -> bool:
    """Whether the op communicates in a way the table does not describe: nothing may move across it.

    Told by its namespace, by a group argument in its schema, or, for libraries, by its name: a false
    alarm costs freedom, a miss costs the program.
    """
    name = op_name(target)
    if name in COLLECTIVES or name in _NOT_COMMUNICATION:
        return False
    namespace, _, op = name.partition(".")
    if namespace in _COMMUNICATION_NAMESPACES:
        return True
    if namespace not in _LOCAL_NAMESPACES and _SOUNDS_LIKE_COMMUNICATION.search(op):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(argument.name in _GROUP_ARGUMENTS for argument in schema.arguments)


def is_local(target: Any) -> bool:
    """Whether the op is one of PyTorch's that only compute: it never launches a collective."""
    return op_name(target).split(".")[0] in _LOCAL_NAMESPACES - {"higher_order", "operator"}


@lru_cache(maxsize=4096)
def is_random(target: Any) -> bool:
    """Whether the op draws from a random-number generator, so that its order decides its result."""
    if op_name(target) in _RANDOM_WRAPPERS:
        return True
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@lru_cache(maxsize=4096)
def is_host_sync(target: Any) -> bool:
    return op_name(target) in _HOST_SYNCS


@lru_cache(maxsize=4096)
def is_effect(target: Any) -> bool:
    """Whether the op does something besides computing its result (asserts, prints, effect tokens)."""
    return is_assertion(target) or op_name(target) in _EFFECT_WRAPPERS


@lru_cache(maxsize=4096)
def is_assertion(target: Any) -> bool:
    """Whether the op only checks something and stops the program when it does not hold."""
    return op_name(target) in _ASSERTS


@lru_cache(maxsize=4096)
def only_computes(target: Any) -> bool:
    """Whether an op is known to do nothing but compute its result, so that it may go when nobody uses it.

    Ops of other libraries may do more than their schemas say, and so may higher-order ops: False for these.
    """
    if is_random(target) or is_host_sync(target) or is_effect(target) or is_unknown_communication(target):
        return False
    return op_name(target).split(".")[0] in _PURE_NAMESPACES and aliasing(target).pure


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


_PURE = Aliasing()


@lru_cache(maxsize=4096)
def aliasing(target: Any) -> Aliasing:
    """Aliasing of an op from its schema; ``wait_tensor`` returns the storage of its argument."""
    name = op_name(target)
    if name == WAIT:
        return Aliasing(views=("tensor",))
    if is_getitem(target):
        return Aliasing(views=("a",))
    if name in _WRITES_KEYWORDS:
        return Aliasing(writes_keywords=True)
    if name == "inductor.resize_storage_bytes_":
        return Aliasing(writes=("variable",))
    schema = getattr(target, "_schema", None)
    if schema is None:
        return _PURE
    first = tuple(a.name for a in schema.arguments[:1]) if name in _UNDECLARED_VIEWS else ()
    infos = [(a.name, a.alias_info) for a in schema.arguments if a.alias_info is not None]
    returned: set[str] = set().union(*(r.alias_info.before_set for r in schema.returns if r.alias_info is not None))
    writes = tuple(n for n, info in infos if info.is_write)
    # A result that is a list (split, chunk) carries no alias set of its own; its argument does.
    views = tuple(n for n, info in infos if not info.is_write or returned & set(info.before_set))
    return Aliasing(writes, first + views) if writes or views or first else _PURE


@lru_cache(maxsize=4096)
def argument_names(target: Any) -> tuple[str, ...]:
    """Names of the positional arguments of an op, from our table or the schema; empty when unknown."""
    fact = collective_of(target)
    if fact is not None:
        return fact.arguments
    if is_getitem(target):
        return ("a", "b")
    schema = getattr(target, "_schema", None)
    return tuple(a.name for a in schema.arguments) if schema is not None else ()


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """The argument called ``name``, given by keyword or by position; ``default`` when it is not given."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = argument_names(node.target)
    position = names.index(name) if name in names else len(node.args)
    return node.args[position] if position < len(node.args) else default


def set_argument(node: fx.Node, name: str, value: Any) -> None:
    """Give the argument called ``name`` another value, by keyword or position as it is written; KeyError without it."""
    if name in node.kwargs:
        node.kwargs = {**node.kwargs, name: value}
        return
    names = argument_names(node.target)
    position = names.index(name) if name in names else len(node.args)
    if position >= len(node.args):
        raise KeyError(name)
    node.args = (*node.args[:position], value, *node.args[position + 1 :])


def overload(path: str) -> Callable[..., Any]:
    """The op for ``namespace.op.overload`` or ``operator.name``; for commcc's own use, not for names from files."""
    if path.startswith("operator."):
        return _OPERATORS[path]
    namespace, op, which = path.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), op), which)
    return found


_OPERATORS: dict[str, Callable[..., Any]] = {"operator.getitem": operator.getitem}
