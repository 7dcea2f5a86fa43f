"""Jobs that have built several equal meshes: each has process groups of its own, and plans fit all the same."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace

import pytest

from commcc.capture.request import Request, capture
from commcc.graph.ops import set_argument
from commcc.graph.program import ProcessGroup
from commcc.graph.structure import _launches, structure_of, with_equal_groups_joined
from commcc.live.plans import MismatchError
from commcc.live.rewriting import graph_pass
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text
from commcc.serialization import load
from tests import captured_models
from tests.test_live import ROOT, sample

NAME = "tiny_llama_fsdp2_tp2_bw"


def names_of(program):
    return [[str(each) for each in node.args] for node in _launches(program.graph)]


def of_two_meshes(description=None, ranks=None):
    """Every second launch of the first group names another one."""
    program = sample(NAME)
    group = next(iter(program.groups.values()))
    assert group.ranks and group.description
    other = ProcessGroup("10", group.size, ranks or group.ranks, description or group.description)
    launches = [node for node in _launches(program.graph) if group.name in node.args]
    for node in launches[::2]:
        set_argument(node, "group_name", "10")
    assert len(launches) > 3
    return replace(program, groups={"10": other, **program.groups})


def test_groups_of_equal_meshes_become_the_first():
    program = of_two_meshes()
    joined = with_equal_groups_joined(program)
    assert structure_of(program).fingerprint != structure_of(sample(NAME)).fingerprint
    assert structure_of(joined).fingerprint == structure_of(sample(NAME)).fingerprint
    assert "10" not in joined.groups and set(joined.groups) == set(sample(NAME).groups)
    assert names_of(joined) == names_of(sample(NAME)) and joined is not program
    assert any("10" in args for args in names_of(program))  # which has not been edited


@pytest.mark.parametrize("other", [{"description": "extra"}, {"ranks": (5, 6)}, {"origin": "0"}])
def test_other_groups_stay(other):
    """A group for a stream of its own, another part of the mesh, and one that a plan has split off."""
    program = of_two_meshes(other.get("description"), other.get("ranks"))
    if "origin" in other:
        program = replace(program, groups={**program.groups, "10": replace(program.groups["10"], origin="0")})
    assert with_equal_groups_joined(program) is program


def test_a_plan_fits_a_job_with_equal_meshes(tmp_path, monkeypatch, caplog):
    made = run(sample(NAME), parse_pipeline("bucket{groups=all}"))
    (tmp_path / "plan.yaml").write_text(plan_text(made))
    known = of_two_meshes()
    monkeypatch.setattr("commcc.live.rewriting._with_ranks", lambda here: replace(here, groups=known.groups))
    gm = known.graph_module()
    with caplog.at_level(logging.INFO, logger="commcc.live"):
        result = graph_pass(plan=tmp_path, on_refusal="raise").rewrite(gm).result
    assert result.verified == "proved" and result.changed
    assert structure_of(result.program).fingerprint == structure_of(made.program).fingerprint
    assert not any("10" in node.args for node in gm.graph.nodes)
    assert "groups of equal meshes are one in the plan: 10 of the job are not used" in caplog.text
    apart = of_two_meshes("extra")
    monkeypatch.setattr("commcc.live.rewriting._with_ranks", lambda here: replace(here, groups=apart.groups))
    with pytest.raises(MismatchError, match="no plan was made for this graph"):
        graph_pass(plan=tmp_path).rewrite(apart.graph_module())


#: In a process of its own: DTensor remembers meshes of a world that is gone.
LIVE = """
import json, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from commcc.capture.world import Layout, fake_world
from commcc.live import backends
from commcc.live.rewriting import graph_pass
from tests import captured_models

model, inner, plans = sys.argv[1:]
the_pass = graph_pass(plan=plans, on_refusal="raise")
with fake_world(Layout((("dp", 2), ("tp", 2)))):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    built, inputs = getattr(captured_models, model)(mesh)
    over = {"aot": backends._over_eager, "aot-inductor": backends._over_inductor}[inner]
    torch.compile(built, backend=over(the_pass, None))(*inputs).backward()
print(json.dumps([[made.digest.before, made.result.changed] for made in the_pass.outcomes]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("offline", "live", "level"), [("over_meshes", "over_one", "aot"), ("over_one", "over_meshes", "aot-inductor")]
)
def test_a_model_over_equal_meshes(offline, live, level, tmp_path):
    """Its blocks are sharded by meshes that were built one after the other, where it is captured or where it trains."""
    two = {"level": level, "graphs": ("forward", "backward")}
    answer = capture(Request(f"{captured_models.__file__}:{offline}", (("dp", 2), ("tp", 2)), str(tmp_path), **two))
    programs = [load(each["file"]) for each in answer["files"]]
    (tmp_path / "plans").mkdir()
    for program, kind in zip(programs, ("fw", "bw"), strict=True):
        text = plan_text(run(program, parse_pipeline("bucket{groups=all}")))
        (tmp_path / "plans" / f"{kind}.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LIVE, live, level, str(tmp_path / "plans")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    assert made == [[structure_of(program).fingerprint, True] for program in programs]
