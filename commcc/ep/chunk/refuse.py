"""Messages for what cannot be chunked: the region, the node, who uses it, the shapes, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from commcc.base.errors import InputError
from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

_MOST_NAMED = 3


class Refused(InputError):
    """A module that cannot be cut. mixer: the node that needs all tokens, where one is the reason."""

    mixer: fx.Node | None = None


def refuse(root: str, node: fx.Node, what: str, hint: str, mixer: fx.Node | None = None) -> NoReturn:
    """Raise the error for ``node``; ``what`` goes on after its name."""
    error = Refused(f"{described(node)} {what}", where=f"region '{root}'", hint=hint)
    error.mixer = mixer
    raise error


def described(node: fx.Node) -> str:
    """``'mm_3' (aten.mm, f32[60, 32])``, with the line of source that made it where that is known."""
    op = "input" if node.op == "placeholder" else ops.op_name(node.target)
    source = _source(node.meta.get("stack_trace"))
    return f"'{node.name}' ({op}{shape_text(node.meta.get('val'))}{source})"


def shape_text(val: Any) -> str:
    shape = getattr(val, "shape", None)
    return "" if shape is None else f", {str(val.dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def named(nodes: Iterable[fx.Node]) -> str:
    """``'add_3', 'mul_7' and 4 others``."""
    names = [f"'{node.name}'" for node in nodes]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} others" if more > 0 else "")


def _source(trace: object) -> str:
    """The innermost line of a stack trace: ``, at model.py:31``."""
    lines = (
        [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
        if isinstance(trace, str)
        else []
    )
    if not lines:
        return ""
    file, _, rest = lines[-1].removeprefix("File ").partition(", line ")
    number = rest.split(",")[0]
    return f", at {file.strip(chr(34)).rsplit('/', 1)[-1]}:{number}"
