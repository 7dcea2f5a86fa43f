"""Small graphs with a collective that can be split, and a cost model under which that pays at any size.

::

    program = columns()                # mm -> reduce_scatter
    after = split(program)             # applied and verified
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

from commcc.passes.split import Split
from commcc.run.pipeline import run
from commcc.timing.cost.types import Costs
from tests.random_graphs import GraphBuilder

aten, prims = torch.ops.aten, torch.ops.prims
#: Ops that take no time.
FREE = ("view", "split", "getitem", "reshape", "permute", ".t", "slice", "wait", "placeholder", "output", "expand")


@dataclass(frozen=True)
class PerByte:
    """A nanosecond for every byte that a kernel writes, three for every byte that is sent; a launch takes none."""

    name: str = "per-byte"
    hash: str = "0"

    def price(self, index) -> Costs:
        ns, how = [], {}
        for node, op in enumerate(index.ops):
            launch = index.launches.get(node)
            tensors = [index.tensors[each] for each in (node, *(launch.inputs if launch else ()))]
            size = max((t.bytes for t in tensors if t is not None), default=0)
            if launch is not None:
                how[node] = "made"
            ns.append(3 * size if launch else 0 if any(word in op for word in FREE) else size)
        priced = tuple(0 if each else -1 for each in ns)
        return Costs(self.name, self.hash, ("made",), tuple(ns), priced, how, dict.fromkeys(how, 0), 0, 1000, {})


MODEL = PerByte()


def split(program, model=MODEL, **options):
    """The finished run of the pass alone."""
    return run(program, [Split(**{"min_mb": 0, "min_exposed_us": 0, "memory_budget": None, **options})], model=model)


def columns(kind="reduce_scatter", rows=8, inner=6, width=8):
    """A product that is reduced over two ranks."""
    b = GraphBuilder()
    x, w = b.placeholder("x", (rows, inner)), b.placeholder("w", (inner, width))
    y = b.call(prims.convert_element_type.default, b.call(aten.mm.default, x, w), torch.float32)
    whole = b.scatter(y, 2, "0") if kind == "reduce_scatter" else b.reduce(y, "0")
    return b.program([b.call(aten.relu.default, whole)], {"0": 2})


def gathered(rows=4, inner=6, width=8):
    """Rows that all ranks gather, and a product of them: what a block of each rank's gives is put together again."""
    b = GraphBuilder()
    x, w = b.placeholder("x", (rows, inner)), b.placeholder("w", (inner, width))
    y = b.call(aten.mm.default, b.gather(x, 2, "0"), w)
    z = b.call(aten.silu.default, y)
    return b.program([b.call(aten.mul.Tensor, z, y)], {"0": 2})


def embedding(words=48, width=8, tokens=6):
    """The gradient of an embedding at the end of a backward: every column by itself."""
    b = GraphBuilder()
    gradient, numbers = b.placeholder("gradient", (tokens, width)), b.placeholder("numbers", (tokens,), torch.int64)
    table = b.call(aten.embedding_dense_backward.default, gradient, numbers, words, -1, False)
    return b.program([b.scatter(b.call(aten.mul.Tensor, table, 0.5), 2, "0")], {"0": 2})


def hybrid(words=48, width=8, tokens=6, read=""):
    """The gradient of an embedding that is scattered over shards and then reduced over copies. read: by whom what is
    scattered is read besides.
    """
    b = GraphBuilder()
    gradient, numbers = b.placeholder("gradient", (tokens, width)), b.placeholder("numbers", (tokens,), torch.int64)
    table = b.call(aten.embedding_dense_backward.default, gradient, numbers, words, -1, False)
    shard = b.call(aten.mul.Tensor, b.scatter(table, 2, "0"), 0.5)
    others = [b.call(aten.sum.default, shard)] if read == "before" else []
    launch = b.call(torch.ops._c10d_functional.all_reduce.default, shard, "sum", "1")
    others += [b.call(aten.sum.default, shard)] if read == "between" else []
    whole = b.call(aten.relu.default, b.call(torch.ops._c10d_functional.wait_tensor.default, launch))
    others += [b.call(aten.sum.default, shard)] if read == "behind" else []
    return b.program([whole, *others], {"0": 2, "1": 2})


