"""Products that something is added to behind an exchange: Inductor would compute them there, and hide nothing."""

from __future__ import annotations

import pytest
import torch

from commcc.graph.program import ProcessGroup
from commcc.replay.compiled import inductor
from commcc.replay.compiled.calls import Recorder, match
from commcc.replay.compiled.inductor import CACHE_VARIABLE
from commcc.replay.compiled.whole_products import keep_whole, product_options
from tests.compiled_alone import compiled_alone
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TWO = {"0": ProcessGroup("0", 2, (0, 1))}


def shared_expert(behind: bool = True, add=aten.add.Tensor, product=aten.mm.default, shape=(8, 8)):
    """A product that is to hide an exchange, whose result is added to it; or computed behind the wait."""
    g = Graph()
    x, y, w = (g.input(name, *shape) for name in "xyw")
    launch = g(c10d.all_reduce.default, y, "sum", "0", name="launch")
    own = g(product, x, w, name="own") if behind else None
    routed = g(aten.relu.default, g(c10d.wait_tensor.default, launch, name="routed"))
    if own is None:
        own = g(product, x, w, name="own")
    return g.program(g(add, routed, own), groups=TWO)


def whole(program):
    return [node.name for node in keep_whole(program.graph)]


@pytest.mark.parametrize(("product", "shape"), [(aten.mm.default, (8, 8)), (aten.bmm.default, (2, 8, 8))])
def test_an_addition_behind_a_wait_gets_the_product_through_a_view(product, shape):
    program = shared_expert(product=product, shape=shape)
    assert whole(program) == ["own"]
    (view,) = program.graph.find_nodes(op="call_function", target=aten.permute.default)
    assert view.args[0].name == "own" and view.args[1] == list(range(len(shape)))
    assert view.meta["val"].shape == shape and view.meta["val"].is_contiguous()
    assert whole(program) == [], "once is enough"


def test_other_products_stay():
    assert whole(shared_expert(behind=False)) == []
    assert whole(shared_expert(add=aten.mul.Tensor)) == []


def test_the_hook_is_shared_with_the_job():
    import torch._inductor.config as config

    (name,) = product_options()
    assert inductor.kept_options()[name] is product_options()[name]
    with config.patch({name: print}):
        assert inductor.kept_options()[name] is not print


@pytest.mark.full
@pytest.mark.parametrize("kept", [True, False])
def test_compiled_code_multiplies_where_the_graph_does(kept, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    if not kept:
        monkeypatch.setattr(inductor, "product_options", dict)
    with compiled_alone(shared_expert(), {name: torch.ones(8, 8) for name in "xyw"}) as (prepared, compiled):
        with Recorder(lambda _op, tensor, *_: tensor, lambda *_: None) as seen:
            (result,) = compiled({name: torch.ones(8, 8) for name in "xyw"})
        assert torch.equal(result, torch.full((8, 8), 9.0))
        order = match(prepared, seen.calls).kept
        assert order.whole == 1 and bool(order.moved) is not kept
