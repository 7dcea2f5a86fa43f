"""FX graph text: read every form that PyTorch prints, write one form that loses nothing.

Usage::

    program = parse_text(path.read_text(), "llama.txt")     # print_readable, AOT dumps, TORCH_LOGS, ...
    text, notes = write_text(program)                       # notes: what the text could not hold
    write_text(parse_text(text, "again"))[0] == text

It is read with ``ast``; nothing in it is ever executed.
"""

from __future__ import annotations

from commcc.serialization.fx.read import parse_text
from commcc.serialization.fx.write import write_text

__all__ = ["parse_text", "write_text"]
