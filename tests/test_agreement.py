"""Rank agreement: groups by rank lists, sequences, splits, and what is said where files do not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import OptionError
from commcc.base.terms import Kind
from commcc.graph.program import ProcessGroup, Program
from commcc.lint.ranks import DifferenceKind, Status, Trace, agree, agree_on
from commcc.lint.ranks.groups import resolve
from commcc.lint.ranks.naming import BY_HEADER, by_rank, families, in_order, rank_in
from commcc.lint.ranks.show import ranks_text, text
from commcc.lint.ranks.trace import trace_of
from commcc.lint.ranks.types import Launch, Opaque, Splits
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text
from tests.agreement_ranks import exchange, sent, traces
from tests.campaign_files import BRANCH
from tests.counting import at_most
from tests.effort import examples

PAIR = {"g": (0, 1)}


def regrouped(trace: Trace, **groups: ProcessGroup) -> Trace:
    return replace(trace, groups=groups)


def with_sent(trace: Trace, at: int, **changes) -> Trace:
    launches = list(trace.launches)
    launches[at] = replace(launches[at], sent=launches[at].sent._replace(**changes))
    return replace(trace, launches=tuple(launches))


# groups


def test_groups_go_by_their_ranks_not_by_their_names():
    """The name 1 is another group on rank 1; and rank 2 calls its group with rank 0 by another name."""
    ranks = {0: "a", 1: "b b", 2: "c", 3: "b b"}
    made = {
        0: traces({0: ranks[0]}, {"a": (0, 2)})[0],
        1: traces({1: ranks[1]}, {"b": (1, 3)})[1],
        2: traces({2: ranks[2]}, {"c": (0, 2)})[2],
        3: traces({3: ranks[3]}, {"b": (1, 3)})[3],
    }
    renamed = {rank: one_name(trace, "1" if rank < 2 else "x") for rank, trace in made.items()}
    known = resolve(renamed)
    assert [group.members for group in known.groups] == [((0, "1"), (2, "x")), ((1, "1"), (3, "x"))]
    assert agree_on(renamed).status is Status.AGREE


def one_name(trace: Trace, name: str) -> Trace:
    launches = tuple(replace(launch, group=name) for launch in trace.launches)
    return Trace(launches, trace.steps, (), {name: next(iter(trace.groups.values()))})


def test_groups_of_the_same_ranks_are_paired_by_name_then_in_order():
    ranks = traces({0: "a b", 1: "a b"}, {"a": (0, 1), "b": (0, 1)})
    launches = tuple(replace(each, group={"a": "a", "b": "9"}[each.group]) for each in ranks[1].launches)
    groups = {"a": ranks[1].groups["a"], "9": ranks[1].groups["b"]}
    both = {0: ranks[0], 1: replace(ranks[1], launches=launches, groups=groups)}
    assert [group.members for group in resolve(both).groups] == [((0, "a"), (1, "a")), ((0, "b"), (1, "9"))]
    found = agree_on(both)
    assert found.status is Status.AGREE
    assert "are the same in the order of their names" in found.assumed[0]


def test_a_group_split_off_another_has_its_ranks():
    one, other = traces({0: "a", 1: "a"}, {"a": (0, 1)}).values()
    split = ProcessGroup("a", 2, None, origin="0")
    groups = {"0": ProcessGroup("0", 2, (0, 1)), "a": split}
    assert agree_on({0: regrouped(one, **groups), 1: regrouped(other, **groups)}).status is Status.AGREE


def test_a_rank_outside_its_own_group():
    ranks = traces({0: "g", 1: "g"}, PAIR)
    wrong = regrouped(ranks[1], g=ProcessGroup("g", 2, (0, 2)))
    found = agree_on({0: ranks[0], 1: wrong})
    assert found.first.kind is DifferenceKind.GROUP
    assert found.first.what == "rank 1: its group 'g' is of ranks 0 and 2, without rank 1 itself"


def test_ranks_in_another_order():
    ranks = traces({0: "g", 1: "g"}, PAIR)
    turned = regrouped(ranks[1], g=ProcessGroup("g", 2, (1, 0)))
    assert agree_on({0: ranks[0], 1: turned}).first.kind is DifferenceKind.GROUP


def test_a_group_that_the_other_rank_does_not_have():
    ranks = traces({0: "g", 1: "g"}, PAIR)
    found = agree_on({0: ranks[0], 1: Trace((), (), (), {})})
    assert found.first.kind is DifferenceKind.SEQUENCE
    assert "rank 1 launches nothing more after 0 launches" in text(found)
    assert "rank 1, which has no such group:" in text(found)


def test_missing_ranks_are_said():
    ranks = traces({0: "g", 1: "g"}, {"g": (0, 1, 2, 3, 4)})
    found = agree_on(ranks)
    assert found.status is Status.UNDECIDED
    assert found.reasons == ("no file of ranks 2-4, which 1 group of the others needs",)


def test_ranks_of_no_table_but_all_of_them():
    ranks = {rank: regrouped(trace, g=ProcessGroup("g", 2)) for rank, trace in traces({0: "g", 1: "g"}, PAIR).items()}
    found = agree_on(ranks)
    assert found.status is Status.AGREE
    assert found.assumed == ("group 'g' of 2 ranks holds all ranks: its ranks are not told",)
    assert agree_on({0: ranks[0], 1: with_sent(ranks[1], 0, reduction="max")}).status is Status.DISAGREE


def test_ranks_of_no_table_along_an_axis():
    """Four ranks in groups of two, nobody knows which: equal sequences agree, others may."""
    four = {rank: trace for rank in range(4) for trace in traces({rank: "g"}, {"g": (rank,)}).values()}
    ranks = {rank: regrouped(trace, g=ProcessGroup("g", 2)) for rank, trace in four.items()}
    found = agree_on(ranks)
    assert found.status is Status.AGREE
    assert "is the same axis on every rank" in found.assumed[0]
    ranks[3] = with_sent(ranks[3], 0, counts=(9,))
    found = agree_on(ranks)
    assert found.status is Status.UNDECIDED
    assert "number of elements 8 on rank 0, 9 on rank 3" in found.possible[0].what
    assert "not known: ranks that are in one group may differ: group 'g': " in text(found)


def test_ranks_that_another_file_tells():
    ranks = traces({0: "g", 1: "g"}, PAIR)
    found = agree_on({0: ranks[0], 1: regrouped(ranks[1], g=ProcessGroup("g", 2))})
    assert found.status is Status.AGREE
    assert "as other files have it" in found.assumed[0]


def test_a_group_that_the_graph_makes():
    made = {rank: one_name(trace, "%get_group") for rank, trace in traces({0: "g", 1: "g"}, PAIR).items()}
    found = agree_on({rank: replace(trace, groups={}) for rank, trace in made.items()})
    assert found.status is Status.UNDECIDED
    assert "is made by 'get_group' when the graph runs" in found.reasons[0]


def test_one_rank_is_not_enough():
    with pytest.raises(OptionError, match="two ranks or more"):
        agree_on(traces({0: "g"}, PAIR))


# sequences


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtypes": ("bfloat16",)}, "dtype float32 on rank 0, bfloat16 on rank 1"),
        ({"counts": (16,)}, "number of elements 8 on rank 0, 16 on rank 1"),
        ({"counts": (8, 8), "dtypes": ("float32",) * 2}, "number of elements 8 on rank 0, [8, 8] on rank 1"),
        ({"reduction": "avg"}, "reduction sum on rank 0, avg on rank 1"),
        ({"device": "cpu"}, "device cuda on rank 0, cpu on rank 1"),
        ({"others": (("src", "1"),)}, "other arguments none on rank 0, src=1 on rank 1"),
    ],
)
def test_what_differs_is_told(changes, told):
    ranks = traces({0: "g g g", 1: "g g g"}, PAIR)
    found = agree_on({0: ranks[0], 1: with_sent(ranks[1], 1, **changes)})
    assert found.first.kind is DifferenceKind.SEQUENCE
    assert found.first.at == 1
    assert "launch 2 of 3 (all_reduce) has" in found.first.what
    assert told in found.first.what
    assert "all other launches on the group are the same" in found.first.details


def test_most_ranks_are_right():
    ranks = traces(dict.fromkeys(range(8), "g g"), {"g": tuple(range(8))})
    for odd in (2, 5, 6):
        ranks[odd] = with_sent(ranks[odd], 1, reduction="max")
    found = agree_on(ranks)
    assert found.first.ranks == (0, 2, 5, 6)
    assert "reduction sum on rank 0, max on rank 2" in found.first.what
    assert "the same holds for ranks 5 and 6" in found.first.details


def test_the_earliest_difference_comes_first():
    groups = {"a": (0, 1), "b": (0, 1)}
    ranks = traces({0: "a b a b", 1: "a b a b"}, groups)
    later = with_sent(with_sent(ranks[1], 2, reduction="max"), 1, reduction="max")
    found = agree_on({0: ranks[0], 1: later})
    assert [each.around[0].node for each in found.differences] == ["b_0", "a_1"]


def test_a_launch_left_out_among_equal_ones():
    """By kind and size only the end is missing; what is sent tells the place."""
    ranks = traces({0: "g g g g", 1: "g g g g"}, PAIR)
    kept = tuple(launch for i, launch in enumerate(ranks[1].launches) if i != 1)
    found = agree_on({0: ranks[0], 1: Trace(kept, (0, 1, 2), (), ranks[1].groups)})
    assert found.first.at == 1
    assert "rank 1 leaves out 'g_1'; all the rest is the same" in found.first.details


def test_sizes_known_only_at_run_time():
    ranks = traces({0: "g g", 1: "g g"}, PAIR)
    found = agree_on({rank: with_sent(trace, 1, counts=(None,)) for rank, trace in ranks.items()})
    assert found.status is Status.UNDECIDED
    assert "1 launch of a size or dtype known only at run time ('g_1' first)" in found.reasons[0]
    other = with_sent(with_sent(ranks[1], 1, counts=(None,)), 0, dtypes=("float16",))
    assert agree_on({0: ranks[0], 1: other}).first.at == 0


# all-to-alls

SIZES = st.lists(st.integers(0, 3), min_size=3, max_size=3).map(tuple)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES), min_size=3, max_size=3), st.booleans())
def test_splits_against_every_pair(rows, fix):
    """The plain rule, pair by pair; half of the time the expected sizes are made right first."""
    if fix:
        rows = [(sends, tuple(rows[peer][0][rank] for peer in range(3))) for rank, (sends, _) in enumerate(rows)]
    ranks = {rank: exchange(rank, Splits(*row, sum(row[0])), (0, 1, 2)) for rank, row in enumerate(rows)}
    wrong = [(i, j) for i in range(3) for j in range(3) if rows[i][0][j] != rows[j][1][i]]
    found = agree_on(ranks)
    assert found.status is (Status.DISAGREE if wrong else Status.AGREE)
    if wrong:
        i, j = wrong[0]
        assert found.first.kind is DifferenceKind.SPLITS
        assert f"rank {i} sends {rows[i][0][j]} element" in found.first.what
        assert f"to rank {j}, which expects {rows[j][1][i]}" in found.first.what


def test_equal_parts_and_the_same_in_numbers():
    spelt, plain = Splits((4, 4), (4, 4), 8), Splits(None, None, 8)
    assert agree_on({0: exchange(0, spelt, (0, 1)), 1: exchange(1, plain, (0, 1))}).status is Status.AGREE
    assert agree_on({0: exchange(0, spelt, (0, 1)), 1: exchange(1, Splits(None, None, 10), (0, 1))}).first.at == 0


def test_splits_of_more_or_less_than_there_is():
    """Each rank expects what it is sent, and yet none of them can run."""
    sizes = [(4, 3), (3, 4)]
    found = agree_on({rank: exchange(rank, Splits(own, own, 8), (0, 1)) for rank, own in enumerate(sizes)})
    assert "rank 0 sends 7 elements in parts, and has 8" in found.first.what
    fits = agree_on({rank: exchange(rank, Splits(own, own, None), (0, 1)) for rank, own in enumerate(sizes)})
    assert fits.status is Status.AGREE


def test_splits_of_another_number_of_ranks():
    found = agree_on({rank: exchange(rank, Splits((4, 4), (4, 4), 8), (0, 1, 2)) for rank in range(3)})
    assert "has parts for 2 ranks, and from 2, in a group of 3" in found.first.what


# what is not looked into


def test_opaque_nodes_are_said():
    ranks = traces({0: "g", 1: "g"}, PAIR)
    opaque = (Opaque("dispatch", "deep_ep.dispatch", "communicates in an unknown way"),)
    found = agree_on({rank: replace(trace, opaque=opaque) for rank, trace in ranks.items()})
    assert found.status is Status.UNDECIDED
    assert found.reasons == ("ranks 0 and 1: 'dispatch' (deep_ep.dispatch) communicates in an unknown way",)


UNKNOWN = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[8]"):
        gathered: "f32[16]" = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 2, '0')
        waited: "f32[16]" = torch.ops._c10d_functional.wait_tensor.default(gathered)
        sent: "f32[16]" = torch.ops.deep_ep.dispatch.default(waited)
        return (sent,)
"""


