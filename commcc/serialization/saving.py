"""Write a Program to a file, whole or not at all.

    notes = save(program, "out.fx.txt.gz")            # the extension chooses the format
    default_output("llama.fx.txt.gz", "bucket")       # llama.bucket.fx.txt.gz
    default_output("run.log::0_0/aot_forward_graph", "bucket")   # run.0_0.aot_forward_graph.bucket.fx.txt

The file is written in the folder of its destination and renamed, so a reader sees the old content or the new one,
and a failure leaves neither a half file nor a temporary one. ``.gz`` output holds no time and no name:
equal programs give equal bytes.

Limits: folders are not created; the file that the program was read from is never overwritten.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from commcc.base.errors import OutputError
from commcc.base.files import check_folder, replace_file, same_file

if TYPE_CHECKING:
    from commcc.graph.program import Note, Program

_TEXT = (".fx.txt", ".fx.txt.gz", ".txt", ".txt.gz")
EXTENSIONS = (*_TEXT, ".pt2")
_GZIP_LEVEL = 6
_KNOWN_INPUTS = (*_TEXT, ".pt2", ".fx.py", ".py", ".py.gz", ".log", ".log.gz", ".gz")


def save(program: Program, path: str | Path) -> tuple[Note, ...]:
    """Write ``program`` to ``path``; the notes say what its format could not hold.

    Raises :class:`OutputError` for an unknown extension, the program's own source, and
    for what the system refuses.
    """
    target = Path(path)
    extension = _extension(target.name, EXTENSIONS)
    if extension is None:
        raise OutputError("unknown extension", where=str(target), hint=f"use one of {', '.join(EXTENSIONS)}")
    where = str(target)
    if target.is_dir():
        raise OutputError("is a folder", where=where, hint="name a file in it")
    check_folder(target.parent, where, "choose another name")
    # A device or a pipe cannot be replaced.
    if target.exists() and not target.is_file():
        raise OutputError("is not a regular file", where=where, hint="choose another name")
    if program.source is not None and same_file(target, program.source):
        raise OutputError("is the file that the graph was read from", where=where, hint="choose another name")
    return replace_file(target, lambda stream: _write(program, extension, stream))


def default_output(source: str | Path, pass_name: str) -> Path:
    """``STEM.PASS.EXT`` in the folder of ``source``; ``source`` may be ``FILE::NAME``, whose name joins the stem.

    Formats that are only read (logs, folders, repro files) become ``.fx.txt``.
    """
    file, _, graph = str(source).partition("::")
    path = Path(file)
    known = _extension(path.name, _KNOWN_INPUTS)
    stem = path.name[: -len(known)] if known else path.name
    # What can only be read gets the form that keeps most.
    extension = known if known in EXTENSIONS else ".fx.txt"
    parts = [stem or "graph", re.sub(r"[^\w-]+", ".", graph).strip("."), pass_name]
    return path.with_name(".".join(part for part in parts if part) + extension)


def _extension(name: str, known: tuple[str, ...]) -> str | None:
    """The longest known extension of ``name``, in any case."""
    fitting = [extension for extension in known if name.lower().endswith(extension) and len(name) > len(extension)]
    return max(fitting, key=len, default=None)


def _write(program: Program, extension: str, stream: BinaryIO) -> tuple[Note, ...]:
    from commcc.serialization.fx import write_text
    from commcc.serialization.pt2.archive import Pt2Carrier
    from commcc.serialization.pt2.program import write_pt2

    if extension == ".pt2":
        return write_pt2(program, stream)
    text, notes = write_text(program)
    data = text.encode()
    # No name and no time in the header: equal programs give equal bytes.
    if extension.endswith(".gz"):
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=_GZIP_LEVEL, mtime=0) as packed:
            packed.write(data)
    else:
        stream.write(data)
    return (*notes, *(program.carrier.left_behind() if isinstance(program.carrier, Pt2Carrier) else ()))
