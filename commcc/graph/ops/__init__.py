"""The one table of op facts: which ops communicate, which compute, what each reads, writes, shares and does besides.

Nothing else in commcc holds names of ops::

    fact = facts(node.target)                  # OpFacts, in a closed world: commcc.graph.ops.table
    collective_of(node.target)                 # CollectiveOp or None
    argument(node, "group_name")
    is_compute(node.target)                    # has a FLOP formula

The modules next to :mod:`commcc.graph.ops.table` hold one family of ops each. Those that are lists of names can be
imported without PyTorch, which is why what needs it is imported here when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.graph.ops.collective_table import WAIT
    from commcc.graph.ops.communication import (
        collective_of,
        group_size_of,
        is_local,
        is_unknown_communication,
        is_wait,
    )
    from commcc.graph.ops.names import (
        OpaqueOp,
        argument,
        argument_names,
        as_given,
        described_as,
        is_getitem,
        library_of,
        names_given,
        op_name,
        overload,
        set_argument,
        takes,
    )
    from commcc.graph.ops.products import COMPUTE
    from commcc.graph.ops.table import (
        ALL,
        Aliasing,
        OpFacts,
        aliasing,
        draws,
        facts,
        facts_of_call,
        is_assertion,
        is_compute,
        is_effect,
        is_host_sync,
        only_computes,
    )

_HOMES = {
    "collective_table": ("WAIT",),
    "communication": ("collective_of", "group_size_of", "is_local", "is_unknown_communication", "is_wait"),
    "names": (
        *("OpaqueOp", "argument", "argument_names", "as_given", "described_as", "is_getitem", "library_of"),
        *("names_given", "op_name", "overload", "set_argument", "takes"),
    ),
    "products": ("COMPUTE",),
    "table": (
        *("ALL", "Aliasing", "OpFacts", "aliasing", "draws", "facts", "facts_of_call", "is_assertion", "is_compute"),
        *("is_effect", "is_host_sync", "only_computes"),
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

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
    "as_given",
    "collective_of",
    "described_as",
    "draws",
    "facts",
    "facts_of_call",
    "group_size_of",
    "is_assertion",
    "is_compute",
    "is_effect",
    "is_getitem",
    "is_host_sync",
    "is_local",
    "is_unknown_communication",
    "is_wait",
    "library_of",
    "names_given",
    "only_computes",
    "op_name",
    "overload",
    "set_argument",
    "takes",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
