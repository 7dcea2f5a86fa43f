"""Capturing: what the graphs hold, that they compute the training step, and that nothing is left behind."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from commcc.base.errors import OptionError
from commcc.capture import CaptureOptions, Layout, Placing, Precision, Step, TraceOptions, capture, fake_world
from commcc.capture.capturing import portable_trace
from commcc.capture.models.llama import TINY_LLAMA, Llama
from commcc.capture.recipes import RECIPES
from commcc.graph.ops import collective_of
from tests.fx_text_corpus import encode_meta
from tests.virtual_ranks import VirtualRanks

ONE_LAYER = replace(TINY_LLAMA, layers=1)
SHARDED = Layout((("dp_shard", 2),))
WEIGHTS = 12  # embedding, 9 in the layer, norm, output


def build(_world):
    tokens = torch.zeros(ONE_LAYER.batch, ONE_LAYER.sequence, dtype=torch.int64)
    return Step(Llama(ONE_LAYER), (tokens, tokens.clone()), lambda _: Placing(("dp_shard",)))


@lru_cache(maxsize=4)
def captured(**options):
    return capture(build, SHARDED, CaptureOptions(**options))


def launches(program, kind):
    found = [n for n in program.graph.nodes if n.op == "call_function" and collective_of(n.target) is not None]
    return [n for n in found if collective_of(n.target).kind == kind]


@pytest.mark.full
def test_forward_gathers_every_parameter_in_compute_precision():
    gathers = launches(captured()["forward"], "all_gather")
    assert len(gathers) == WEIGHTS
    assert {n.args[0].meta["val"].dtype for n in gathers} == {torch.bfloat16}
    assert all(n.args[0].all_input_nodes[0].op == "placeholder" for n in gathers)


def test_backward_gathers_again_and_reduces_in_float32():
    backward = captured()["backward"]
    # The embedding's weight is not needed by its gradient.
    assert len(launches(backward, "all_gather")) == WEIGHTS - 1
    scatters = launches(backward, "reduce_scatter")
    assert len(scatters) == WEIGHTS
    assert {(n.args[0].meta["val"].dtype, n.args[1]) for n in scatters} == {(torch.float32, "avg")}


@pytest.mark.full
def test_plain_shards_are_reduced_alike():
    joint = captured(trace=TraceOptions(joint=True, decompose=False), plain=True)["joint"]
    sent = {(n.args[0].meta["val"].dtype, *n.args[1:]) for n in launches(joint, "reduce_scatter")}
    assert sent == {(torch.float32, "avg", 2, "0")}


@pytest.mark.full
def test_copies_are_reduced_before_shards():
    """HSDP: one all-reduce and one reduce-scatter for each gradient, whichever way shards are written."""

    def doubled(world):
        return replace(build(world), place=lambda _: Placing(("dp_shard",), ("dp_replicate",)))

    layout = Layout((("dp_replicate", 2), ("dp_shard", 2)))
    for plain in (False, True):
        backward = capture(doubled, layout, CaptureOptions(plain=plain))["backward"]
        scatters = launches(backward, "reduce_scatter")
        assert len(scatters) == len(launches(backward, "all_reduce")) == WEIGHTS
        sources = [n.args[0].args[0] for n in scatters]
        assert {str(source.target) for source in sources} == {"_c10d_functional.all_reduce.default"}


@pytest.mark.full
def test_without_regather_the_forward_keeps_what_it_gathered():
    backward = captured(trace=TraceOptions(regather=False))["backward"]
    assert launches(backward, "all_gather") == []


def test_groups_and_mesh_are_known():
    program = captured()["forward"]
    assert {name: (g.size, g.ranks, g.description) for name, g in program.groups.items()} == {
        "0": (2, (0, 1), "dp_shard")
    }
    assert program.header["mesh"] == {
        "shape": [2],
        "dims": ["dp_shard"],
        "joined": {},
        "group_names": {"dp_shard": "0"},
    }


@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_devices_read_cuda(graph):
    for node in captured()[graph].graph.nodes:
        val = node.meta.get("val")
        assert not isinstance(val, torch.Tensor) or str(val.device) == "cuda:0", node
        assert "cpu" not in str((node.args, node.kwargs)), node


@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_metadata_is_portable(graph):
    for node in captured()[graph].graph.nodes:
        assert isinstance(
            node.meta.get("recompute", CheckpointPolicy.MUST_SAVE), CheckpointPolicy
        )  # files hold its name
        text = json.dumps({k: value for k, value in node.meta.items() if k not in ("val", "recompute")}, sort_keys=True)
        assert json.loads(json.dumps(encode_meta(node))) == encode_meta(node)
        assert "object at 0x" not in text, node
        assert 'File "/' not in text.replace("\\", ""), node


def test_collectives_know_their_module():
    for graph, key in (("forward", "nn_module_stack"), ("backward", "fwd_nn_module_stack")):
        for node in launches(captured()[graph], "all_gather" if graph == "forward" else "reduce_scatter"):
            assert "parametrizations" in list(node.meta[key])[-1], node


def test_descriptors_name_parameters():
    joint = captured(trace=TraceOptions(joint=True, decompose=False), plain=True)["joint"]
    inputs = [n.meta["desc"] for n in joint.graph.find_nodes(op="placeholder")]
    assert inputs[0] == "ParamAOTInput(target='tok_embeddings.parametrizations.weight.original')"
    outputs = joint.graph.output_node().meta["desc"]
    assert len(outputs) == len(joint.graph.output_node().args[0])
    assert outputs[1] == f"GradAOTOutput(grad_of={inputs[0]})"


@pytest.mark.full
def test_annotation_names_the_innermost_module():
    forward = captured(annotate=True)["forward"]
    paths = Counter(n.meta.get("custom", {}).get("module_fqn") for n in launches(forward, "all_gather"))
    assert paths["layers.0.attention.wq"] == 1
    assert None not in paths


@pytest.mark.full
def test_two_captures_are_equal():
    first, second = (capture(build, SHARDED)["backward"] for _ in range(2))
    for one, other in zip(first.graph.nodes, second.graph.nodes, strict=True):
        assert (one.name, one.op, one.target, str(one.args)) == (other.name, other.op, other.target, str(other.args))
        assert encode_meta(one) == encode_meta(other)


@pytest.mark.full
def test_joint_graph_computes_the_training_step():
    """Two virtual ranks with half the weights each give the loss and gradients of the plain model."""
    options = CaptureOptions(
        TraceOptions(joint=True, decompose=False), Precision(torch.float32), plain=True, device="cpu"
    )
    joint = capture(build, SHARDED, options)["joint"]
    torch.manual_seed(0)
    model = Llama(ONE_LAYER)
    nn.init.normal_(model.tok_embeddings.weight)
    weights = list(model.parameters())
    tokens = [torch.randint(0, ONE_LAYER.vocabulary, (2, ONE_LAYER.batch, ONE_LAYER.sequence)) for _ in range(2)]

    paths = [n.meta["desc"].split("'")[1] for n in joint.graph.find_nodes(op="placeholder")[: len(weights)]]
    named = {p.replace(".", ".parametrizations.", 0): w for p, w in model.named_parameters()}
    ordered = [named[path.replace(".parametrizations", "").removesuffix(".original")] for path in paths]
    rank_inputs = [
        [*(w.detach().chunk(2)[rank] for w in ordered), model.freqs_cis, *tokens[rank], torch.ones(())]
        for rank in range(2)
    ]
    results = VirtualRanks(joint.graph, rank_inputs).run()

    losses = [model(*tokens[rank]) for rank in range(2)]
    gradients = torch.autograd.grad(sum(losses) / 2, ordered)
    for rank in range(2):
        torch.testing.assert_close(results[rank][0], losses[rank].detach())
        for position, whole in enumerate(gradients):
            torch.testing.assert_close(results[rank][1 + position], whole.chunk(2)[rank], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_capture_leaves_nothing_behind():
    hook, default = sys.excepthook, torch.get_default_dtype()
    capture(build, SHARDED, CaptureOptions(TraceOptions(joint=True)))
    assert not dist.is_initialized()
    assert sys.excepthook is hook
    assert torch.get_default_dtype() is default
    assert torch.ones(2).add(1).tolist() == [2.0, 2.0]


def test_a_process_with_a_group_cannot_capture():
    with (
        fake_world(SHARDED),
        pytest.raises(OptionError, match="has a process group; capture in a process of its own"),
        fake_world(SHARDED),
    ):
        pass


def test_parameters_that_do_not_divide_are_all_named():
    def uneven(_world):
        module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4))
        return Step(module, (torch.zeros(1, 4),), lambda _: Placing(("dp_shard",)))

    with pytest.raises(OptionError, match=r"0\.weight has 5 rows for 2 shards, 0\.bias has 5 rows"):
        capture(uneven, SHARDED)


def test_layout_sizes():
    layout = Layout((("efsdp", 2), ("ep", 4)), (("dp_shard", ("efsdp", "ep")),))
    assert layout.world_size == 8
    assert [layout.size(axis) for axis in ("efsdp", "ep", "dp_shard", "tp")] == [2, 4, 8, 1]
    with fake_world(layout) as world:
        ranks = {group.description: group.ranks for group in world.groups().values()}
    assert ranks == {"efsdp": (0, 4), "ep": (0, 1, 2, 3), "dp_shard": (0, 1, 2, 3, 4, 5, 6, 7)}


def test_portable_trace_has_no_machine_in_it():
    text = (
        '  File "/home/x/venv/lib/python3.12/site-packages/torch/nn/a.py", line 1, in f\n    y = g(x)\n        ^^~~^^\n'
        '  File "/src/commcc/commcc/capture/models/llama.py", line 2, in g\n    z\n'
        '  File "/tmp/train.py", line 3, in main\n    g()'
    )
    assert portable_trace(text).splitlines() == [
        '  File "torch/nn/a.py", line 1, in f',
        "    y = g(x)",
        '  File "commcc/capture/models/llama.py", line 2, in g',
        "    z",
        '  File "train.py", line 3, in main',
        "    g()",
    ]


def test_recipes_have_unique_files():
    files = [name for recipe in RECIPES for name in recipe.files]
    assert len(files) == len(set(files))
