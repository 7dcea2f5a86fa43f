"""``.pt2`` files: read without running anything in them, written so that ``torch.export.load`` takes them.

Usage::

    program = read_pt2(path)                   # zip and JSON only; no pickle, no eval
    notes = write_pt2(program, "out.pt2")

Order and names of nodes are those of the sidecar, where commcc wrote the file, else those that
``torch.export.load`` makes. A program that came from a ``.pt2`` keeps its signature, calling convention,
weights and constants, the latter two byte for byte; any other gets a signature of its own.

Limits: what the format cannot say raises :class:`OutputError` (flex_attention, triton kernels, ops that are
not registered, unless the program came from a ``.pt2``). What was compiled from a graph is not kept.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from commcc.base.errors import CommccError, GraphError, InputError, OutputError
from commcc.base.gc_pause import no_collection
from commcc.graph.ops import op_name
from commcc.graph.program import Note, Program, all_calls
from commcc.serialization.metadata import lost_notes
from commcc.serialization.op_files import NOT_UNDERSTOOD, undescribed
from commcc.serialization.pt2.archive import (
    SIDECAR,
    Pt2Carrier,
    check_layout,
    fill_constants,
    read_json,
    write_archive,
)
from commcc.serialization.pt2.checks import check_names, check_types
from commcc.serialization.pt2.code import unknown_containers
from commcc.serialization.pt2.document import check_document, constant_names, new_document, rename
from commcc.serialization.pt2.metadata import MetadataReader, MetadataWriter
from commcc.serialization.pt2.modules import crossings, keep_conventions, settle
from commcc.serialization.pt2.read import FileState, malformed, read_graph
from commcc.serialization.pt2.schema import SCHEMA_MINOR_NEW
from commcc.serialization.pt2.sidecar import (
    NO_EXTRA,
    Extra,
    apply,
    declare_symbols,
    decode_extra,
    difference,
    encode_extra,
)
from commcc.serialization.pt2.specs import GraphSpec, build, spec_of
from commcc.serialization.pt2.values import ExpressionReader
from commcc.serialization.pt2.write import GraphWriter, WriteState, same_graph
from commcc.serialization.pt2.zip_files import open_zip
from commcc.serialization.sections import with_used_groups
from commcc.serialization.shapes import ShapeContext
from commcc.serialization.targets import importer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import fx

    from commcc.graph.program import ProcessGroup
    from commcc.serialization.pt2.zip_files import ZipSource
    from commcc.serialization.shapes import SymbolInfo

#: What a sidecar that does not fit does to the code that applies it.
_MISFIT = (CommccError, KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration, RecursionError)


@dataclass(frozen=True)
class _Read:
    """A graph that was read, with what is needed to write it again. kept: as PyTorch sees it, without a sidecar."""

    graph: fx.Graph
    root: torch.nn.Module
    state: FileState
    extra: Extra
    groups: Mapping[str, ProcessGroup]
    kept: GraphSpec


def read_pt2(path: str | Path, *, trust: bool = False) -> Program:
    """The exported program in a ``.pt2`` file.

    trust: carry over entries that run code when PyTorch loads the file (pickles); they are not opened here
    either way. Anything wrong with the file raises :class:`InputError`.
    """
    path = Path(path)
    try:
        with no_collection(), open_zip(path) as source:
            return _Reader(source, trust=trust).program()
    except RecursionError:
        raise InputError("is nested too deeply to be a graph", where=str(path)) from None


class _Reader:
    """Reads one archive; ``notes`` collects what is left out or ignored."""

    def __init__(self, source: ZipSource, *, trust: bool) -> None:
        self.source = source
        self.layout = check_layout(source, trust=trust)
        self.notes = list(self.layout.notes)
        with self._located(), malformed("the exported program"):
            self.raw = read_json(source, self.layout.model)
            self.document = check_document(self.raw)

    def program(self) -> Program:
        sidecar = self._sidecar()
        result = self._with_sidecar(sidecar) if sidecar is not None else None
        with self._located():
            if result is None:
                state, kept = self._spec(NO_EXTRA, ShapeContext())
                graph, root = build(kept)
                result = _Read(graph, root, state, NO_EXTRA, with_used_groups(graph, root, {}), kept)
            # Last, since what reads the graph says more of what is wrong with it.
            check_types(self.raw, "ExportedProgram")
            check_names(self.document["graph_module"], {spec.name for spec in result.kept.nodes})
        self.notes += [Note(f"{target.qualified_name} {NOT_UNDERSTOOD}") for target in result.state.opaque]
        module = {key: value for key, value in self.document["graph_module"].items() if key != "graph"}
        document = {**self.document, "graph_module": module}
        source = self.source
        carrier = Pt2Carrier(
            path=source.path.resolve(),
            root=source.root,
            layout=self.layout,
            entries=dict(source.entries),
            document=document,
            opaque=result.state.opaque,
            crossed=crossings(result.kept.nodes, module["module_call_graph"]),
        )
        return Program(
            graph=result.graph,
            root=result.root,
            groups=result.groups,
            format="pt2",
            source=self.source.path,
            carrier=carrier,
            header=result.extra.header,
            notes=tuple(dict.fromkeys((*result.extra.notes, *self.notes))),
            provenance=result.extra.provenance,
        )

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Say in an error which entry of the archive it is about."""
        try:
            yield
        except (GraphError, InputError) as error:
            if error.where is not None:
                raise
            raise self.source.error(error.what, self.layout.model, hint=error.hint) from None

    def _sidecar(self) -> dict[str, Any] | None:
        # A file of PyTorch's own.
        if SIDECAR not in self.source.entries:
            return None
        try:
            data = read_json(self.source, SIDECAR)
            if not isinstance(data, dict) or not isinstance(data.get("graph"), dict):
                raise InputError("has no table 'graph'")
        except InputError as error:
            self._ignore(error)
            return None
        return data

    def _ignore(self, reason: Exception) -> None:
        what = reason.what if isinstance(reason, CommccError) else f"is malformed ({type(reason).__name__}: {reason})"
        what = " ".join(what.split())[:200]
        self.notes.append(
            Note(f"{SIDECAR} does not fit the graph and is ignored ({what}); did another tool change it?")
        )

    def _with_sidecar(self, sidecar: dict[str, Any]) -> _Read | None:
        """The program that the sidecar describes, if it is the one in the file; None, with a note, if not."""
        ctx = ShapeContext()
        try:
            extra = decode_extra(sidecar)
            state, kept = self._spec(extra, ctx)
            spec = apply(sidecar["graph"], kept, MetadataReader(sidecar.get("shared", {}), ctx))
            fill_constants(self.source, self.layout.name, spec)
            graph, root = build(spec)
            # The only proof that the sidecar belongs to this graph.
            again = GraphWriter(graph, root, WriteState(state.opaque, describe=False)).write()
            if not same_graph(again, self.document["graph_module"]["graph"]):
                raise InputError("describes another graph")
            groups = with_used_groups(graph, root, extra.groups)
        except _MISFIT as error:
            self._ignore(error)
            return None
        return _Read(graph, root, state, extra, groups, kept)

    def _spec(self, extra: Extra, ctx: ShapeContext) -> tuple[FileState, GraphSpec]:
        declare_symbols(ctx, self.document["range_constraints"], extra.symbols)
        state = FileState(ExpressionReader(ctx), constant_names(self.document))
        return state, read_graph(self.document["graph_module"]["graph"], state)


