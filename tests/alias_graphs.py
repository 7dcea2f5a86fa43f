"""Random graphs of ops that share memory, write, draw numbers or act, beside collectives; for passes that move nodes.

    program = alias_program(seed)
    results = executed(program, inputs)        # on virtual ranks, with the log of what acted

Every graph is legal and all its sums are exact, so that two orders of it give the same to the bit, or one is wrong.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from tests.random_graphs import GraphBuilder, aten, getitem
from tests.virtual_ranks import VirtualRanks, random_inputs

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.program import Program

WORLD = 2
SIDE = 4
#: What the ops of ``commcc_alias`` have done, in order.
LOG: list[float] = []
_LIBRARY = torch.library.Library("commcc_alias", "DEF")
_LIBRARY.define("act(Tensor x) -> Tensor")
_LIBRARY.define("note(Tensor x) -> ()")
_LIBRARY.define("bump_(Tensor(a!) x) -> ()")


def _act(x: torch.Tensor) -> torch.Tensor:
    LOG.append(float(x.sum()))
    return x + 1


def _note(x: torch.Tensor) -> None:
    LOG.append(float(x.sum()))


def _bump(x: torch.Tensor) -> None:
    x.add_(1)
    LOG.append(float(x.sum()))


for name, function in (("act", _act), ("note", _note), ("bump_", _bump)):
    _LIBRARY.impl(name, function, "CPU")
_LIBRARY.impl("act", torch.empty_like, "Meta")
_LIBRARY.impl("note", lambda _x: None, "Meta")
_LIBRARY.impl("bump_", lambda _x: None, "Meta")
own = torch.ops.commcc_alias

#: Ops of a library that is not PyTorch's: by name, schema, what the kernel really does, and what the schema promises.
_LIES: dict[str, tuple[str, Any, Any]] = {
    "view": ("(Tensor x) -> Tensor", lambda x: x.t(), torch.empty_like),
    "same": ("(Tensor x) -> Tensor", lambda x: x, torch.empty_like),
    "write": ("(Tensor x) -> Tensor", lambda x: x.add_(1).clone(), torch.empty_like),
    "silent": ("(Tensor x) -> ()", lambda x: _done(x.neg_()), lambda _x: None),
    "pour": ("(Tensor x, Tensor y) -> ()", lambda x, y: _done(y.copy_(x)), lambda _x, _y: None),
    "link": ("(Tensor x, Tensor y) -> ()", lambda x, y: _done(x.set_(y)), lambda _x, _y: None),
    "swap": (
        "(Tensor x, Tensor y) -> (Tensor, Tensor)",
        lambda x, y: (y, x),
        lambda x, y: (torch.empty_like(x), torch.empty_like(y)),
    ),
    "turned": (
        "(Tensor[] xs) -> Tensor[]",
        lambda xs: [x.flip(0) if i else x for i, x in enumerate(reversed(xs))],
        lambda xs: [torch.empty_like(x) for x in xs],
    ),
}


def _done(_result: Any) -> None:
    """Nothing."""


for name, (schema, function, meta) in _LIES.items():
    _LIBRARY.define(f"{name}{schema}")
    _LIBRARY.impl(name, function, "CPU")
    _LIBRARY.impl(name, meta, "Meta")

#: Views of a square matrix that are one again, some of which no schema speaks of.
VIEWS: tuple[Any, ...] = (
    lambda b, x: b.call(aten.view.default, x, [SIDE, SIDE]),
    lambda b, x: b.call(aten._unsafe_view.default, x, [SIDE, SIDE]),
    lambda b, x: b.call(aten.t.default, x),
    lambda b, x: b.call(aten.detach.default, x),
    lambda b, x: b.call(aten.atleast_2d.default, x),
    lambda b, x: b.call(aten.type_as.default, x, x),
    lambda b, x: b.call(aten.dropout.default, x, 0.5, False),
    lambda b, x: b.call(aten.lift.default, x),
    lambda b, x: b.call(aten.conj_physical.default, x),
    lambda b, x: b.call(aten.sum_to_size.default, x, [SIDE, SIDE]),
    lambda b, x: b.call(aten._cast_Double.default, x),
    lambda b, x: b.call(aten.reshape.default, x, [SIDE, SIDE]),
    lambda b, x: b.call(aten.contiguous.default, x),
    lambda b, x: b.call(aten.to.dtype, x, torch.float64),
    lambda b, x: b.call(aten.einsum.default, "ij->ji", [x]),
    lambda b, x: getitem(b, b.call(aten.broadcast_tensors.default, [x, x]), 1),
    lambda b, x: getitem(b, b.call(aten.unsafe_chunk.default, x, 1), 0),
    lambda b, x: getitem(b, b.call(aten.unsafe_split.Tensor, x, SIDE), 0),
    lambda b, x: getitem(b, b.call(aten.split.Tensor, x, SIDE), 0),
    lambda b, x: b.call(aten.as_strided.default, x, [SIDE, SIDE], [SIDE, 1]),
)
#: Parts of it, to be written.
PARTS: tuple[Any, ...] = (
    lambda b, x: getitem(b, b.call(aten.unsafe_split.Tensor, x, 2), 1),
    lambda b, x: getitem(b, b.call(aten.unsafe_chunk.default, x, 2), 0),
    lambda b, x: getitem(b, b.call(aten.unbind.int, x), 1),
    lambda b, x: b.call(aten.select.int, x, 0, 2),
    lambda b, x: x,
)
WRITES: tuple[Any, ...] = (
    lambda b, x, _y: b.call(aten.add_.Tensor, x, 1),
    lambda b, x, _y: b.call(aten.neg_.default, x),
    lambda b, x, _y: b.call(aten.zero_.default, x),
    lambda b, x, _y: b.call(aten._foreach_add_.Scalar, [x], 1),
    lambda b, x, _y: b.call(own.bump_.default, x),
)
#: Writes of a whole square matrix from another.
FILLS: tuple[Any, ...] = (
    lambda b, x, y: b.call(aten.copy_.default, x, y),
    lambda b, x, y: b.call(aten._foreach_copy_.default, [x], [y]),
    lambda b, x, y: b.call(aten.set_.source_Tensor, x, y),
)


class _Recipe:
    def __init__(self, seed: int, nodes: int, lying: bool) -> None:
        self.rng = random.Random(seed)
        self.lying = lying
        self.build = GraphBuilder()
        self.nodes = nodes

    def make(self) -> Program:
        b, rng = self.build, self.rng
        inputs = [b.placeholder(f"x{i}", (SIDE, SIDE)) for i in range(3)]
        shards = [b.placeholder(f"s{i}", (SIDE // WORLD, SIDE)) for i in range(2)]
        #: Matrices to work on, and those that nobody may write: ``set_`` and views of results share.
        self.values, self.shards = [*inputs], [*shards]
        # Statistics that an op writes without saying so.
        self.mean, self.var = (b.placeholder(name, (SIDE,)) for name in ("mean", "var"))
        for _ in range(self.nodes):
            self.step()
        outputs = rng.sample(self.values, min(4, len(self.values)))
        return b.program([*outputs, *inputs[:1]], {"0": WORLD, "1": WORLD})

    def pick(self) -> fx.Node:
        return self.rng.choice(self.values[-6:] if self.rng.random() < 0.6 else self.values)

    def step(self) -> None:
        b, rng = self.build, self.rng
        if self.lying and rng.random() < 0.3:
            self.lie()
            return
        how = rng.random()
        if how < 0.3:
            self.values.append(rng.choice(VIEWS)(b, self.pick()))
        elif how < 0.45:
            rng.choice(WRITES)(b, rng.choice(PARTS)(b, self.pick()), None)
        elif how < 0.52:
            self.fill()
        elif how < 0.62:
            self.values.append(b.call(aten.add.Tensor, self.pick(), self.pick()))
        elif how < 0.68:
            self.values.append(b.call(aten.fmod.Scalar, b.call(aten.mm.default, self.pick(), self.pick()), 7))
        elif how < 0.88:
            self.collective()
        elif how < 0.92:
            self.values.append(b.call(own.act.default, self.pick()))
        elif how < 0.94:
            b.call(own.note.default, self.pick())
        elif how < 0.97:
            self.values.append(b.call(aten.randint_like.default, self.pick(), 5))
        else:
            self.normalised()

    def lie(self) -> None:
        """An op that shares or writes, and does not say so."""
        b = self.build
        name = self.rng.choice(sorted(_LIES))
        op = getattr(own, name).default
        if name == "turned":
            parts = b.call(op, [self.pick(), self.pick()])
            self.values += [getitem(b, parts, 0), getitem(b, parts, 1)]
        elif name == "swap":
            parts = b.call(op, self.pick(), self.pick())
            self.values += [getitem(b, parts, 0), getitem(b, parts, 1)]
        elif name in ("pour", "link"):
            b.call(op, self.pick(), self.pick())
        elif name == "silent":
            b.call(op, self.pick())
        else:
            self.values.append(b.call(op, self.pick()))

    def fill(self) -> None:
        b, rng = self.build, self.rng
        target, source = self.pick(), self.pick()
        rng.choice(FILLS)(b, target, source)

    def collective(self) -> None:
        b, rng = self.build, self.rng
        group = rng.choice(["0", "0", "1"])
        how = rng.randrange(4)
        if how == 0:
            shard = rng.choice(self.shards)
            self.values.append(b.gather(b.call(aten._to_copy.default, shard, dtype=torch.float64), WORLD, group))
        elif how == 1:
            self.values.append(b.gather(rng.choice(self.shards), WORLD, group))
        elif how == 2:
            self.values.append(b.call(aten.fmod.Scalar, b.reduce(self.pick(), group), 9))
        else:
            self.shards.append(b.call(aten.fmod.Scalar, b.scatter(self.pick(), WORLD, group), 9))

    def normalised(self) -> None:
        """Batch normalisation only for what it does to its statistics: its result is rounded."""
        b = self.build
        b.call(aten.native_batch_norm.default, self.pick(), None, None, self.mean, self.var, True, 0.5, 1e-5)
        self.values.append(b.call(aten.add.Tensor, self.pick(), b.call(aten.round.default, self.mean)))


def alias_program(seed: int, nodes: int = 24, *, lying: bool = False) -> Program:
    """A random graph; the same seed gives the same graph. lying: some ops of another library break their schemas."""
    return _Recipe(seed, nodes, lying).make()


def executed(program: Program, seed: int) -> tuple[list[list[Any]], list[float]]:
    """Outputs and inputs of every rank, and what was logged."""
    LOG.clear()
    inputs = random_inputs(program.graph, WORLD, seed)
    torch.manual_seed(seed)
    results = VirtualRanks(program.graph, inputs, program.root).run()
    return results, list(LOG)
