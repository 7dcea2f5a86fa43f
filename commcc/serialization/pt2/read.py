"""The graph of a ``.pt2`` file as :class:`Spec` records, node for node as ``torch.export.load`` makes it.

The schema has no ``getitem`` nodes; a node with several results only names them. They are made again the
way PyTorch does it: right behind their producer, one for each result, ``split_unused_1`` for results that
nobody uses, ``as_none`` for results that are None::

    {"name": "max_1", "outputs": [{"as_tensor": {"name": "getitem"}}, {"as_tensor": {"name": "getitem_1"}}]}
    ->  max_1; getitem = max_1[0]; getitem_1 = max_1[1]

Limits: call_function nodes only, which is all that exported programs have.
"""

from __future__ import annotations

import inspect
import keyword
import operator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from commcc.base.errors import InputError
from commcc.graph.ops import OpaqueOp, op_name
from commcc.serialization.pt2.arguments import check_order, read_argument
from commcc.serialization.pt2.metadata import read_metadata
from commcc.serialization.pt2.schema import (
    KEYWORD,
    LIST,
    MANY,
    NONE,
    ONE,
    POSITIONAL,
    OpaqueCall,
    check_name,
    union,
)
from commcc.serialization.pt2.specs import GraphSpec, Ref, Spec
from commcc.serialization.pt2.values import ValueReader
from commcc.serialization.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.serialization.pt2.values import ExpressionReader

_MAX_SUBGRAPH_DEPTH = 20
_RESAVE = "load the file with the PyTorch that wrote it and save it again with 2.8 or newer"
_SINGLE = ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool", "as_custom_obj")
_CONSTANT = ("as_int", "as_float", "as_bool", "as_none", "as_string")
#: What malformed JSON does to code that reads it.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@dataclass
class FileState:
    """What all graphs of one file share.

    symbols: None to read the nodes without their values.
    constants: names of the inputs by position, for inputs that are constants and carry no name.
    opaque: filled while reading; what must be known to write the calls again.
    """

    symbols: ExpressionReader | None
    constants: list[str]
    opaque: dict[OpaqueOp, OpaqueCall] = field(default_factory=dict)


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn what malformed JSON does to the code that reads it into an :class:`InputError` about ``what``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error.what}", hint=error.hint) from None
    except _MALFORMED as error:
        raise InputError(f"{what} is malformed ({type(error).__name__}: {str(error)[:80]})") from None


def read_graph(graph: Any, state: FileState, depth: int = 0) -> GraphSpec:
    """One graph of the schema and its sub-graphs."""
    if depth > _MAX_SUBGRAPH_DEPTH:
        raise InputError("sub-graphs are nested too deeply")
    return _GraphReader(graph, state, depth).read()


