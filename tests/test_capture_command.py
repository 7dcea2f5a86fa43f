"""``commcc capture``: graphs of models as users write them, equal to those that a training job compiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import commcc
from commcc.base.errors import InputError, OptionError
from commcc.base.terms import Kind
from commcc.capture import worker
from commcc.capture.request import Request, read_mesh
from commcc.capture.request import capture as capture_in_a_process
from commcc.capture.user_function import explained
from commcc.capture.world import Layout, fake_world
from commcc.cli.main import run
from commcc.graph.index import build_index
from commcc.graph.index.modules import module_path
from commcc.graph.ops import argument, collective_of, is_compute
from commcc.graph.program import all_graphs
from commcc.graph.structure import renamed, structure_of
from commcc.live import backends, plans
from commcc.live.agreement import digest_of
from commcc.live.rewriting import graph_pass
from commcc.serialization import load
from tests import captured_models

MODELS = Path(captured_models.__file__)


def request(name, mesh, folder, **more):
    fields = {"level": "aot", "graphs": ("joint", "forward", "backward"), "inputs": (), "device": "cuda:0"}
    fields |= {"extension": ".fx.txt", "attention": "flash", "debug": False} | more
    return {"target": f"{MODELS}:{name}", "mesh": read_mesh(mesh), "output": str(folder), **fields}


def captured(name, mesh, folder, **more):
    """Programs by graph, captured in this process."""
    torch._dynamo.reset()
    answer = worker.capture(request(name, mesh, folder, **more))
    return {each["graph"]: load(each["file"]) for each in answer["files"]}


def launches(program, group=None):
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    facts = [(collective_of(node.target), node) for node in nodes]
    return Counter(fact.kind.value for fact, node in facts if fact and group in (None, *node.args))


def test_fsdp2_with_tensor_parallelism(tmp_path, capsys):
    """In a process of its own, by the command."""
    out = tmp_path / "graphs"
    assert run(["capture", f"{MODELS}:fsdp2", "--mesh", "dp=4,tp=2", "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["mesh"] == {"dp": 4, "tp": 2}
    files = {each["graph"]: each for each in document["files"]}
    assert [Path(each["file"]).name for each in document["files"]] == [
        f"fsdp2_{kind}.fx.txt.gz" for kind in ("joint", "fw", "bw")
    ]
    forward, backward = load(files["forward"]["file"]), load(files["backward"]["file"])
    data, tensor = (name for name, _ in sorted(forward.groups.items(), key=lambda item: item[1].description))
    assert [forward.groups[name].ranks for name in (data, tensor)] == [(0, 2, 4, 6), (0, 1)]
    assert forward.header["mesh"]["group_names"] == {"dp": data, "tp": tensor}
    assert forward.header["level"] == "aot-inductor"
    assert launches(forward, data) == {"all_gather": 10}
    assert launches(forward, tensor) == {"all_reduce": 2}
    # Of the blocks' weights, those that gradients of activations need; the root's parameters are kept.
    assert launches(backward, data) == {"all_gather": 3, "reduce_scatter": 10}
    assert launches(backward, tensor) == {"all_reduce": 1}
    saved = [node for node in forward.graph.output_node().args[0] if node.meta.get("val") is None]
    given = [node for node in backward.graph.find_nodes(op="placeholder") if node.meta.get("val") is None]
    assert len(saved) == len(given) <= 1  # of one mesh, which every parameter brings; PyTorch 2.11 saves none
    gathers = [node for node in forward.graph.nodes if "all_gather" in str(node.target)]
    assert {node.meta["val"].dtype for node in gathers} == {torch.bfloat16}
    assert module_path(gathers[0].meta) == "layers.0.up"
    assert {node.meta["val"].device for node in gathers} == {torch.device("cuda:0")}
    described = [str(node.meta.get("desc")) for node in forward.graph.nodes if node.op == "placeholder"]
    assert any("layers.0.up" in text for text in described)
    scatters = [node for node in backward.graph.nodes if "reduce_scatter" in str(node.target)]
    assert {node.meta["val"].dtype for node in scatters} == {torch.float32}


def test_meshes_that_the_function_builds(tmp_path):
    programs = captured("mesh_of_its_own", "dp=2,tp=2", tmp_path, graphs=("forward",))
    assert launches(programs["forward"]) == {"all_gather": 10}
    assert [group.ranks for group in programs["forward"].groups.values()] == [(0, 1, 2, 3)]


def test_a_weight_of_several_places(tmp_path):
    programs = captured("shared", "dp=4", tmp_path, graphs=("forward", "backward"))
    assert launches(programs["backward"])["reduce_scatter"] == 2
    inputs = programs["forward"].graph.find_nodes(op="placeholder")
    weights = [node for node in inputs if "weight" in str(node.meta.get("desc")) and node.meta["val"] is not None]
    assert len(weights) == 1


@pytest.mark.parametrize("graph", ["backward", "step"])
@pytest.mark.parametrize(
    ("name", "reductions"),
    [
        ("tied", {"reduce_scatter": 2}),
        ("tied_copies", {"all_reduce": 2}),
        ("tied_fsdp2", {"reduce_scatter": 2}),
        ("tied_ddp", {"all_reduce": 2}),
    ],
)
def test_gradients_of_tied_weights_are_added_up_before_they_are_reduced(name, reductions, graph, tmp_path):
    found = launches(captured(name, "dp=2", tmp_path, graphs=(graph,))[graph])
    assert {kind: count for kind, count in found.items() if kind != "all_gather"} == reductions


def test_an_autocast_that_is_off_in_a_whole_step(tmp_path):
    with pytest.raises(InputError, match=r"captured_models.py:\d+: .*CUDA is not available.*Disabling"):
        captured("autocast", "dp=2", tmp_path, graphs=("step",))


def test_an_autocast_of_the_device_that_is_here(tmp_path):
    """In the graph, or for another device refused; also without Dynamo."""
    programs = captured("autocast_here", "dp=2", tmp_path, graphs=("forward", "step"), device="cpu")
    for kind in ("forward", "step"):
        dtypes = [node.meta["val"].dtype for node in programs[kind].graph.nodes if "addmm" in str(node.target)]
        assert dtypes == [torch.float32, torch.bfloat16], kind
    with pytest.raises(InputError, match=r"captured_models.py:\d+: torch.autocast\('cpu'\), .* casts other"):
        captured("autocast_here", "dp=2", tmp_path, graphs=("step",))


def test_shards(tmp_path):
    programs = captured("shard", "dp=4", tmp_path, graphs=("forward", "backward"))
    assert launches(programs["forward"]) == {"all_gather": 10}
    assert launches(programs["backward"]) == {"all_gather": 3, "reduce_scatter": 10}
    # 10 rows over 4 ranks: shards of 3, and what is gathered is cut.
    shapes = {tuple(n.meta["val"].shape) for n in programs["forward"].graph.nodes if "all_gather" in str(n.target)}
    assert {(12, WIDTH), (12,)} < shapes
    assert next(iter(programs["forward"].groups.values())).ranks == (0, 1, 2, 3)


WIDTH = captured_models.WIDTH


@pytest.mark.full
@pytest.mark.parametrize(
    ("kernel", "device", "names"),
    [
        ("flash", "cuda:0", ("flash_attention", "flash_attention_for_cpu")),
        ("cudnn", "cuda:0", ("cudnn_attention", "flash_attention_for_cpu")),
        ("efficient", "cuda:0", ("efficient_attention", "flash_attention_for_cpu")),
        ("flash", "cpu", ("flash_attention_for_cpu",)),
    ],
)
def test_attention_is_that_of_the_device_of_the_job(kernel, device, names, tmp_path):
    """With a mask it is that of the CPU."""
    two = {"graphs": ("forward", "backward"), "attention": kernel, "device": device}
    answer = capture_in_a_process(Request(f"{MODELS}:attention", (("dp", 2),), str(tmp_path), **two))
    programs = {each["graph"]: load(each["file"]) for each in answer["files"]}
    for kind, end in (("forward", ""), ("backward", "_backward")):
        targets = {str(node.target) for node in programs[kind].graph.nodes if "scaled_dot_product" in str(node.target)}
        assert targets == {f"aten._scaled_dot_product_{name}{end}.default" for name in names}
    kernels = [n for n in programs["forward"].graph.nodes if "flash_attention.default" in str(n.target)]
    # As PyTorch calls it on a GPU.
    assert all(node.args[3:] == (0.0, True) and node.kwargs == {"scale": 8**-0.5} for node in kernels)


def test_flex_attention_is_that_of_a_gpu(tmp_path):
    """Whose kernel has a backward, and keeps for it what that of a CPU does not."""
    programs = captured("any_attention", "dp=2", tmp_path)
    for kind, op in (("forward", "flex_attention"), ("backward", "flex_attention_backward")):
        calls = [node for node in programs[kind].graph.nodes if str(node.target) == op]
        (options,) = [each for node in calls for each in node.args if isinstance(each, dict)]
        assert options["OUTPUT_LOGSUMEXP"] is True
    assert launches(programs["backward"])["reduce_scatter"] == 2


@pytest.mark.parametrize("level", ["aot-inductor", "aot", "post-grad"])
def test_regions_that_are_compiled_once(level, tmp_path):
    """Graphs are whole ones, with what regions launch, and say nothing of this machine."""
    torch._dynamo.reset()
    answer = worker.capture(request("regions", "tp=2", tmp_path, level=level))
    assert [(each["graph"], each["collectives"]) for each in answer["files"]] == [
        ("joint", {"all_reduce": 2}),
        ("forward", {"all_reduce": 1}),
        ("backward", {"all_reduce": 1}),
    ]
    for each in answer["files"]:
        program = load(each["file"])
        nodes = [node for graph in all_graphs(program.graph, program.root) for node in graph.nodes]
        assert sum(str(node.target) == "invoke_subgraph" for node in nodes) >= 3
        tensors = [value for node in nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
        assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
        assert 'File \\"/' not in Path(each["file"]).read_text()


def test_plans_for_graphs_with_regions(tmp_path):
    """In the job the groups of what regions launch have other names."""
    forward = captured("regions", "tp=2", tmp_path)["forward"]
    plan = tmp_path / "forward.yaml"
    out = ("-o", str(tmp_path / "out.fx.txt"), "--plan-out", str(plan))
    assert run(["run", str(tmp_path / "regions_fw.fx.txt"), "--passes", "reorder", "-q", *out]) == 0
    assert {group.ranks for group in forward.groups.values()} == {(0, 1)}
    (group,) = forward.groups
    job = renamed(forward, {}, {group: "12"})
    assert structure_of(job).fingerprint == structure_of(forward).fingerprint
    applied = plans.apply(plans.read_folder(plan).of(job), job).program
    for program, name in ((forward, group), (job, "12"), (applied, "12")):
        nodes = [node for graph in all_graphs(program.graph, program.root) for node in graph.nodes]
        assert {argument(node, "group_name") for node in nodes if collective_of(node.target)} == {name}


def test_notes_name_what_graphs_do_not_show(tmp_path):
    torch._dynamo.reset()
    notes = worker.capture(request("told_more", "dp=2", tmp_path))["notes"]
    assert notes[:3] == [
        "register_comm_hook is left out: gradients are averaged as they are",
        "set_gradient_divide_factor, set_requires_gradient_sync: left out; "
        "gradients are averaged over all ranks, once for each parameter",
        "parameters with an fsdp_pre_all_gather of their own are gathered as they are, in another dtype",
    ]


@pytest.mark.full
def test_a_model_that_is_not_traced_is_noted(tmp_path):
    """As PyTorch 2.13 does not trace nn.GRU."""
    torch._dynamo.reset()
    answer = worker.capture(request("recurrent", "dp=2", tmp_path))
    graphs = [load(each["file"]).graph for each in answer["files"]]
    products = any(is_compute(node.target) for graph in graphs for node in graph.nodes)
    noted = any("Dynamo has traced some of what the model calls, but not the model" in n for n in answer["notes"])
    assert noted != products


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "mesh", "forward", "backward"),
    [
        ("tp", "tp=4", {"all_reduce": 2}, {"all_reduce": 1}),
        ("hsdp", "replicate=2,shard=4", {"all_gather": 10}, {"all_gather": 4, "all_reduce": 10, "reduce_scatter": 10}),
        ("ddp", "dp=4", {}, {"all_reduce": 10}),
        ("replicated", "dp=4", {}, {"all_reduce": 10}),
        ("fsdp2", "dp=4", {"all_gather": 10}, {"all_gather": 3, "reduce_scatter": 10}),
        ("step", "dp=4", {"all_gather": 10}, {"all_gather": 3, "reduce_scatter": 10}),
    ],
)
def test_models(name, mesh, forward, backward, tmp_path):
    programs = captured(name, mesh, tmp_path)
    assert launches(programs["forward"]) == forward
    assert launches(programs["backward"]) == backward


@pytest.mark.parametrize("whole", [False, True])
def test_graphs_that_compute_belong_to_a_step(whole, tmp_path):
    """One that communicates behind its backward is cut there, unless Dynamo is told to go on."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=whole):
        answer = worker.capture(request("step_that_reduces", "dp=2", tmp_path, graphs=("forward", "backward")))
    kinds = [(file["graph"], file["piece"], file["collectives"]) for file in answer["files"]]
    reduced = {"all_reduce": 10}
    apart = [("forward", 0, {}), ("backward", 0, {}), ("inference", 1, reduced)]
    assert kinds == ([("inference", 0, reduced)] if whole else apart)
    assert any("in 2 pieces" in note for note in answer["notes"]) != whole


