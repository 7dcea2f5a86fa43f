"""What scripts call on ``commcc`` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commcc
from commcc.base.errors import CommccError

SAMPLE = next((Path(__file__).parents[1] / "sample_graphs").glob("tiny_llama_fsdp2_bw.fx.txt*"))


def test_a_graph_from_file_to_file(tmp_path):
    program = commcc.load(SAMPLE)
    result = commcc.run(program, "bucket{groups=all},reorder")
    assert result.verified == "proved" and commcc.verify(program, result.program).status == "proved"
    assert commcc.verify(program, commcc.run(program, "bucket{groups=all}").program).status == "proved"
    assert commcc.diff(program, result.program).merged
    before, after = (commcc.simulate(each).timeline.step_ns for each in (program, result.program))
    assert after < before == commcc.inspect(program).prediction.timeline.step_ns
    assert commcc.inspect(program, cost=None).prediction is None
    assert commcc.simulate(program, cost="a100").timeline.step_ns != before
    commcc.save(result.program, tmp_path / "after.fx.txt")
    again = commcc.load(tmp_path / "after.fx.txt")
    assert commcc.verify(result.program, again).status == "proved"


def test_the_preset_is_auto():
    program = commcc.load(SAMPLE)
    assert [step.name for step in commcc.run(program).steps] == [
        step.name for step in commcc.run(program, preset="auto").steps
    ]
    with pytest.raises(CommccError, match="a pipeline and a preset"):
        commcc.run(program, "bucket", preset="auto")
    with pytest.raises(CommccError, match="nowhere"):
        commcc.load("nowhere.fx.txt")


@pytest.mark.full
@pytest.mark.parametrize("first", ["commcc.verify", "commcc.run.pipeline", "commcc.diff.match", "commcc.api"])
def test_packages_stay_functions_whatever_is_imported_first(first):
    code = (
        f"import {first}, commcc; assert all(map(callable, (commcc.run, commcc.verify, commcc.diff, commcc.capture)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_names_are_there_and_typed():
    for name in commcc.__all__:
        assert getattr(commcc, name) is not None
    assert (Path(commcc.__file__).parent / "py.typed").exists()
