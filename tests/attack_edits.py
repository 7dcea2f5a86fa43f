"""Edits of small graphs at the level of tensors: some change the program, some do not; running both says which.

::

    after = edited(program, "operand", rng)      # another tensor of the same shape in one place; None if there is none

Knows nothing of commcc's tables: an edit takes any node, and PyTorch says what comes out.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from tests.attack_graphs import ALONE, RANKS, aten, c10d, evaluate

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from commcc.graph.program import Program

_OTHERS = (
    (aten.sin.default, aten.relu.default, aten.neg.default, aten.abs.default, aten.sign.default),
    (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default),
    (aten.view.default, aten.reshape.default, aten._unsafe_view.default),
    (aten.zeros_like.default, aten.ones_like.default),
    (aten.sum.dim_IntList, aten.amax.default),
    (aten.rand_like.default, aten.ones_like.default),
    (aten.clone.default, aten.contiguous.default, aten.alias.default, aten.detach.default, aten.lift.default),
    (aten.split.Tensor, aten.unsafe_split.Tensor),
    (aten.add_.Tensor, aten.mul_.Tensor, aten.sub_.Tensor),
    (aten.as_strided.default, aten.as_strided_copy.default),
)
_IN_PLACE = (
    *((aten.add.Tensor, aten.add_.Tensor), (aten.mul.Tensor, aten.mul_.Tensor), (aten.sub.Tensor, aten.sub_.Tensor)),
    *((aten.sin.default, aten.sin_.default), (aten.neg.default, aten.neg_.default)),
    *((aten.relu.default, aten.relu_.default), (aten.abs.default, aten.abs_.default)),
    (c10d.all_reduce.default, c10d.all_reduce_.default),
)


class Edit:
    """One edit of a copy of a program."""

    def __init__(self, program: Program, rng: random.Random) -> None:
        self.rng = rng
        self.graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in program.graph.nodes:
            env[node] = self.graph.node_copy(node, lambda n: env[n])
            env[node].meta = dict(node.meta)
        self.root = copy.deepcopy(program.root)
        self.mode = next(n for n in self.graph.nodes if n.op == "placeholder").meta["val"].fake_mode
        self.calls = [n for n in self.graph.nodes if n.op == "call_function"]
        self.output = next(n for n in self.graph.nodes if n.op == "output")
        self.stale = False

    # What edits need

    def tensors(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op != "output" and isinstance(n.meta.get("val"), torch.Tensor)]

    def before(self, node: fx.Node) -> list[fx.Node]:
        """Tensors that are there when a node is computed."""
        seen = []
        for other in self.graph.nodes:
            if other is node:
                return seen
            if other.op != "output" and isinstance(other.meta.get("val"), torch.Tensor):
                seen.append(other)
        return seen

    def twin(self, node: fx.Node, at: fx.Node) -> fx.Node | None:
        val = node.meta["val"]
        found = [
            n
            for n in self.before(at)
            if n is not node and n.meta["val"].shape == val.shape and n.meta["val"].dtype == val.dtype
        ]
        return self.rng.choice(found) if found else None

    def insert(self, before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs)
        evaluate(node, self.mode)
        return node

    def edge(self) -> tuple[fx.Node, fx.Node]:
        """A tensor and one that reads it."""
        node = self.rng.choice([n for n in self.tensors() if n.users])
        return node, self.rng.choice(list(node.users))

    def position(self, node: fx.Node) -> int:
        return list(self.graph.nodes).index(node)

    # Edits; False where there is nothing to edit

    def move(self) -> bool:
        """An op at another place that is after its operands and before its users."""
        node = self.rng.choice(self.calls)
        nodes = list(self.graph.nodes)
        low = max((nodes.index(n) for n in node.all_input_nodes), default=-1) + 1
        high = min((nodes.index(n) for n in node.users), default=len(nodes) - 1)
        first = max(low, sum(n.op == "placeholder" for n in nodes))
        spots = [nodes[i] for i in range(first, high + 1) if nodes[i] is not node and nodes[i - 1] is not node]
        if not spots:
            return False
        self.rng.choice(spots).prepend(node)
        return True

    def operand(self) -> bool:
        node, user = self.edge()
        other = self.twin(node, user)
        if other is None:
            return False
        user.replace_input_with(node, other)
        return True

    def exchange(self) -> bool:
        """Two operands of one op change places."""
        node = self.rng.choice(self.calls)
        inputs = list(dict.fromkeys(node.all_input_nodes))
        if len(inputs) < 2:
            return False
        a, b = self.rng.sample(inputs, 2)
        swap = {a: b, b: a}
        node.args = fx.node.map_arg(node.args, lambda n: swap.get(n, n))
        return True

    def number(self) -> bool:
        spots: list[tuple[fx.Node, Any]] = []
        for node in self.calls:
            for at, value in enumerate(node.args):
                if isinstance(value, (int, float)):
                    spots.append((node, (at, None)))
                elif isinstance(value, (list, tuple)):
                    spots.extend((node, (at, i)) for i, v in enumerate(value) if isinstance(v, int))
            spots.extend((node, name) for name, value in node.kwargs.items() if isinstance(value, (int, float)))
        if not spots:
            return False
        node, spot = self.rng.choice(spots)

        def changed(value: Any) -> Any:
            if isinstance(value, bool):
                return not value
            return self.rng.choice((value + 1, value - 1, float(value), -value, value * 2))

        if isinstance(spot, str):
            node.kwargs = {**node.kwargs, spot: changed(node.kwargs[spot])}
            return True
        args = list(node.args)
        at, inner = spot
        if inner is None:
            args[at] = changed(args[at])
        else:
            items = list(args[at])
            items[inner] = int(changed(items[inner]))
            if len(items) > 1 and self.rng.random() < 0.5:
                self.rng.shuffle(items)
            args[at] = items
        node.args = tuple(args)
        return True

    def bypass(self) -> bool:
        """An op is left out: who reads it reads its operand."""
        node = self.rng.choice(self.calls)
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            return False
        same = [n for n in node.all_input_nodes if getattr(n.meta["val"], "shape", None) == val.shape]
        same = [n for n in same if n.meta["val"].dtype == val.dtype]
        if not same or not node.users:
            return False
        node.replace_all_uses_with(self.rng.choice(same))
        if self.rng.random() < 0.7:
            self.graph.erase_node(node)
        return True

    def again(self) -> bool:
        """An op is done twice; some who read it read the second."""
        node = self.rng.choice([n for n in self.calls if n.users] or self.calls)
        user = self.rng.choice(list(node.users) or [self.output])
        with self.graph.inserting_before(user):
            made = self.graph.node_copy(node, lambda n: n)
        made.meta = dict(node.meta)
        if node.users:
            user.replace_input_with(node, made)
        return True

    def once(self) -> bool:
        """Two equal ops become one."""
        seen: dict[Any, fx.Node] = {}
        pairs = []
        for node in self.calls:
            key = (node.target, str(node.args), str(node.kwargs))
            if key in seen:
                pairs.append((seen[key], node))
            seen.setdefault(key, node)
        if not pairs:
            return False
        first, second = self.rng.choice(pairs)
        second.replace_all_uses_with(first)
        self.graph.erase_node(second)
        return True

    def copied(self) -> bool:
        """A copy, an alias or a change of layout on one edge, or on all."""
        node, user = self.edge()
        val = node.meta["val"]
        makers: list[Callable[[], fx.Node]] = [
            lambda: self.insert(at, aten.clone.default, node),
            lambda: self.insert(at, aten.clone.default, node, memory_format=torch.contiguous_format),
            lambda: self.insert(at, aten.alias.default, node),
            lambda: self.insert(at, aten.detach.default, node),
            lambda: self.insert(at, aten.lift.default, node),
            lambda: self.insert(at, aten.contiguous.default, node),
            lambda: self.insert(at, aten.view.default, node, list(val.shape)),
            lambda: self.insert(
                at, aten.reshape.default, self.insert(at, aten.reshape.default, node, [-1]), list(val.shape)
            ),
        ]
        if val.dim() > 1:
            turn = list(reversed(range(val.dim())))
            makers.append(lambda: self.relaid(at, node, turn))
            makers.append(lambda: self.relaid(at, node, turn))
        everywhere = self.rng.random() < 0.3
        at = node.next if everywhere else user
        while at.op == "placeholder":
            at = at.next
        made = self.rng.choice(makers)()
        readers = list(node.users) if everywhere else [user]
        nodes = {n: i for i, n in enumerate(self.graph.nodes)}
        for reader in readers:
            if reader is not made and nodes[reader] > nodes[made]:
                reader.replace_input_with(node, made)
        self.stale = self.rng.random() < 0.2
        return True

    def relaid(self, at: fx.Node, node: fx.Node, turn: list[int]) -> fx.Node:
        turned = self.insert(at, aten.permute.default, node, turn)
        plain = self.insert(at, aten.clone.default, turned, memory_format=torch.contiguous_format)
        return self.insert(at, aten.permute.default, plain, turn)

    def in_place(self) -> bool:
        """An op that writes into its operand in place of one that does not, or the reverse."""
        table = {**dict(_IN_PLACE), **{b: a for a, b in _IN_PLACE}}
        found = [n for n in self.calls if n.target in table]
        if not found:
            return False
        node = self.rng.choice(found)
        node.target = table[node.target]
        return True

    def another(self) -> bool:
        """Another op on the same operands."""
        found = [(n, ops) for n in self.calls for ops in _OTHERS if n.target in ops]
        if not found:
            return False
        node, ops = self.rng.choice(found)
        target = self.rng.choice([op for op in ops if op is not node.target])
        node.target = target
        node.kwargs = {k: v for k, v in node.kwargs.items() if k in {a.name for a in target._schema.arguments}}
        return True

    def round_trip(self) -> bool:
        """A conversion there and back on one edge."""
        node, user = self.edge()
        dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
        there = self.insert(user, aten._to_copy.default, node, dtype=self.rng.choice((*dtypes, torch.float8_e4m3fn)))
        user.replace_input_with(node, self.insert(user, aten._to_copy.default, there, dtype=node.meta["val"].dtype))
        return True

    def launch(self) -> bool:
        """Another reduction, group or size of a collective."""
        found = [n for n in self.calls if "_c10d_functional" in str(n.target) and "wait" not in str(n.target)]
        if not found:
            return False
        node = self.rng.choice(found)
        other = {"sum": "max", "max": "sum", "avg": "sum", "0": ALONE, ALONE: "0"}
        spots = [i for i, a in enumerate(node.args) if a in ("sum", "max", "avg", "0", ALONE)]
        at = self.rng.choice(spots)
        args = list(node.args)
        args[at] = args[at].upper() if args[at] in ("sum", "max") and self.rng.random() < 0.3 else other[args[at]]
        if args[at] in ("0", ALONE) and RANKS in args and self.rng.random() < 0.5:
            args[args.index(RANKS)] = 1
        node.args = tuple(args)
        return True

    def wait(self) -> bool:
        """A wait that is gone, doubled, later, for a view, or for something else."""
        waits = [n for n in self.calls if "wait_tensor" in str(n.target)]
        if not waits:
            return False
        node = self.rng.choice(waits)
        how = self.rng.choice(("gone", "double", "early", "view", "other", "late"))
        launch = node.args[0]
        if how == "gone":
            node.replace_all_uses_with(launch)
            self.graph.erase_node(node)
        elif how == "double":
            user = self.rng.choice(list(node.users) or [self.output])
            again = self.insert(user, c10d.wait_tensor.default, self.rng.choice((node, launch)))
            user.replace_input_with(node, again)
        elif how == "early" and node.users:
            self.rng.choice(list(node.users)).replace_input_with(node, launch)
        elif how == "view":
            node.args = (self.insert(node, aten.alias.default, launch),)
        elif how == "other":
            other = self.twin(launch, node)
            if other is None:
                return False
            node.args = (other,)
        else:
            first = min(node.users, key=self.position, default=self.output)
            first.prepend(node)
        return True

    def constant(self) -> bool:
        """Another element in a constant of the graph or of a sub-graph; constants or branches exchanged."""
        holders = [m for m in self.root.modules() if list(m.buffers(recurse=False))]
        bodies = [name for name, m in self.root.named_children()]
        if len(bodies) > 1 and self.rng.random() < 0.4:
            a, b = self.rng.sample(bodies, 2)
            self.root._modules[a], self.root._modules[b] = self.root._modules[b], self.root._modules[a]
            return True
        if not holders:
            return False
        holder = self.rng.choice(holders)
        tensor = self.rng.choice(list(holder.buffers(recurse=False)))
        flat = tensor.view(-1)
        at = self.rng.randrange(flat.numel())
        flat[at] = self.rng.choice((-0.0, float(flat[at]) + 1, float(flat[at]), 0.0))
        return True

    def body(self) -> bool:
        """Another number or a write less in a sub-graph."""
        bodies = [m for m in self.root.children() if isinstance(m, fx.GraphModule)]
        if not bodies:
            return False
        graph = self.rng.choice(bodies).graph
        node = self.rng.choice([n for n in graph.nodes if n.op == "call_function"])
        if not node.users:
            graph.erase_node(node)
        elif any(isinstance(a, int) for a in node.args):
            node.args = tuple(a + 1 if isinstance(a, int) else a for a in node.args)
        else:
            node.target = aten.sub.Tensor if node.target is aten.add.Tensor else aten.add.Tensor
        return True

    def outputs(self) -> bool:
        """Outputs in another order, one of another tensor, one copied or aliased."""
        outputs = list(self.output.args[0])
        at = self.rng.randrange(len(outputs))
        how = self.rng.choice(("order", "copy", "alias", "other", "relaid"))
        if how == "order":
            self.rng.shuffle(outputs)
        elif how == "other":
            other = self.twin(outputs[at], self.output)
            if other is None:
                return False
            outputs[at] = other
        elif how == "relaid" and outputs[at].meta["val"].dim() > 1:
            outputs[at] = self.relaid(self.output, outputs[at], list(reversed(range(outputs[at].meta["val"].dim()))))
        else:
            outputs[at] = self.insert(
                self.output, aten.clone.default if how == "copy" else aten.alias.default, outputs[at]
            )
        self.output.args = (tuple(outputs),)
        return True

    def write(self) -> bool:
        """One write more, or one less."""
        writes = [
            n for n in self.calls if str(n.target).split(".")[1].endswith("_") and "all_reduce" not in str(n.target)
        ]
        if writes and self.rng.random() < 0.5:
            node = self.rng.choice(writes)
            if node.users:
                node.replace_all_uses_with(node.args[0])
            self.graph.erase_node(node)
            return True
        at = self.rng.choice([*self.calls, self.output])
        found = [n for n in self.before(at) if 0 not in n.meta["val"].stride()]
        if not found:
            return False
        self.insert(at, aten.add_.Tensor, self.rng.choice(found), 1)
        return True

    def merge(self) -> bool:
        """Two all-reduces or gathers as one, right or with the parts exchanged."""
        kinds = (c10d.all_reduce.default, c10d.all_gather_into_tensor.default)
        found = [n for n in self.calls if n.target in kinds and len(n.users) == 1]
        pairs = [
            (a, b)
            for i, a in enumerate(found)
            for b in found[i + 1 :]
            if (a.target, a.args[1:]) == (b.target, b.args[1:]) and a.meta["val"].dtype == b.meta["val"].dtype
        ]
        if not pairs:
            return False
        first, second = self.rng.choice(pairs)
        waits = [next(iter(n.users)) for n in (first, second)]
        order = {n: i for i, n in enumerate(self.graph.nodes)}
        at = second
        if any("wait_tensor" not in str(w.target) for w in waits) or any(order[u] < order[at] for u in waits[0].users):
            return False
        sent = [self.insert(at, aten.reshape.default, n.args[0], [-1]) for n in (first, second)]
        sizes = [n.meta["val"].numel() for n in sent]
        whole = self.insert(at, aten.cat.default, sent)
        launch = self.insert(at, first.target, whole, *first.args[1:])
        done = self.insert(at, c10d.wait_tensor.default, launch)
        if first.target is c10d.all_gather_into_tensor.default:
            rows = self.insert(at, aten.view.default, done, [first.args[1], sum(sizes)])
            split = self.insert(at, aten.split_with_sizes.default, rows, sizes, 1)
        else:
            split = self.insert(at, aten.split_with_sizes.default, done, sizes, 0)
        parts = [self.insert(at, operator.getitem, split, i) for i in range(2)]
        if self.rng.random() < 0.4 and sizes[0] == sizes[1]:
            parts.reverse()
        for wait, part in zip(waits, parts, strict=True):
            made = self.insert(at, aten.reshape.default, part, list(wait.meta["val"].shape))
            wait.replace_all_uses_with(made)
        for node in (*waits, first, second):
            self.graph.erase_node(node)
        return True

    def scattered(self) -> bool:
        """Two reduce-scatters as one: rows side by side, which is right, or one tensor behind the other."""
        found = [n for n in self.calls if n.target is c10d.reduce_scatter_tensor.default and len(n.users) == 1]
        pairs = [
            (a, b)
            for i, a in enumerate(found)
            for b in found[i + 1 :]
            if a.args[1:] == b.args[1:] and a.meta["val"].dtype == b.meta["val"].dtype
        ]
        order = {n: i for i, n in enumerate(self.graph.nodes)}
        pairs = [(a, b) for a, b in pairs if order[next(iter(a.users))] > order[b]]
        if not pairs:
            return False
        first, second = self.rng.choice(pairs)
        waits = [next(iter(n.users)) for n in (first, second)]
        at, ranks = second, first.args[2]
        if any("wait_tensor" not in str(w.target) for w in waits):
            return False
        wide = self.rng.random() < 0.7
        rows = [
            self.insert(at, aten.reshape.default, n.args[0], [ranks, -1] if wide else [-1]) for n in (first, second)
        ]
        whole = self.insert(at, aten.cat.default, rows, 1 if wide else 0)
        launch = self.insert(at, first.target, self.insert(at, aten.reshape.default, whole, [-1]), *first.args[1:])
        done = self.insert(at, c10d.wait_tensor.default, launch)
        start = 0
        for wait in waits:
            val = wait.meta["val"]
            part = self.insert(at, aten.slice.Tensor, done, 0, start, start + val.numel())
            wait.replace_all_uses_with(self.insert(at, aten.reshape.default, part, list(val.shape)))
            start += val.numel()
        for node in (*waits, first, second):
            self.graph.erase_node(node)
        return True

    def coalesce(self) -> bool:
        """Two all-reduces as one coalesced launch, or a coalesced one as two."""
        split = [n for n in self.calls if n.target is c10d.all_reduce_coalesced.default]
        if split:
            node = self.rng.choice(split)
            made = [self.insert(node, c10d.all_reduce.default, x, *node.args[1:]) for x in node.args[0]]
            if self.rng.random() < 0.3:
                made.reverse()
            for user in list(node.users):
                user.replace_all_uses_with(made[user.args[1]])
                self.graph.erase_node(user)
            self.graph.erase_node(node)
            return True
        found = [n for n in self.calls if n.target is c10d.all_reduce.default]
        pairs = [(a, b) for i, a in enumerate(found) for b in found[i + 1 :]]
        if not pairs:
            return False
        first, second = self.rng.choice(pairs)
        many = self.insert(second, c10d.all_reduce_coalesced.default, [first.args[0], second.args[0]], *first.args[1:])
        parts = [self.insert(second, operator.getitem, many, i) for i in range(2)]
        for node, part in zip((first, second), parts, strict=True):
            for user in list(node.users):
                if self.position(user) < self.position(part):
                    part.append(user)
            node.replace_all_uses_with(part)
            self.graph.erase_node(node)
        return True

    def reorder(self) -> bool:
        """A write, a launch or a wait at another place."""
        found = [n for n in self.calls if any(w in str(n.target) for w in ("_.", "_c10d", "copy", "foreach"))]
        if not found:
            return False
        node = self.rng.choice(found)
        nodes = list(self.graph.nodes)
        low = max((nodes.index(n) for n in node.all_input_nodes), default=-1) + 1
        high = min((nodes.index(n) for n in node.users), default=len(nodes) - 1)
        spots = [n for n in nodes[low : high + 1] if n.op != "placeholder" and n is not node]
        if not spots:
            return False
        self.rng.choice(spots).prepend(node)
        return True

    def size(self) -> bool:
        """Arithmetic on sizes in another form, or another size."""
        found = [n for n in self.calls if isinstance(n.meta.get("val"), torch.SymInt) and n.users]
        if not found:
            return False
        node = self.rng.choice(found)
        user = self.rng.choice(list(node.users))
        k = self.rng.choice((1, 2, 4))

        def chain(*steps: tuple[Any, Any]) -> fx.Node:
            made = node
            for op, value in steps:
                made = self.insert(user, op, made, value)
            return made

        add, sub, mul, div, mod = operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod
        chains = [
            [(add, k), (sub, k)],
            [(mul, k), (div, k)],
            [(div, k), (mul, k)],
            [(mod, k)],
            [(add, k), (mod, k)],
            [(add, k)],
            [(mul, node), (div, node)],
            [(mul, 2), (sub, node)],
        ]
        if self.rng.random() < 0.3:
            others = [n for n in found if n is not node and self.position(n) < self.position(user)]
            if others:
                user.replace_input_with(node, self.rng.choice(others))
                return True
        user.replace_input_with(node, chain(*self.rng.choice(chains)))
        return True

    def far(self) -> bool:
        """An end of a slice that is as good as the end, or not."""
        found = [n for n in self.calls if n.target is aten.slice.Tensor and len(n.args) >= 4]
        if not found:
            return False
        node = self.rng.choice(found)
        size = node.args[0].meta["val"].shape[node.args[1]]
        ends = (2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, *([size, size - 1, size + 1] if isinstance(size, int) else []))
        node.args = (*node.args[:3], self.rng.choice(ends), *node.args[4:])
        return True

    def dtype(self) -> bool:
        """A conversion into another dtype."""
        found = [n for n in self.calls if "_to_copy" in str(n.target) or "convert_element_type" in str(n.target)]
        if not found:
            return False
        node = self.rng.choice(found)
        dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool]
        dtype = self.rng.choice([*dtypes, torch.float8_e5m2])
        if "dtype" in node.kwargs:
            node.kwargs = {**node.kwargs, "dtype": dtype}
        else:
            node.args = (node.args[0], dtype)
        return True

    def defaults(self) -> bool:
        """An argument that has its default, written down or left out; positions as keywords."""
        found = [n for n in self.calls if getattr(n.target, "_schema", None) is not None]
        if not found:
            return False
        node = self.rng.choice(found)
        schema = node.target._schema.arguments
        missing = [a for a in schema[len(node.args) :] if a.has_default_value() and a.name not in node.kwargs]
        if missing and self.rng.random() < 0.6:
            chosen = self.rng.choice(missing)
            value = chosen.default_value
            if type(value) is int and self.rng.random() < 0.3:
                value = float(value)
            node.kwargs = {**node.kwargs, chosen.name: value}
        elif node.args:
            name = schema[len(node.args) - 1].name
            node.kwargs = {**node.kwargs, name: node.args[-1]}
            node.args = node.args[:-1]
        return True

    def functional(self) -> bool:
        """A write as an op that makes a new tensor, where nobody, or somebody, sees the old one."""
        writes = {aten.fill_.Scalar: aten.full_like.default, aten.mul_.Tensor: aten.mul.Tensor}
        writes |= {aten.copy_.default: aten.copy.default, aten.neg_.default: aten.neg.default}
        writes |= {aten.zero_.default: aten.zeros_like.default, aten.add_.Tensor: aten.add.Tensor}
        found = [n for n in self.calls if n.target in writes]
        if not found:
            return False
        node = self.rng.choice(found)
        old = node.args[0]
        node.target = writes[node.target]
        at = self.position(node)
        for user in list(old.users):
            if self.position(user) > at:
                user.replace_input_with(old, node)
        return True

    def dead(self) -> bool:
        """Dead ops go, or one is added."""
        if self.rng.random() < 0.5:
            node = self.rng.choice(self.tensors())
            at = node.next
            while at.op == "placeholder":
                at = at.next
            self.insert(at, self.rng.choice((aten.clone.default, aten.abs.default, aten.alias.default)), node)
            return True
        idle = [n for n in self.calls if not n.users]
        if not idle:
            return False
        self.graph.erase_node(self.rng.choice(idle))
        return True


EDITS = (
    *("move", "operand", "exchange", "number", "bypass", "again", "once", "copied", "in_place", "another"),
    *("round_trip", "launch", "wait", "constant", "body", "outputs", "write", "merge", "dead", "scattered"),
    *("coalesce", "reorder", "size", "far", "dtype", "defaults", "functional"),
)


def edited(program: Program, kind: str, rng: random.Random) -> Program | None:
    """The program with one edit, its values worked out anew; None where the edit finds nothing, or cannot run."""
    edit = Edit(program, rng)
    try:
        if not edit.calls or not getattr(edit, kind)():
            return None
        edit.graph.lint()
        for node in edit.graph.nodes:
            if node.op == "call_function" and not edit.stale and "higher_order" not in str(node.target):
                evaluate(node, edit.mode)
    except Exception:  # PyTorch does not take it
        return None
    return replace(program, graph=edit.graph, root=edit.root)
