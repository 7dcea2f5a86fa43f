"""Makes small graph indexes and costs by hand or at random, for tests that need no program.

make = IndexMaker()
gather = make.launch(50, "dp", make.input())
product = make.op(30, make.wait(gather))
index, costs = make.index(), make.costs(launch_ns=2)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from commcc.base.terms import Kind
from commcc.graph.index import GraphIndex, Launch, Tensor
from commcc.graph.index.graph import Estimates
from commcc.graph.ops.kernels import Work
from commcc.timing.cost.types import Costs


@dataclass
class IndexMaker:
    """Nodes in graph order. ``after``: order edges besides the data edges of the arguments."""

    ops: list[str] = field(default_factory=list)
    ns: list[int] = field(default_factory=list)
    data: list[tuple[int, ...]] = field(default_factory=list)
    order: list[tuple[int, ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    made: dict[int, tuple[str, bool]] = field(default_factory=dict)
    wait_of: dict[int, int] = field(default_factory=dict)

    def _add(self, op, ns, preds, after=(), size=0):
        self.ops.append(op)
        self.ns.append(ns)
        self.data.append(tuple(dict.fromkeys(preds)))
        self.order.append(tuple(sorted(set(after) - set(preds))))
        self.sizes.append(size)
        return len(self.ops) - 1

    def input(self, size=0):
        return self._add("placeholder", 0, (), size=size)

    def op(self, ns, *preds, after=(), size=0):
        return self._add("aten.mul", ns, preds, after, size)

    def view(self, source):
        return self._add("aten.view", 0, (source,))

    def launch(self, ns, group, *inputs, after=(), synchronous=False, size=0):
        node = self._add("_c10d_functional.all_gather_into_tensor", ns, inputs, after, size)
        self.made[node] = (group, not synchronous)
        return node

    def wait(self, source, after=()):
        """A wait for a launch, or for a view of its result."""
        node = self._add("_c10d_functional.wait_tensor", 0, (source,), after)
        while source not in self.made:
            source = self.data[source][0]
        self.wait_of[node] = source
        return node

    def index(self) -> GraphIndex:
        count = len(self.ops)
        users = [[] for _ in range(count)]
        for node, preds in enumerate(self.data):
            for p in preds:
                users[p].append(node)
        waits: dict[int, list[int]] = {node: [] for node in self.made}
        for wait, launch in self.wait_of.items():
            waits[launch].append(wait)
        launches = {
            node: Launch(Kind.ALL_GATHER, group, 2, None, self.data[node], tuple(waits[node]), False, (), asynchronous)
            for node, (group, asynchronous) in self.made.items()
        }
        tensors = tuple(Tensor("uint8", 1, (size,), "cpu", size) for size in self.sizes)
        names = tuple(f"n{i}" for i in range(count))
        buffers = tuple((i,) for i in range(count))
        empty = ((),) * count
        return GraphIndex(
            fingerprint="made",
            names=names,
            ops=tuple(self.ops),
            data_preds=tuple(self.data),
            order_preds=tuple(self.order),
            users=tuple(map(tuple, users)),
            storages=empty,
            tensors=tensors,
            modules=(None,) * count,
            compute=(False,) * count,
            casts={},
            custom={},
            descriptors={},
            output_descriptors=(),
            outputs=(),
            tags={},
            merged_from={},
            launches=launches,
            wait_of=dict(self.wait_of),
            begun_elsewhere={},
            writes={},
            barriers=(),
            host_syncs=frozenset(),
            groups={},
            estimates=Estimates({}, buffers, tuple(self.sizes), {}, (Work.KERNEL,) * count, {}),
        )

    def costs(self, launch_ns=0, slowdown_permille=1000, streams=None) -> Costs:
        none = (-1,) * len(self.ns)
        return Costs("made", "0", (), tuple(self.ns), none, {}, {}, launch_ns, slowdown_permille, streams or {})


@dataclass(frozen=True)
class Shape:
    """What a random index may hold. durations: of compute; transfers: of collectives; both are drawn from."""

    nodes: int = 9
    groups: tuple[str, ...] = ("a", "b")
    durations: tuple[int, ...] = (0, 1, 2, 3, 7)
    transfers: tuple[int, ...] = (0, 1, 4, 9)
    launches: float = 0.35
    order_edges: float = 0.15
    synchronous: float = 0.1
    unwaited: float = 0.15
    depth: int = 4


def random_maker(seed: int, shape: Shape) -> IndexMaker:
    """Random nodes; collectives wait soon, late, through views, several times or never."""
    rng = random.Random(seed)
    make = IndexMaker()
    pool = [make.input(rng.randrange(9))]
    flying: list[int] = []
    while len(make.ops) < shape.nodes:
        near = pool[-shape.depth :]
        after = [rng.randrange(len(make.ops))] if rng.random() < shape.order_edges else []
        if flying and rng.random() < 0.4:
            launch = rng.choice(flying)
            source = make.view(launch) if rng.random() < 0.2 else launch
            pool.append(make.wait(source, after))
            if rng.random() < 0.8:
                flying.remove(launch)
        elif rng.random() < shape.launches:
            node = _random_launch(rng, make, shape, rng.choice(near), after)
            if make.made[node][1] and rng.random() >= shape.unwaited:
                flying.append(node)
            elif not make.made[node][1]:
                pool.append(node)
        else:
            preds = [rng.choice(near) for _ in range(rng.randint(0, 2))]
            pool.append(make.op(rng.choice(shape.durations), *preds, after=after, size=rng.randrange(9)))
    return make


def _random_launch(rng, make, shape, source, after):
    return make.launch(
        rng.choice(shape.transfers),
        rng.choice(shape.groups),
        source,
        after=after,
        synchronous=rng.random() < shape.synchronous,
        size=rng.randrange(9),
    )


def random_costs(seed: int, make: IndexMaker) -> Costs:
    """Launch overhead, slow-down and shared lanes at random."""
    rng = random.Random(seed + 1)
    lanes = {"a": "link", "b": "link"} if rng.random() < 0.4 else {}
    return make.costs(rng.choice((0, 0, 1, 2)), rng.choice((1000, 1000, 1100, 1333, 2500)), lanes)


def random_order(index: GraphIndex, rng: random.Random) -> list[int]:
    """A legal order, by the dependences of the index alone."""
    missing = {node: set(index.preds(node)) for node in range(len(index))}
    order: list[int] = []
    while missing:
        ready = [node for node, preds in missing.items() if not preds]
        node = rng.choice(ready)
        order.append(node)
        del missing[node]
        for preds in missing.values():
            preds.discard(node)
    return order


def layered_maker(seed: int) -> IndexMaker:
    """Two or three layers of a training step, small enough for brute force: 18 nodes at most.

    Each layer may gather its weight, branch, and end in an activation collective; beside it a weight
    gradient and its reduction, waited for or not.
    """
    for attempt in range(1000):
        make = _layers(random.Random(1000 * seed + attempt))
        if len(make.ops) <= 18:
            return make
    raise AssertionError("no small graph")


def _layers(rng: random.Random) -> IndexMaker:
    make, times = IndexMaker(), (1, 2, 3, 5, 8, 13)
    gathers, chains, reductions = rng.random() < 0.6, rng.random() < 0.7, rng.random() < 0.7
    tensor_parallel = rng.choice(("tp", "tp", "dp"))
    x = first = make.input()
    for _ in range(rng.choice((2, 3))):
        weight = [make.wait(make.launch(rng.choice(times), "dp", first))] if gathers else []
        y = make.op(rng.choice(times), x, *weight)
        if rng.random() < 0.3:
            y = make.op(rng.choice((0, 1, 2)), y, make.op(rng.choice(times), x))
        if rng.random() < 0.8:
            _gradient(rng, make, x, rng.choice(times) if reductions else None)
        x = make.wait(make.launch(rng.choice(times), tensor_parallel, y)) if chains else y
    return make


def _gradient(rng, make, x, reduction):
    gradient = make.op(rng.choice((1, 2, 3, 5, 8, 13)), x)
    if reduction is not None:
        launch = make.launch(reduction, "dp", gradient)
        if rng.random() < 0.7:
            make.wait(launch)
