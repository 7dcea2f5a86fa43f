"""An FX graph in the words of the ``.pt2`` schema, without building an ``ExportedProgram``.

Usage::

    writer = GraphWriter(program.graph, program.root, WriteState(opaque={}))
    data = writer.write()         # the schema's Graph, ready for json.dumps
    writer.inputs.names           # ["primals_1", ...]: the inputs that the file has

What the schema has no room for is taken out here and put back by the sidecar: ``getitem`` nodes, inputs
that are no tensors or numbers (device meshes), ``torch.sym_sum`` (a chain of additions), tensors held by
``get_attr`` nodes (inputs of their own), nested outputs (flattened).
Limits: :class:`OutputError`, with the node's name, for what cannot be said at all.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx
from torch.utils import _pytree as pytree

from commcc.base.errors import CommccError, OutputError
from commcc.graph.ops import is_getitem, op_name
from commcc.serialization.pt2.argument_writer import TEXT_HINT, kind_of_value, write_argument
from commcc.serialization.pt2.calls import write_call
from commcc.serialization.pt2.inputs import InputTable, attribute
from commcc.serialization.pt2.meta import write_metadata
from commcc.serialization.pt2.results import ResultTable
from commcc.serialization.pt2.schema import check_name
from commcc.serialization.pt2.symbols import write_scalar
from commcc.serialization.pt2.values import needs_new_schema, write_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from commcc.graph.ops import OpaqueOp
    from commcc.serialization.pt2.read import OpaqueCall

_RETURNABLE = ("as_tensor", "as_sym_int", "as_sym_float", "as_int", "as_float", "as_bool", "as_none")


@dataclass
class WriteState:
    """What all graphs of one file share.

    opaque: how the file of origin calls ops that are not registered here.
    describe: False leaves out values and metadata, when graphs are only compared.
    needs_new_schema: set while writing, when a value needs the newest minor version.
    symbolic: filled while writing, with every symbolic scalar.
    """

    opaque: Mapping[OpaqueOp, OpaqueCall]
    describe: bool = True
    needs_new_schema: bool = False
    symbolic: list[Any] = field(default_factory=list)


class GraphWriter:
    """Writes one graph; also the scope of its arguments and calls, and the place for its values."""

    def __init__(self, graph: fx.Graph, root: torch.nn.Module, state: WriteState, *, top: bool = True) -> None:
        self.graph = graph
        self.root = root
        self.state = state
        self.top = top
        self.inputs = InputTable(graph, root, top=top)
        self.results = ResultTable(graph, state.opaque)
        self._tables: dict[str, dict[str, Any]] = {kind: {} for kind in ("tensor", "int", "float", "bool", "custom")}
        self._subgraphs: dict[str, dict[str, Any]] = {}

    @property
    def opaque(self) -> Mapping[OpaqueOp, OpaqueCall]:
        return self.state.opaque

    def write(self) -> dict[str, Any]:
        """The schema's Graph; :class:`OutputError` names the node that it cannot hold."""
        nodes: list[dict[str, Any]] = []
        inputs = self.inputs.write(self)
        outputs: list[dict[str, Any]] = []
        single = False
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr") or (node.op == "call_function" and is_getitem(node.target)):
                continue
            with _about(node):
                if node.op == "output":
                    outputs, single = self._outputs(node.args[0])
                elif node.op == "call_function":
                    nodes.extend(write_call(node, self))
                else:
                    raise OutputError(f"a .pt2 file cannot hold {node.op} nodes", hint=TEXT_HINT)
        return {
            "inputs": inputs,
            "outputs": outputs,
            "nodes": nodes,
            "tensor_values": self._tables["tensor"],
            "sym_int_values": self._tables["int"],
            "sym_bool_values": self._tables["bool"],
            "is_single_tensor_return": single,
            "custom_obj_values": self._tables["custom"],
            "sym_float_values": self._tables["float"],
        }

    def effective(self, node: fx.Node) -> Any:
        node = self.results.representative(node)
        if node.op == "placeholder":
            if node in self.inputs.opaque:
                raise OutputError(f"{node.name} is neither a tensor nor a number", hint=TEXT_HINT)
            return self.inputs.constants.get(node.name, node)
        return node

    def unused(self, name: str) -> str:
        return self.inputs.unused(name)

    def subgraph(self, node: fx.Node) -> dict[str, Any]:
        path = str(node.target)
        if path in self.inputs.lifted:
            return {"as_tensor": {"name": self.inputs.lifted[path]}}
        found = attribute(self.root, path)
        if not isinstance(found, fx.GraphModule) or "." in path:
            raise OutputError(f"{node.name} holds neither a graph nor a tensor", hint=TEXT_HINT)
        if path not in self._subgraphs:
            writer = GraphWriter(found.graph, found, self.state, top=False)
            self._subgraphs[path] = {"name": check_name(path), "graph": writer.write()}
        return {"as_graph": self._subgraphs[path]}

    def register(self, name: str, val: Any) -> dict[str, Any]:
        kind = kind_of_value(val)
        if not kind:
            raise OutputError(f"a value of type {type(val).__name__} cannot be described", hint=TEXT_HINT)
        if self.state.describe:
            self._tables[kind][name] = self._describe(kind, val)
        if kind == "custom":
            return {"as_custom_obj": {"name": name, "class_fqn": val.class_fqn}}
        return {"as_tensor": {"name": name}} if kind == "tensor" else {f"as_sym_{kind}": {"as_name": name}}

    def _describe(self, kind: str, val: Any) -> dict[str, Any]:
        if kind == "custom":
            return {"name": val.name, "class_fqn": val.class_fqn}
        if kind != "tensor":
            if not isinstance(val, (bool, int, float)):
                self.state.symbolic.append(val)
            return write_scalar(val)
        described = write_tensor(val)
        self.state.needs_new_schema |= needs_new_schema(described)
        self.state.symbolic.extend([n for n in (*val.shape, *val.stride()) if type(n) is not int])
        return described

    def metadata(self, node: fx.Node) -> dict[str, str]:
        return write_metadata(node.meta) if self.state.describe else {}

    def _outputs(self, returned: Any) -> tuple[list[dict[str, Any]], bool]:
        if self.top:
            return [self._returned(leaf) for leaf in pytree.tree_leaves(returned)], False
        if isinstance(returned, fx.Node):
            return [write_argument(returned, self)], True
        return [write_argument(item, self) for item in returned], False

    def _returned(self, leaf: Any) -> dict[str, Any]:
        if isinstance(leaf, fx.Node) and leaf in self.inputs.opaque:
            return {"as_none": True}
        written = write_argument(leaf, self)
        kind = next(iter(written))
        if kind not in _RETURNABLE:
            raise OutputError(f"returns a value that exported programs cannot return ({kind})", hint=TEXT_HINT)
        return written


