"""The layout of a ``.pt2`` archive: which entries there are, and which may be carried over unread.

Usage::

    with open_zip(path) as source:
        layout = check_layout(source, trust=False)
        layout.model                        # 'models/model.json'
        layout.payload                      # entries that a rewritten archive keeps, byte for byte
        document = read_json(source, layout.model)

A rewritten archive keeps weights, constants and example inputs without anybody having unpickled them, so
this module refuses every entry that ``torch.export.load`` would run code from: tensors stored by pickle,
pickled objects among the constants, example inputs that are more than tensors. ``trust=True`` carries them.
What was compiled from the old graph (``data/aotinductor`` and the like) is left out, with a note.
Limits: one model in the archive; archives of PyTorch older than 2.8 have another layout and are refused.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from commcc.graph.program import Note
from commcc.serialization.pt2.pickles import check_tensor_file

if TYPE_CHECKING:
    from commcc.serialization.pt2.zip_files import ZipSource

SIDECAR = "extra/commcc.json"
_MODEL = re.compile(r"models/([^/]+)\.json")
_PAYLOAD = re.compile(r"data/(?:weights|constants|sample_inputs)/[^/]+|extra/.+|\.data/[^/]+|version|byteorder")
_FORMAT = ("archive_format", "archive_version")
_PICKLED = re.compile(r"data/constants/(?:custom_obj_|opaque_obj_)")
_MAX_INT_DIGITS = 40
_MEMORY_BYTES = 64 << 20
_HINT = "use --trust only if you would run a program from the same source"


@dataclass(frozen=True)
class Layout:
    """What an archive holds.

    model: the entry with the graph; ``name`` is the model's name in it.
    payload: entries to carry over, in archive order.
    notes: what will be left out of a rewritten archive.
    """

    model: str
    name: str
    payload: tuple[str, ...]
    notes: tuple[Note, ...]


def check_layout(source: ZipSource, *, trust: bool) -> Layout:
    """Find the model and check everything that would be carried over."""
    models = [match for name in source.entries if (match := _MODEL.fullmatch(name))]
    if len(models) != 1:
        what = "no models/*.json in the archive" if not models else f"{len(models)} models in the archive"
        raise source.error(what, hint="commcc reads files with one exported program, saved by PyTorch 2.8 or newer")
    _check_format(source)
    name = models[0][1]
    payload, left_out = [], []
    for entry in source.entries:
        if _PAYLOAD.fullmatch(entry):
            payload.append(entry)
        elif entry not in _FORMAT and entry != models[0][0]:
            left_out.append(entry)
    if not trust:
        _check_payload(source, name, payload)
    return Layout(models[0][0], name, tuple(e for e in payload if e != SIDECAR), _left_out_notes(left_out))


def _check_format(source: ZipSource) -> None:
    if source.read("archive_format", limit=64) != b"pt2":
        raise source.error("archive_format is not pt2", "archive_format")
    version = source.read("archive_version", limit=64)
    if version != b"0":
        raise source.error(f"archive version {version[:10]!r} is not supported, expected 0", "archive_version")


def _left_out_notes(entries: list[str]) -> tuple[Note, ...]:
    folders: dict[str, int] = {}
    for entry in entries:
        folder = "/".join(entry.split("/")[:2]) if entry.count("/") > 1 else entry
        folders[folder] = folders.get(folder, 0) + 1
    return tuple(
        Note(f"{folder} ({count} entries) belongs to the graph as it was; a rewritten .pt2 leaves it out")
        for folder, count in folders.items()
    )


def _check_payload(source: ZipSource, name: str, payload: list[str]) -> None:
    for entry in payload:
        if _PICKLED.match(entry):
            raise source.error("a pickled object, which runs code when the file is loaded", entry, hint=_HINT)
    for kind in ("weights", "constants"):
        legacy, config = f"data/{kind}/{name}.pt", f"data/{kind}/{name}_{kind}_config.json"
        if legacy in source.entries:
            _check_tensors(source, legacy)
        if config in source.entries:
            _check_config(source, config, kind)
    samples = f"data/sample_inputs/{name}.pt"
    if samples in source.entries:
        _check_tensors(source, samples)


def _check_tensors(source: ZipSource, entry: str) -> None:
    # Not a SpooledTemporaryFile: zipfile cannot read one before Python 3.11.
    small = source.entries[entry].size <= _MEMORY_BYTES
    with io.BytesIO() if small else tempfile.TemporaryFile() as stream:
        source.copy(entry, stream)
        size = stream.tell()
        stream.seek(0)
        try:
            check_tensor_file(stream, size)
        except ValueError as error:
            what = f"the pickle in it may run code when the file is loaded: {error}"
            raise source.error(what, entry, hint=_HINT) from None


def _check_config(source: ZipSource, entry: str, kind: str) -> None:
    document = read_json(source, entry)
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise source.error("has no table 'config'", entry)
    for name, meta in config.items():
        path = meta.get("path_name") if isinstance(meta, dict) else None
        if not isinstance(path, str) or f"data/{kind}/{path}" not in source.entries:
            raise source.error(f"{name[:60]!r} names no entry of the archive", entry)
        if meta.get("use_pickle") is not False:
            raise source.error(f"{name[:60]!r} is stored as a pickle, which runs code when loaded", entry, hint=_HINT)


def read_json(source: ZipSource, entry: str) -> Any:
    """A JSON entry; refuses NaN, numbers of absurd length and nesting that Python cannot hold."""
    data = source.read(entry)
    try:
        text = data.decode()
        return json.loads(text, parse_constant=_no_constant, parse_int=_short_int)
    except UnicodeDecodeError:
        raise source.error("is not UTF-8 text", entry) from None
    except RecursionError:
        raise source.error("is nested too deeply", entry) from None
    except ValueError as error:
        raise source.error(f"is not valid JSON: {error}", entry) from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _short_int(text: str) -> Any:
    if len(text) > _MAX_INT_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
