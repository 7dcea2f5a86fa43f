"""Small named graphs with prices, for tests of explanations.

g = Graph()
left = g.mm("left", 50)
gather = g.send("ag", 40, "dp", g.input())
...
found = g.explain("ag")
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from commcc.base.terms import Kind, Role
from commcc.explain import Context, Limits, explain, explain_worst
from commcc.graph.collectives import Collective, Identification
from commcc.graph.collectives.facts import GroupFacts
from commcc.graph.memory import live_bytes
from commcc.timing.cost.types import Price, Transfer
from commcc.timing.predict import Prediction
from commcc.timing.simulate import Simulator, lower_bound
from tests.index_maker import IndexMaker


class FlatModel:
    """Prices a collective at a latency and a nanosecond for each byte."""

    def __init__(self, latency: int) -> None:
        self.latency = latency

    def transfer_of(self, index, launch):
        facts = index.launches[launch]
        size = index.tensors[launch].bytes
        return Transfer(facts.kind, facts.group, 2, size, size, "float32"), None

    def transfer(self, transfer):
        return Price(self.latency + transfer.full_bytes, "flat", self.latency)


class Graph(IndexMaker):
    """An :class:`IndexMaker` whose nodes have names, and whose collectives have a kind and a role."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[int, str] = {}
        self.compute: set[int] = set()
        self.kinds: dict[int, Kind] = {}
        self.roles: dict[int, Role] = {}
        self.latency: dict[int, int] = {}
        self.merged: dict[int, tuple[str, ...]] = {}

    def mm(self, name, ns, *preds, size=0):
        """A compute node."""
        node = self.op(ns, *preds, size=size)
        self.compute.add(node)
        self.named[node] = name
        return node

    def small(self, name, ns, *preds, size=0):
        """Work that is no compute node."""
        node = self.op(ns, *preds, size=size)
        self.named[node] = name
        return node

    def send(self, name, ns, group, *inputs, kind=Kind.ALL_GATHER, role=Role.FSDP, size=0, synchronous=False):
        node = self.launch(ns, group, *inputs, size=size, synchronous=synchronous)
        self.named[node], self.kinds[node], self.roles[node] = name, kind, role
        return node

    def waited(self, name, launch):
        node = self.wait(launch)
        self.named[node] = name
        return node

    def output(self, *nodes):
        node = self._add("output", 0, nodes)
        self.named[node] = "output"
        return node

    def index(self):
        made = super().index()
        launches = {n: replace(launch, kind=self.kinds.get(n, launch.kind)) for n, launch in made.launches.items()}
        names = tuple(self.named.get(n, f"n{n}") for n in range(len(made)))
        compute = tuple(n in self.compute for n in range(len(made)))
        return replace(made, names=names, compute=compute, launches=launches, merged_from=self.merged)

    def ident(self):
        index = self.index()
        found = tuple(
            Collective(
                launch=n,
                waits=launch.waits,
                kind=launch.kind,
                group=launch.group,
                group_size=2,
                reduction=None,
                dtype="float32",
                input_bytes=index.tensors[n].bytes,
                output_bytes=index.tensors[n].bytes,
                role=self.roles.get(n, Role.OTHER),
                evidence="made",
                module=None,
            )
            for n, launch in index.launches.items()
        )
        groups = [GroupFacts(name, 2, None, "", {}, {}, 0) for name in dict.fromkeys(c.group for c in found)]
        return Identification(found, tuple(groups), None)

    def costs(self, **more):
        costs = super().costs(**more)
        return replace(costs, latency_ns=self.latency, how=dict.fromkeys(self.made, "flat"))

    def prediction(self, **more):
        index, costs = self.index(), self.costs(**more)
        return Prediction(costs, Simulator(index, costs).run(), live_bytes(index), lower_bound(index, costs))

    def parts(self, latency=0, **more):
        return self.index(), self.ident(), self.prediction(**more), FlatModel(latency)

    def explain(self, name, limits=None, **more):
        return explain(Context(*self.parts(**more), limits or Limits()), name)

    def worst(self, count=10, limits=None, **more):
        return explain_worst(Context(*self.parts(**more), limits or Limits()), count)


def kinds(found):
    """Kinds of the reasons, the heaviest first."""
    return [reason.kind for reason in found.reasons]


def reason(found, kind):
    """The one reason of a kind."""
    (one,) = [each for each in found.reasons if each.kind == kind]
    return one


def is_legal(index, order):
    """Whether an order has every node once, each after all that it depends on, and inputs and output in place."""
    place = {node: at for at, node in enumerate(order)}
    fixed = [n for n, op in enumerate(index.ops) if op == "placeholder"]
    return (
        sorted(order) == list(range(len(index)))
        and all(place[p] < place[n] for n in order for p in index.preds(n))
        and all(place[n] == n for n in fixed)
        and (not order or index.ops[-1] != "output" or order[-1] == len(index) - 1)
    )


def ancestors(index, node):
    """By plain search, sharing nothing with the code that is tested."""
    seen = set()
    todo = [node]
    while todo:
        for p in index.preds(todo.pop()):
            if p not in seen:
                seen.add(p)
                todo.append(p)
    return seen


def is_path(index, names):
    """Whether each node on the path must come after the one ahead of it."""
    nodes = [index.position[name] for name in names]
    return all(a in index.preds(b) for a, b in pairwise(nodes))
