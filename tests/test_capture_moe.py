"""Whole training steps with expert parallelism: their exchanges, annotations, groups, recomputation, and values."""

from __future__ import annotations

import operator
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial

import pytest
import torch
import torch.nn.functional as F

from commcc.capture import CaptureOptions, Layout, TraceOptions, capture
from commcc.capture.models.deepseek import DEEPSEEK_16B, TINY_DEEPSEEK, DeepSeek
from commcc.capture.models.routed import ExpertGroup
from commcc.capture.recipes import STEP, deepseek_step
from commcc.graph.ops import collective_of, is_wait, op_name
from tests.step_graphs import described, on_cpu, rank_inputs, run_ranks, sample, world_size

NAMES = ("tiny_deepseek_ep2", "tiny_deepseek_fsdp4_ep2")
LAYERS = ("layers.1.moe", "layers.2.moe")
MARKS = ("EP_token_count_exchange", "EP_token_exchange")


@lru_cache
def step(name):
    return sample(name)


@lru_cache
def running(name, dtype=torch.float64):
    return on_cpu(step(name), dtype)


def custom(node):
    return node.meta.get("custom", {})


def exchanges(program):
    return [n for n in program.graph.nodes if op_name(n.target) == "_c10d_functional.all_to_all_single"]


def direction(node):
    return "backward" if node.meta.get("autograd_backward") else "forward"


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_exchanges_counts_rows_and_rows_back(name):
    found = {}
    for node in exchanges(step(name)):
        ((key, label),) = [(key, custom(node)[key]) for key in MARKS if key in custom(node)]
        assert custom(node)["EP"] == label
        found.setdefault((custom(node)["module_fqn"], direction(node)), []).append((key, label))
    forward = [(MARKS[0], "dispatch"), (MARKS[1], "dispatch"), (MARKS[1], "combine")]
    backward = [(MARKS[1], "combine"), (MARKS[1], "dispatch")]
    assert found == {
        (layer, way): marks for layer in LAYERS for way, marks in (("forward", forward), ("backward", backward))
    }


@pytest.mark.parametrize("name", NAMES)
def test_marks_are_on_launches_and_their_waits_alone(name):
    for node in step(name).graph.nodes:
        launch = node if node in exchanges(step(name)) else node.args[0] if is_wait(node.target) else None
        for key in MARKS:
            assert key not in custom(node) or op_name(launch.target) == "_c10d_functional.all_to_all_single", node
        if launch is not node or launch is None:
            continue
        (wait,) = launch.users
        assert {k: v for k, v in custom(wait).items() if k != "EP_token_count_sync"} == custom(launch)


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_told_on_all_of_the_experts_and_nowhere_else(name):
    for node in step(name).graph.nodes:
        path = custom(node).get("module_fqn", "")
        assert ("EP" in custom(node)) == (".moe" in path), node
        assert custom(node).get("EP", "compute") in ("compute", "dispatch", "combine")


@pytest.mark.parametrize("name", NAMES)
def test_counts_go_to_the_host_in_two_copies(name):
    program = step(name)
    order = {node: position for position, node in enumerate(program.graph.nodes)}
    for layer in LAYERS:
        sync = [n for n in order if custom(n).get("EP_token_count_sync") and custom(n)["module_fqn"] == layer]
        assert {custom(n)["EP_token_count_sync"] for n in sync} == {custom(n)["EP"] for n in sync} == {"dispatch"}
        assert is_wait(sync[0].target)
        copies = [n for n in sync if op_name(n.target) == "aten._to_copy"]
        items = [n for n in sync if op_name(n.target) == "aten._local_scalar_dense"]
        assert [(n.kwargs["device"], n.meta["val"].device, n.kwargs.get("non_blocking")) for n in copies] == [
            (torch.device("cpu"), torch.device("cpu"), True),
            (torch.device("cpu"), torch.device("cpu"), None),
        ]
        assert len(items) == 4  # two splits for each of two ranks
        dispatch = next(n for n in exchanges(program) if n in order and order[n] > order[sync[-1]])
        assert custom(dispatch)["EP_token_exchange"] == "dispatch"
        assert [*dispatch.args[1], *dispatch.args[2]] == [*items[2:], *items[:2]]
        assert max(order[n] for n in copies) < min(order[n] for n in items)
    host = [n for n in order if isinstance(v := n.meta.get("val"), torch.Tensor) and v.device.type == "cpu"]
    assert Counter(op_name(n.target) for n in host) == {"aten._to_copy": 4, "operator.getitem": 8}


