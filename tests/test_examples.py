"""The examples: what they print on two ranks, and what their code does on a joint graph."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.capture.importing import from_graph_module
from commcc.verify import verify
from tests.torch_passes import groups_of

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "train_llama.py"
C10D = torch.ops._c10d_functional


def step(first, second, x):
    """Forward, loss and gradients of two parameters in shards."""
    wholes = [C10D.wait_tensor(C10D.all_gather_into_tensor(each, 2, "0")) for each in (first, second)]
    hidden = x @ wholes[0]
    y = hidden.relu() @ wholes[1]
    gradient = y / y.numel()
    back = (gradient @ wholes[1].t()) * (hidden > 0)
    reduced = [C10D.reduce_scatter_tensor(each, "avg", 2, "0") for each in (x.t() @ back, hidden.relu().t() @ gradient)]
    return y.pow(2).mean(), *(C10D.wait_tensor(each) for each in reduced)


def test_a_list_of_passes_takes_it():
    inputs = torch.randn(4, 8), torch.randn(4, 8), torch.randn(3, 8)
    text = (ROOT / "examples" / "torchtitan_pass.md").read_text()
    code, agree = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    with groups_of(from_graph_module(make_fx(step, tracing_mode="fake")(*inputs))):
        gm = make_fx(step, tracing_mode="fake")(*inputs)
        before, kept = from_graph_module(gm), {node.name: node for node in gm.graph.nodes}
        exec(code, names)
        assert names["compile_step"](gm, inputs) is gm
        exec(agree, names)
    (result,) = names["commcc_pass"].results
    assert result.verified == "proved" and sum(result.after.collectives.values()) == 2
    assert verify(before, from_graph_module(gm)).status == "proved"
    assert all(kept[node.name] is node for node in gm.graph.nodes if node.op in ("placeholder", "output"))


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_plans_made_without_ranks_train_the_same(tmp_path):
    """The commands that the script names, in its folder of results."""
    known = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = (SCRIPT.read_text().split('"""')[1]).replace("examples/", f"{SCRIPT.parent}/")
    commands = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert [command.split()[:2] for command in commands] == [
        ["commcc", "capture"],
        ["commcc", "run"],
        ["torchrun", "--nproc-per-node"],
    ]
    for command in commands:
        ours = command.replace("commcc ", f"{sys.executable} -m commcc ", 1)
        ours = ours.replace("torchrun", f"{sys.executable} -m torch.distributed.run --standalone", 1)
        done = subprocess.run(
            ours, shell=True, cwd=tmp_path, env={**os.environ, **known}, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert "losses are equal to the bit" in done.stdout
