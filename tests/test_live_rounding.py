"""What may round differently is said before a graph runs, and nothing that does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from commcc.graph.index import build_index
from commcc.graph.program import ProcessGroup
from commcc.live.rounding import rounding_of
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from tests.verify_graphs import Graph, aten


def rewritten(make, ranks=4, pipeline="bucket{groups=all}"):
    g = Graph()
    groups = {"0": ProcessGroup("0", ranks, tuple(range(ranks)))}
    return run(g.program(*make(g), groups=groups), parse_pipeline(pipeline))


def reduced(g, dtype=torch.float32):
    """Two sums that are merged, and a product beside them."""
    x, y = g.input("x", 4, 4, dtype=dtype), g.input("y", 4, 4, dtype=dtype)
    return g.reduce(x), g.reduce(y), g(aten.mm.default, g.input("a", 4, 4), g.input("b", 4, 4), name="product")


def gathered(g):
    """Two gathers that are merged; one is added to something, the other only multiplied."""
    p, q = g.gather(g.input("x", 4, 16)), g.gather(g.input("y", 4, 16))
    sines = g(aten.sin.default, p, name="sines")
    return sines, g(aten.mm.default, q, g.input("w", 16, 4), name="product"), g(aten.mm.default, sines, sines)


def test_a_sum_of_merged_parts_is_named():
    known = rounding_of(rewritten(reduced), fused=False)
    assert known.results == ("wait_tensor_default", "wait_tensor_default_1") and known.of == 3
    merged = "all_reduce_bucket_0 (all_reduce of [32], merged from all_reduce_default, all_reduce_default_1)"
    assert known.text == f"2 of 3 results may round differently: {merged} adds up other parts"
    assert known.within == 1e-5 and known.to_json()["sums"] == list(known.sums)


@pytest.mark.parametrize(("ranks", "dtype"), [(2, torch.float32), (4, torch.int64)])
def test_what_has_one_order_only_is_not(ranks, dtype):
    result = rewritten(lambda g: reduced(g, dtype), ranks)
    assert result.changed
    known = rounding_of(result, fused=False)
    assert (known.results, known.sums, known.within) == ((), (), None) and known.text == "sums keep their order"


def test_inductor_fuses_what_is_no_product():
    result = rewritten(gathered)
    assert result.changed and not rounding_of(result, fused=False).results
    known = rounding_of(result, fused=True)
    assert known.results == ("sines", "mm_default") and known.of == 3
    assert known.text == "2 of 3 results may round differently: Inductor fuses other ops"


def test_an_input_that_is_written_is_a_result():
    def ends(merged):
        g = Graph()
        x, y, total = (g.input(name, 4) for name in ("x", "y", "total"))
        first, second = g.merged_reduce([x, y]) if merged else (g.reduce(x), g.reduce(y))
        g(aten.copy_.default, total, first, name="into")
        return SimpleNamespace(index=build_index(g.program(second)))

    result = SimpleNamespace(changed=True, first=ends(False), last=ends(True))
    assert rounding_of(result, fused=False).results == ("into", "wait_tensor_default_1")


def test_a_graph_that_stays_rounds_as_ever():
    assert rounding_of(rewritten(reduced, pipeline="dedup"), fused=True) is None