def test_models_that_read_numbers_while_they_are_built(tmp_path):
    """Their numbers are constants of the graph, buffers stay inputs."""
    program = captured("drawn", "dp=2", tmp_path, graphs=("step",))["step"]
    assert launches(program) == {"all_gather": 2, "reduce_scatter": 2}
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    assert any(getattr(value, "dtype", None) == torch.int64 for value in values)
    scaled = [node.args[1] for node in program.graph.nodes if str(node.target) == "aten.mul.Tensor"]
    assert 0.25 in scaled


def test_integers_are_counted_as_on_a_gpu(tmp_path):
    program = captured("histogram", "dp=2", tmp_path, graphs=("joint",))["joint"]
    (count,) = (node for node in program.graph.nodes if "histc" in str(node.target))
    value = count.meta["val"]
    assert (value.dtype, tuple(value.shape)) == (torch.int64, (8,))
    FakeTensorMode.cache_clear()
    with pytest.raises(InputError, match=r"\"histogram_cpu\" not implemented for 'torch.int64'$"):
        captured("histogram", "dp=2", tmp_path, device="cpu")


def test_copies_reduce_what_was_scattered(tmp_path):
    """As ``fully_shard`` does; DTensor by itself would all-reduce whole gradients first."""
    index = build_index(captured("hsdp", "replicate=2,shard=4", tmp_path)["backward"])
    launches = index.launches.values()
    scattered, whole, reduced = (
        sorted(index.tensors[node].shape for facts in launches if facts.kind is kind for node in getattr(facts, which))
        for kind, which in (
            (Kind.REDUCE_SCATTER, "waits"),
            (Kind.REDUCE_SCATTER, "inputs"),
            (Kind.ALL_REDUCE, "inputs"),
        )
    )
    assert scattered == reduced != whole


