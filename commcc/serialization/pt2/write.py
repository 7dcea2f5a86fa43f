"""An FX graph in the words of the ``.pt2`` schema, without building an ``ExportedProgram``.

Usage::

    writer = GraphWriter(program.graph, program.root, WriteState(opaque={}))
    data = writer.write()         # the schema's Graph, ready for json.dumps
    writer.inputs.names           # ["primals_1", ...]: the inputs that the file has

Ops give the names of their arguments from their schema, Python functions on numbers from their signature,
higher-order ops give none.

What the schema has no field for is taken out here and put back by the sidecar: ``getitem`` nodes, inputs
that are no tensors or numbers (device meshes), ``torch.sym_sum`` (a chain of additions), tensors held by
``get_attr`` nodes (inputs of their own), nested outputs (flattened).
Limits: :class:`OutputError`, with the node's name, for what cannot be said at all; ops that are not registered
can be written only into the file they came from.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from commcc.base.errors import CommccError, OutputError
from commcc.graph.ops import OpaqueOp, is_getitem, op_name
from commcc.serialization.attributes import find
from commcc.serialization.pt2.arguments import (
    TEXT_HINT,
    kind_of_value,
    op_arguments,
    schema_path,
    write_argument,
    write_use,
)
from commcc.serialization.pt2.metadata import write_metadata
from commcc.serialization.pt2.schema import KEYWORD, POSITIONAL, check_name
from commcc.serialization.pt2.tables import InputTable, ResultTable
from commcc.serialization.pt2.values import needs_new_schema, write_scalar, write_tensor
from commcc.serialization.shapes import symbols_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.serialization.pt2.schema import OpaqueCall
    from commcc.serialization.shapes import SymbolInfo

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

    def symbols(self) -> Mapping[str, SymbolInfo]:
        """Range and example value of every symbol that was written, by name."""
        if not self.symbolic:
            return {}
        scalars = {id(scalar.node): scalar for scalar in self.symbolic}.values()
        symbols = {symbol for scalar in scalars for symbol in scalar.node.expr.free_symbols}
        return symbols_in(self.symbolic[0].node.shape_env, sorted(symbols, key=str))


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

    def write(self) -> dict[str, Any]:
        """The schema's Graph; :class:`OutputError` names the node that it cannot hold."""
        nodes: list[dict[str, Any]] = []
        inputs = self.inputs.write(self)
        outputs: list[dict[str, Any]] = []
        single = False
        for node in self.graph.nodes:
            # Inputs are written above, constants where they are used, and getitem by the names of results.
            if node.op in ("placeholder", "get_attr") or (node.op == "call_function" and is_getitem(node.target)):
                continue
            with _about(node):
                if node.op == "output":
                    outputs, single = self._outputs(node.args[0])
                elif node.op == "call_function":
                    nodes.extend(self._call(node))
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
                what = "neither a tensor nor a number" if "val" in node.meta else "without a shape in the file"
                raise OutputError(f"{node.name} is {what}", hint=TEXT_HINT)
            # A constant input is written as its value wherever it is used.
            return self.inputs.constants.get(node.name, node)
        if node.op == "get_attr" and (name := self.inputs.lifted.get(str(node.target))) is not None:
            lifted = fx.Graph().placeholder(name)  # one of a list; by itself it is what subgraph() says
            lifted.meta["val"] = self.inputs.tensors[name]
            return lifted
        return node

    def subgraph(self, node: fx.Node) -> dict[str, Any]:
        path = str(node.target)
        if path in self.inputs.lifted:
            return {"as_tensor": {"name": self.inputs.lifted[path]}}
        held = find(self.root, path)
        if not isinstance(held, fx.GraphModule) or "." in path:
            raise OutputError(f"{node.name} holds neither a graph nor a tensor", hint=TEXT_HINT)
        # Written once, however many nodes use it.
        if path not in self._subgraphs:
            writer = GraphWriter(held.graph, held, self.state, top=False)
            self._subgraphs[path] = {"name": check_name(path), "graph": writer.write()}
        return {"as_graph": self._subgraphs[path]}

    def register(self, name: str, val: Any) -> dict[str, Any]:
        kind = kind_of_value(val)
        if not kind:
            raise OutputError(f"a value of type {type(val).__name__} cannot be described", hint=TEXT_HINT)
        if not self.state.describe:
            return write_use(name, val)
        if kind == "custom":
            described = {"name": val.name, "class_fqn": val.class_fqn}
        elif kind == "tensor":
            described = write_tensor(val)
            self.state.needs_new_schema |= needs_new_schema(described)
            self.state.symbolic.extend([n for n in (*val.shape, *val.stride()) if type(n) is not int])
        else:
            described = write_scalar(val)
            if not isinstance(val, (bool, int, float)):
                self.state.symbolic.append(val)
        self._tables[kind][name] = described
        return write_use(name, val)

    def _metadata(self, node: fx.Node) -> dict[str, str]:
        return write_metadata(node.meta) if self.state.describe else {}

    def _call(self, node: fx.Node) -> Iterator[dict[str, Any]]:
        """The nodes of the schema that stand for ``node``: one, but for ``torch.sym_sum``."""
        if node.target is torch.sym_sum:
            yield from self._sum(node)
            return
        is_single = None
        if isinstance(node.target, HigherOrderOperator):
            is_single = isinstance(node.meta.get("val"), torch.Tensor)
        yield {
            "target": schema_path(node.target),
            "inputs": self._arguments(node),
            "outputs": self.results.outputs(node, self),
            "metadata": self._metadata(node),
            "is_hop_single_tensor_return": is_single,
            "name": node.name,
        }

    def _arguments(self, node: fx.Node) -> list[dict[str, Any]]:
        target = node.target
        if isinstance(target, OpOverload):
            return self._arguments_by_schema(node, target)
        names = _positional_names(target)
        if isinstance(target, OpaqueOp):
            known = self.state.opaque.get(target)
            if known is None or len(known.arguments) < len(node.args):
                raise OutputError(
                    f"{target.qualified_name} is not registered with this PyTorch, and a .pt2 needs its schema",
                    hint=f"name the module that registers it (--import MODULE), or {TEXT_HINT}",
                )
            names = known.arguments
        # An empty name is a positional argument.
        names += ("",) * (len(node.args) - len(names))
        out = [
            _named(name, write_argument(arg, self), POSITIONAL)
            for name, arg in zip(names, node.args)  # noqa: B905
        ]
        out.extend(_named(check_name(key), write_argument(arg, self), KEYWORD) for key, arg in node.kwargs.items())
        return out

    def _arguments_by_schema(self, node: fx.Node, target: OpOverload) -> list[dict[str, Any]]:
        out, kwargs = [], node.kwargs
        for position, (name, keyword_only, empty) in enumerate(op_arguments(target)):
            if name in kwargs:
                out.append(_named(name, write_argument(kwargs[name], self, empty), KEYWORD))
            elif position < len(node.args) and not keyword_only:
                out.append(_named(name, write_argument(node.args[position], self, empty), POSITIONAL))
        # What the schema does not know would be lost without a word.
        if len(out) != len(node.args) + len(kwargs):
            raise OutputError(f"has arguments that {target} does not declare")
        return out

    def _sum(self, node: fx.Node) -> Iterator[dict[str, Any]]:
        """``sym_sum([a, b, c])``, which PyTorch cannot save, as ``a + b``, then ``+ c``."""
        if not isinstance(node.args[0], (list, tuple)) or "val" not in node.meta:
            raise OutputError("its terms or its value are not known", hint=TEXT_HINT)
        terms: list[Any] = [self.effective(term) if isinstance(term, fx.Node) else term for term in node.args[0]]
        # A sum of one term, or of none.
        terms += [0] * (2 - len(terms))
        values = [term.meta.get("val", 0) if isinstance(term, fx.Node) else term for term in terms]
        left, total = write_argument(terms[0], self), values[0]
        for position, term in enumerate(terms[1:], 1):
            last = position == len(terms) - 1
            total = node.meta["val"] if last else total + values[position]
            name = node.name if last else self.inputs.unused(f"{node.name}_part_{position}")
            inputs = [_named("a", left, POSITIONAL), _named("b", write_argument(term, self), POSITIONAL)]
            left = self.register(name, total)
            yield {
                "target": "_operator.add",
                "inputs": inputs,
                "outputs": [left],
                "metadata": self._metadata(node),
                "is_hop_single_tensor_return": None,
                "name": name,
            }

    def _outputs(self, returned: Any) -> tuple[list[dict[str, Any]], bool]:
        """What the graph returns, and whether that is one value instead of several."""
        if not self.top:
            single = isinstance(returned, fx.Node)
            if not single and not isinstance(returned, (list, tuple)):
                raise OutputError("a sub-graph returns neither a tensor nor a list", hint=TEXT_HINT)
            return [write_argument(item, self) for item in ([returned] if single else returned)], single
        outputs = []
        for leaf in pytree.tree_leaves(returned):
            # A device mesh that is returned as it is.
            is_opaque = isinstance(leaf, fx.Node) and leaf in self.inputs.opaque
            written = {"as_none": True} if is_opaque else write_argument(leaf, self)
            kind = next(iter(written))
            if kind not in _RETURNABLE:
                raise OutputError(f"returns a value that exported programs cannot return ({kind})", hint=TEXT_HINT)
            outputs.append(written)
        return outputs, False


def _named(name: str, arg: dict[str, Any], kind: int) -> dict[str, Any]:
    return {"name": name, "arg": arg, "kind": kind}


@lru_cache(maxsize=256)
def _positional_names(target: Any) -> tuple[str, ...]:
    if isinstance(target, (HigherOrderOperator, OpaqueOp)):
        return ()
    try:
        return tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return ()


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
    if len(left["inputs"]) != len(right["inputs"]):
        return False
    for ours, theirs in zip(left["inputs"], right["inputs"], strict=True):
        if "as_graph" not in ours["arg"] or "as_graph" not in theirs["arg"]:
            if ours != theirs:
                return False
            continue
        one, other = ours["arg"]["as_graph"], theirs["arg"]["as_graph"]
        same = (ours["name"], ours["kind"], one["name"]) == (theirs["name"], theirs["kind"], other["name"])
        if not same or not same_graph(one["graph"], other["graph"]):
            return False
    return True
