"""Passes that move nodes, on graphs whose ops share memory without saying so, write, draw numbers and act.

Half of the graphs hold ops of another library that break their own schemas.
"""

from __future__ import annotations

import random

import pytest

from commcc.graph.index import build_index
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.alias_graphs import alias_program, executed, own
from tests.effort import examples
from tests.random_graphs import GraphBuilder, aten, shuffled
from tests.virtual_ranks import same

SEEDS = range(examples(60))


@pytest.mark.parametrize("seed", SEEDS)
def test_passes_keep_what_a_graph_computes_and_does(seed):
    program, model = alias_program(seed, lying=seed % 2 == 1), load_model("h100")
    results, log = executed(program, seed)
    for text in ("reorder", "bucket,reorder", "dedup,cleanup,reorder"):
        made = run(program, parse_pipeline(text), model=model).program
        others, did = executed(made, seed)
        assert same(results, others), text
        assert log == did, text


@pytest.mark.parametrize("seed", SEEDS)
def test_every_order_that_the_index_allows_is_as_good(seed):
    program = alias_program(seed, lying=seed % 2 == 1)
    results, log = executed(program, seed)
    for attempt in range(3):
        others, did = executed(shuffled(program, random.Random(attempt)), seed)
        assert same(results, others)
        assert log == did


def test_copies_that_are_written_apart_are_no_repeats():
    """Two copies of a parameter, each written in its own way: gathers of them are not the same."""
    b = GraphBuilder()
    p = b.placeholder("p", (2, 4))
    gathered = []
    for number in (1, 2):
        copy = b.call(aten.clone.default, p)
        b.call(aten.add_.Tensor, copy, number)
        gathered.append(b.gather(copy, 2, "0"))
    program = b.program(gathered, {"0": 2})
    assert not [node for node in build_index(program).repeats if node in build_index(program).launches]
    made = run(program, parse_pipeline("dedup")).program
    assert same(executed(program, 0)[0], executed(made, 0)[0])


def test_effects_of_unknown_libraries_stay():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    b.call(own.note.default, x)
    b.call(own.act.default, x)
    b.call(own.act.default, x)
    y = b.call(aten.neg.default, x)
    program = b.program([y], {})
    made = run(program, parse_pipeline("cleanup")).program
    assert executed(made, 0)[1] == executed(program, 0)[1]
    assert len(executed(made, 0)[1]) == 3 * 2  # on two ranks