def write_pt2(program: Program, target: str | Path | IO[bytes]) -> tuple[Note, ...]:
    """Write ``program`` so that ``torch.export.load`` loads it and :func:`read_pt2` restores it exactly.

    target: a path, or a stream open for writing. Nothing is written when an :class:`OutputError` is raised.
    The notes say what the file could not keep.
    """
    with no_collection():
        return _write(program, target)


def _write(program: Program, target: str | Path | IO[bytes]) -> tuple[Note, ...]:
    program = undescribed(program)
    carrier = program.carrier if isinstance(program.carrier, Pt2Carrier) else None
    state = WriteState(carrier.opaque if carrier is not None else {})
    metadata = MetadataWriter()
    try:
        writer = GraphWriter(program.graph, program.root, state)
        data = writer.write()
        symbols = state.symbols()
        document = _document(program, carrier, writer, data, symbols)
        moved = settle(document["graph_module"]["graph"]["nodes"]) if carrier is not None else 0
        extra = encode_extra(program, symbols)
        # What reading the graph back would lose; the sub-graphs included.
        kept = read_graph(document["graph_module"]["graph"], FileState(None, constant_names(document)))
        module_notes = _modules(document["graph_module"], kept, carrier, moved)
        extra["graph"] = difference(spec_of(program.graph, program.root), kept, writer.inputs.lifted, metadata)
        extra["shared"] = metadata.shared
        files = _to_bytes(document), _to_bytes(extra)
    except InputError as error:
        raise OutputError(error.what, hint=error.hint) from None
    notes = list(lost_notes(metadata.lost))
    if carrier is None:
        inputs = len(writer.inputs.names)
        notes.append(Note(f"the .pt2 file has a new signature: all {inputs} inputs are plain inputs of the program"))
    notes += module_notes
    notes += _import_notes(program)
    tensors = {path: writer.inputs.tensors[name] for path, name in writer.inputs.lifted.items()}
    target = Path(target) if isinstance(target, str) else target
    try:
        return (*notes, *write_archive(target, *files, carrier, tensors))
    except InputError as error:
        raise OutputError(f"what the program needs of its file is gone: {error.what}", where=error.where) from None


