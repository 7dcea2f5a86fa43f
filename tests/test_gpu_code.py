"""Code that Inductor writes for a GPU has launches, waits and products in the planned order."""

from __future__ import annotations

import pytest
import torch

from commcc.capture.devices import relabel
from commcc.graph.ops import op_name
from commcc.passes.options import parse_pipeline
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.ranks.worker import stand_in_groups
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.gpu_code import gpu_code, marks_of
from tests.step_graphs import SAMPLES
from tests.test_whole_products import shared_expert

CASES = [
    ("tiny_llama_fsdp2_bw", "bucket{form=copy},reorder"),
    ("tiny_llama_hsdp_bw", "bucket{form=coalesced},reorder"),
    ("tiny_llama_fsdp2_tp2_bw", "bucket{strategy=greedy},reorder"),
    ("tiny_llama_fsdp2_tp2_fw", "split{min_mb=0,min_exposed_us=0},reorder"),
]
PRODUCTS = {"aten.mm", "aten.bmm"}


def planned(program):
    """Launches, waits and products of the graph."""
    names = [op_name(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [name.split(".")[1] for name in names if name in PRODUCTS or name.startswith("_c10d_functional.")]


def check(program):
    stand_in_groups(make_set([program], BenchSettings(emulated=True)).layout)
    try:
        assert marks_of(gpu_code(program.graph_module())) == planned(program)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize(("name", "pipeline"), CASES)
def test_the_order_on_a_gpu(name, pipeline):
    pytest.importorskip("triton", reason="Inductor writes no code for a GPU without triton")
    program = load(str(SAMPLES / f"{name}.fx.txt.gz"))
    check(run(program, parse_pipeline(pipeline), model=load_model("h100")).program)


@pytest.mark.full
def test_a_product_that_hides_an_exchange_on_a_gpu():
    """PyTorch 2.15 would compute it where the result of the exchange is added to it."""
    pytest.importorskip("triton", reason="Inductor writes no code for a GPU without triton")
    program = shared_expert()
    relabel(program.graph, torch.device("cuda:0"))
    check(program)