def tied_copies(rows=8, inner=6, width=8):
    """Two gradients of one weight, each reduced over shards and copies, and added."""
    b = GraphBuilder()
    sums = []
    for name in "xy":
        x, w = b.placeholder(name, (rows, inner)), b.placeholder(f"{name}_w", (inner, width))
        sums.append(b.reduce(b.scatter(b.call(aten.mm.default, x, w), 2, "0"), "1"))
    return b.program([b.call(aten.relu.default, b.call(aten.add.Tensor, *sums))], {"0": 2, "1": 2})


def tied(words=48, width=8, tokens=6):
    """The gradient of a table that embeds tokens and gives logits: two reductions, and their sum."""
    b = GraphBuilder()
    gradient, numbers = b.placeholder("gradient", (tokens, width)), b.placeholder("numbers", (tokens,), torch.int64)
    x, w = b.placeholder("x", (words, tokens)), b.placeholder("w", (tokens, width))
    head = b.scatter(b.call(aten.mm.default, x, w), 2, "0")
    table = b.call(aten.embedding_dense_backward.default, gradient, numbers, words, -1, False)
    table = b.scatter(b.call(aten.mul.Tensor, table, 0.5), 2, "0")
    return b.program([b.call(aten.add.Tensor, head, table)], {"0": 2})


def logits(tokens=8, inner=6, words=4):
    """Logits that all ranks gather by words, and the loss of each token."""
    b = GraphBuilder()
    x, w = b.placeholder("x", (tokens, inner)), b.placeholder("w", (inner, words))
    y = b.call(aten.view.default, b.call(aten.mm.default, x, w), [1, tokens, words])
    parts = b.call(aten.split.Tensor, b.gather(y, 2, "0"), 1)
    each = [b.call(operator.getitem, parts, i) for i in range(2)]
    whole = b.call(aten.view.default, b.call(aten.cat.default, each, -1), [tokens, 2 * words])
    top = b.call(aten.amax.default, whole, [1], True)
    low = b.call(aten.exp.default, b.call(aten.sub.Tensor, whole, top))
    return b.program([b.call(aten.sum.dim_IntList, low, [1], True)], {"0": 2})


def returned(rows=8, width=64):
    """What is computed in several steps, gathered and returned, where memory is highest."""
    b = GraphBuilder()
    x = b.placeholder("x", (rows, width))
    for op in [aten.sin.default, aten.cos.default] * 4:
        x = b.call(op, x)
    return b.program([b.gather(x, 2, "0")], {"0": 2})


def shared(rows=8, inner=6, width=8):
    """A product that is reduced, and used elsewhere too."""
    b = GraphBuilder()
    x, w = b.placeholder("x", (rows, inner)), b.placeholder("w", (inner, width))
    y = b.call(aten.mm.default, x, w)
    z = b.call(aten.relu.default, y)
    return b.program([b.scatter(z, 2, "0"), y], {"0": 2})


def summed(rows=4, width=8):
    """A gathered weight whose columns a product sums over."""
    b = GraphBuilder()
    x, w = b.placeholder("x", (6, width)), b.placeholder("w", (rows, width))
    return b.program([b.call(aten.mm.default, x, b.call(aten.t.default, b.gather(w, 2, "0")))], {"0": 2})


def alone(width=8):
    """A gather with nothing around it."""
    b = GraphBuilder()
    return b.program([b.gather(b.placeholder("x", (4, width)), 2, "0")], {"0": 2})


def flat(width=8):
    """A reduction of a flat buffer."""
    b = GraphBuilder()
    x = b.call(aten.relu.default, b.placeholder("x", (4, width)))
    return b.program([b.scatter(b.call(aten.view.default, x, [4 * width]), 2, "0")], {"0": 2})


def written(width=8):
    """What is reduced is written in place before it is sent."""
    b = GraphBuilder()
    x = b.call(aten.relu.default, b.placeholder("x", (4, width)))
    b.call(aten.mul_.Tensor, x, 2.0)
    return b.program([b.scatter(x, 2, "0")], {"0": 2})