@pytest.mark.parametrize(
    ("name", "mesh", "expected"),
    [
        ("fsdp2_by_position", "dp=4,tp=2", {"all_gather": 13, "all_reduce": 3, "reduce_scatter": 10}),
        pytest.param("shard", "dp=4", {"all_gather": 13, "reduce_scatter": 10}, marks=pytest.mark.full),
        pytest.param("ddp", "dp=4", {"all_reduce": 10}, marks=pytest.mark.full),
    ],
)
def test_whole_steps(name, mesh, expected, tmp_path):
    step = captured(name, mesh, tmp_path, graphs=("step",))["step"]
    assert launches(step) == expected
    described = [str(node.meta.get("desc")) for node in step.graph.nodes if node.op == "placeholder"]
    assert "layers.0.up.weight')" in described[0]


@pytest.mark.full
@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("name", "mesh"), [("tp", "tp=2"), ("shard", "dp=2"), ("any_batch", "dp=2"), ("tied", "dp=2")])
def test_the_graphs_are_those_of_a_training_job(name, mesh, inner, tmp_path):
    level = {"aot_eager": "aot", "inductor": "aot-inductor"}[inner]
    programs = captured(name, mesh, tmp_path, level=level, graphs=("forward", "backward"))
    torch._dynamo.reset()
    the_pass = graph_pass(pipeline="tag")
    with fake_world(Layout(read_mesh(mesh))) as world:
        model, *inputs = getattr(captured_models, name)(world.meshes[""])
        inputs = inputs[0] if isinstance(inputs[0], tuple) else inputs
        over = {"aot_eager": backends._over_eager, "inductor": backends._over_inductor}[inner]
        torch.compile(model, backend=over(the_pass, None))(*inputs).backward()
    live = [made.digest.before for made in the_pass.outcomes]
    offline = [digest_of(programs[kind], programs[kind], "").before for kind in ("forward", "backward")]
    assert live == offline


