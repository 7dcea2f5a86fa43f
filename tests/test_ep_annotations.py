"""What annotations say: both places, wrong values, and the backward pass where nobody marked it."""

from __future__ import annotations

import pytest

from commcc.base.errors import InputError
from commcc.graph.annotations import Mark, annotations_of, backward_nodes, marked
from commcc.graph.index import build_index
from tests.step_graphs import sample


def of(program):
    return annotations_of(program, build_index(program))


def named(program, name):
    return next(node for node in program.graph.nodes if node.name == name)


def test_a_sample_is_read():
    program = sample("tiny_deepseek_ep2")
    names = [node.name for node in program.graph.nodes]
    found = of(program)
    launch = found[names.index("all_to_all_single_1")]
    assert (launch.module, launch.part, launch.exchange) == ("layers.1.moe", "dispatch", "dispatch")
    assert not launch.backward and launch.region is None and launch.chunk is None
    assert found[names.index("all_to_all_single")].count_exchange
    assert found[names.index("_to_copy_46")].count_sync
    assert found[names.index("silu_backward")].backward


@pytest.mark.parametrize("top", [True, False])
def test_both_places_are_read(top: bool):
    program = sample("tiny_deepseek_ep2")
    node = named(program, "silu_2")
    keys = {"chunked_region_fqn": "layers.1.moe", "chunked_region_role": "body", "chunk_id": 2}
    node.meta = {**node.meta, **keys} if top else {**node.meta, "custom": {**node.meta["custom"], **keys}}
    found = next(each for each in of(program) if each.role)
    assert (found.region, found.role, found.chunk, found.producer) == ("layers.1.moe", "body", 2, "graph")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("EP", "compte", r"node 'silu_2': annotation 'EP' is 'compte': .*did you mean 'compute'"),
        ("EP_token_exchange", 3, r"'EP_token_exchange' is 3: a name is needed"),
        ("chunk_id", -1, "a number from 0 to"),
        ("chunk_id", True, "a number from 0 to"),
        ("chunk_id", 10**9, "a number from 0 to"),
        ("chunked_region_fqn", "", "it is empty"),
        ("chunked_region_fqn", "layers.1.moe.routed_experts.inner_expert...", "was cut"),
        ("chunked_region_is_backward", 1, "True or False"),
        ("chunked_region_producer", ["graph"], "a name is needed"),
        ("autograd_backward", "yes", "True or False"),
    ],
)
@pytest.mark.sampled(4)
def test_wrong_values_name_the_node(key: str, value: object, message: str):
    program = sample("tiny_deepseek_ep2")
    node = named(program, "silu_2")
    node.meta = {**node.meta, "custom": {**node.meta["custom"], key: value}}
    with pytest.raises(InputError, match=message):
        of(program)


def test_backward_is_inferred():
    """Only nodes without users are told otherwise than by PyTorch's own marks."""
    program = sample("tiny_deepseek_ep2")
    index = build_index(program)
    told = backward_nodes(program, index)
    for node in program.graph.nodes:
        node.meta.pop("autograd_backward", None)
    inferred = backward_nodes(program, index)
    assert {index.names[i] for i in told ^ inferred} == {"detach_14", "detach_15", "getitem_39"}


def test_marks_are_read_back():
    program = sample("tiny_deepseek_ep2")
    body, boundary = named(program, "silu_2"), named(program, "add_10")
    body.meta = marked(body.meta, Mark("layers.1.moe", "body", backward=True, chunk=1, original="silu_2"))
    boundary.meta = marked(boundary.meta, Mark("layers.1.moe", "materialization", backward=False, proof="why"))
    found = {node.name: each for node, each in zip(program.graph.nodes, of(program), strict=True)}
    assert found["silu_2"].module == "layers.1.moe.shared_experts"
    assert (found["silu_2"].chunk, found["silu_2"].backward, found["silu_2"].original) == (1, True, "silu_2")
    assert (found["add_10"].module, found["add_10"].role, found["add_10"].backward) == (
        "layers.1",
        "materialization",
        False,
    )
    for node in (body, boundary):
        node.meta = {key: value for key, value in node.meta.items() if not key.startswith("chunk")}
    again = {node.name: each for node, each in zip(program.graph.nodes, of(program), strict=True)}
    assert again["silu_2"] == found["silu_2"] and again["add_10"] == found["add_10"]