class _GraphReader:
    """Reads one graph; also the :class:`Scope` of its arguments."""

    def __init__(self, graph: Any, state: FileState, depth: int) -> None:
        if not isinstance(graph, dict):
            raise InputError("a graph is not an object")
        self.graph = graph
        self.state = state
        self.depth = depth
        with malformed("the table of values"):
            self.values = ValueReader(state.symbols, graph)
        self.out = GraphSpec([])
        self.defined: set[str] = set()
        # PyTorch's own rules make the names of nodes that the file does not name.
        self._namer = fx.Graph()

    def read(self) -> GraphSpec:
        with malformed("the inputs of the graph"):
            for position, data in enumerate(self.graph["inputs"]):
                self._input(position, data)
        with malformed("the nodes of the graph"):
            for position, data in enumerate(self.graph["nodes"]):
                name = data.get("name") if isinstance(data, dict) else None
                with malformed(f"node {position} ({name[:60]!r})" if isinstance(name, str) else f"node {position}"):
                    self._node(data)
        with malformed("the outputs of the graph"):
            values = []
            for data in self.graph["outputs"]:
                kind, _ = union(data)
                if kind not in (*_SINGLE, *_CONSTANT):
                    raise InputError(f"an output is of the unknown kind {kind[:40]!r}")
                values.append(read_argument(data, self))
            single = self.graph.get("is_single_tensor_return") is True
            if single and len(values) != 1:
                raise InputError(f"the graph returns {len(values)} values and says that it returns one")
            self.add(Spec(self.fresh("output"), "output", "output", (values[0] if single else tuple(values),)))
        return self.out

    def use(self, name: str) -> Ref:
        if name not in self.defined:
            raise InputError(f"{str(name)[:60]!r} is used before it is defined")
        return Ref(name)

    def subgraph(self, name: str, graph: Any) -> Ref:
        spec_of_graph = read_graph(graph, self.state, self.depth + 1)
        self.out.subgraphs[name] = spec_of_graph
        spec = self.add(Spec(self.fresh(name), "get_attr", name))
        return Ref(spec.name)

    def fresh(self, candidate: str) -> str:
        return self._namer._graph_namespace.create_name(candidate, None)

    def name_of_target(self, target: Any) -> str:
        return self._namer._target_to_str(target)

    def add(self, spec: Spec) -> Spec:
        if spec.name in self.defined:
            raise InputError(f"two nodes are called {spec.name!r}")
        self.defined.add(spec.name)
        self.out.nodes.append(spec)
        return spec

    def _input(self, position: int, data: Any) -> None:
        kind, value = union(data)
        if kind in _SINGLE:
            name = check_name(_name_of(kind, value))
            self.fresh(name)
            self.add(Spec(name, "placeholder", name, val=self.values.given(name)))
        elif kind in _CONSTANT:
            constants = self.state.constants
            # Constants carry no name in the graph, only in the signature.
            known = constants[position] if position < len(constants) else ""
            name = self.fresh(check_name(known or f"arg{position}"))
            self.add(Spec(name, "placeholder", known or name, val=read_argument(data, self)))
        else:
            raise InputError(f"input {position} is of the unknown kind {kind[:40]!r}")

    def _node(self, data: dict[str, Any]) -> None:
        target = resolve(str(data["target"]))
        before = len(self.out.nodes)
        args, kwargs = self._arguments(target, data["inputs"])
        meta = read_metadata(data.get("metadata") or {})
        # The get_attr nodes of sub-graphs come from the node that uses them.
        for subgraph in self.out.nodes[before:]:
            subgraph.meta = dict(meta)
        _check_results(target, len(data["outputs"]))
        results = _Results(self, Spec("", "call_function", target, args, kwargs, meta=meta), data)
        results.add()
        if isinstance(target, OpaqueOp):
            # The call with the most arguments has names for those of all others.
            call = OpaqueCall(tuple(item["name"] for item in data["inputs"]), results.kind)
            known = self.state.opaque.get(target)
            if known is None or len(known.arguments) < len(call.arguments):
                self.state.opaque[target] = call

    def _arguments(self, target: Any, inputs: list[dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for data in inputs:
            value = read_argument(data["arg"], self)
            kind, name = data.get("kind"), data["name"]
            # A keyword of Python (from, to) cannot be given by name.
            if kind == POSITIONAL or name == "" or keyword.iskeyword(name):
                args.append(value)
            elif kind == KEYWORD:
                kwargs[check_name(name)] = value
            else:
                raise InputError("an argument is neither positional nor a keyword", hint=_RESAVE)
        if isinstance(target, OpOverload):
            check_order(target, [data["name"] for data in inputs], len(args))
        elif not isinstance(target, (OpaqueOp, HigherOrderOperator)):
            _check_call(target, len(args), kwargs)
        return tuple(args), kwargs


def _check_call(function: Any, count: int, kwargs: dict[str, Any]) -> None:
    """A function on numbers must take as many arguments, of these names."""
    try:
        signature = inspect.signature(function)
    # Some that are written in C do not say what they take.
    except ValueError:
        return
    try:
        signature.bind(*range(count), **kwargs)
    except TypeError as error:
        raise InputError(f"{op_name(function)} is called wrongly: {error}") from None


def _check_results(target: Any, count: int) -> None:
    """A node must have as many results as what it calls; a list is one."""
    if isinstance(target, (OpaqueOp, HigherOrderOperator)):
        return
    # What is no op is a function on numbers.
    wanted = len(target._schema.returns) if isinstance(target, OpOverload) else 1
    if count != wanted:
        raise InputError(f"has {count} results, {op_name(target)} gives {wanted}")


class _Results:
    """Gives one node its name and value, and makes the getitem nodes behind it."""

    def __init__(self, reader: _GraphReader, spec: Spec, data: dict[str, Any]) -> None:
        self.reader = reader
        self.spec = spec
        self.outputs = [union(output) for output in data["outputs"]]
        self.name = data.get("name")
        self.is_list = len(self.outputs) == 1 and self.outputs[0][0] == "as_tensors"
        self.kind = LIST if self.is_list else {0: NONE, 1: ONE}.get(len(self.outputs), MANY)
        self.single_in_tuple = isinstance(spec.target, HigherOrderOperator) and not data.get(
            "is_hop_single_tensor_return"
        )

    def add(self) -> None:
        reader, spec = self.reader, self.spec
        kind, value = self.outputs[0] if len(self.outputs) == 1 else ("", None)
        candidate = self.name or (_name_of(kind, value) if kind in _SINGLE else None)
        spec.name = reader.fresh(reader.name_of_target(spec.target) if candidate is None else check_name(candidate))
        if kind in _SINGLE and not self.single_in_tuple:
            spec.name = check_name(_name_of(kind, value))
            spec.val = reader.values.of(spec.name)
            reader.add(spec)
        elif kind == "as_none":
            spec.val = None
            # PyTorch names it so, because nothing can use it.
            unused = f"{reader.name_of_target(spec.target)}_unused"
            spec.name = spec.name if spec.name == unused else reader.fresh(unused)
            reader.add(spec)
        elif not self.outputs:
            reader.add(spec)
        else:
            reader.add(spec)
            items = [("as_tensor", item) for item in self.outputs[0][1]] if self.is_list else self.outputs
            spec.val = tuple(self._items(spec, items))

    def _items(self, producer: Spec, items: list[tuple[str, Any]]) -> list[Any]:
        """The values of a node with several results, with a getitem node for each."""
        values: list[Any] = []
        for index, (kind, value) in enumerate(items):
            if kind in ("as_tensor", "as_sym_int", "as_sym_float"):
                name = check_name(_name_of(kind, value))
                self.reader.fresh(name)
                values.append(self._item(producer, index, name, self.reader.values.of(name)).val)
            elif kind == "as_tensors":
                name = self.reader.fresh("getitem")
                spec = self._item(producer, index, name, [])
                # A list inside of several results: one getitem for the list, and one for each of its tensors.
                spec.val = self._items(spec, [("as_tensor", item) for item in value])
                values.append(spec.val)
            elif kind == "as_none":
                values.append(self._item(producer, index, self.reader.fresh("as_none"), None).val)
            else:
                raise InputError(f"result {index} is of the unknown kind {kind[:40]!r}")
        return values

    def _item(self, producer: Spec, index: int, name: str, val: Any) -> Spec:
        args = (Ref(producer.name), index)
        return self.reader.add(Spec(name, "call_function", operator.getitem, args, val=val, meta=dict(self.spec.meta)))


def _name_of(kind: str, value: Any) -> Any:
    return value["name"] if kind in ("as_tensor", "as_custom_obj") else value["as_name"]