def program(text: str) -> Program:
    return replace(propagate(parse_text(text, "test")), groups={"0": ProcessGroup("0", 2, (0, 1))})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (UNKNOWN, "ranks 0 and 1: 'sent' (deep_ep.dispatch) communicates in an unknown way"),
        (BRANCH, "ranks 0 and 1: 'cond' (higher_order.cond) has a sub-graph that communicates"),
    ],
)
def test_programs_with_nodes_that_are_not_looked_into(text, reason):
    found = agree({rank: program(text) for rank in (0, 1)})
    assert found.status is Status.UNDECIDED
    assert found.reasons == (reason,)


# names of files


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("rank0.fx.txt", ("*.fx.txt", 0)),
        ("out/rank_3/bw.txt", ("out/*/bw.txt", 3)),
        ("dump-r12.pt2", ("dump-*.pt2", 12)),
        ("rank-1/r2.txt", ("*/r2.txt", 1)),
        ("run.log::rank7/0_0/aot_backward_graph", ("run.log::*/0_0/aot_backward_graph", 7)),
        ("bw.RANK05.gz", ("bw.*.gz", 5)),
        ("crank3.txt", None),
        ("layer12.txt", None),
        ("r2d2.txt", None),
    ],
)
def test_ranks_in_names(name, found):
    assert rank_in(name) == found


