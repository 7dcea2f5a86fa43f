"""The module a node belongs to, from whatever metadata says it.

``custom["module_fqn"]``, else ``nn_module_stack``, else ``fwd_nn_module_stack``; cleaned of dynamo's
``L['model'].`` prefix, of ``.parametrizations.*`` and of functions that are wrapped around a method of the module.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = re.compile(r"^L\[['\"][^\]]*['\"]\]\.?|^L__self__\.?|^self\.")
_PARAMETRIZED = re.compile(r"\.parametrizations\..*$")
#: How Dynamo gets at a module of one that has its own way to look up attributes.
_TABLE = re.compile(r"(?:\.__dict__\[['\"]_modules['\"]\]|\._modules)(?=\[)")
_INDEXED = re.compile(r"\[['\"]?(\w+)['\"]?\]")
#: How Dynamo gets at a module through a function in place of its method: what the function closes over.
_WRAPPED = re.compile(r"(?:(?:^|\.)\w+)?(?:^|\.)__closure__\.\d+\.cell_contents(?:\.__self__)?")


@lru_cache(maxsize=4096)
def clean_path(path: str) -> str:
    """``L['model'].layers[0].wq.parametrizations.weight.0`` -> ``layers.0.wq``."""
    path = _INDEXED.sub(r".\1", _PARAMETRIZED.sub("", _ROOT.sub("", _TABLE.sub("", path))))
    return (_WRAPPED.sub("", path) if "__closure__" in path else path).strip(".")


#: Where a node says in which modules it is, the outermost first.
MODULE, MODULE_STACKS = "module_fqn", ("nn_module_stack", "fwd_nn_module_stack")


def module_path(meta: Mapping[str, Any]) -> str | None:
    """The innermost module of a node, None when nothing tells it or it is the root."""
    custom = meta.get("custom")
    if isinstance(custom, dict) and isinstance(custom.get(MODULE), str):
        return clean_path(custom[MODULE]) or None
    for key in MODULE_STACKS:
        stack = meta.get(key)
        if isinstance(stack, dict) and stack:
            last = next(reversed(stack.values()))
            path = last[0] if isinstance(last, (tuple, list)) and last else last
            return (clean_path(path) or None) if isinstance(path, str) else None
    return None