@pytest.mark.full
def test_plans_fit_the_training_job(tmp_path, capsys):
    """What tune writes on a laptop is applied, and nothing else, where the model is compiled."""
    out = tmp_path / "tuned"
    target = f"{MODELS}:shard"
    assert run(["tune", target, "--mesh", "dp=2", "--level", "aot", "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["verified"] for each in document["graphs"]] == ["proved", "proved"]
    assert document["line"] == (
        f"model = torch.compile(model, backend=commcc.backend(plan='{out}/plan', inner='aot_eager'))"
    )
    assert sorted(path.name for path in (out / "plan").iterdir()) == ["shard_bw.yaml", "shard_fw.yaml"]
    torch._dynamo.reset()
    with fake_world(Layout((("dp", 2),))) as world:
        model, *inputs = captured_models.shard(world.meshes[""])
        backend = commcc.backend(plan=out / "plan", inner="aot_eager", on_refusal="raise", report_dir=tmp_path / "live")
        torch.compile(model, backend=backend)(*inputs).backward()
    for each, name in zip(document["graphs"], ("graph1", "graph2"), strict=True):
        after = load(next((tmp_path / "live").glob(f"*{name}.after*")))
        targets = [
            [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            for graph in (after, load(each["tuned"]), load(each["file"]))
        ]
        assert targets[0] == targets[1] != targets[2]


def test_doctor(capsys, monkeypatch):
    assert run(["doctor", "--json"]) == 0
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["PyTorch"]["text"].startswith(torch.__version__)
    assert checks["commcc.inductor_pass"]["good"]
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["versions", "commcc"]  # no empty header above
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomGraphPass")
    assert run(["doctor", "-q"]) == 1
    assert capsys.readouterr().out == "missing: commcc.inductor_pass\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain", "the graph has no collectives; shard it in the function"),
        ("plain_in_pieces", "none of 2 graphs has collectives; shard it in the function"),
        ("stage", r"stage: .*no collectives; messages \(isend\) are in no graph, but between them; capture"),
        ("bincount", r"captured_models.py:\d+: .*capture_dynamic_output_shape_ops = True in the file, and in the job$"),
        ("step_of_meta", r"captured_models.py:\d+: .*; is a model on the meta device"),
        (
            "offloaded",
            r"captured_models.py:\d+: .*_pin_memory.*; memory is pinned, .*CPUOffloadPolicy\(pin_memory=False",
        ),
        ("no_model", "returned 'dict' where a model should be; return the model"),
        ("without_inputs", "missing a required argument: 'x'; return \\(model, inputs\\), or give --input"),
        ("needs_a_gpu", r"captured_models.py:\d+: .*; there is no GPU here"),
        ("fails", r"captured_models.py:\d+: calling .*KeyError"),
        ("decides", r"captured_models.py:\d+: tracing .*; it decides by a value that only a run has"),
        ("built_by_value", r"captured_models.py:\d+: calling .*; models are built without values of tensors here"),
        ("synchronised", r"SyncBatchNorm expected .*; what it sends is in no compiled graph"),
        ("does_not_divide", r"tracing .*RuntimeError: a and b must have same reduction dim, but got [^\\]*$"),
        (
            "cut_unevenly",
            r"must have same reduction dim.*; size 7 of parameter '0\.weight' does not divide by the 2 ranks of 'dp'$",
        ),
        ("two", "it is called with the mesh alone"),
        (
            "sparse",
            r"Embedding\(sparse=True\): sparse gradients cannot be reduced in a graph; make it with sparse=False",
        ),
        (
            "autocast",
            r"captured_models.py:autocast: torch.autocast\('cuda'\) is off where there is no such device: .*; let p",
        ),
        *(
            (name, rf"captured_models.py:{name}: torch.autocast\('cpu'\), .* casts other ops than that of 'cuda' does")
            for name in ("autocast_here", "autocast_again")
        ),
        ("mesh_of_a_tensor", r"captured_models.py:\d+: DeviceMesh of a tensor, .*; give it the ranks as lists"),
        ("shards", r"has no function 'shards' \(did you mean 'shard'\?\)"),
        ("zzz", r"has no function 'zzz'.*it has \w+(, \w+){7} and \d+ more$"),
    ],
)
def test_what_cannot_be_captured(name, words, tmp_path):
    torch._dynamo.reset()
    with pytest.raises((InputError, OptionError), match=words) as caught:
        worker.capture(request(name, "dp=2", tmp_path))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_several_backwards_that_gather_again_have_a_hint():
    """As PyTorch 2.13 and 2.15 say it of a step function with four micro-batches, where layers gather again."""
    said = "Detected 4 disjoint backward regions that require recomputation, but remat only supports one such region"
    hint = r"; PyTorch computes again, .*reshard_after_forward=False"
    with pytest.raises(InputError, match=f"tracing: RuntimeError: {said}{hint}"), explained("tracing", []):
        raise RuntimeError(said)


