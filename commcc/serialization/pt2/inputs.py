"""The inputs of a graph in the words of the ``.pt2`` schema.

Tensors and integers are inputs as they are, other numbers and texts are constants of the signature, and
tensors that ``get_attr`` nodes hold become inputs of their own. Anything else (a device mesh) is no input
of the file::

    table = InputTable(graph, root, top=True)
    table.write(values)          # the schema's inputs
    table.names                  # ("c__tensor_constant0", "primals_1")

Limits: only integers may be symbolic inputs, as in PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import OutputError
from commcc.serialization.pt2.argument_writer import TEXT_HINT, kind_of_value
from commcc.serialization.pt2.constants import storable
from commcc.serialization.pt2.schema import check_name
from commcc.serialization.pt2.symbols import write_number

if TYPE_CHECKING:
    from torch import fx

    from commcc.serialization.pt2.results import Values

_CONSTANT = (bool, int, float, str, type(None))
_NO_CONSTANT = object()


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
        self._taken = _checked_names(graph)
        self.names: list[str] = []
        self.constants: dict[str, Any] = {}
        self.opaque: set[fx.Node] = set()
        self.lifted: dict[str, str] = {}
        self.tensors: dict[str, Any] = {}

    def write(self, values: Values) -> list[dict[str, Any]]:
        """The inputs in the schema; their values go to ``values``."""
        out = [self._lift(node, values) for node in self._graph.nodes if node.op == "get_attr" and self._is_new(node)]
        for node in self._graph.nodes:
            if node.op == "placeholder":
                written = self._input(node, values)
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

    def _is_new(self, node: fx.Node) -> bool:
        return bool(node.users) and str(node.target) not in self.lifted and isinstance(self._held(node), torch.Tensor)

    def _held(self, node: fx.Node) -> Any:
        value = attribute(self._root, str(node.target))
        return value if value is not None else node.meta.get("val")

    def _lift(self, node: fx.Node, values: Values) -> dict[str, Any]:
        if not self._top:
            raise OutputError(f"the sub-graph keeps a tensor of its own ({node.name})", hint=TEXT_HINT)
        path = str(node.target)
        name = self.unused("c_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in path))
        self.lifted[path] = name
        self.tensors[name] = storable(self._held(node))
        self.names.append(name)
        return values.register(name, self.tensors[name])

    def _input(self, node: fx.Node, values: Values) -> dict[str, Any] | None:
        val = node.meta.get("val", _NO_CONSTANT)
        if isinstance(val, _CONSTANT):
            self.constants[node.name] = val
            return _constant(node.name, val)
        if kind_of_value(val) in ("tensor", "int", "custom"):
            return values.register(node.name, val)
        if not self._top:
            raise OutputError(f"input {node.name} of a sub-graph is neither tensor nor integer", hint=TEXT_HINT)
        self.opaque.add(node)
        return None


def _checked_names(graph: fx.Graph) -> set[str]:
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise OutputError(f"two nodes are called {node.name!r}")
        names.add(node.name if node.op == "output" else check_name(node.name))
    return names


def _constant(name: str, val: Any) -> dict[str, Any]:
    if isinstance(val, str) and any(c in val for c in "'\\\n\r"):
        raise OutputError(f"PyTorch cannot load a text with quotes as an input ({name})", hint=TEXT_HINT)
    kind = {bool: "bool", int: "int", float: "float", str: "string"}.get(type(val))
    if kind is None:
        return {"as_none": True}
    return {f"as_{kind}": write_number(val) if type(val) is float else val}


def attribute(root: torch.nn.Module, path: str) -> Any:
    """What ``root`` holds under a dotted path; None if it holds nothing there."""
    found: Any = root
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