def test_families():
    names = ["a/rank0_fw", "a/rank1_fw", "a/rank0_bw", "other", "a/rank1_bw"]
    found = families(names)
    assert {family: by_rank(members) for family, members in found.items()} == {
        "a/*_fw": {0: "a/rank0_fw", 1: "a/rank1_fw"},
        "a/*_bw": {0: "a/rank0_bw", 1: "a/rank1_bw"},
    }
    assert families(["x", "y"], {"x": 3, "y": 0}) == {BY_HEADER: [(3, "x"), (0, "y")]}
    with pytest.raises(OptionError, match="are both rank 1"):
        by_rank(families(["rank1.a", "rank_1.a"])["*.a"])
    assert in_order(["x", "y"]) == {0: "x", 1: "y"}
    assert in_order(["rank4", "rank2"]) == {4: "rank4", 2: "rank2"}


# sizes and text


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(st.integers(0, 60), min_size=1, max_size=30))
def test_ranks_in_words(ranks):
    text = ranks_text(sorted(ranks))
    if "more" not in text:
        words = text.split(" ", 1)[1].replace(" and ", ", ").split(", ")
        spans = [range(int(w.split("-")[0]), int(w.split("-")[-1]) + 1) for w in words]
        assert {rank for span in spans for rank in span} == ranks


