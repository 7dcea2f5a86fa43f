"""Metadata from the comments that PyTorch prints above statements.

::

    # seq_nr: 691 # Annotation: {'module_fqn': 'out'} recompute: MUST_SAVE File: a.py:11 in forward, code: y = x
    {"seq_nr": 691, "custom": {"module_fqn": "out"}, "recompute": CheckpointPolicy.MUST_SAVE,
     "stack_trace": 'File "a.py", line 11, in forward\\n    y = x'}

Limits: PyTorch prints the last frame of a stack only, and cuts annotation values at 40 characters; cut
values are named in ``lost`` and left out, except that a cut module path still tells the modules before its
last dot. Other comments mean nothing and are skipped.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from commcc.base.errors import InputError
from commcc.graph.annotations import CHUNK, CHUNK_KEYS, HINTS, REGION_BACKWARD
from commcc.serialization.fx.source import expression_tree
from commcc.serialization.metadata import checkpoint_policy

_KEY = re.compile(r"([a-z]\w{0,60}): ")
_FRAME = re.compile(r"(.+):(\d{1,9}) in (.+)")
_BRACKETS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[][(){}]""")
_RECOMPUTE = re.compile(r"recompute: (\w{1,60})")
_AC_GRAPH = re.compile(r"ac_graph_id: (-?\d{1,18})(?: - (\w{1,60}))?")
_CLASS_REPR = re.compile(r"<class '([\w.<>]{1,400})'>")
_PLAIN_VALUE = re.compile(r"[^,#{(\[]*")
_NO_STACK = "No stacktrace found"
_LONGEST = 100_000
_CUT = 43
#: Of the keys of chunks those that are no names.
_VALUES = (CHUNK, REGION_BACKWARD)
#: Printed metadata that is read back; everything else in ``additional_meta`` is for people.
_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_STRINGS = ("partitioner_tag", "original_aten")
_OTHER = ("custom", "seq_nr", "autograd_backward", "is_gradient_acc")
#: Names in a size, which PyTorch prints without quotes: {u0: 256}
_SYMBOL_KEY = re.compile(r"(?<=[{ ])([su]\d{1,9})(?=: )")


@dataclass
class CommentMeta:
    """What one comment says: ``meta`` for the nodes below it, ``lost`` for what could not be read whole."""

    meta: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def read_comment(text: str) -> CommentMeta | None:
    """The metadata in a comment, None if it is no metadata comment; ``text`` starts with ``#``."""
    result = CommentMeta()
    if len(text) > _LONGEST:
        result.lost.append("a comment that is too long")
        return result
    rest = _additional(text.lstrip("#").strip(), result)
    rest = _annotation(rest.lstrip("# "), result)
    chunks = {key: value for key, value in result.meta.items() if key in (*CHUNK_KEYS, HINTS)}
    if chunks:  # where tools read them that see texts only, and the writer keeps them
        result.meta["custom"] = {**result.meta.get("custom", {}), **chunks}
    match = _AC_GRAPH.match(rest)
    if match is not None:
        result.meta["ac_graph_id"] = int(match[1])
        # The policy follows the region, if the node has one.
        if match[2]:
            result.meta["recompute"] = checkpoint_policy(match[2])
    match = _RECOMPUTE.match(rest)
    if match is not None:
        result.meta["recompute"] = checkpoint_policy(match[1])
    # The innermost frame, as the trace that PyTorch would print it from.
    head, separator, code = rest[rest.find("File: ") :].partition(", code:")
    match = _FRAME.fullmatch(head[len("File: ") :]) if separator and head.startswith("File: ") else None
    if match is not None:
        file, line, function = match.groups()
        result.meta["stack_trace"] = f'File "{file}", line {line}, in {function}\n    {code.strip()}'
    return result if result.meta or result.lost or _NO_STACK in rest else None


def _additional(text: str, result: CommentMeta) -> str:
    """Read ``key: value, key: value`` at the start; return what follows."""
    while (match := _KEY.match(text)) is not None and match[1] not in ("recompute", "ac_graph_id"):
        key, rest = match[1], text[match.end() :]
        end = _literal_end(rest) if rest[:1] in "{[(" else _PLAIN_VALUE.match(rest).end()  # type: ignore[union-attr]
        # No value follows, so that it is no metadata.
        if end == 0:
            return text
        _keep(key, rest[:end].strip(), result)
        text = rest[end:].lstrip(", ")
    return text


def _keep(key: str, text: str, result: CommentMeta) -> None:
    if key not in (*_STACKS, *_STRINGS, *_OTHER, *CHUNK_KEYS, HINTS):
        return
    # Names are printed without quotes, whatever they are names of.
    plain = key in _STRINGS or (key in CHUNK_KEYS and key not in _VALUES)
    value = text if plain else _literal(_SYMBOL_KEY.sub(r"'\1'", text) if key == HINTS else text)
    if key in _STACKS or key in ("custom", HINTS):
        if isinstance(value, dict):
            result.meta[key] = value
        else:
            result.lost.append(key)
    elif key == "seq_nr" and type(value) is not int:
        # Passes compare sequence numbers.
        result.lost.append(key)
    else:
        result.meta[key] = value


def _annotation(text: str, result: CommentMeta) -> str:
    if not text.startswith("Annotation: {"):
        return text
    text = text[len("Annotation: ") :]
    end = _literal_end(text)
    values = _literal(text[:end])
    # Too many annotations for the line: PyTorch cut them.
    if not isinstance(values, dict):
        result.lost.append("custom")
        return text[end:].lstrip()
    whole = {key: value for key, value in values.items() if not _is_cut(value)}
    result.lost += [f"custom[{key!r}]" for key in values if key not in whole and "custom" not in result.meta]
    path: Any = values.get("module_fqn")
    # layers.1.moe.routed_experts.inner_expert... still says layers.1.moe.routed_experts
    if _is_cut(path) and (outer := path[: _CUT - len("...")].rpartition(".")[0]):
        whole["module_fqn"] = outer
    if whole:
        result.meta.setdefault("custom", whole)
    return text[end:].lstrip()


def _is_cut(value: Any) -> bool:
    return isinstance(value, str) and len(value) == _CUT and value.endswith("...")


def _literal(text: str) -> Any:
    """A Python literal, with classes as their names; None if it is anything else."""
    try:
        return ast.literal_eval(expression_tree(_CLASS_REPR.sub(r"'\1'", text)))
    except (InputError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _literal_end(text: str) -> int:
    """Where the bracket that ``text`` starts with closes, outside strings; 0 if it does not."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        token = match[0]
        depth += (token in "{[(") - (token in "}])")
        if depth == 0:
            return match.end()
    return 0
