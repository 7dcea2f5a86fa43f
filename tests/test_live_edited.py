"""Plans that were edited by hand: what contradicts the graph is refused in words, and no launch changes its group."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import replace

import pytest

from commcc.base.errors import InputError
from commcc.graph.ops import argument, collective_of
from commcc.graph.structure import renamed
from commcc.live import graph_pass
from commcc.live.plans import apply, read_folder
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text
from commcc.verify import verify
from tests.test_live import sample

TWO = "tiny_llama_fsdp2_tp2_bw"
RANKS = {"1": (0, 2), "3": (0, 1)}


def known(program, names=None):
    """With the ranks of its groups, which are called otherwise in the job."""
    groups = {name: replace(group, ranks=RANKS[name]) for name, group in program.groups.items()}
    return renamed(replace(program, groups=groups), {}, names or {})


@pytest.fixture(scope="module")
def text():
    return plan_text(run(known(sample(TWO)), parse_pipeline("groups{roles=all_gather}")))


def applied(text, folder, program):
    (folder / "plan.yaml").write_text(text)
    plans = read_folder(folder / "plan.yaml")
    (plan,) = plans.by_structure.values()
    return apply(plan, program)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('  - name: "3"\n', '  - name: "1"\n', r"plan\.yaml:\d+: two groups have the same name"),
        (r'  - name: "3"\n    ranks: \[0, 1\]\n', "", "names 1 groups of a graph that has 2"),
        (r"ranks: \[0, 1\]", "ranks: []", r"plan\.yaml:\d+: a group has one rank or more, each once"),
        (r"ranks: \[0, 1\]", "ranks: [0, 0]", r"plan\.yaml:\d+: a group has one rank or more, each once"),
        (r"ranks: \[0, 1\]", "ranks: [0, 1, 2]", "group '3' of the plan has ranks 0, 1, 2, the job's '3' 0, 1"),
    ],
)
def test_groups_that_contradict_the_graph(old, new, words, text, tmp_path):
    edited, count = re.subn(old, new, text)
    assert count == 1
    with pytest.raises(InputError, match=words):
        applied(edited, tmp_path, known(sample(TWO)))


def test_nodes_that_are_too_few(text, tmp_path):
    names = len(sample(TWO).graph.nodes)
    head, digests = re.search(r"(source:.*?digests: )(\[.*?\])", text, re.DOTALL).groups()
    shorter = text.replace(head + digests, head + digests[:-6] + '"]').replace('"primals_1 primals_3 ', '"primals_1 ')
    with pytest.raises(InputError, match=f"names {names - 1} nodes of a graph that has {names}"):
        applied(shorter, tmp_path, known(sample(TWO)))


def test_a_new_group_that_is_called_as_one_of_the_job(text, tmp_path):
    """It gets another name: the launches on it must not go to the ranks of the group that the job calls so."""
    job = known(sample(TWO), {"1": "3", "3": "all_gather_extra"})
    made = applied(text, tmp_path, job).program
    assert made.groups["all_gather_extra"].ranks == (0, 1) and made.groups["all_gather_extra_new1"].ranks == (0, 2)
    launches = [node for node in made.graph.nodes if collective_of(node.target) is not None]
    ranks = Counter(made.groups[argument(node, "group_name")].ranks for node in launches)
    assert ranks == {(0, 2): 41, (0, 1): 15}
    assert verify(job, made).status == "proved"


def test_a_plan_that_is_not_applied_is_a_warning(tmp_path, caplog):
    """Somebody counts on it, and a job shows no lines of level INFO unless it is told to."""
    text = plan_text(run(sample(), parse_pipeline("bucket{groups=all}")))
    edited, count = re.subn("kind: reduce_scatter", "kind: all_gather", text, count=1)
    (tmp_path / "plan.yaml").write_text(edited)
    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        made = graph_pass(plan=tmp_path).rewrite(sample().graph_module())
    assert made.result is None and count == 1
    said = r"graph 1 stays as it is: .*plan\.yaml:\d+: '.*' is no all_gather that can be merged"
    assert re.search(said, caplog.text)
