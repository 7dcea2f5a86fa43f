"""Where commands may write: never over a file that they read, and only where the writer would succeed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import OutputError
from commcc.base.files import same_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.cli.session import Session


def check_output(session: Session, output: str, extensions: Sequence[str], flag: str = "-o") -> Path:
    """The path to write to; refused before any work is done if the writer would refuse it after."""
    target = Path(output)
    if not target.name.lower().endswith(tuple(extensions)):
        raise OutputError("unknown extension", where=output, hint=f"use {', '.join(extensions)}")
    for source in session.inputs:
        if source.exists() and target.exists() and same_file(target, source):
            raise OutputError("would overwrite the input", where=output, hint=f"choose another name with {flag}")
    if target.is_dir():
        raise OutputError("is a folder", where=output, hint=f"name a file with {flag}")
    if not target.parent.is_dir():
        raise OutputError(f"folder '{target.parent}' does not exist", where=output, hint="make it first")
    return target
