"""Cuts modules in chunks: every node of a region's body is cloned for each chunk of its tokens.

    y = mm(x, w)        ->    split = split_with_sizes(x, [30, 30])
                              y_chunk0 = mm(split[0], w);  y_chunk1 = mm(split[1], w)
                              y = cat([y_chunk0, y_chunk1])

1. Clones of a node stand next to each other where it stood, so that everything else keeps its place.
2. Activations from outside are split before their first use; what is made for each chunk in the forward body is read
   there again by the backward one.
3. Sizes that the host reads from tensors become symbols of each chunk.
4. Writes to a buffer that the chunks share are chained: each writes to what the one before has written.

Values (shapes, strides) come from running the ops on fake tensors of a chunk's size.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.apply.chunk_values import ChunkValues
from commcc.apply.fakes import contiguous_strides
from commcc.base.errors import InternalError
from commcc.ep.chunk.lab import resized_arguments
from commcc.ep.chunk.resize import Resized
from commcc.graph import ops
from commcc.graph.annotations import Mark, marked
from commcc.graph.program import copy_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import ChunkedRegion, Join

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
                self._clone(number, node, region)
            elif number not in dead:
                missing = [used.name for used in node._input_nodes if used not in self.env]
                if missing:
                    raise InternalError(f"'{node.name}' needs the whole of '{missing[0]}'")
                self.env[node] = copy_node(self.graph, node, self.env)
        self.graph.lint()
        return replace(self.program, graph=self.graph, header=self.values.header())

    def _clone(self, number: int, node: fx.Node, region: ChunkedRegion) -> None:
        clones = self.clones.setdefault(region.root, [{} for _ in region.sizes])
        for cut in region.cuts:
            if self.nodes[cut.node] in node._input_nodes and self.nodes[cut.node] not in clones[0]:
                self._split(cut.node, cut.dim, node, region)
        edits = self.resized.get(number, ())
        for chunk, part in enumerate(region.sizes):
            # Values of the chunk where it has its own, whole ones elsewhere.
            known = ChainMap(clones[chunk], self.env)
            args, kwargs = fx.node.map_arg(resized_arguments(node, edits, part), known.__getitem__)
            if number in region.chained and chunk and isinstance(node.meta.get("val"), torch.Tensor):
                # What is written to a buffer that the chunks share goes on what the chunk before has written.
                args = (clones[chunk - 1][node], *args[1:])
            val = self.values.of(region, chunk, node, edits)
            clone = self._make(node.target, (args, kwargs), f"{node.name}_chunk{chunk}", val)
            mark = Mark(region.root, "body", region.backward, chunk, node.name)
            clone.meta = {**marked(node.meta, mark), **({"val": val} if "val" in node.meta else {})}
            clones[chunk][node] = clone
        if number in self.joins:
            self._join(node, region, self.joins[number])

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

    def _split(self, number: int, dim: int, user: fx.Node, region: ChunkedRegion) -> None:
        source = self.nodes[number]
        whole = source.meta["val"]
        sizes = [int(whole.shape[dim]) // region.extent * part for part in region.sizes]
        mark = Mark(region.root, "split_boundary", region.backward)
        vals = self.values.pieces(whole, sizes, dim)
        # Dimension 0 is the default, which traced graphs leave out.
        args = (self.env[source], sizes) if dim == 0 else (self.env[source], sizes, dim)
        split = self._boundary("aten.split_with_sizes.default", args, f"{source.name}_chunk_split", vals, user, mark)
        starts = []
        for chunk, val in enumerate(vals):
            own = replace(mark, chunk=chunk)
            name = f"{source.name}_chunk_split{chunk}"
            piece = self._boundary("operator.getitem", (split, chunk), name, val, user, own)
            if whole.is_contiguous() and not val.is_contiguous():  # ops of the body were traced on a dense tensor
                copied = self.values.like(val, tuple(val.shape))
                piece = self._boundary("aten.clone.default", (piece,), f"{name}_contiguous", copied, user, own)
                piece.kwargs = {"memory_format": torch.contiguous_format}
            starts.append(piece.meta["val"].storage_offset())
            self.clones[region.root][chunk][source] = piece
        self.values.give(region, source, dim, starts)

    def _join(self, node: fx.Node, region: ChunkedRegion, join: Join) -> None:
        parts = [clones[node] for clones in self.clones[region.root]]
        name = f"{node.name}_chunk_materialized"
        mark = Mark(region.root, "materialization", region.backward)
        if join.how == "last":  # a buffer: the last chunk has written on what the others wrote
            self.env[node] = parts[-1]
        elif join.how == "rows":
            assert join.dim is not None
            whole = node.meta["val"]
            dense = tuple(whole.stride()) == contiguous_strides(tuple(whole.shape))
            val = whole if dense else self.values.like(whole, tuple(whole.shape))
            args = (parts,) if join.dim == 0 else (parts, join.dim)
            self.env[node] = self._boundary("aten.cat.default", args, name, val, node, mark)
        else:
            proof = "backward_partial_sum" if region.backward else "partial_sum"
            if all(user.op == "output" for user in node.users):
                proof = "graph_output_partial_sum"
            mark = replace(mark, proof=proof)
            total = parts[0]
            for chunk, part in enumerate(parts[1:], 1):
                own = name if chunk == len(parts) - 1 else f"{node.name}_chunk_sum{chunk}"
                total = self._boundary("aten.add.Tensor", (total, part), own, node.meta["val"], node, mark)
            self.env[node] = total
