"""Random small graphs for attacks on the verifier: compute, views, writes, collectives, constants, sub-graphs.

::

    program = random_program(random.Random(7))
    inputs = random_inputs(program, ranks=2, seed=1)

Every graph runs on two ranks. Numbers are quarters, so that sums are exact however they are associated. One graph in
five has a size that is not known: its inputs have other sizes from run to run.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from commcc.graph.program import Program
from tests.attack_world import ALONE

if TYPE_CHECKING:
    import random

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
prims = torch.ops.prims
RANKS = 2
SHAPES = ((4, 4), (8, 2), (2, 8), (4,), (8,), (2, 2, 4), (4, 2))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
_UNARY = (aten.sin, aten.relu, aten.neg, aten.abs, aten.sign, aten.square)
_BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.maximum.default, aten.minimum.default)


class Maker:
    """A graph under construction: values that may be used, launches that are not waited for."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.values: list[fx.Node] = []
        self.flying: list[fx.Node] = []
        self.length: Any = None

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        evaluate(node, self.mode)
        return node

    def add(self, node: fx.Node) -> fx.Node:
        """Make a value available; parts of a list one by one."""
        val = node.meta["val"]
        if isinstance(val, (tuple, list)):
            parts = [self.call(operator.getitem, node, i) for i in range(len(val))]
            self.values.extend(parts)
            return parts[0]
        self.values.append(node)
        return node

    def input(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        node = self.graph.placeholder(f"x{len(self.values)}")
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        self.values.append(node)

    def rows(self, columns: int, dtype: torch.dtype) -> None:
        """An input whose first dimension is any number; the same for all."""
        node = self.graph.placeholder(f"x{len(self.values)}")
        if self.length is None:
            free = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
            real = torch.empty(LENGTHS[0], columns, dtype=dtype)
            node.meta["val"] = self.mode.from_tensor(real, symbolic_context=free)
            self.length = node.meta["val"].shape[0]
        else:
            with self.mode:
                node.meta["val"] = torch.empty(self.length, columns, dtype=dtype)
        self.values.append(node)

    def extent(self, x: fx.Node) -> fx.Node:
        """The first dimension of a tensor as a node, or arithmetic on it."""
        size = self.call(aten.sym_size.int, x, 0)
        for _ in range(self.rng.randrange(3)):
            op = self.rng.choice((operator.add, operator.mul, operator.floordiv, operator.mod, operator.sub))
            size = self.call(op, size, self.rng.choice((1, 2, 4)))
        return size

    def pick(self, test: Any = None) -> fx.Node | None:
        found = [n for n in self.values if test is None or test(n.meta["val"])]
        return self.rng.choice(found[-12:] if self.rng.random() < 0.7 else found) if found else None

    def like(self, node: fx.Node) -> fx.Node:
        val = node.meta["val"]
        found = self.pick(lambda v: v.shape == val.shape and v.dtype == val.dtype and v is not val)
        return found if found is not None else node

    # Steps; each may find nothing to do

    def unary(self, x: fx.Node) -> None:
        self.add(self.call(self.rng.choice(_UNARY).default, x))

    def binary(self, x: fx.Node) -> None:
        op = self.rng.choice(_BINARY)
        extra = {"alpha": self.rng.choice((1, 2))} if op is not aten.mul.Tensor and self.rng.random() < 0.2 else {}
        self.add(self.call(op, x, self.like(x), **(extra if op in (aten.add.Tensor, aten.sub.Tensor) else {})))

    def scalar(self, x: fx.Node) -> None:
        self.add(self.call(self.rng.choice((aten.add.Tensor, aten.mul.Tensor)), x, self.rng.choice((1, 2, 3, -1))))

    def product(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if val.dim() == 2 and val.is_floating_point():
            other = self.pick(lambda v: v.dim() == 2 and v.shape[0] == val.shape[1] and v.dtype == val.dtype)
            if other is not None:
                small = self.call(aten.sign.default, self.call(aten.mm.default, x, other))
                self.add(small)

    def turn(self, x: fx.Node) -> None:
        dims = list(range(x.meta["val"].dim()))
        self.rng.shuffle(dims)
        self.add(self.call(aten.permute.default, x, dims))

    def shape(self, x: fx.Node) -> None:
        numel = x.meta["val"].numel()
        sizes = [s for s in ([numel], [2, numel // 2], [numel // 2, 2], [2, 2, numel // 4]) if 0 not in s]
        op = self.rng.choice((aten.view.default, aten.reshape.default, aten._unsafe_view.default))
        self.add(self.call(op, x, self.rng.choice(sizes)))

    def part(self, x: fx.Node) -> None:
        val = x.meta["val"]
        dim = self.rng.randrange(val.dim()) if val.dim() else None
        if dim is None or val.shape[dim] < 2:
            return
        size = val.shape[dim]
        start = self.rng.randrange(size)
        choices = (
            (aten.slice.Tensor, x, dim, start, self.rng.randint(start + 1, size)),
            (aten.select.int, x, dim, start),
            (aten.narrow.default, x, dim, 0, size // 2),
            (aten.split.Tensor, x, size // 2, dim),
            (aten.unsafe_split.Tensor, x, size // 2, dim),
            (aten.chunk.default, x, 2, dim),
            (aten.unbind.int, x, dim),
            (aten.slice.Tensor, x, dim, 0, size, 2),
            (aten.slice.Tensor, x, dim, -1, 2**63 - 1),
        )
        self.add(self.call(*self.rng.choice(choices)))

    def dims(self, x: fx.Node) -> None:
        val = x.meta["val"]
        choices = [(aten.unsqueeze.default, x, 0), (aten.squeeze.default, x), (aten.atleast_2d.default, x)]
        choices += [(aten.alias.default, x), (aten.detach.default, x), (aten.lift.default, x)]
        if val.dim():
            choices.append((aten.expand.default, self.call(aten.unsqueeze.default, x, 0), [2, *val.shape]))
        if val.dim() == 2:
            choices.append((aten.t.default, x))
        self.add(self.call(*self.rng.choice(choices)))

    def copy(self, x: fx.Node) -> None:
        choices = (
            (aten.clone.default, x),
            (aten.contiguous.default, x),
            (aten.type_as.default, x, self.like(x)),
            (aten.dropout.default, x, 0.5, False),
            (aten.clone.default, x),
        )
        kwargs = {"memory_format": torch.contiguous_format} if self.rng.random() < 0.3 else {}
        chosen = self.rng.choice(choices)
        self.add(self.call(*chosen, **(kwargs if chosen[0] is aten.clone.default else {})))

    def convert(self, x: fx.Node) -> None:
        dtype = self.rng.choice((*DTYPES, torch.bool, torch.float16, torch.int32, torch.uint8))
        if self.rng.random() < 0.5:
            made = self.call(aten._to_copy.default, x, dtype=dtype)
            self.add(self.call(aten._to_copy.default, made) if self.rng.random() < 0.3 else made)
        else:
            self.add(self.call(prims.convert_element_type.default, x, dtype))

    def bits(self, x: fx.Node) -> None:
        if x.meta["val"].dtype == torch.float32 and x.meta["val"].is_contiguous():
            self.add(self.call(aten.view.dtype, x, torch.int32))

    def join(self, x: fx.Node) -> None:
        others = [x, *(self.like(x) for _ in range(self.rng.randint(1, 2)))]
        if x.meta["val"].dim() and self.rng.random() < 0.7:
            self.add(self.call(aten.cat.default, others, self.rng.randrange(x.meta["val"].dim())))
        elif x.meta["val"].dim() < 3:
            self.add(self.call(aten.stack.default, others, 0))

    def fold(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if val.dim() and val.dtype != torch.bool:
            dim = self.rng.randrange(val.dim())
            choices = (
                (aten.sum.dim_IntList, x, [dim], self.rng.random() < 0.5),
                (aten.amax.default, x, [dim]),
                (aten.cumsum.default, x, dim),
                (aten.flip.default, x, [dim]),
                (aten.roll.default, x, [1], [dim]),
                (aten.topk.default, x, 1, dim),
                (aten.sort.default, x, dim),
            )
            self.add(self.call(*self.rng.choice(choices)))

    def window(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if val.numel() >= 4:
            op = self.rng.choice((aten.as_strided.default, aten.as_strided_copy.default))
            self.add(self.call(op, x, [2, 2], [2, 1], self.rng.choice((0, None))))

    def fresh(self, x: fx.Node) -> None:
        op = self.rng.choice((aten.zeros_like.default, aten.ones_like.default))
        self.add(self.call(op, x))

    def sized(self, x: fx.Node) -> None:
        """What takes a size that may not be known."""
        val = x.meta["val"]
        if not val.dim():
            return
        n = self.extent(x)
        rest = list(val.shape[1:])
        choices = [
            (aten.new_zeros.default, x, [n, *rest]),
            (aten.slice.Tensor, x, 0, 0, n),
            (aten.slice.Tensor, x, 0, self.rng.choice((0, 1)), self.rng.choice((2**31, 2**62, 2**63 - 1, -1))),
            (aten.add.Tensor, x, n),
            (aten.mul.Scalar, x, n),
        ]
        if val.is_contiguous():
            whole = self.call(aten.sym_size.int, x, 0)
            choices.append((aten.view.default, x, [self.call(operator.mul, whole, 1), *rest]))
            choices.append((aten.reshape.default, x, [-1]))
            choices.append((aten.expand.default, self.call(aten.unsqueeze.default, x, 0), [2, whole, *rest]))
        self.add(self.call(*self.rng.choice(choices)))

    def pointed(self, x: fx.Node) -> None:
        """What reads or fills by index or mask."""
        val = x.meta["val"]
        if not val.dim() or val.dtype == torch.bool or val.shape[0] < 2:
            return
        at = self.call(aten.full.default, [2], self.rng.choice((0, 1)), dtype=torch.int64)
        mask = self.call(aten.gt.Scalar, x, self.rng.choice((0, 1)))
        choices = [
            (aten.index_select.default, x, 0, at),
            (aten.index.Tensor, x, [at]),
            (aten.where.self, mask, x, self.like(x)),
            (aten.masked_fill.Scalar, x, mask, 2),
            (aten.tril.default, x) if val.dim() > 1 else (aten.flip.default, x, [0]),
            (aten.diagonal.default, x) if val.dim() > 1 else (aten.alias.default, x),
            (aten.unfold.default, x, 0, 2, 1),
            (aten.select_scatter.default, x, self.call(aten.select.int, x, 0, 1), 0, 0),
            (aten.index_fill_.int_Scalar, x, 0, at, 3),
            (aten.masked_fill_.Scalar, x, mask, 1),
        ]
        chosen = self.rng.choice(choices)
        if not (str(chosen[0]).split(".")[1].endswith("_") and 0 in val.stride()):
            self.add(self.call(*chosen))

    def through(self, x: fx.Node) -> None:
        """A write through a view, and a read of what it is a view of."""
        val = x.meta["val"]
        if not val.dim() or 0 in val.stride() or val.shape[0] < 2:
            return
        views = [(aten.slice.Tensor, x, 0, 0, 1), (aten.select.int, x, 0, 1), (aten.alias.default, x)]
        views += [(aten.unsafe_split.Tensor, x, 1, 0)] if isinstance(val.shape[0], int) else []
        views += [(aten.permute.default, x, list(reversed(range(val.dim())))), (aten.unsqueeze.default, x, 0)]
        part = self.add(self.call(*self.rng.choice(views)))
        write = self.rng.choice(((aten.fill_.Scalar, part, 2), (aten.mul_.Tensor, part, 2), (aten.neg_.default, part)))
        if part.meta["val"].dtype != torch.bool:
            self.call(*write)
            self.add(self.call(aten.abs.default, x))

    def write(self, x: fx.Node) -> None:
        y = self.like(x)
        choices = [
            (aten.add_.Tensor, x, self.rng.choice((1, 2))),
            (aten.mul_.Tensor, x, 2),
            (aten.copy_.default, x, y),
            (aten.zero_.default, x),
            (aten.fill_.Scalar, x, 3),
            (aten._foreach_add_.Scalar, [x, y], 1),
            (aten._foreach_copy_.default, [x, y], [y, self.like(y)]),
        ]
        chosen = self.rng.choice(choices)
        if 0 in x.meta["val"].stride() and x.meta["val"].numel() > 1:
            return  # PyTorch refuses to write to one element twice
        node = self.call(*chosen)
        if node.meta["val"] is not None and not isinstance(node.meta["val"], (tuple, list)):
            self.add(node)

    def scatter(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if val.dim() and val.shape[0] > 1:
            part = self.pick(lambda v: v.dtype == val.dtype and v.shape == (val.shape[0] // 2, *val.shape[1:]))
            if part is not None:
                self.add(self.call(aten.slice_scatter.default, x, part, 0, 0, val.shape[0] // 2))

    def draw(self, x: fx.Node) -> None:
        if x.meta["val"].is_floating_point():
            op = (aten.rand_like.default, aten.bernoulli.p)[self.rng.randrange(2)]
            noise = self.call(op, x, *(() if op is aten.rand_like.default else (0.5,)))
            self.add(self.call(aten.round.default, noise))

    def constant(self, _x: fx.Node) -> None:
        shape, dtype = self.rng.choice(SHAPES), self.rng.choice(DTYPES[:3])
        name = f"c{len(list(self.root.buffers()))}"
        numel = torch.Size(shape).numel()
        self.root.register_buffer(name, torch.randint(-3, 4, (numel,)).to(dtype).reshape(shape))
        node = self.graph.get_attr(name)
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        self.values.append(node)

    def branch(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if not val.is_floating_point() or not val.is_contiguous():
            return
        names = [self._body(val) for _ in range(2)]
        bodies = [self.graph.get_attr(name) for name in names]
        if self.rng.random() < 0.5:
            with self.mode:
                flag = self.graph.call_function(aten.full.default, ([], self.rng.random() < 0.5), {"dtype": torch.bool})
                flag.meta["val"] = torch.empty((), dtype=torch.bool)
            node = self.graph.call_function(torch.ops.higher_order.cond, (flag, *bodies, [x]))
        else:
            node = self.graph.call_function(torch.ops.higher_order.invoke_subgraph, (bodies[0], names[0], x))
        with self.mode:
            node.meta["val"] = (torch.empty_like(val),)
        self.add(node)

    def _body(self, val: torch.Tensor) -> str:
        inner = Maker(self.rng)
        inner.graph.placeholder("a").meta["val"] = val
        inner.values = list(inner.graph.nodes)
        inner.mode = self.mode
        inner.constant(inner.values[0])
        held = inner.values.pop()
        first = inner.values[0]
        if held.meta["val"].shape == val.shape and held.meta["val"].dtype == val.dtype:
            first = inner.call(aten.add.Tensor, first, held)
        if self.rng.random() < 0.3:
            inner.call(aten.add_.Tensor, held, 1)
        inner.graph.output((inner.call(aten.mul.Tensor, first, self.rng.choice((1, 2, 3))),))
        name = f"body{len(self.root._modules)}"
        self.root.add_module(name, fx.GraphModule(inner.root, inner.graph))
        return name

    # Communication

    def launch(self, x: fx.Node) -> None:
        val = x.meta["val"]
        if not val.is_contiguous() or not val.dim() or val.dtype == torch.bool or not isinstance(val.shape[0], int):
            return
        group, size = ("0", RANKS) if self.rng.random() < 0.9 else (ALONE, 1)
        reduction = self.rng.choice(("sum", "sum", "max", "avg") if val.is_floating_point() else ("sum", "max"))
        choices = [
            (c10d.all_reduce.default, x, reduction, group),
            (c10d.all_gather_into_tensor.default, x, size, group),
            (c10d.all_reduce_coalesced.default, [x, self.like(x)], reduction, group),
        ]
        choices.append((c10d.broadcast.default, x, self.rng.randrange(size), group))
        if val.shape[0] % 2 == 0:
            choices += [(c10d.reduce_scatter_tensor.default, x, reduction, size, group)] * 2
            choices.append((c10d.all_to_all_single.default, x, [val.shape[0] // 2] * 2, [val.shape[0] // 2] * 2, "0"))
        if self.rng.random() < 0.15:
            choices = [(c10d.all_reduce_.default, x, reduction, group)]
            if x in self.values:
                self.values.remove(x)
        node = self.call(*self.rng.choice(choices))
        parts = (
            [self.call(operator.getitem, node, i) for i in range(2)] if isinstance(node.meta["val"], list) else [node]
        )
        self.flying.extend(parts)

    def buffer(self, x: fx.Node) -> None:
        """Two gathers into the halves of one buffer."""
        val = x.meta["val"]
        if not val.is_contiguous() or not val.dim():
            return
        rows = val.shape[0] * RANKS
        whole = self.call(aten.empty.memory_format, [2 * rows, *val.shape[1:]], dtype=val.dtype, device=val.device)
        for at, source in enumerate((x, self.like(x))):
            if source.meta["val"].is_contiguous():
                half = self.call(aten.slice.Tensor, whole, 0, at * rows, (at + 1) * rows)
                out = self.call(c10d.all_gather_into_tensor_out.default, source, RANKS, "0", out=half)
                self.flying.append(out)

    def wait(self, _x: fx.Node | None = None) -> None:
        if self.flying:
            launch = self.flying.pop(self.rng.randrange(len(self.flying)))
            self.values.append(self.call(c10d.wait_tensor.default, launch))


_STEPS = (
    *(("unary", 4), ("binary", 6), ("scalar", 3), ("product", 2), ("turn", 3), ("shape", 4), ("part", 5), ("dims", 3)),
    *(("copy", 3), ("convert", 3), ("bits", 1), ("join", 3), ("fold", 2), ("window", 1), ("fresh", 1), ("write", 5)),
    *(("scatter", 1), ("draw", 1), ("constant", 2), ("branch", 2), ("launch", 8), ("buffer", 1), ("wait", 8)),
    *(("pointed", 2), ("through", 2)),
)
_ANY_SIZE = (*_STEPS, ("sized", 12))
#: Values of the size that is not known, run by run; the first is the one that PyTorch traces with.
LENGTHS = (6, 4, 12, 7)


def random_program(rng: random.Random, steps: int = 14) -> Program:
    """A graph of about that many steps."""
    torch.manual_seed(rng.randrange(1 << 30))
    maker = Maker(rng)
    free = rng.random() < 0.2
    for _ in range(rng.randint(2, 4)):
        dtype = rng.choice((torch.float32, torch.float32, *DTYPES))
        if free and rng.random() < 0.7:
            maker.rows(rng.choice((2, 4)), dtype)
        else:
            maker.input(rng.choice(SHAPES), dtype)
    names, weights = zip(*(_ANY_SIZE if free else _STEPS), strict=True)
    for name in rng.choices(names, weights, k=rng.randint(steps // 2, steps)):
        x = maker.pick()
        try:
            if x is not None:
                getattr(maker, name)(x)
        except Exception:  # PyTorch does not take it, or not without knowing the size
            if not free:
                raise
            _forget_last(maker.graph)
    while maker.flying:
        maker.wait()
    inputs = [node for node in maker.graph.nodes if node.op == "placeholder"]
    results = [node for node in maker.values if node not in inputs]
    chosen = rng.sample(results, min(len(results), rng.randint(1, 4)))
    maker.graph.output(tuple(chosen or inputs[:1]))
    return Program(maker.graph, maker.root)


def evaluate(node: fx.Node, mode: FakeTensorMode) -> None:
    """The value of a node, worked out by PyTorch on fake tensors."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with mode, torch.no_grad():
        node.meta["val"] = node.target(*args, **kwargs)


def _forget_last(graph: fx.Graph) -> None:
    """Take out the node that could not be evaluated."""
    last = next(iter(reversed(graph.nodes)))
    if "val" not in last.meta:
        graph.erase_node(last)


def random_inputs(program: Program, seed: int, ranks: int = RANKS) -> list[list[torch.Tensor]]:
    """Numbers for every placeholder, others on every rank: small integers for seed 0, then quarters, and zeros of
    both signs, for seed 1 what no dtype holds exactly; NaN and infinity from seed 2 on, where no float becomes an
    integer.
    """
    vals = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    whole = any(
        not getattr(node.meta.get("val"), "dtype", torch.float32).is_floating_point
        for node in program.graph.nodes
        if node.op == "call_function"
    )
    made = []
    for rank in range(ranks):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        made.append([_numbers(val, seed, generator, odd=seed > 1 and not whole) for val in vals])
    return made


def _numbers(val: torch.Tensor, seed: int, generator: torch.Generator, *, odd: bool) -> torch.Tensor:
    shape = tuple(n if isinstance(n, int) else LENGTHS[seed % len(LENGTHS)] for n in val.shape)
    numbers = torch.randint(-4, 5, shape, generator=generator).double()
    if seed and val.dtype.is_floating_point:
        numbers += torch.randint(-3, 4, shape, generator=generator) / 4
        numbers /= 3 if seed == 1 else 1
        chance = torch.rand(shape, generator=generator)
        numbers = torch.where(chance < 0.1, torch.where(chance < 0.05, -0.0, 0.0), numbers)
        if odd:
            numbers = torch.where(chance > 0.97, float("nan"), torch.where(chance > 0.94, float("inf"), numbers))
    return numbers.to(val.dtype)