@pytest.mark.parametrize("name", NAMES)
def test_rows_exchanged_are_known_only_at_run_time(name):
    for node in exchanges(step(name)):
        assert isinstance(node.meta["val"].shape[0], torch.SymInt) == ("EP_token_exchange" in custom(node))
        assert not isinstance(node.meta["val"].shape[-1], torch.SymInt)
        (_,) = node.users  # the wait: sizes are asked of what has arrived
    hints = {symbol: entry[2] for symbol, entry in step(name).header["symbols"].items()}
    assert hints == {f"u{i}": 60 for i in range(8)}  # an even share of 60 tokens that go to 2 experts each


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny_deepseek_ep2", {"dense": (0, 1), "experts": None, "rows": (0, 1)}),
        ("tiny_deepseek_fsdp4_ep2", {"dense": (0, 1, 2, 3), "experts": (0, 2), "rows": (0, 1)}),
    ],
)
def test_groups(name, expected):
    program = step(name)
    found = {"experts": None}
    for node in program.graph.nodes:
        fact = collective_of(node.target) if node.op == "call_function" else None
        if fact is None:
            continue
        what = "rows" if node in exchanges(program) else "dense"
        what = "experts" if what == "dense" and custom(node)["module_fqn"].endswith(".experts") else what
        ranks = program.groups[node.args[-1]].ranks
        assert found.setdefault(what, ranks) in (ranks, None)
        found[what] = ranks
    assert found == expected
    assert world_size(program) == len(expected["dense"])


@pytest.mark.parametrize("name", NAMES)
def test_backward_is_marked_and_follows_the_forward(name):
    called = [n for n in step(name).graph.nodes if n.op == "call_function"]
    ways = [direction(n) for n in called]
    assert ways == sorted(ways, reverse=True)
    # Sums of gradients that flow together belong to no module; nor does the detached loss.
    nameless = Counter(op_name(n.target) for n in called if "module_fqn" not in custom(n))
    assert nameless == {"aten.add": 28, "aten.detach": 1}
    assert all(n.meta.get("is_gradient_acc") for n in called if "module_fqn" not in custom(n) and n.name[:3] == "add")


@pytest.mark.parametrize("name", NAMES)
def test_recomputation_is_selective(name):
    nodes = {n.name: n for n in step(name).graph.nodes}
    again = [n for n in nodes.values() if n.name.endswith("_recomputed")]
    assert len(again) > 300
    for node in again:
        assert direction(node) == "backward"
        assert node.meta["recompute"].name in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE")
        assert op_name(node.target) not in (
            "aten.mm", "aten._grouped_mm", "aten.topk", "aten.sort", "aten._local_scalar_dense", "aten.add_",
            "_c10d_functional.all_to_all_single",
        )  # fmt: skip
        first = nodes.get(node.name.removesuffix("_recomputed"))
        assert first is None or custom(first) == custom(node)
    policies = {n.meta["recompute"].name for n in nodes.values() if "recompute" in n.meta}
    assert policies == {"MUST_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE"}
    gathers = Counter(direction(n) for n in nodes.values() if "all_gather" in op_name(n.target))
    # The embedding's weight is not needed by its gradient.
    assert gathers["backward"] == gathers["forward"] - 1


