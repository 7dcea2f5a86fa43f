"""What a program keeps of the ``.pt2`` file it came from, and what a program without one gets instead.

A :class:`Pt2Carrier` is the ``carrier`` of a Program: everything in the file but the graph. Weights stay
in the file; it must still be there, unchanged, when the program is written again.

A graph from a text or from memory has no signature, so :func:`new_document` makes one: every placeholder
is an input of the user's, in order, every returned value an output, and every symbol keeps its range.
Limits: such a program carries no parameters; they are inputs like all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from commcc.base.errors import OutputError
from commcc.serialization.pt2.build import map_arguments
from commcc.serialization.pt2.schema import SCHEMA_MAJOR, SCHEMA_MINOR
from commcc.serialization.shapes import symbols_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from commcc.graph.ops import OpaqueOp
    from commcc.serialization.pt2.archive import Layout
    from commcc.serialization.pt2.inputs import InputTable
    from commcc.serialization.pt2.read import OpaqueCall
    from commcc.serialization.pt2.zip_files import ZipEntry, ZipSource
    from commcc.serialization.shapes import SymbolInfo

#: What PyTorch calls the verifier that lets in-place ops and collectives pass.
_DIALECT = "TRAINING"


@dataclass(frozen=True)
class Pt2Carrier:
    """Everything in a ``.pt2`` file but its graph.

    path: the archive; ``entries`` are what it held when it was read. root: its folder inside.
    layout: which entries a rewritten archive keeps. document: signature, calling convention and so on.
    opaque: how the file calls ops that are not registered here.
    """

    path: Path
    root: str
    layout: Layout
    entries: Mapping[str, ZipEntry]
    document: Mapping[str, Any]
    opaque: Mapping[OpaqueOp, OpaqueCall]

    def check_unchanged(self, source: ZipSource) -> None:
        """Raise :class:`OutputError` if the archive is no longer the one that was read."""
        if dict(source.entries) != dict(self.entries):
            raise OutputError("has changed since it was read", where=str(self.path), hint="read it again")


def symbols_of(scalars: Sequence[Any]) -> Mapping[str, SymbolInfo]:
    """Range and example value of every symbol in some symbolic scalars, by name."""
    if not scalars:
        return {}
    found = {symbol for scalar in {id(s.node): s for s in scalars}.values() for symbol in scalar.node.expr.free_symbols}
    return symbols_in(scalars[0].node.shape_env, sorted(found, key=str))


def ranges_of(symbols: Mapping[str, SymbolInfo]) -> dict[str, Any]:
    """The schema's range constraints."""
    return {name: {"min_val": info.lower, "max_val": info.upper} for name, info in symbols.items()}


def new_document(graph: fx.Graph, data: dict[str, Any], inputs: InputTable, ranges: dict[str, Any]) -> dict[str, Any]:
    """Everything but the graph, for a program that came from no ``.pt2`` file.

    data: the graph in the schema, ``inputs`` its inputs.
    """
    lifted = {name: path for path, name in inputs.lifted.items()}
    specs = [
        _input_spec(name, written, lifted, inputs.constants)
        for name, written in zip(inputs.names, data["inputs"], strict=True)
    ]
    user_inputs = [0] * (len(specs) - len(lifted))
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    signature: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "in_spec": pytree.treespec_dumps(pytree.tree_structure((tuple(user_inputs), {})), 1),
        "out_spec": pytree.treespec_dumps(pytree.tree_structure(_leaves(returned)), 1),
        "forward_arg_names": None,
    }
    return {
        "graph_module": {
            "graph": data,
            "signature": {
                "input_specs": specs,
                "output_specs": [{"user_output": {"arg": written}} for written in data["outputs"]],
            },
            "module_call_graph": [{"fqn": "", "signature": signature}],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": torch._C._get_max_operator_version()},
        "range_constraints": ranges,
        "schema_version": {"major": SCHEMA_MAJOR, "minor": SCHEMA_MINOR},
        "verifiers": [_DIALECT],
        "torch_version": str(torch.__version__),
        "guards_code": [],
    }


def _leaves(returned: Any) -> Any:
    """The structure of what a graph returns, as plain containers with a number at each leaf."""
    if isinstance(returned, (tuple, list, dict)):
        return map_arguments(returned, _leaves)
    return 0


def _input_spec(
    name: str, written: dict[str, Any], lifted: Mapping[str, str], constants: Mapping[str, Any]
) -> dict[str, Any]:
    if name in lifted:
        return {"tensor_constant": {"arg": {"name": name}, "tensor_constant_name": lifted[name]}}
    if name in constants:
        return {"constant_input": {"name": name, "value": written}}
    return {"user_input": {"arg": written}}
