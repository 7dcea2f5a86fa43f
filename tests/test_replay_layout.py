"""Which ranks are in which group: given, from the mesh, from one rank's view, from sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from commcc.base.errors import CommccError, OptionError
from commcc.graph.index import build_index
from commcc.graph.program import ProcessGroup
from commcc.replay.layout import make_layout, read_groups
from tests.mesh_groups import parts_by_name
from tests.step_graphs import sample
from tests.verify_graphs import Graph


def launching(**groups: ProcessGroup):
    """A program with an all-reduce, which says no size, on each of the groups."""
    g = Graph()
    x = g.input("x", 4)
    return g.program(*(g.reduce(x, group=name.removeprefix("g")) for name in groups), groups={
        name.removeprefix("g"): group for name, group in groups.items()
    })  # fmt: skip


def layout(program, world=None, text=""):
    return make_layout([(program, build_index(program))], world, read_groups(text) if text else {})


def group(name, size=None, ranks=None, origin=None):
    return ProcessGroup(name, size, ranks, origin=origin)


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_llama_hsdp_bw"])
def test_the_mesh_of_a_file_tells_all_groups(name):
    program = sample(name)
    found = layout(program)
    assert found.world == 4
    assert dict(found.parts) == parts_by_name(program)
    assert found.assumed == ()


def test_one_ranks_view_is_continued_as_a_grid():
    program = launching(g3=group("3", 2, (0, 4)), g5=group("5", 2, (2, 3)))
    found = layout(program, world=8)
    assert found.parts["3"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.parts["5"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found.mine("3", 5) == (1, 5)


def test_without_a_mesh_a_view_and_the_mesh_agree():
    program = sample("tiny_moe_fsdp4_ep2_bw")
    bare = replace(program, header={})
    assert dict(layout(bare).parts) == dict(layout(program).parts)


def test_sizes_alone_are_an_assumption_that_is_said():
    found = layout(launching(g3=group("3", 2), g5=group("5", 4)), world=4)
    assert found.parts == {"3": ((0, 1), (2, 3)), "5": ((0, 1, 2, 3),)}
    assert found.assumed == ("group '3' is taken to be 0-1|2-3; --groups says otherwise",)


def test_groups_of_which_no_size_divides_the_other_are_of_more_ranks():
    program = launching(g3=group("3", 3), g5=group("5", 8))
    found = layout(program)
    assert (found.world, found.parts["3"][1], len(found.parts["5"])) == (24, (3, 4, 5), 3)
    columns = "|".join(f"{at},{at + 8},{at + 16}" for at in range(8))
    assert layout(program, text=f"3={columns}").mine("3", 9) == (1, 9, 17)
    with pytest.raises(OptionError, match="for at least 24 ranks, not 8"):
        layout(program, world=8)


def test_a_split_off_group_has_the_ranks_of_its_origin():
    program = launching(g3=group("3", 2, (0, 2)), gnew=group("new", 2, origin="3"))
    found = layout(program, world=4, text="3=0,3|1,2")
    assert found.parts["new"] == found.parts["3"] == ((0, 3), (1, 2))


def test_given_groups_win():
    program = sample("tiny_llama_fsdp2_tp2_bw")
    found = layout(program, text="1=0,1|2,3")
    assert found.parts["1"] == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("program", "world", "text", "words"),
    [
        (lambda: launching(g3=group("3"), g5=group("5", 2)), 4, "", ["'3'", "which ranks", "--groups"]),
        (lambda: launching(g3=group("3", 2, (0, 3))), 4, "", ["'3'", "--groups"]),
        (lambda: launching(g3=group("3", 3)), 4, "", ["3 ranks", "--groups"]),
        (lambda: launching(g3=group("3", 4)), 2, "", ["at least 4 ranks, not 2"]),
        (lambda: sample("tiny_llama_fsdp4_bw"), 2, "", ["for 4 ranks, not 2", "capture"]),
        (lambda: sample("tiny_llama_fsdp4_bw"), 8, "", ["for 4 ranks, not 8"]),
        (lambda: launching(g3=group("3", 2)), 4, "3=0,1", ["every one of the 4 ranks"]),
        (lambda: launching(g3=group("3", 2)), 4, "3=0-3", ["has 2 ranks in the graph, not 4"]),
        (lambda: launching(g3=group("3", 2)), 4, "4=0-3", ["no collective uses '4'", "use 3"]),
        (lambda: launching(g3=group("3", 2)), 9999, "", ["more than 4096"]),
    ],
)  # fmt: skip
def test_what_cannot_be_laid_out_is_one_line(program, world, text, words):
    with pytest.raises(CommccError) as caught:
        layout(program(), world, text)
    assert "\n" not in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("text", ["", "33", "33=", "33=0,x", "=0,1", "3=0,1|1,2", "3=2-1", "3=0;3=1", "3=0-99999"])
def test_a_groups_text_that_is_wrong(text):
    with pytest.raises(OptionError, match="groups"):
        read_groups(text)


def test_all_that_is_wrong_with_a_groups_text_is_said():
    with pytest.raises(OptionError) as caught:
        read_groups("3=0,x;5=0,0;7=0-1|2-3")
    assert "3=0,x" in str(caught.value)
    assert "5: a rank is in two groups" in str(caught.value)
    assert read_groups(" 7 = 0-1 | 2,3 ") == {"7": ((0, 1), (2, 3))}


@pytest.mark.parametrize(
    "mesh", [3, {}, {"shape": [2], "dims": [], "group_names": {}}, {"shape": ["2"], "dims": ["a"]}]
)
def test_a_mesh_that_is_none_is_left_aside(mesh):
    program = replace(launching(g3=group("3", 2, (0, 1))), header={"mesh": mesh})
    assert layout(program).parts["3"] == ((0, 1),)


def test_graphs_for_different_worlds():
    two, four = (sample(name) for name in ("tiny_llama_fsdp2_bw", "tiny_llama_fsdp4_bw"))
    with pytest.raises(OptionError, match="different numbers of ranks: 2 and 4"):
        make_layout([(each, build_index(each)) for each in (two, four)])


def test_a_graph_without_collectives_is_for_one_rank():
    g = Graph()
    assert layout(g.program(g(torch.ops.aten.neg.default, g.input("x", 2)))).world == 1


def test_a_group_of_unknown_size_has_ranks_that_can_differ():
    """On one rank an all-reduce is a copy, and a graph without it would pass for the same."""
    program = launching(g3=group("3", None, None))
    assert layout(program).world == 2 and make_layout([(program, build_index(program))], 1).world == 1
