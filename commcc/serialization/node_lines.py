"""The line that each node of a graph stands on in its file, for messages and annotations.

    node_lines("bw.fx.txt.gz")["mm_3"]      # 412, counted from 1 in the decompressed text
    file_and_lines("tlparse_out::0_0/aot_forward_graph")    # ('tlparse_out/-_0_0_0/aot_forward_graph_7.txt', {...})

Limits: found by a look at the text, without parsing it: the first assignment to a name, or its place in the
signature.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.serialization.loading import graph_text, split_spec

if TYPE_CHECKING:
    from pathlib import Path

_NAMED = re.compile(r'^\s{4,12}([A-Za-z_]\w*)(?::[ ]?"[^"\n]*")?(?: = |,?$|: )')
_PARAMETER = re.compile(r'(?:^|[,(])\s*([A-Za-z_]\w*)\s*(?::[ ]?"[^"\n]*")?\s*(?=,|\)|=|$)')
_RETURN = re.compile(r"^\s+return\b")


def node_lines(path: str | Path) -> dict[str, int]:
    """Lines by node name; empty for a ``.pt2``. Raises :class:`commcc.base.errors.InputError` as reading does."""
    return file_and_lines(path)[1]


def file_and_lines(path: str | Path) -> tuple[str, dict[str, int]]:
    """The file that a graph is in, in a folder too, and :func:`node_lines`."""
    found = graph_text(path)
    if found is None:
        return str(split_spec(path)[0]), {}
    lines: dict[str, int] = {}
    inside = False
    for number, text in enumerate(found.source().split("\n"), 1):
        if text.lstrip().startswith("def forward("):
            if inside:
                break  # a sub-graph's
            inside = True
            for name in _PARAMETER.findall(text.partition("(")[2]):
                lines.setdefault(name, number)
        elif inside and _RETURN.match(text):
            lines.setdefault("output", number)
            break
        elif inside and (match := _NAMED.match(text)) is not None:
            lines.setdefault(match[1], number)
    return found.file, lines
