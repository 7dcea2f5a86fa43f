"""What the inputs and the results of a graph's nodes are called in a ``.pt2`` file.

Tensors and integers are inputs as they are, other numbers and texts are constants of the signature, and
tensors that ``get_attr`` nodes hold become inputs of their own. Anything else (a device mesh) is no input
of the file::

    inputs = InputTable(graph, root, top=True)
    inputs.write(values)                # the schema's inputs
    inputs.names                        # ["c__tensor_constant0", "primals_1"]

The schema has no ``getitem``: a node with several results names them::

    results = ResultTable(graph, opaque)
    results.representative(getitem_3)   # the first getitem of the same result
    results.outputs(split, values)      # [{"as_tensors": [{"name": "getitem"}, {"name": "split_unused_1"}]}]

Limits: only integers may be symbolic inputs, as in PyTorch; a node with several results must not be used whole.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch._ops import OpOverload

from commcc.base.errors import OutputError
from commcc.graph.ops import OpaqueOp
from commcc.serialization.attributes import find
from commcc.serialization.pt2.archive import storable
from commcc.serialization.pt2.arguments import TEXT_HINT, kind_of_value
from commcc.serialization.pt2.schema import LIST, MANY, NONE, ONE, check_name
from commcc.serialization.pt2.values import write_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.serialization.pt2.schema import OpaqueCall

_CONSTANT = (bool, int, float, str, type(None))
_NO_CONSTANT = object()


class Values(Protocol):
    """Where the values of results go."""

    def register(self, name: str, val: Any) -> dict[str, Any]:
        """Note the value called ``name``, and say how a use of it is written."""
        ...


class InputTable:
    """What the inputs of one graph become.

    names: inputs of the file, in order. constants: values of those that are constants, by name.
    opaque: placeholders that the file leaves out. lifted: input names by the attribute they replace.
    tensors: the lifted tensors, by input name.
    """

    def __init__(self, graph: fx.Graph, root: torch.nn.Module, *, top: bool) -> None:
        self._graph = graph
        self._root = root
        self._top = top
        self._taken: set[str] = set()
        for node in graph.nodes:
            if node.name in self._taken:
                raise OutputError(f"two nodes are called {node.name!r}")
            self._taken.add(node.name if node.op == "output" else check_name(node.name))
        self.names: list[str] = []
        self.constants: dict[str, Any] = {}
        self.opaque: set[fx.Node] = set()
        self.lifted: dict[str, str] = {}
        self.tensors: dict[str, Any] = {}

    def write(self, values: Values) -> list[dict[str, Any]]:
        """The inputs in the schema; their values go to ``values``."""
        out = []
        for node in self._graph.nodes:
            path = str(node.target)
            # What nobody reads is kept too, where it can be: it is compared.
            if node.op != "get_attr" or not (node.users or self._top) or path in self.lifted:
                continue
            held = find(self._root, path)
            tensor = held if held is not None else node.meta.get("val")
            if isinstance(tensor, torch.Tensor):
                if not self._top:
                    raise OutputError(f"the sub-graph keeps a tensor of its own ({node.name})", hint=TEXT_HINT)
                name = self.unused("c_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in path))
                self.lifted[path] = name
                self.tensors[name] = storable(tensor)
                self.names.append(name)
                # In the graph it may be on another device than the value that the file holds.
                known = node.meta.get("val")
                alike = isinstance(known, torch.Tensor) and (known.shape, known.dtype) == (tensor.shape, tensor.dtype)
                out.append(values.register(name, known if alike else self.tensors[name]))
        for node in self._graph.nodes:
            written = self._input(node, values) if node.op == "placeholder" else None
            if written is not None:
                out.append(written)
                self.names.append(node.name)
        return out

    def unused(self, name: str) -> str:
        """A name that no node of the graph has."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return check_name(name)

    def _input(self, node: fx.Node, values: Values) -> dict[str, Any] | None:
        val = node.meta.get("val", _NO_CONSTANT)
        # The schema has a kind of input for it, without a place among the values.
        if isinstance(val, _CONSTANT):
            self.constants[node.name] = val
            if isinstance(val, str) and any(c in val for c in "'\\\n\r"):
                raise OutputError(f"PyTorch cannot load a text with quotes as an input ({node.name})", hint=TEXT_HINT)
            kind = {bool: "bool", int: "int", float: "float", str: "string"}.get(type(val))
            if kind is None:
                return {"as_none": True}
            return {f"as_{kind}": write_number(val) if type(val) is float else val}
        if kind_of_value(val) in ("tensor", "int", "custom"):
            return values.register(node.name, val)
        if not self._top:
            raise OutputError(f"input {node.name} of a sub-graph is neither tensor nor integer", hint=TEXT_HINT)
        self.opaque.add(node)
        return None