@pytest.mark.parametrize("command", ["capture", "tune"])
def test_what_is_stopped_leaves_no_folder(command, tmp_path, monkeypatch):
    """Nor what is killed in between: a folder is made with its first graph."""

    def stopped(*_, **__):
        assert list(tmp_path.iterdir()) == []
        raise InputError("a reason")

    monkeypatch.setattr("commcc.capture.request.subprocess.run", stopped)
    assert run([command, "module:build", "--mesh", "dp=2", "-o", str(tmp_path / "new")]) == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert run([command, "module:build", "--mesh", "dp=2", "-o", str(tmp_path / "file")]) == 2


def test_a_step_without_gradients_is_one_graph(tmp_path):
    """Inductor's hook for joint graphs is given it too, which would be the same graph twice."""
    level = {"level": "aot-inductor"}
    assert list(captured("step_without_gradients", "dp=2", tmp_path, **level)) == ["inference"]
    assert list(captured("step_without_gradients", "dp=2", tmp_path, graphs=("joint",), **level)) == ["joint"]


@pytest.mark.parametrize(("name", "states"), [("checkpointed", 0), ("checkpointed_with_dropout", 2)])
def test_random_states_are_saved_where_numbers_are_drawn(name, states, tmp_path):
    """Attention draws none without dropout; AOTAutograd's own checks are part of this."""
    programs = captured(name, "dp=2", tmp_path, device="cpu", graphs=("forward", "backward"))
    saved = [node for node in programs["forward"].graph.nodes if "run_and_save_rng_state" in str(node.target)]
    again = [node for node in programs["backward"].graph.nodes if "run_with_rng_state" in str(node.target)]
    inputs = [node.name for node in programs["backward"].graph.find_nodes(op="placeholder")]
    assert bool(saved) == bool(again) == bool(states) == any("rng_state" in each for each in inputs)
    assert launches(programs["backward"])["reduce_scatter"] == 4