@contextmanager
def _about(node: fx.Node) -> Iterator[None]:
    """Say in an error which node it is about."""
    try:
        yield
    except CommccError as error:
        raise OutputError(f"node {node.name!r} ({op_name(node.target)}): {error.what}", hint=error.hint) from None


def same_graph(left: Any, right: Any) -> bool:
    """Whether two graphs of the schema are the same program: values and metadata do not count."""
    for key in ("inputs", "outputs", "is_single_tensor_return"):
        if left[key] != right[key]:
            return False
    return len(left["nodes"]) == len(right["nodes"]) and all(map(_same_node, left["nodes"], right["nodes"]))


def _same_node(left: dict[str, Any], right: dict[str, Any]) -> bool:
    for key in ("target", "outputs", "is_hop_single_tensor_return", "name"):
        if left[key] != right[key]:
            return False
    return len(left["inputs"]) == len(right["inputs"]) and all(map(_same_input, left["inputs"], right["inputs"]))


def _same_input(left: dict[str, Any], right: dict[str, Any]) -> bool:
    if "as_graph" not in left["arg"] or "as_graph" not in right["arg"]:
        return left == right
    ours, theirs = left["arg"]["as_graph"], right["arg"]["as_graph"]
    same = (left["name"], left["kind"], ours["name"]) == (right["name"], right["kind"], theirs["name"])
    return same and same_graph(ours["graph"], theirs["graph"])
