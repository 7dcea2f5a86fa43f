"""Plan files of ep-chunk: exact, and refused with their line when they were changed."""

from __future__ import annotations

import pytest

from commcc.base.errors import InputError
from commcc.passes.ep_chunk import EpChunk
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from tests.test_ep_chunk import backward, reduced


def stored(folder, text):
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def test_applied_again_it_gives_the_same_graph_and_the_same_file(tmp_path):
    program = backward(reduced)
    result = run(program, [EpChunk(chunks=3)])
    text = plan_text(result)
    again = run(program, read_plans(stored(tmp_path, text)))
    assert again.last.index.fingerprint == result.last.index.fingerprint
    assert plan_text(again) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sizes: [2, 2, 4]", "sizes: [2, 2, 5]"),
        ("sizes: [2, 2, 4]", "sizes: [2, -2, 8]"),
        ("sizes: [2, 2, 4]", "sizes: []"),
        ("extent: 8", "extent: 4"),
        ("extent: 8", "extent: 0"),
        ("dim: 0}", "dim: 1}"),
        ("dim: 0}", "dim: 7}"),
        ("how: rows", "how: sum"),
        ("how: sum", "how: last"),
        ("- {node: x, dim: 0}", "- {node: w, dim: 0}"),
        ("per: 1", "per: 2"),
        ("argument: size", "argument: dtype"),
        ("place: 0", "place: 9"),
        ("index_put, mm", "index_put, add_nothing, mm"),
        ("index_put, mm", "index_put"),
        ("index_put, mm", "index_put, x, mm"),
    ],
)
@pytest.mark.sampled(6)
def test_changed_plans_are_refused(old, new, tmp_path):
    """Whatever is wrong with a plan is wrong with its file; nothing else comes out."""
    program = backward(reduced)
    text = plan_text(run(program, [EpChunk(chunks=3)]))
    assert old in text
    with pytest.raises(InputError, match=r"plan\.yaml:"):
        run(program, read_plans(stored(tmp_path, text.replace(old, new))))
