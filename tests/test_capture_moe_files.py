"""Training steps with expert parallelism in every format, and on real gloo ranks."""

from __future__ import annotations

import pytest
import torch

from commcc.passes.bucket import Bucket
from commcc.run.pipeline import run
from commcc.serialization import load, save
from tests.step_graphs import on_cpu, sample
from tests.test_real_ranks import replay

#: What passes read of a node, and what else tells where it came from.
KEYS = ("custom", "autograd_backward", "recompute", "seq_nr", "is_gradient_acc", "ac_graph_id", "stack_trace", "desc")
PRINTED = {
    "plain": {},
    "devices": {"include_stride": True, "include_device": True, "expanded_def": True},
    "all": {
        **dict.fromkeys(("include_stride", "include_device", "expanded_def"), True),
        "additional_meta": ["custom", "autograd_backward", "is_gradient_acc", "seq_nr"],
    },
}


def metadata(program, keys=KEYS):
    return {node.name: {key: node.meta.get(key) for key in keys} for node in program.graph.nodes}


@pytest.fixture(scope="module")
def program():
    return sample("tiny_deepseek_fsdp4_ep2")


@pytest.mark.parametrize("extension", [".fx.txt", ".fx.txt.gz", ".pt2"])
@pytest.mark.sampled(1)
def test_own_formats_keep_all_metadata(extension, program, tmp_path):
    path = tmp_path / f"step{extension}"
    save(program, path)
    again = load(path)
    assert metadata(again) == metadata(program)
    assert [(str(n.target), str(n.args), str(n.kwargs)) for n in again.graph.nodes] == [
        (str(n.target), str(n.args), str(n.kwargs)) for n in program.graph.nodes
    ]
    assert again.header["mesh"] == program.header["mesh"]
    assert again.groups == program.groups


@pytest.mark.parametrize("form", PRINTED)
def test_printed_graphs_keep_what_they_print(form, program, tmp_path):
    module = program.graph_module()
    path = tmp_path / "printed.txt"
    path.write_text(module.print_readable(print_output=False, **PRINTED[form]))
    again = load(path)
    keys = ("custom",) if form != "all" else ("custom", "autograd_backward", "is_gradient_acc")
    assert metadata(again, keys) == metadata(program, keys)
    # Tags of layers are printed, tags of what enters them are not.
    tags = {
        name: told
        for name, told in metadata(program, ("recompute", "ac_graph_id")).items()
        if told["ac_graph_id"] is not None
    }
    assert {name: told for name, told in metadata(again, ("recompute", "ac_graph_id")).items() if name in tags} == tags


def test_cut_module_paths_keep_the_modules_that_are_whole(program, tmp_path):
    """PyTorch prints 40 characters of a path; what it cuts is part of the innermost module's name."""
    module = program.graph_module()
    nodes = [n for n in module.graph.nodes if n.op == "call_function"][:4]
    paths = {
        "layers.1.moe.routed_experts.inner_experts.w1": "layers.1.moe.routed_experts",
        "layers." + "x" * 60: "layers",
        "x" * 60: None,
        "layers.1.moe": "layers.1.moe",
    }
    for node, path in zip(nodes, paths, strict=True):
        node.meta["custom"] = {"module_fqn": path, "EP": "compute"}
    file = tmp_path / "printed.txt"
    file.write_text(module.print_readable(print_output=False))
    again = load(file)
    found = {node.name: node.meta["custom"] for node in again.graph.nodes if node.name in {n.name for n in nodes}}
    assert [found[node.name].get("module_fqn") for node in nodes] == list(paths.values())
    assert all(found[node.name]["EP"] == "compute" for node in nodes)
    assert any("custom['module_fqn']" in note.text for note in again.notes)


@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
@pytest.mark.parametrize(("name", "ranks"), [("tiny_deepseek_ep2", 2), ("tiny_deepseek_fsdp4_ep2", 4)])
@pytest.mark.full
def test_runs_on_real_ranks(name, ranks, tmp_path):
    """As captured (bfloat16) and in float32; bucketing gives the same bits."""
    jobs = []
    for dtype in (None, torch.float32):
        before, after = tmp_path / f"{dtype}.fx.txt", tmp_path / f"{dtype}.bucketed.fx.txt"
        given = on_cpu(sample(name), dtype)
        save(given, before)
        save(run(given, [Bucket(groups="all", bucket_cap_mb=0.01)]).program, after)
        jobs.append({"name": str(dtype), "before": str(before), "after": str(after)})
    code, verdicts = replay(ranks, jobs, tmp_path)
    expected = [{"name": job["name"], "difference": None, "nan": False} for job in jobs]
    assert verdicts == [expected] * ranks
    assert code == 0
