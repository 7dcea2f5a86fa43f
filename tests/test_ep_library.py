"""The sample of a trainer with a library of its own: a custom op, writes in place, waits twice, gathers again."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from commcc.cli.main import run
from commcc.graph.ops import collective_of, is_wait, op_name
from commcc.serialization import load
from tests.step_graphs import SAMPLES

GRAPH = SAMPLES / "library_deepseek_fsdp4_ep2.fx.txt.gz"
LIBRARY = "commcc.capture.models.library"
OPS = ["--ops", str(SAMPLES / "library_ops.yaml")]


def call(arguments, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(arguments) == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def test_the_sample_has_what_it_is_for():
    nodes = [node for node in load(GRAPH).graph.nodes if node.op == "call_function"]
    ops = {op_name(node.target) for node in nodes}
    assert {"commcc_samples.ordered_scatter_add", "aten.scatter_add_", "aten.index_copy_", "aten.fill_"} <= ops
    waits = [node for node in nodes if is_wait(node.target)]
    assert sum(is_wait(node.args[0].target) for node in waits) == 4
    gathered = [n.all_input_nodes[0].name.removesuffix("_recomputed") for n in nodes if collective_of(n.target)]
    assert len(gathered) > len(set(gathered))


@pytest.mark.full
def test_without_a_description_the_op_is_named(tmp_path):
    said = call(["ep-overlap", str(GRAPH), "-o", str(tmp_path / "out.fx.txt")], 2)
    assert "is a custom op, and there is no rule for commcc_samples.ordered_scatter_add" in said


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """The sample cut by the whole preset, and what was said of it."""
    file = tmp_path_factory.mktemp("library") / "cut.fx.txt.gz"
    said = call(["ep-overlap", str(GRAPH), *OPS, "--require-proof", "-o", str(file), "--json"])
    return file, json.loads(said)


def test_the_whole_preset_goes_through_with_a_description(cut):
    file, document = cut
    exchanges = document["overlap"]["exchanges"]
    assert (exchanges["token_exchanges"], exchanges["count_exchanges"], exchanges["others"]) == ([4, 8], [1, 2], [0, 0])
    assert document["after"]["hidden_share"] > 0.5
    assert file.exists()


@pytest.mark.full
def test_what_was_cut_runs_with_a_description(cut):
    file, _ = cut
    said = json.loads(call(["verify", str(GRAPH), str(file), *OPS, "--numeric", "--float64", "--json"]))
    assert (said["verified"], said["numeric"]["status"]) == ("proved", "within tolerance")


@pytest.mark.full
def test_the_library_and_its_description_go_together(cut, tmp_path):
    """In processes of their own, since an op that is registered stays so."""
    file, again, wrong = str(cut[0]), str(tmp_path / "again.fx.txt.gz"), tmp_path / "wrong.yaml"
    wrong.write_text(Path(OPS[1]).read_text().replace("(zeros, 0,", "(zeros, 1,"))
    lines = (
        ["ep-overlap", str(GRAPH), *OPS, "--require-proof", "-o", again],
        ["verify", str(GRAPH), again, *OPS, "--numeric", "--float64"],
        ["verify", str(GRAPH), file, "--numeric", "--float64"],
        ["inspect", str(GRAPH), "--ops", str(wrong)],
    )
    done = [
        subprocess.run(
            [sys.executable, "-m", "commcc", *line, "--import", LIBRARY],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for line in lines
    ]
    assert [each.returncode for each in done] == [0, 0, 0, 2]
    assert "commcc_samples.ordered_scatter_add" in done[3].stderr