def test_2048_ranks_that_all_differ():
    """A mesh of 64 x 32; node names differ on every rank, and one rank is wrong."""
    ranks = {}
    for rank in range(2048):
        row, column = divmod(rank, 32)
        groups = {
            "row": ProcessGroup("row", 32, tuple(range(row * 32, row * 32 + 32))),
            "column": ProcessGroup("column", 64, tuple(range(column, 2048, 32))),
        }
        what = [sent(Kind.ALL_GATHER), sent(Kind.ALL_REDUCE)]
        launches = tuple(Launch(f"n{rank}_{i}", ("row", "column")[i % 2], what[i % 2], None, f"{i}") for i in range(40))
        ranks[rank] = Trace(launches, tuple(range(40)), (), groups)
    with at_most(5_000_000):
        assert agree_on(ranks).status is Status.AGREE
        ranks[1500] = with_sent(ranks[1500], 21, reduction="max")
        found = agree_on(ranks)
    assert (found.first.at, found.first.ranks) == (10, (28, 1500))


TEXT = """\
DISAGREE: the group of ranks 0 and 1: launch 3 of 4 (all_reduce) has reduction sum on rank 0, max on rank 1 \
[2 ranks (2 different programs), 1 process group, 8 launches]
  all other launches on the group are the same
  rank 0, which calls the group 'g':
      'g'  all_reduce sum, float32, 8 elements  g_1
    > 'g'  all_reduce sum, float32, 8 elements  g_2
      'g'  all_reduce sum, float32, 8 elements  g_3
  rank 1, which calls the group 'g':
      'g'  all_reduce sum, float32, 8 elements  g_1
    > 'g'  all_reduce max, float32, 8 elements  g_2  layers.0  model.py:7
      'g'  all_reduce sum, float32, 8 elements  g_3"""


