"""Writes the zip archive of a ``.pt2`` file: the new graph, and all else as it was.

Usage::

    write_archive(target, document_bytes, sidecar_bytes, carrier)       # from a .pt2: copies the rest
    write_archive(target, document_bytes, sidecar_bytes, None, tensors) # made new

Equal programs give equal bytes: entries have a fixed order and date, and nothing is compressed, since
PyTorch maps the weights straight from the file.
Limits: constants whose values are not known are written empty; PyTorch loads them as zeros.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from commcc.base.errors import OutputError
from commcc.graph.program import Note
from commcc.serialization.pt2.archive import SIDECAR
from commcc.serialization.pt2.constants import store
from commcc.serialization.pt2.zip_files import ZipSink, open_zip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.serialization.pt2.carrier import Pt2Carrier

_ROOT = "archive"
_HEADER = (("archive_format", b"pt2"), ("archive_version", b"0"))
_NEW = ((".data/version", b"6\n"), ("byteorder", b"little"))


def write_archive(
    target: Path | IO[bytes],
    document: bytes,
    sidecar: bytes,
    carrier: Pt2Carrier | None,
    tensors: Mapping[str, Any],
) -> tuple[Note, ...]:
    """Write the archive. tensors: constants of a new file, by the name of the attribute that held them."""
    if carrier is None:
        with _opened(target) as stream:
            return _write_new(stream, document, sidecar, tensors)
    if isinstance(target, Path) and target.resolve() == carrier.path:
        raise OutputError("is the file that the program still needs", where=str(target), hint="choose another name")
    with open_zip(carrier.path) as source:
        carrier.check_unchanged(source)
        with _opened(target) as stream, ZipSink(stream, carrier.root) as sink:
            for name, data in _HEADER:
                sink.write(name, data)
            for name in carrier.layout.payload:
                sink.copy(source, name)
            sink.write(carrier.layout.model, document)
            sink.write(SIDECAR, sidecar)
    return ()


def _opened(target: Path | IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    return target.open("wb") if isinstance(target, Path) else nullcontext(target)


def _write_new(stream: IO[bytes], document: bytes, sidecar: bytes, tensors: Mapping[str, Any]) -> tuple[Note, ...]:
    notes: list[Note] = []
    config: dict[str, Any] = {}
    with ZipSink(stream, _ROOT) as sink:
        for name, data in (*_HEADER, *_NEW):
            sink.write(name, data)
        sink.write("data/weights/model_weights_config.json", _json({"config": {}}))
        for number, (name, tensor) in enumerate(tensors.items()):
            values, meta = store(tensor)
            if values is None:
                notes.append(Note(f"the values of the constant {name} are not known; it is written as zeros", name))
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            stored = {"path_name": f"tensor_{number}", "is_param": is_parameter, "use_pickle": False}
            config[name] = {**stored, "tensor_meta": meta}
            sink.write(f"data/constants/tensor_{number}", values or b"")
        sink.write("data/constants/model_constants_config.json", _json({"config": config}))
        sink.write("data/sample_inputs/model.pt", b"")
        sink.write("models/model.json", document)
        sink.write(SIDECAR, sidecar)
    return tuple(notes)


def _json(data: Any) -> bytes:
    return json.dumps(data).encode()
