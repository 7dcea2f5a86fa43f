"""Cuts modules in chunks: every node of a region's body is cloned for each chunk of its tokens.

    y = mm(x, w)        ->    split = split_with_sizes(x, [30, 30])
                              y_chunk0 = mm(split[0], w);  y_chunk1 = mm(split[1], w)
                              y = cat([y_chunk0, y_chunk1])

1. Clones of a node stand next to each other where it stood, so that everything else keeps its place. In a region whose
   chunks run in turn those of a chunk do: all up to its launch where the launch stood, then what waits for it.
2. Activations from outside are split before their first use; what is made for each chunk in the forward body is read
   there again by the backward one.
3. Sizes that the host reads from tensors become symbols of each chunk.
4. Writes to a buffer that the chunks share are chained: each writes to what the one before has written.

Values (shapes, strides) come from running the ops on fake tensors of a chunk's size.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.apply.chunk_values import ChunkValues
from commcc.apply.fakes import is_contiguous
from commcc.base.errors import InternalError
from commcc.ep.chunk.lab import resized_arguments
from commcc.ep.chunk.resize import Resized
from commcc.graph import ops
from commcc.graph.annotations import Mark, marked
from commcc.graph.copying import copy_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import ChunkedRegion, Cut, Join

_BOUNDARY_KEYS = ("stack_trace", "seq_nr", "nn_module_stack", "fwd_nn_module_stack")


def chunked(program: Program, index: GraphIndex, regions: Sequence[ChunkedRegion]) -> Program:
    """The program with these regions cut."""
    return _Chunker(program, index, regions).run()


class _Chunker:
    """One rewrite. env: whole values by old node; clones: for each module and chunk, its values by old node."""

    def __init__(self, program: Program, index: GraphIndex, regions: Sequence[ChunkedRegion]) -> None:
        self.program, self.index = program, index
        self.nodes = list(program.graph.nodes)
        self.graph = fx.Graph()
        self.taken = {node.name for node in self.nodes}
        self.env: dict[fx.Node, fx.Node] = {}
        self.values = ChunkValues(program)
        self.clones: dict[str, list[dict[fx.Node, fx.Node]]] = {}
        self.region_of = {node: region for region in regions for node in region.body}
        if len(self.region_of) != sum(len(region.body) for region in regions):
            raise InternalError("a node is in two regions")
        self.splits: dict[tuple[str, fx.Node], fx.Node] = {}
        # What stands behind a node, in turn.
        self.turns: dict[int, list[tuple[ChunkedRegion, list[int]]]] = {}
        for region in regions:
            for at, group in turns_of(index, region).items() if region.in_turn else ():
                self.turns.setdefault(at, []).append((region, group))
        for at, turns in self.turns.items():
            # Two regions meet where one reads the whole of what the other waits for: that one has to be made first.
            turns.sort(key=lambda turn: at not in turn[1])
        self.joins = {join.node: join for region in regions for join in region.joins}
        self.resized: dict[int, list[Resized]] = {}
        for region in regions:
            for size in region.resized:
                self.resized.setdefault(size.node, []).append(Resized(size.argument, size.place, size.per))

    def run(self) -> Program:
        # Nodes outside the regions whose results nothing needs; they may read what is only there in chunks now.
        dead: set[int] = set()
        for number in reversed(range(len(self.nodes))):
            unused = all(user in dead for user in self.index.users[number])
            stays = number in self.index.stays or self.index.ops[number] in ("placeholder", "output")
            if unused and not stays and number not in self.region_of:
                dead.add(number)
        for number, node in enumerate(self.nodes):
            region = self.region_of.get(number)
            if region is not None:
                if not region.in_turn:
                    self._clone([number], region)
            elif number not in dead:
                missing = [used.name for used in node._input_nodes if used not in self.env]
                if missing:
                    raise InternalError(f"'{node.name}' needs the whole of '{missing[0]}'")
                self.env[node] = copy_node(self.graph, node, self.env)
            for turn, group in self.turns.get(number, ()):
                self._clone(group, turn)
        self.graph.lint()
        return replace(self.program, graph=self.graph, header=self.values.header())

    def _clone(self, numbers: Sequence[int], region: ChunkedRegion) -> None:
        """Clone nodes for the first chunk, then for the next one, and make whole what is needed as a whole."""
        clones = self.clones.setdefault(region.root, [{} for _ in region.sizes])
        for chunk, number in product(range(len(clones)), numbers):
            node, own = self.nodes[number], clones[chunk]
            for cut in region.cuts:
                if self.nodes[cut.node] in node._input_nodes and self.nodes[cut.node] not in own:
                    self._split(cut, node, region, chunk)
            own[node] = self._clone_of(number, region, chunk)
        for number in numbers:
            if number in self.joins:
                self._join(self.nodes[number], region, self.joins[number])

    def _clone_of(self, number: int, region: ChunkedRegion, chunk: int) -> fx.Node:
        node, clones, edits = self.nodes[number], self.clones[region.root], self.resized.get(number, ())
        # Values of the chunk where it has its own, whole ones elsewhere.
        known = ChainMap(clones[chunk], self.env)
        missing = [used.name for used in node._input_nodes if used not in known]
        if missing:
            raise InternalError(f"'{node.name}' needs '{missing[0]}' where it is cut")
        args, kwargs = fx.node.map_arg(resized_arguments(node, edits, region.sizes[chunk]), known.__getitem__)
        if number in region.chained and chunk and isinstance(node.meta.get("val"), torch.Tensor):
            # What is written to a buffer that the chunks share goes on what the chunk before has written.
            args = (clones[chunk - 1][node], *args[1:])
        val = self.values.of(region, chunk, node, edits)
        clone = self._make(node.target, (args, kwargs), f"{node.name}_chunk{chunk}", val)
        mark = Mark(region.root, "body", region.backward, chunk, node.name)
        clone.meta = {**marked(node.meta, mark), **({"val": val} if "val" in node.meta else {})}
        return clone

    def _make(self, target: Any, arguments: Any, name: str, val: Any) -> fx.Node:
        args, kwargs = arguments
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name)
        if node.name != name:  # FX invents another one where it takes this for a builtin
            node.name = name
        node.meta["val"] = val
        return node

    def _boundary(self, target: str, args: tuple[Any, ...], name: str, val: Any, like: fx.Node, mark: Mark) -> fx.Node:
        boundary = self._make(ops.overload(target), (args, {}), name, val)
        kept = {key: like.meta[key] for key in _BOUNDARY_KEYS if key in like.meta}
        boundary.meta = {**marked(kept, mark), "val": val}
        return boundary

    def _split(self, cut: Cut, user: fx.Node, region: ChunkedRegion, chunk: int) -> None:
        """Make the chunk's slice of an activation from outside, that of every chunk unless they are made in turn."""
        source = self.nodes[cut.node]
        whole = source.meta["val"]
        sizes = [int(whole.shape[cut.dim]) // region.extent * part for part in region.sizes]
        mark = Mark(region.root, "split_boundary", region.backward)
        vals = self.values.pieces(whole, sizes, cut.dim)
        # Ops of the body were traced on a dense tensor.
        copied = [cut.dense and whole.is_contiguous() and not val.is_contiguous() for val in vals]
        key = (region.root, source)
        if key not in self.splits:
            # Dimension 0 is the default, which traced graphs leave out.
            args = (self.env[source], sizes, *((cut.dim,) if cut.dim else ()))
            target, name = "aten.split_with_sizes.default", f"{source.name}_chunk_split"
            self.splits[key] = self._boundary(target, args, name, vals, user, mark)
            starts = [0 if copy else val.storage_offset() for copy, val in zip(copied, vals, strict=True)]
            self.values.give(region, source, cut, starts)
        for number in [chunk] if region.in_turn else range(len(vals)):
            own, name = replace(mark, chunk=number), f"{source.name}_chunk_split{number}"
            args = (self.splits[key], number)
            piece = self._boundary("operator.getitem", args, name, vals[number], user, own)
            if copied[number]:
                val = self.values.like(vals[number], tuple(vals[number].shape))
                piece = self._boundary("aten.clone.default", (piece,), f"{name}_contiguous", val, user, own)
                piece.kwargs = {"memory_format": torch.contiguous_format}
            self.clones[region.root][number][source] = piece

    def _join(self, node: fx.Node, region: ChunkedRegion, join: Join) -> None:
        parts = [clones[node] for clones in self.clones[region.root]]
        name = f"{node.name}_chunk_materialized"
        mark = Mark(region.root, "materialization", region.backward)
        if join.how == "last":  # a buffer: the last chunk has written on what the others wrote
            self.env[node] = parts[-1]
        elif join.how == "rows":
            assert join.dim is not None
            whole, dim = node.meta["val"], join.dim
            if join.blocks > 1:
                parts, dim = [self._seen(part, region, join, node, chunk) for chunk, part in enumerate(parts)], dim + 1
            val = whole if is_contiguous(whole) else self.values.like(whole, tuple(whole.shape))
            args = (parts,) if dim == 0 else (parts, dim)
            if join.blocks > 1:
                shape = [*whole.shape]
                blocked = [*shape[: join.dim], join.blocks, shape[join.dim] // join.blocks, *shape[dim:]]
                joined = self.values.like(whole, tuple(blocked))
                concatenated = self._boundary("aten.cat.default", args, f"{name}_blocks", joined, node, mark)
                self.env[node] = self._boundary("aten.reshape.default", (concatenated, shape), name, val, node, mark)
                return
            self.env[node] = self._boundary("aten.cat.default", args, name, val, node, mark)
        else:
            proof = "backward_partial_sum" if region.backward else "partial_sum"
            if all(user.op == "output" for user in node.users):
                proof = "graph_output_partial_sum"
            mark = replace(mark, proof=proof)
            total = parts[0]
            for chunk, part in enumerate(parts[1:], 1):
                own = name if chunk == len(parts) - 1 else f"{node.name}_chunk_sum{chunk}"
                val = self.values.added(total.meta["val"], part.meta["val"], node.meta["val"])
                total = self._boundary("aten.add.Tensor", (total, part), own, val, node, mark)
            self.env[node] = total

    def _seen(self, part: fx.Node, region: ChunkedRegion, join: Join, node: fx.Node, chunk: int) -> fx.Node:
        """A chunk of rows in blocks with a dimension for the blocks."""
        assert join.dim is not None
        shape = list(part.meta["val"].shape)
        shape[join.dim : join.dim + 1] = [join.blocks, shape[join.dim] // join.blocks]
        val = self.values.like(part.meta["val"], tuple(shape))
        mark = Mark(region.root, "materialization", region.backward, chunk)
        return self._boundary("aten.reshape.default", (part, shape), f"{part.name}_blocks", val, node, mark)


def turns_of(index: GraphIndex, region: ChunkedRegion) -> dict[int, list[int]]:
    """Where the nodes of a region stand whose chunks run in turn: behind which node, those up to each of its launches,
    and the others, which wait for the last one and need what stands outside.
    """
    groups: dict[int, list[int]] = {}
    late = list(region.body)
    for launch in (node for node in region.body if node in index.launches):
        groups[launch] = [node for node in late if node <= launch]
        late = [node for node in late if node > launch]
    inside = set(region.body)
    needed = [pred for node in late for pred in index.data_preds[node] if pred not in inside]
    return {**groups, max((*late[:1], *needed)): late} if late else groups
