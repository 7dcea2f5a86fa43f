"""The zip archive of a ``.pt2`` file: which entries there are, which may be carried over unread, and its writing.

Usage::

    with open_zip(path) as source:
        layout = check_layout(source, trust=False)
        layout.model                        # 'models/model.json'
        layout.payload                      # entries that a rewritten archive keeps, byte for byte
        document = read_json(source, layout.model)
    write_archive(target, document_bytes, sidecar_bytes, carrier, {})           # from a .pt2: copies the rest
    write_archive(target, document_bytes, sidecar_bytes, None, tensors)         # a new file, with constants

A rewritten archive keeps weights, constants and example inputs without anybody having unpickled them, so
this module refuses every entry that ``torch.export.load`` would run code from: tensors stored by pickle,
pickled objects among the constants, example inputs that are more than tensors. ``trust=True`` carries them.
What was compiled from the old graph (``data/aotinductor`` and the like) is left out, with a note.

Equal programs give equal bytes: entries have a fixed order and date, and nothing is compressed, since
PyTorch maps the weights straight from the file.

Limits: one model in the archive; archives of PyTorch older than 2.8 have another layout and are refused.
Constants whose values are not known are written empty, and PyTorch loads them as zeros; those above 64 MiB stay
fake tensors when they are read, but are carried over.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from commcc.base.errors import InputError, OutputError
from commcc.graph.program import Note
from commcc.serialization.attributes import constant, flat_tensor
from commcc.serialization.pt2.checks import check_types
from commcc.serialization.pt2.code import lost_convention
from commcc.serialization.pt2.pickles import check_tensor_file
from commcc.serialization.pt2.schema import DTYPES, lookup
from commcc.serialization.pt2.values import write_tensor
from commcc.serialization.pt2.zip_files import ZipSink, open_zip
from commcc.serialization.shapes import span
from commcc.serialization.sources import PICKLE, SAVED, finite_number, refuse_constant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.ops import OpaqueOp
    from commcc.serialization.pt2.schema import OpaqueCall
    from commcc.serialization.pt2.specs import GraphSpec
    from commcc.serialization.pt2.zip_files import ZipEntry, ZipSource

SIDECAR = "extra/commcc.json"
_MODEL = re.compile(r"models/([^/]+)\.json")
_PAYLOAD = re.compile(r"data/(?:weights|constants|sample_inputs)/[^/]+|extra/.+|\.data/[^/]+|version|byteorder")
_FORMAT = ("archive_format", "archive_version")
_PICKLED = re.compile(r"data/constants/(?:custom_obj_|opaque_obj_)")
_MAX_INT_DIGITS = 40
_MEMORY_BYTES = 64 << 20
_HINT = "use --trust only if you would run a program from the same source"
_ROOT = "archive"
_HEADER = (("archive_format", b"pt2"), ("archive_version", b"0"))
_NEW = ((".data/version", b"6\n"), ("byteorder", b"little"))
_PLAIN_SPECS = frozenset({"user_input", "user_output"})
MAX_CONSTANT_BYTES = 64 << 20
_MAX_GAPS = 4
#: What a constant that does not fit its description does to the code that reads it.
_MISFIT = (InputError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


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


@dataclass(frozen=True)
class Pt2Carrier:
    """Everything in a ``.pt2`` file but its graph.

    path: the archive; ``entries`` are what it held when it was read. root: its folder inside.
    layout: which entries a rewritten archive keeps. document: signature, calling convention and so on.
    opaque: how the file calls ops that are not registered here.
    crossed: what passes its modules by their calling conventions, see ``modules.py``.
    """

    path: Path
    root: str
    layout: Layout
    entries: Mapping[str, ZipEntry]
    document: Mapping[str, Any]
    opaque: Mapping[OpaqueOp, OpaqueCall]
    crossed: frozenset[tuple[str, str]] = frozenset()

    def check_unchanged(self, source: ZipSource) -> None:
        """Raise :class:`OutputError` if the archive is no longer the one that was read."""
        if dict(source.entries) != dict(self.entries):
            raise OutputError("has changed since it was read", where=str(self.path), hint="read it again")

    def left_behind(self) -> tuple[Note, ...]:
        """Notes on what no text holds of the file: weights, constants, signature and calling convention."""
        notes = []
        payload = [
            entry.size
            for entry in self.entries.values()
            if "data/weights/" in entry.name or "data/constants/" in entry.name
            if not entry.name.endswith("_config.json")
        ]
        if payload:
            what = f"weights and constants ({len(payload)} entries, {sum(payload)} bytes)"
            notes.append(Note(f"a text holds no tensor values: {what} stay in {self.path.name}"))
        signature = self.document["graph_module"]["signature"]
        kinds = sorted({kind for key in ("input_specs", "output_specs") for spec in signature[key] for kind in spec})
        special = [kind.replace("_", " ") for kind in kinds if kind not in _PLAIN_SPECS]
        if special:
            what = f"what is a {' or a '.join(special)} there becomes a plain input or output"
            notes.append(Note(f"a text holds no signature or calling convention: {what}"))
        calls = (entry["signature"] for entry in self.document["graph_module"]["module_call_graph"] if not entry["fqn"])
        call = next(calls, None)
        lost = lost_convention(call["in_spec"], call["out_spec"]) if call is not None else []
        if lost:
            notes.append(Note(f"a text holds no calling convention: {', '.join(lost)}"))
        return tuple(notes)


def check_layout(source: ZipSource, *, trust: bool) -> Layout:
    """Find the model and check everything that would be carried over."""
    models = [match for name in source.entries if (match := _MODEL.fullmatch(name))]
    # Which of several would be meant cannot be said.
    if not models and "data.pkl" in source.entries:
        raise source.error(f"is {PICKLE}, not a graph", hint=SAVED)
    if len(models) != 1:
        what = "no models/*.json in the archive" if not models else f"{len(models)} models in the archive"
        raise source.error(what, hint="commcc reads files with one exported program, saved by PyTorch 2.8 or newer")
    if source.read("archive_format", limit=64) != b"pt2":
        raise source.error("archive_format is not pt2", "archive_format")
    version = source.read("archive_version", limit=64)
    if version != b"0":
        raise source.error(f"archive version {version[:10]!r} is not supported, expected 0", "archive_version")
    model, name = models[0][0], models[0][1]
    payload = [entry for entry in source.entries if _PAYLOAD.fullmatch(entry)]
    # torch.export.load runs what these entries hold; commcc never does.
    if not trust:
        _check_payload(source, name, payload)
    for kind in ("weights", "constants"):
        config = f"data/{kind}/{name}_{kind}_config.json"
        if config in source.entries:
            _check_config(source, config, kind, trust=trust)
    folders: Counter[str] = Counter()  # what stays behind
    for entry in source.entries:
        if entry not in (*_FORMAT, model) and not _PAYLOAD.fullmatch(entry):
            folders["/".join(entry.split("/")[:2]) if entry.count("/") > 1 else entry] += 1
    notes = [
        Note(f"{folder} ({count} entries) belongs to the graph as it was; a rewritten .pt2 leaves it out")
        for folder, count in folders.items()
    ]
    return Layout(model, name, tuple(entry for entry in payload if entry != SIDECAR), tuple(notes))


def _check_payload(source: ZipSource, name: str, payload: list[str]) -> None:
    for entry in payload:
        if _PICKLED.match(entry):
            raise source.error("a pickled object, which runs code when the file is loaded", entry, hint=_HINT)
    for kind in ("weights", "constants"):
        legacy = f"data/{kind}/{name}.pt"
        if legacy in source.entries:
            _check_tensors(source, legacy)
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


def _check_config(source: ZipSource, entry: str, kind: str, *, trust: bool) -> None:
    document = read_json(source, entry)
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise source.error("has no table 'config'", entry)
    for name, meta in config.items():
        path = meta.get("path_name") if isinstance(meta, dict) else None
        if not isinstance(path, str) or f"data/{kind}/{path}" not in source.entries:
            raise source.error(f"{name[:60]!r} names no entry of the archive", entry)
        if not isinstance(meta.get("tensor_meta") or {}, dict):
            raise source.error(f"{name[:60]!r} has a description that is no table", entry)
        # Anything but False makes PyTorch unpickle it.
        if not trust and meta.get("use_pickle") is not False:
            raise source.error(f"{name[:60]!r} is stored as a pickle, which runs code when loaded", entry, hint=_HINT)
    try:
        check_types(document, "PayloadConfig")
    except InputError as error:
        raise source.error(error.what, entry) from None


def read_json(source: ZipSource, entry: str) -> Any:
    """A JSON entry; refuses NaN, numbers of absurd length and nesting that Python cannot hold."""
    data = source.read(entry)
    try:
        text = data.decode()
        return json.loads(text, parse_constant=refuse_constant, parse_float=finite_number, parse_int=_short_int)
    except UnicodeDecodeError:
        raise source.error("is not UTF-8 text", entry) from None
    except RecursionError:
        raise source.error("is nested too deeply", entry) from None
    except ValueError as error:
        raise source.error(f"is not valid JSON: {error}", entry) from None


def _short_int(text: str) -> Any:
    if len(text) > _MAX_INT_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


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
    # It would be cut to nothing before its entries are copied.
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


def storable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a contiguous copy if it is a small part of the memory that its strides reach over."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta" or tensor.numel() == 0:
        return tensor
    return tensor if span(tensor.shape, tensor.stride()) <= _MAX_GAPS * tensor.numel() else tensor.detach().contiguous()


def store(tensor: torch.Tensor) -> tuple[bytes | None, dict[str, Any]]:
    """The memory of a constant and its description; tensors that are not :func:`storable` are a waste."""
    meta = write_tensor(tensor)
    # Only the part of the memory that the tensor reaches over is stored.
    meta["storage_offset"] = {"as_int": 0}
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return None, meta
    if tensor.numel() == 0:
        return b"", meta
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    flat = plain.as_strided((span(plain.shape, plain.stride()),), (1,), plain.storage_offset())
    return bytes(flat.view(torch.uint8).numpy().tobytes()), meta


def fill_constants(source: ZipSource, model: str, spec: GraphSpec) -> None:
    """Give the constants of ``spec`` the values that the archive holds; those it does not hold stay fake."""
    entry = f"data/constants/{model}_constants_config.json"
    if not spec.attributes or entry not in source.entries:
        return
    config = read_json(source, entry)["config"]
    for path, val in spec.attributes.items():
        meta = config.get(path)
        # A pickle is never opened here.
        if meta is None or meta["use_pickle"] is not False:
            continue
        try:
            spec.attributes[path] = _load(source, meta, val)
        # The constant stays a fake tensor, as one without a value does.
        except _MISFIT:
            continue


def _load(source: ZipSource, meta: dict[str, Any], val: torch.Tensor) -> torch.Tensor:
    data = source.read(f"data/constants/{meta['path_name']}", limit=MAX_CONSTANT_BYTES)
    described = meta["tensor_meta"]
    dtype = lookup(DTYPES, described["dtype"], "dtype")
    sizes = [size["as_int"] for size in described["sizes"]]
    strides = [stride["as_int"] for stride in described["strides"]]
    # Another tool may have changed one of the two.
    if sizes != list(val.shape) or dtype != val.dtype or (not data and val.numel()):
        raise InputError("the constant is not the one that the graph uses")
    value = flat_tensor(data, dtype).as_strided(sizes, strides, described["storage_offset"]["as_int"])
    return constant(value, parameter=meta["is_param"] is True, requires_grad=described["requires_grad"] is True)
