"""Texts in a ``.pt2`` file that PyTorch runs or imports: guards, calling conventions, argument names.

``torch.export.load(path).module()`` makes Python code out of the guards and of the names of arguments,
and imports the modules that a tree spec names. They go into a rewritten file unchanged, so only what
cannot do harm may pass::

    check_guard("L['x'].size()[0] <= 64")                  # fine
    check_guard("__import__('os').system('...')")          # InputError
    check_tree_spec('[1, {"type": "builtins.tuple", ...}]')

Limits: enums as dictionary keys, and default dictionaries of unusual types, are refused.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from torch.utils import _pytree as pytree

from commcc.base.errors import InputError
from commcc.base.text import listed
from commcc.serialization.pt2.schema import check_name
from commcc.serialization.symbols import too_deep

_MAX_GUARD = 20_000
_MAX_DEPTH = 60
#: No double quotes, backslashes, comments or braces: the guard is also put between double quotes.
_GUARD_TEXT = re.compile(r"[A-Za-z0-9_\[\]().,'+\-*/%<>=!&|~ ]*")
_GUARD_STRING = re.compile(r"[A-Za-z0-9_.\-]*")
_GUARD_NODES = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.Invert, ast.Compare, ast.Load),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.Subscript),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr),
)
_GUARD_NAMES = frozenset({"L", "inf"})
_GUARD_METHODS = frozenset({"size", "stride", "storage_offset", "dim", "numel", "item"})
_GUARD_FUNCTIONS = frozenset(
    {
        *("max", "min", "abs", "round", "int", "float", "bool"),
        *("IsNonOverlappingAndDenseIndicator", "cast_symbool_to_symint_guardless"),
        *(f"math.{name}" for name in ("floor", "ceil", "trunc", "sqrt", "log2", "isnan", "exp", "log")),
        *(f"torch.sym_{name}" for name in ("max", "min", "int", "float", "not", "ite", "sqrt", "sum")),
        *("torch._sym_sqrt", "torch._sym_log2"),
    }
)
_FACTORIES = frozenset({"list", "dict", "set", "int", "float", "str", "tuple", "bool"})


def check_guard(text: Any) -> str:
    """``text`` if it is a guard that only compares sizes of inputs."""
    if not isinstance(text, str) or len(text) > _MAX_GUARD or not _GUARD_TEXT.fullmatch(text):
        raise InputError(f"the guard {str(text)[:60]!r} is not a comparison of sizes")
    if too_deep(text, _MAX_DEPTH):
        raise InputError("a guard is nested too deeply")
    try:
        tree = ast.parse(text, mode="eval").body
        _check_guard_node(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"the guard {text[:60]!r} is not an expression") from None
    return text


def _check_guard_node(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        fine = type(node.value) in (int, float, bool, type(None)) or (
            isinstance(node.value, str) and _GUARD_STRING.fullmatch(node.value) is not None
        )
    elif isinstance(node, ast.Name):
        fine = node.id in _GUARD_NAMES
    elif isinstance(node, ast.Call):
        function = node.func
        is_function = ast.unparse(function) in _GUARD_FUNCTIONS
        is_method = isinstance(function, ast.Attribute) and function.attr in _GUARD_METHODS
        fine = not node.keywords and (is_function or is_method)
        for argument in node.args:
            _check_guard_node(argument)
        if isinstance(function, ast.Attribute) and not is_function:
            _check_guard_node(function.value)  # what the method is called on
    else:
        fine = isinstance(node, _GUARD_NODES)
        for child in ast.iter_child_nodes(node):
            _check_guard_node(child)
    if not fine:
        raise InputError(f"{ast.unparse(node)[:60]!r} is not allowed in a guard")


def check_tree_spec(text: Any) -> None:
    """Refuse a tree spec that would import something, or whose keywords are no argument names."""
    try:
        protocol, tree = json.loads(text)
        if protocol != 1:
            raise InputError(f"the calling convention has version {str(protocol)[:20]!r}, expected 1")
        _check_tree(tree)
        children = tree["children_spec"]
        if tree["type"] == "builtins.tuple" and len(children) == 2 and children[1]["type"] == "builtins.dict":
            # Names of keyword arguments become parameters of a generated function.
            for name in json.loads(children[1]["context"]):
                check_name(name)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise InputError(f"the calling convention {str(text)[:60]!r} is malformed") from None


def _check_tree(tree: dict[str, Any]) -> None:
    kind, context = tree["type"], tree["context"]
    if kind is not None and not isinstance(kind, str):
        raise InputError("a calling convention has a type that is no name")
    # PyTorch imports the module and calls what it finds there under the name.
    if kind == "collections.defaultdict":
        module, name = context["default_factory_module"], context["default_factory_name"]
        if module != "builtins" or name not in _FACTORIES:
            raise InputError(f"a calling convention imports {str(module)[:40]}.{str(name)[:40]}")
    _check_context(context)
    for child in tree["children_spec"]:
        _check_tree(child)


def _check_context(context: Any) -> None:
    """Contexts are JSON, or JSON in a string; an enum in them makes PyTorch import its module."""
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return  # the name of a registered type
    if isinstance(context, dict):
        if "__enum__" in context:
            raise InputError(f"a calling convention imports {str(context.get('fqn'))[:60]!r}")
        context = list(context.values())
    if isinstance(context, list):
        for item in context:
            if isinstance(item, (dict, list)):
                _check_context(item)


def unknown_containers(spec: str) -> list[str]:
    """Types of a checked tree spec that this process knows nothing of: a library registers them when it is imported."""
    unknown, rest = [], [json.loads(spec)[1]]
    while rest:
        tree = rest.pop()
        if tree["type"] is not None and tree["type"] not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            unknown.append(tree["type"])
        rest += tree["children_spec"]
    return unknown


def lost_convention(in_spec: str, out_spec: str) -> list[str]:
    """What a flat list of inputs and a tuple of results does not say of a checked calling convention, in words."""
    (_, given), (_, returned) = json.loads(in_spec), json.loads(out_spec)
    by_place, by_name = (given["children_spec"] + [None, None])[:2]
    lost = []
    is_dict = by_name is not None and by_name["type"] == "builtins.dict"
    names = json.loads(by_name["context"]) if is_dict else []
    if names:
        lost.append(f"keywords ({listed([str(name) for name in names])}) become inputs by position")
    held = [child for part in (by_place, by_name) if part is not None for child in part["children_spec"]]
    if any(child["type"] is not None for child in held):
        lost.append("nested inputs become flat ones")
    if returned["type"] is None:
        lost.append("the one result becomes a tuple of it")
    elif returned["type"] != "builtins.tuple" or any(child["type"] is not None for child in returned["children_spec"]):
        lost.append("nested results become a flat tuple")
    return lost