@pytest.mark.full
def test_pieces_behind_a_break_have_the_sizes_of_the_model(tmp_path):
    torch._dynamo.reset()
    answer = worker.capture(request("broken", "dp=2", tmp_path, device="cpu"))
    assert answer["pieces"] >= 4


@pytest.mark.full
def test_inputs_can_be_given(tmp_path):
    programs = captured("without_inputs", "dp=2", tmp_path, inputs=(f"f32[4, {WIDTH}]", "i64[4]"), graphs=("forward",))
    assert launches(programs["forward"]) == {"all_gather": 10}


@pytest.mark.full
def test_a_module_that_can_be_imported(tmp_path, capsys):
    """Written as exported programs, which hold the same graphs."""
    out = tmp_path / "graphs"
    command = ["capture", "tests.captured_models:shard", "--mesh", "dp=2", "--level", "aot", "--format", "pt2"]
    assert run([*command, "--graphs", "forward,backward", "-o", str(out), "-q"]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == ["shard_fw.pt2", "shard_bw.pt2"]
    text = captured("shard", "dp=2", tmp_path, graphs=("forward", "backward"))
    for name, kind in (("fw", "forward"), ("bw", "backward")):
        here = load(out / f"shard_{name}.pt2")
        assert launches(here) == launches(text[kind])
        assert structure_of(here).fingerprint == structure_of(text[kind]).fingerprint


@pytest.mark.full
def test_what_the_function_has_compiled_runs_as_it_is_written(tmp_path):
    """Kernels of Inductor would look for the values of tensors that have none."""
    (tmp_path / "mask.py").write_text(
        "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
        "from torch.nn.attention.flex_attention import create_block_mask\n"
        "masked = torch.compile(create_block_mask)\n"
        "def build(mesh):\n"
        "    model = torch.nn.Linear(8, 8)\n"
        "    fully_shard(model, mesh=mesh['dp'])\n"
        "    at = torch.zeros(1, 256, dtype=torch.int64)\n"
        "    same = lambda b, h, q, k: (q >= k) & (at[b, q] == at[b, k])\n"
        "    masked(same, 1, None, 256, 256, device='cpu')\n"
        "    return model, (torch.ones(2, 8),)\n"
    )
    out = tmp_path / "graphs"
    asked = ["capture", f"{tmp_path / 'mask.py'}:build", "--mesh", "dp=2", "--level", "aot", "-o", str(out)]
    assert run([*asked, "--graphs", "forward", "--device", "cpu"]) == 0
    (written,) = out.glob("*.gz")
    assert [node.name for node in load(written).graph.nodes if node.op == "call_function"]


@pytest.mark.full
def test_a_process_that_dies_is_said(tmp_path):
    (tmp_path / "dies.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(InputError, match="the process that captures ended with exit code 7"):
        capture_in_a_process(Request(f"{tmp_path}/dies.py:build", (("dp", 2),), str(tmp_path / "out")))


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=2,dp=4", "dp=x", "", "dp=1024,tp=2048"])
def test_wrong_meshes(text):
    with pytest.raises(OptionError, match=r"^--mesh: "):
        read_mesh(text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["train.py"], "names no function"),
        (["nothing.py:build"], "no such file"),
        (["m:build", "--input", "f32"], "'f32' is no tensor"),
        (["m:build", "--graphs", "all"], "there is no 'all'"),
        (["m:build", "--level", "jit"], "is not one of"),
        (["m:build", "--device", "gpu"], "--device: 'gpu' is no device"),
    ],
)
def test_wrong_options(given, words, tmp_path, capsys):
    assert run(["capture", *given, "--mesh", "dp=2", "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert len(error.splitlines()) == 1


def test_doctor_without_pytorch(tmp_path):
    """What is there is said all the same, in a process that finds no PyTorch."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    command = [sys.executable, "-m", "commcc", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == ""
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["PyTorch"]["text"] == "not installed; pip install 'torch>=2.11'"
    assert checks["Inductor on the CPU"]["good"] in (True, False) and checks["numpy"]["text"][0].isdigit()
    assert checks["commcc.inductor_pass"] == {
        "about": "hooks",
        "name": "commcc.inductor_pass",
        "good": False,
        "text": "needs PyTorch",
    }