def _modules(module: dict[str, Any], kept: GraphSpec, carrier: Pt2Carrier | None, moved: int) -> list[Note]:
    """Take calling conventions that no longer hold out of the file; what it says of modules that it did not before.

    moved: nodes that are outside of their modules. A convention that never held, as of modules that share what they
    write, is PyTorch's business.
    """
    if carrier is None:
        return []
    notes = []
    if moved:
        notes.append(Note(f"{moved} nodes stand outside of their modules, and are unflattened into those around them"))
    calls = module["module_call_graph"]
    module["module_call_graph"], lost = keep_conventions(calls, crossings(kept.nodes, calls) - carrier.crossed)
    if lost:
        names = ", ".join(repr(name) for name in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        what = "no longer take and give only what their calling convention says, and are unflattened without it"
        notes.append(Note(f"modules {names} {what}"))
    return notes


def _import_notes(program: Program) -> list[Note]:
    """What PyTorch does not import by itself, with the first op that needs it."""
    needed: dict[str, Note] = {}
    for node in all_calls(program):
        module = importer_of(node.target)
        if module is not None and module not in needed:
            used = "" if module.startswith("the ") else f", for {op_name(node.target)}"
            needed[module] = Note(f"torch.export.load needs {module} imported before it{used}", node.name)
    carrier = program.carrier if isinstance(program.carrier, Pt2Carrier) else None
    called = [] if carrier is None else carrier.document["graph_module"]["module_call_graph"]
    roots = [call["signature"] for call in called if not call["fqn"] and call["signature"] is not None]
    texts = [root[key] for root in roots for key in ("in_spec", "out_spec")]
    for name in dict.fromkeys(name for text in texts for name in unknown_containers(text)):
        needed[name] = Note(f"torch.export.load needs the library of {name} imported before it, for what it returns")
    return list(needed.values())


def _document(
    program: Program,
    carrier: Pt2Carrier | None,
    writer: GraphWriter,
    data: dict[str, Any],
    symbols: Mapping[str, SymbolInfo],
) -> dict[str, Any]:
    ranges = {name: {"min_val": info.lower, "max_val": info.upper} for name, info in symbols.items()}
    if carrier is None:
        document = new_document(program.graph, data, writer.inputs, ranges)
    else:
        document = rename(dict(carrier.document), data, writer.inputs.names)
        # What the exported program says about its symbols wins.
        document["range_constraints"] = {**ranges, **document["range_constraints"]}
    version = document["schema_version"]
    # Older PyTorch refuses a newer version, so it is raised only where it must be.
    if writer.state.needs_new_schema:
        document["schema_version"] = {**version, "minor": max(version["minor"], SCHEMA_MINOR_NEW)}
    return document


def _to_bytes(data: dict[str, Any]) -> bytes:
    try:
        return json.dumps(data, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise OutputError(f"a .pt2 file cannot hold the program's header or history: {error}") from None
