"""Graphs of four sorts for the property tests of the scheduler, and what any schedule has to keep, recomputed.

index, costs = scheduled_graph(seed)        # seed % 4: hand-made nodes, training steps, programs, storages
check_order(index, order)
"""

from __future__ import annotations

import random

from commcc.graph.index import build_index
from commcc.timing.cost.types import Costs
from tests.index_maker import Shape, random_maker
from tests.memory_graphs import random_memory_program
from tests.oracle_graphs import training_graph
from tests.random_graphs import random_program

SHAPE = Shape(nodes=40, groups=("a", "b", "c"), depth=9, unwaited=0.1, order_edges=0.1)


def scheduled_graph(seed):
    """(index, costs) without slow-down of compute."""
    rng = random.Random(seed)
    if seed % 4 == 0:
        make = random_maker(seed, SHAPE)
        return make.index(), make.costs(rng.choice((0, 1, 2)), streams={"a": "link", "b": "link"} if seed % 8 else {})
    if seed % 4 == 1:
        return training_graph(rng.randrange(1 << 20))
    program = random_program(seed) if seed % 4 == 2 else random_memory_program(seed, 40)[0]
    index = build_index(program)
    return index, made_up_costs(index, rng)


def made_up_costs(index, rng):
    """Durations at random; inputs, output and waits take none."""
    none = {"placeholder", "get_attr", "output"}
    ns = [0 if op in none or i in index.wait_of else rng.choice((0, 1, 5, 20, 50)) for i, op in enumerate(index.ops)]
    for launch in index.launches:
        ns[launch] = rng.choice((0, 5, 20, 50, 90))
    launch_ns = rng.choice((0, 1, 2))
    return Costs("made", "0", (), tuple(ns), (-1,) * len(ns), {}, {}, launch_ns, 1000, {})


def check_order(index, order):
    """Every node once, each after what it needs, inputs where they were, output last."""
    count = len(index)
    assert sorted(order) == list(range(count))
    place = {node: at for at, node in enumerate(order)}
    for node in range(count):
        assert all(place[p] < place[node] for p in index.data_preds[node])
        assert all(place[p] < place[node] for p in index.order_preds[node])
    for wait, launch in index.wait_of.items():
        assert place[launch] < place[wait]
    assert [n for n in order if index.ops[n] == "placeholder"] == list(index.placeholders)
    first = next((i for i, op in enumerate(index.ops) if op != "placeholder"), count)
    assert list(order[:first]) == list(range(first))
    if count and index.ops[-1] == "output":
        assert order[-1] == count - 1
