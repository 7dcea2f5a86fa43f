"""Values behind ops that do not give the same twice; random numbers of another seed stand for atomic additions."""

from __future__ import annotations

from dataclasses import replace

import torch

from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.bench.steadiness import Sums, behind, varying
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.rank_run import RankRun
from tests.verify_graphs import Graph

aten = torch.ops.aten


def unsteady(graph, seeds=(1, 2)):
    """Nodes that vary and values behind them, when the two runs have these seeds."""
    given = make_set([graph], BenchSettings(ranks=2))
    (prepared,), inputs, runs = given.prepared, given.maker.of_rank(0), []
    for seed in seeds:
        sums = Sums()
        summed = replace(prepared, steps=tuple(map(sums.step, prepared.steps)))
        RankRun(summed, 0, seed, lambda *_: None)(own_inputs(prepared, inputs))
        runs.append(sums.taken())
    nodes = varying(*runs)
    return nodes, behind(prepared, nodes)


def test_what_depends_on_it_and_on_others_of_its_kind():
    g = Graph()
    x, w, kept = g.input("x", 8, 8), g.input("w", 8, 8), g.input("kept", 8, 8)
    product = g(aten.mm.default, x, w)
    noise = g(aten.rand_like.default, x)
    half = g(aten.mul.Tensor, noise, 0.0)  # steady by chance: 0 in both runs
    written = g(aten.copy_.default, kept, g(aten.add.Tensor, product, noise))
    view = g(aten.view.default, kept, [64])
    nodes, values = unsteady(g.program(product, half, g(aten.sum.default, view), x, written))
    assert nodes == {"rand_like_default"}
    assert values == {"output[1]", "output[2]", "output[4]", "input kept"}


def test_nothing_varies_with_the_same_numbers():
    g = Graph()
    x = g.input("x", 8)
    assert unsteady(g.program(g(aten.rand_like.default, x)), seeds=(1, 1)) == (set(), set())


def test_what_an_allocation_holds_is_no_result():
    g = Graph()
    x = g.input("x", 8)
    room = g(aten.new_empty.default, x, [8])
    into = g(aten.copy_.default, room, x)
    assert unsteady(g.program(into), seeds=(1, 2)) == (set(), set())