@pytest.mark.parametrize("name", NAMES)
def test_what_a_layer_hands_to_the_next_is_kept(name):
    layer = re.compile(r"layers\.(\d+)\.?")
    crossings = 0
    for node in step(name).graph.nodes:
        mine = layer.match(custom(node).get("module_fqn", ""))
        for source in node.all_input_nodes:
            its = layer.match(custom(source).get("module_fqn", ""))
            if mine and its and int(its[1]) < int(mine[1]) and direction(node) == "backward":
                assert not source.name.endswith("_recomputed"), (node, source)
                crossings += direction(source) == "forward"
    assert crossings >= 2


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_dead_but_counting(name):
    called = [n for n in step(name).graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    assert [op_name(n.target) for n in called if not n.users] == ["aten.add_", "aten.add_"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(1)
def test_two_runs_give_the_same_values(name):
    program = running(name)
    first, second = run_ranks(program), run_ranks(program)
    outputs = len(program.graph.output_node().args[0])
    for one, other in zip(first, second, strict=True):
        assert [a.dtype for a in one[:outputs]] == [torch.float64] * outputs
        assert all(torch.isfinite(a).all() for a in one[:outputs])
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_copy_to_the_host_is_not_there_before_one_blocks():
    program = on_cpu(step("tiny_deepseek_ep2"), torch.float64)
    first, second = [n for n in program.graph.nodes if "device" in n.kwargs and custom(n).get("EP_token_count_sync")][
        :2
    ]
    assert first.kwargs["non_blocking"]
    second.update_kwarg("non_blocking", True)
    with pytest.raises(RuntimeError, match="split"):
        run_ranks(program)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_each_expert_are_counted_in_place(name):
    program = running(name)
    rows = TINY_DEEPSEEK.batch * TINY_DEEPSEEK.sequence * TINY_DEEPSEEK.routed.top_k
    texts = described(program)
    for results in run_ranks(program):
        counters = [v for v, text in zip(results[-len(texts) :], texts, strict=True) if "tokens_per_expert" in text]
        assert [int(v.sum()) for v in counters] == [rows, rows]
        assert all(len(v.unique()) > 2 for v in counters)  # uneven


def plain(moe, rows):
    """What routed experts compute, without a way to go: every expert on every row."""
    weights, chosen = moe.router(rows, moe.expert_bias)
    total = moe.shared_experts(rows)
    for expert in range(moe.config.experts):
        weight = (weights * (chosen == expert)).sum(-1, keepdim=True)
        hidden = F.silu(rows @ moe.experts.w1[expert].T) * (rows @ moe.experts.w3[expert].T)
        total = total + weight * (hidden @ moe.experts.w2[expert].T)
    return total


def whole(program, shards, path):
    """A parameter from its shards; ranks count experts' shards first, then experts."""
    if ".experts." not in path:
        return torch.cat(shards)
    degree = next(len(group.ranks) for group in program.groups.values() if "ep" in group.description.split(", "))
    return torch.cat([torch.cat(shards[rank::degree]) for rank in range(degree)])


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_graph_computes_the_training_step(name):
    """Losses and gradients are those of one process with all experts and no collectives."""
    program = running(name, torch.float32)
    inputs = rank_inputs(program, 3)
    names = [text.split("'")[1] for text in described(program) if "'" in text]
    paths = [path.replace("parametrizations.", "").removesuffix(".original") for path in names]
    model = DeepSeek(TINY_DEEPSEEK, ExpertGroup(1, ""))
    for layer in model.layers.values():
        if not layer.dense:
            layer.moe.forward = partial(plain, layer.moe)
    parameters = dict(model.named_parameters())
    assert set(parameters) == set(paths[: len(parameters)])
    with torch.no_grad():
        for position, path in enumerate(paths):
            shards = [values[position] for values in inputs]
            if path in parameters:
                parameters[path].copy_(whole(program, shards, path))
            else:
                model.get_buffer(path).copy_(shards[0])
    losses = [model(*values[-2:]) for values in inputs]
    gradients = torch.autograd.grad(sum(losses) / len(inputs), [parameters[p] for p in paths[: len(parameters)]])

    results = run_ranks(program, inputs=inputs)
    for rank, loss in enumerate(losses):
        torch.testing.assert_close(results[rank][0], loss.detach(), rtol=1e-5, atol=1e-5)
    for position, gradient in enumerate(gradients):
        found = whole(program, [values[1 + position] for values in results], paths[position])
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.full
def test_recomputation_changes_no_value():
    layout = Layout((("ep", 2),))
    twice = capture(partial(deepseek_step, TINY_DEEPSEEK), layout, STEP)["step"]
    once = capture(
        partial(deepseek_step, TINY_DEEPSEEK), layout, replace(STEP, trace=TraceOptions(step=True, regather=False))
    )["step"]
    assert len(once.graph.nodes) < len(twice.graph.nodes)
    assert not any("recompute" in n.meta for n in once.graph.nodes)
    one, other = (run_ranks(on_cpu(program, torch.float64)) for program in (once, twice))
    for mine, its in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


@pytest.mark.full
def test_production_sizes():
    """Two layers of the big model as 64 ranks see it."""
    layout = Layout((("efsdp", 8), ("ep", 8)), (("dp_shard", ("efsdp", "ep")),))
    config = replace(DEEPSEEK_16B, layers=2)
    program = capture(partial(deepseek_step, config), layout, CaptureOptions(TraceOptions(step=True), plain=True))[
        "step"
    ]
    tokens = config.batch * config.sequence
    sent = [n.args[0].meta["val"] for n in exchanges(program)]
    assert [tuple(v.shape) for v in sent[:2]] == [(64,), (tokens * 6, 2048)]
    assert len(sent) == 5
    assert {program.groups[n.args[-1]].ranks for n in exchanges(program)} == {tuple(range(8))}
    assert sorted(len(group.ranks) for group in program.groups.values()) == [8, 8, 64]
    attention = [n for n in program.graph.nodes if "attention" in op_name(n.target)]
    assert [direction(n) for n in attention] == ["forward", "forward", "backward", "backward"]
    assert sum(op_name(n.target) == "aten._local_scalar_dense" for n in program.graph.nodes) == 16
    assert program.notes == ()
