"""Programs in a plain form before they are compared: in order, groups told apart, no control edges, no fused ops.

1. Whether a graph can run at all: every operand is computed before it is used, one output, at the end.

2. ``control_deps`` around a single op computes what that op computes, only later::

    mm = control_deps((all_gather,), self.subgraph_mm, x, w)     is     mm = aten.mm(x, w)

   when the sub-graph is one call of ``aten.mm`` on its two inputs, whose result it returns. Anything else stays an
   op that is compared with all its arguments, the sub-graph among them. An edge that is gone changes no value and is
   a remark: a backend may now reorder there. What an edge is good for is not judged.

3. Fused ops of tensor parallelism are unfolded into what they stand for::

    f = symm_mem.fused_all_gather_matmul(x, [b], d, g)      ->   all_gather, wait, (slices, cat), mm
    w = symm_mem.fused_matmul_reduce_scatter(a, b, r, d, g) ->   mm, (slices, cat), reduce_scatter, wait

   What the unfolded nodes return is laid out as the plain ops would; that the fused op really lays its results out as
   the graph says is taken on trust. A change of strides in front of a fused op is left out, where the new strides
   are those of the same elements in some order, and nobody writes to these before the fused op reads them. Ops on
   scaled matmuls stay as they are, and so do calls whose arguments or results are not used as usual.

4. A rewrite may split a group off another one, to run on another stream; the table of AFTER records the origin. The
   record is a claim, and it is believed only if BEFORE has no group of that name, neither in its table nor in its
   graph; if BEFORE has the origin, with exactly the same ranks and size (or the origin is split off such a group); and
   if every collective on the new group is of one kind::

       table of AFTER: "ep_extra": {"size": 4, "ranks": [0, 1, 2, 3], "origin": "0"}
       all_to_all_single(x, None, None, 'ep_extra')   is the same term as   all_to_all_single(x, None, None, '0')

Limits: groups that both programs have are compared by name; ranks that neither table knows are taken to be those of the
origin, which is what the record means.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from commcc.graph.copying import copy_node
from commcc.graph.ops import argument, collective_of, group_size_of, op_name
from commcc.graph.ops.operands import rewritten
from commcc.graph.ops.products import AROUND_FUSED, GATHER_MATMUL, MATMUL_SCATTER
from commcc.graph.program import ProcessGroup
from commcc.serialization.attributes import find
from commcc.serialization.propagate import context_of
from commcc.verify.arguments import LIKE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.program import Program
    from commcc.verify.verdict import Report

#: Whole numbers that ops take are less than this.
_WORD = 1 << 63

# Order
_OPS = frozenset({"placeholder", "get_attr", "call_function", "output"})


def check_order(graph: fx.Graph, report: Report, which: str) -> bool:
    """Report every use before its definition; whether there was none. ``which`` is added to the texts."""
    seen: set[fx.Node] = set()
    finished = False
    fine = True
    for node in graph.nodes:
        early = (
            [] if seen.issuperset(node._input_nodes) else [used for used in node.all_input_nodes if used not in seen]
        )
        problems = [f"uses '{used.name}' before it is computed" for used in early]
        if finished:
            problems.append("comes after the output")
        if node.op not in _OPS:
            report.gap("value", node.name, f"is a {node.op} node: only op calls can be compared{which}")
        for number in _too_large(node):
            report.gap("value", node.name, f"no PyTorch can run this: {number} has more than 64 bits{which}")
        finished = finished or node.op == "output"
        seen.add(node)
        for problem in problems:
            report.differs("order", node.name, f"{problem}{which}")
            fine = False
    if not finished:
        report.differs("order", "", f"the graph returns nothing: it has no output node{which}")
    return fine and finished


def _too_large(node: fx.Node) -> list[int]:
    """Whole numbers among the operands of an op that do not fit where it takes them; as scalars they may be larger."""
    if not any(map(_has_large, (*node.args, *node.kwargs.values()))) or not isinstance(node.target, OpOverload):
        return []
    named = {parameter.name: str(parameter.type) for parameter in node.target._schema.arguments}
    given = {**dict(zip(named, node.args, strict=False)), **node.kwargs}
    whole = [value for name, value in given.items() if "int" in named.get(name, "").lower()]
    return [leaf for leaf in pytree.tree_leaves(whole) if _has_large(leaf)]


def _has_large(value: object) -> bool:
    if type(value) is int:
        return not -_WORD <= value < _WORD
    return isinstance(value, (list, tuple)) and any(map(_has_large, value))


# Control edges

Edges = dict[str, tuple[str, ...]]


def without_edges(program: Program) -> tuple[Program, Edges]:
    """The program with every such wrapper replaced by its op, and what each wrapped node was held behind."""
    wrapped = {node: inner for node in program.graph.nodes if (inner := _inner(program, node)) is not None}
    if not wrapped:
        return program, {}
    # A sub-graph by itself is nothing that can be judged: its inputs may be launches in flight.
    unused = {inner.source for inner in wrapped.values() if wrapped.keys() >= inner.source.users.keys()}
    plain = fx.Graph()
    stands_for: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node not in unused:
            stands_for[node] = _copy(plain, node, wrapped.get(node), stands_for)
    return replace(program, graph=plain), {node.name: inner.after for node, inner in wrapped.items()}


def compare_edges(before: Edges, after: Edges, names: set[str], report: Report) -> None:
    """Remarks on edges of BEFORE that AFTER lacks though it has both nodes."""
    report.checked["control_edges_before"] = sum(map(len, before.values()))
    report.checked["control_edges_after"] = sum(map(len, after.values()))
    for node, held in before.items():
        for dep in held:
            if dep not in after.get(node, ()) and {node, dep} <= names:
                report.note("order", node, f"is no longer held behind '{dep}' by a control edge")


class Call(NamedTuple):
    """An op with its arguments; for a wrapped one, the node of its sub-graph and the names of what comes before."""

    target: Any
    args: Any
    kwargs: Any
    source: fx.Node
    after: tuple[str, ...] = ()


def _inner(program: Program, node: fx.Node) -> Call | None:
    """The one op in a wrapper, with its arguments in the outer graph; None when it is something else."""
    if node.op != "call_function" or op_name(node.target) != "higher_order.control_deps" or node.kwargs:
        return None
    if len(node.args) < 2 or not isinstance(node.args[0], (tuple, list)):
        return None
    source, given = node.args[1], list[Any](node.args[2:])
    used: list[Any] = [*node.args[0], *given]
    module = find(program.root, str(source.target)) if isinstance(source, fx.Node) and source.op == "get_attr" else None
    if not isinstance(module, fx.GraphModule) or source in used or not all(isinstance(n, fx.Node) for n in used):
        return None
    body = list(module.graph.nodes)
    if [n.op for n in body] != ["placeholder"] * len(given) + ["call_function", "output"]:
        return None
    *inputs, call, output = body
    if len(output.args) != 1 or output.args[0] is not call:
        return None
    outer = dict(zip(inputs, given, strict=True))
    args, kwargs = (fx.node.map_arg(part, lambda place: outer[place]) for part in (call.args, call.kwargs))
    assert isinstance(source, fx.Node)
    return Call(call.target, args, kwargs, source, tuple(dep.name for dep in used[: len(node.args[0])]))


def _copy(plain: fx.Graph, node: fx.Node, inner: Call | None, env: dict[fx.Node, fx.Node]) -> fx.Node:
    call = inner or Call(node.target, node.args, node.kwargs, node)
    args, kwargs = (fx.node.map_arg(part, lambda used: env[used]) for part in (call.args, call.kwargs))
    copy = plain.create_node(node.op, call.target, args, kwargs, node.name)
    copy.name = node.name
    copy.meta = node.meta
    return copy


# Fused ops

_RESTRIDE = "prims.inductor_force_stride_order"
aten, c10d = torch.ops.aten, torch.ops._c10d_functional


def unfolded(program: Program, before: Program) -> Program:
    """The program without fused ops; the same object when it has none. before: its launches tell sizes of groups."""
    names = {op_name(node.target) for node in program.graph.nodes if node.op == "call_function"}
    if names.isdisjoint((GATHER_MATMUL, MATMUL_SCATTER)):
        return program
    return replace(program, graph=_Unfolding(program, before).run())


class _Unfolding:
    """One graph on its way to plain ops."""

    def __init__(self, program: Program, before: Program) -> None:
        self.program, self.before = program, before
        self.sizes: dict[str, int | None] = {name: group.size for name, group in program.groups.items()}
        self.ctx = context_of(program.graph)
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.parts: dict[fx.Node, tuple[fx.Node | None, list[fx.Node]]] = {}
        self.lists: dict[fx.Node, list[fx.Node]] = {}
        self.shapes: dict[fx.Node, list[Any]] = {}
        self.likes: dict[fx.Node, torch.Tensor] = {}

    def run(self) -> fx.Graph:
        """All nodes in their order; results of fused ops are handed on to who takes them."""
        for node in self.program.graph.nodes:
            if not self._stands_in(node):
                self.env[node] = copy_node(self.graph, node, self.env)
        return self.graph

    def _stands_in(self, node: fx.Node) -> bool:
        """Whether a node is one that plain ops stand for; these are then there."""
        if node.op != "call_function":
            return False
        name = op_name(node.target)
        if name == _RESTRIDE and all(op_name(user.target) in (GATHER_MATMUL, MATMUL_SCATTER) for user in node.users):
            return self._restrided(node)
        if name == GATHER_MATMUL:
            return _taken_as_usual(node) and self._gather(node)
        if name == MATMUL_SCATTER:
            return self._scatter(node)
        return node.target is operator.getitem and self._taken(node)

    def _restrided(self, node: fx.Node) -> bool:
        source, strides = node.args if len(node.args) == 2 else (None, None)
        if not isinstance(source, fx.Node) or not self._is_tensor(source) or not isinstance(strides, (list, tuple)):
            return False
        if not _is_dense(self._shape(source), strides) or rewritten(node, node.users):
            return False
        self.env[node] = self.env[source]
        return True

    def _is_tensor(self, node: Any) -> bool:
        """Whether the shape of a node, of the graph or of its replacement, is known."""
        return isinstance(node, fx.Node) and (node in self.shapes or isinstance(node.meta.get("val"), torch.Tensor))

    def _operands(self, nodes: list[Any]) -> list[fx.Node] | None:
        """What stands for the operands of a fused op; None when one is no tensor."""
        operands = [self.env.get(node) if isinstance(node, fx.Node) else None for node in nodes]
        tensors = [node for node in operands if node is not None and self._is_tensor(node)]
        return tensors if len(tensors) == len(operands) else None

    def _taken(self, node: fx.Node) -> bool:
        source, place = node.args[0], node.args[1]
        if not isinstance(source, fx.Node):
            return False
        if source in self.lists:
            self.env[node] = self.lists[source][place]  # type: ignore[index]
            return True
        if source not in self.parts:
            return False
        whole, outs = self.parts[source]
        if place == 1:
            self.lists[node] = outs
        elif whole is not None:
            self.env[node] = whole
        return True

    def _call(self, target: Any, args: tuple[Any, ...], shape: list[Any]) -> fx.Node:
        """A node; the verifier works out the layout of what it explains, and needs a value for the others."""
        node = self.graph.call_function(target, args)
        self.shapes[node] = shape
        first = next(iter(node.all_input_nodes))
        like: torch.Tensor = self.likes[first] if first in self.likes else first.meta["val"]
        if op_name(target) not in AROUND_FUSED:
            node.meta["val"] = self.ctx.tensor(shape, _steps(shape), like.dtype, like.device)
        self.likes[node] = node.meta[LIKE] = like
        return node

    def _shape(self, node: fx.Node) -> list[Any]:
        return self.shapes[node] if node in self.shapes else list(node.meta["val"].shape)

    def _gather(self, node: fx.Node) -> bool:
        if len(node.args) < 4 or not isinstance(node.args[1], (list, tuple)):
            return False
        shard, others, dim, group = node.args[:4]
        if not argument(node, "return_A", default=True) and any(user.args[1] == 0 for user in node.users):
            return False
        operands, size = self._operands([shard, *others]), self._size(group)  # type: ignore[misc]
        if operands is None or size is None:
            return False
        mine, *right = operands
        shape = self._shape(mine)
        place = _dimension(dim, shape)
        if place is None or any(len(self._shape(other)) != 2 for other in right):
            return False
        long = [shape[0] * size, *shape[1:]]
        launch = self._call(c10d.all_gather_into_tensor.default, (mine, size, group), long)
        whole = self._call(c10d.wait_tensor.default, (launch,), long)
        if place:
            whole = self._joined(whole, shape, place, size)
        products = [self._product(whole, other) for other in right]
        self.parts[node] = (whole, products)
        return True

    def _size(self, group: Any) -> int | None:
        name = str(group)
        if self.sizes.get(name) is None:  # as in a dump without a table
            said = {group_size_of(node) for _, node in _launches(self.before, name)} - {None}
            self.sizes[name] = said.pop() if len(said) == 1 else 0
        size = self.sizes[name]
        return size if type(size) is int and size > 0 else None

    def _joined(self, whole: fx.Node, shape: list[Any], dim: int, size: int) -> fx.Node:
        """What was gathered along the first dimension, along another one."""
        rows = shape[0]
        pieces = [self._call(aten.slice.Tensor, (whole, 0, i * rows, (i + 1) * rows), shape) for i in range(size)]
        wide = [n * size if d == dim else n for d, n in enumerate(shape)]
        return self._call(aten.cat.default, (pieces, dim), wide)

    def _product(self, left: fx.Node, right: fx.Node) -> fx.Node:
        shape, width = self._shape(left), self._shape(right)[-1]
        if len(shape) == 2:
            return self._call(aten.mm.default, (left, right), [shape[0], width])
        flat = [prod(shape[:-1]), shape[-1]]
        product = self._call(
            aten.mm.default, (self._call(aten.reshape.default, (left, flat), flat), right), [flat[0], width]
        )
        wanted = [*shape[:-1], width]
        return self._call(aten.reshape.default, (product, wanted), wanted)

    def _scatter(self, node: fx.Node) -> bool:
        if len(node.args) < 5:
            return False
        left, right, reduction, dim, group = node.args[:5]
        operands, size = self._operands([left, right]), self._size(group)
        if operands is None or size is None or len(self._shape(operands[1])) != 2:
            return False
        place = _dimension(dim, self._shape(operands[0]))
        if place is None:
            return False
        product = self._product(*operands)
        shape = self._shape(product)
        if dim != place or reduction not in ("sum", "avg") or shape[place] % size:
            return False  # which the kernel refuses
        chunk = shape[place] // size
        part = [chunk if d == place else n for d, n in enumerate(shape)]
        if place:
            pieces = [
                self._call(aten.slice.Tensor, (product, place, i * chunk, (i + 1) * chunk), part) for i in range(size)
            ]
            product = self._call(aten.cat.default, (pieces, 0), [part[0] * size, *part[1:]])
        launch = self._call(c10d.reduce_scatter_tensor.default, (product, reduction, size, group), part)
        self.env[node] = self._call(c10d.wait_tensor.default, (launch,), part)
        return True


def _taken_as_usual(node: fx.Node) -> bool:
    """Whether the results of a fused gather are taken one by one: the whole, and products out of the list."""
    lists = [user for user in node.users if user.args[1:] == (1,)]
    places = [(user, user.args[1:]) for user in node.users]
    products = [user for listed in lists for user in listed.users]
    count = len(node.args[1]) if len(node.args) > 1 and isinstance(node.args[1], (list, tuple)) else 0
    return all(user.target is operator.getitem and place in ((0,), (1,)) for user, place in places) and all(
        user.target is operator.getitem and user.args[1:] in [(i,) for i in range(count)] for user in products
    )


def _dimension(dim: Any, shape: list[Any]) -> int | None:
    """A dimension counted from the front; None where there is none such, or not two."""
    fits = isinstance(dim, int) and len(shape) > 1 and -len(shape) <= dim < len(shape)
    return dim % len(shape) if fits else None


def _is_dense(shape: list[Any], strides: Any) -> bool:
    """Whether strides are those of a tensor without holes and overlaps, its dimensions in some order."""
    if len(shape) != len(strides) or not all(isinstance(n, int) for n in (*shape, *strides)):
        return False
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _steps(shape: list[Any]) -> list[Any]:
    steps: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        steps.insert(0, step)
        step = step * size if not isinstance(size, int) else step * max(size, 1)
    return steps


# Process groups


def compare_groups(before: Program, after: Program, report: Report) -> dict[str, str]:
    """Report groups that differ; for new groups of AFTER, the group of BEFORE that each stands for."""
    for name, group in after.groups.items():
        old = before.groups.get(name)
        pairs = () if old is None else (("size", old.size, group.size), ("ranks", old.ranks, group.ranks))
        for what, was, now in pairs:
            if was is not None and now is not None and was != now:
                report.differs("collective", "", f"process group '{name}' has {what} {now}, in BEFORE {was}")
        if old is not None and old.origin != group.origin:
            text = f"process group '{name}' is {_origin(group)}, in BEFORE it is {_origin(old)}"
            report.differs("collective", "", text)
    stands_for: dict[str, str] = {}
    for name, group in after.groups.items():
        if name in before.groups or group.origin is None:
            continue
        root, problem = _check(before, after, group)
        if problem:
            report.differs("collective", "", f"process group '{name}' {problem}")
        else:
            stands_for[name] = root
    return stands_for


def _origin(group: ProcessGroup) -> str:
    return "split off no other" if group.origin is None else f"split off '{group.origin}'"


def _check(before: Program, after: Program, group: ProcessGroup) -> tuple[str, str]:
    """The group of BEFORE that a split-off group goes back to, or what is wrong with it."""
    # A program made in memory may have no table of the groups that its collectives name.
    nodes = (n for n in _nodes(before.graph, before.root) if n.op == "call_function" and collective_of(n.target))
    used = {name for node in nodes if isinstance(name := argument(node, "group_name"), str)}
    known = {**{name: ProcessGroup(name, None) for name in used}, **before.groups}
    root = _root(known, after.groups, group)
    if root is None:
        return "", f"is split off '{group.origin}', which BEFORE does not have"
    if any(group.name in _words(node) for node in _nodes(before.graph, before.root)):
        return "", f"is called what a group in BEFORE is called, and cannot be split off '{root}'"
    old = known[root]
    size = old.size
    if size is None:  # what collectives say, where the table does not
        said = (group_size_of(node) for _, node in _launches(before, root))
        size = next((candidate for candidate in said if candidate is not None), None)
    for what, was, now in (("size", size, group.size), ("ranks", old.ranks, group.ranks)):
        if was != now:
            return "", f"has {what} {now}, but '{root}', which it is split off, has {was} in BEFORE"
    kinds: dict[str, str] = {}  # with a node for each
    for kind, node in _launches(after, group.name):
        kinds.setdefault(kind, node.name)
    if len(kinds) > 1:
        listed = " and ".join(f"{kind} ('{node}')" for kind, node in kinds.items())
        return "", f"was split off '{root}' for collectives of one kind, and has {listed}"
    return root, ""


def _root(old: Mapping[str, ProcessGroup], new: Mapping[str, ProcessGroup], group: ProcessGroup) -> str | None:
    seen: set[str] = set()
    at: ProcessGroup | None = group
    while at is not None and at.origin is not None and at.origin not in seen:
        if at.origin in old:
            return at.origin
        seen.add(at.origin)
        at = new.get(at.origin)
    return None


def _nodes(graph: fx.Graph, root: Any, depth: int = 0) -> Iterator[fx.Node]:
    """All nodes of a graph and of the sub-graphs that it refers to."""
    for node in graph.nodes:
        yield node
        module = find(root, str(node.target)) if node.op == "get_attr" and depth < 16 else None
        if isinstance(module, fx.GraphModule):
            yield from _nodes(module.graph, module, depth + 1)


def _words(node: fx.Node) -> set[Any]:
    """All strings among the arguments of a node."""
    words: set[Any] = set()
    stack: list[Any] = [*node.args, *node.kwargs.values()]
    while stack:
        argument_ = stack.pop()
        if isinstance(argument_, str):
            words.add(argument_)
        elif isinstance(argument_, (tuple, list)):
            stack.extend(argument_)
        elif isinstance(argument_, dict):
            stack.extend(argument_.values())
    return words


def _launches(program: Program, name: str) -> Iterator[tuple[str, fx.Node]]:
    for node in _nodes(program.graph, program.root):
        fact = collective_of(node.target) if node.op == "call_function" else None
        if fact is not None and argument(node, "group_name") == name:
            yield str(fact.kind), node