def test_the_whole_text():
    ranks = traces({0: "g g g g", 1: "g g g g"}, PAIR)
    wrong = with_sent(ranks[1], 2, reduction="max")
    launches = list(wrong.launches)
    launches[2] = replace(launches[2], module="layers.0", source="model.py:7")
    assert text(agree_on({0: ranks[0], 1: replace(wrong, launches=tuple(launches))}, around=1)) == TEXT


MADE_ON = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[8]DEVICE"):
        NAME: "f32[8]DEVICE" = torch.ops.aten.full.default([8], 1, device = device(type='cuda', index=NUMBER))
        mul: "f32[8]DEVICE" = torch.ops.aten.mul.Tensor(x, NAME)
        all_reduce: "f32[8]DEVICE" = torch.ops._c10d_functional.all_reduce.default(mul, 'sum', 'GROUP')
        wait: "f32[8]DEVICE" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        all_reduce_1: "f32[8]DEVICE" = torch.ops._c10d_functional.all_reduce.default(wait, 'sum', 'GROUP')
        return (all_reduce_1,)
"""


def meanings_on(number: int, name: str, group: str) -> list[str]:
    words = {"DEVICE": f"[1]cuda:{number}", "NUMBER": str(number), "NAME": name, "GROUP": group}
    text = MADE_ON
    for word, by in words.items():
        text = text.replace(word, by)
    return [launch.meaning for launch in trace_of(propagate(parse_text(text, "test"))).launches]


def test_what_is_sent_does_not_depend_on_the_device_or_on_names():
    first, second = meanings_on(0, "full", "0")
    assert first != second
    assert meanings_on(7, "other", "12") == [first, second]