@lru_cache(maxsize=4096)
def _returns(target: OpOverload) -> str:
    returns = target._schema.returns
    if len(returns) != 1:
        return MANY if returns else NONE
    kind = returns[0].real_type
    is_list = isinstance(kind, torch.ListType) and isinstance(kind.getElementType(), torch.TensorType)
    return LIST if is_list else ONE


class ResultTable:
    """The results of every node of one graph."""

    def __init__(self, graph: fx.Graph, opaque: Mapping[OpaqueOp, OpaqueCall]) -> None:
        self._opaque = opaque
        self._names = {node.name for node in graph.nodes}
        self._items: dict[fx.Node, dict[int, fx.Node]] = {}
        self._same: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node.op != "call_function" or node.target is not operator.getitem:
                continue
            source, index = node.args[0], node.args[1]
            if not isinstance(source, fx.Node) or type(index) is not int or source.op != "call_function":
                raise OutputError(f"{node.name} does not take a result of an op by its number", hint=TEXT_HINT)
            # A getitem of a doubled getitem belongs to the first.
            source = self._same.get(source, source)
            first = self._items.setdefault(source, {}).setdefault(index, node)
            if first is not node:
                self._same[node] = first

    def representative(self, node: fx.Node) -> fx.Node:
        """The first node that stands for the same value."""
        return self._same.get(node, node)

    def kind(self, node: fx.Node) -> str:
        """How many results a node has."""
        target, val = node.target, node.meta.get("val")
        if isinstance(target, OpOverload):
            return _returns(target)
        # Only the file of origin says how many results an op has that is not registered.
        known = self._opaque.get(target) if isinstance(target, OpaqueOp) else None
        if known is not None:
            return known.returns
        if isinstance(val, (list, tuple)):
            return MANY
        if isinstance(val, dict):
            raise OutputError("the results have names, which a .pt2 file cannot hold", hint=TEXT_HINT)
        return ONE

    def outputs(self, node: fx.Node, values: Values) -> list[dict[str, Any]]:
        """The ``outputs`` of a node in the schema."""
        kind = self.kind(node)
        if kind in (NONE, ONE) and node in self._items:
            raise OutputError("a getitem takes part of its only result", hint=TEXT_HINT)
        if kind == NONE:
            return []
        if kind == ONE:
            if "val" not in node.meta:
                raise OutputError("its shape is not known", hint=TEXT_HINT)
            return [{"as_none": True} if node.meta["val"] is None else values.register(node.name, node.meta["val"])]
        val = node.meta.get("val")
        if not isinstance(val, (list, tuple)):
            raise OutputError("the shapes of its results are not known", hint=TEXT_HINT)
        self._check_indices(node, len(val))
        if kind == LIST:
            return [{"as_tensors": [self._tensor(node, index, item, values) for index, item in enumerate(val)]}]
        return [self._item(node, index, item, values) for index, item in enumerate(val)]

    def _check_indices(self, node: fx.Node, count: int) -> None:
        for index, item in self._items.get(node, {}).items():
            if not 0 <= index < count:
                raise OutputError(f"{item.name} takes result {index} of {count}", hint=TEXT_HINT)

    def _item(self, node: fx.Node, index: int, val: Any, values: Values) -> dict[str, Any]:
        # A result that the op does not give (a mask that nobody asked for).
        if val is None:
            return {"as_none": True}
        user = self._items.get(node, {}).get(index)
        if isinstance(val, (list, tuple)):
            prefix = f"{node.name}_unused_{index}"
            if user is None:
                tensors = [_tensor_use(self._unused(f"{prefix}_{i}"), item, values) for i, item in enumerate(val)]
            else:
                self._check_indices(user, len(val))
                tensors = [self._tensor(user, i, item, values) for i, item in enumerate(val)]
            return {"as_tensors": tensors}
        if kind_of_value(val) not in ("tensor", "int", "float"):
            raise OutputError(f"its result {index} is of type {type(val).__name__}", hint=TEXT_HINT)
        return values.register(self._name(node, index, user), val)

    def _tensor(self, node: fx.Node, index: int, val: Any, values: Values) -> dict[str, Any]:
        user = self._items.get(node, {}).get(index)
        return _tensor_use(self._name(node, index, user), val, values)

    def _name(self, node: fx.Node, index: int, user: fx.Node | None) -> str:
        return self._unused(f"{node.name}_unused_{index}") if user is None else user.name

    def _unused(self, name: str) -> str:
        """A name for a result that nobody uses; not one that a node has."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _tensor_use(name: str, val: Any, values: Values) -> dict[str, Any]:
    if kind_of_value(val) != "tensor":
        raise OutputError("one of its results in a list is not a tensor", hint=TEXT_HINT)
    use: dict[str, Any] = values.register(name, val)["as_tensor"]
    return use
