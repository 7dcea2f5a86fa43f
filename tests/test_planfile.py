"""Plan files: exact, the same bytes again, refused for other graphs with the node that differs, safe to read."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError, InternalError
from commcc.base.reasons import Reason
from commcc.base.terms import Kind, Role
from commcc.graph.index import build_index
from commcc.passes.options import parse_pipeline
from commcc.plan import PARTS, Bucket, ControlEdge, Merging, Node, Plan, Reordering, TagEntry
from commcc.run.pipeline import Rules, run
from commcc.run.planfile import moves, plan_text, read_plans
from commcc.run.planfile.fields import encode, encode_plan, hints_of, mark_of
from commcc.timing.cost import load_model
from tests.effort import examples
from tests.random_graphs import random_program
from tests.test_cli_run import improved

if TYPE_CHECKING:
    import random
    from pathlib import Path

PIPELINE = "tag,bucket{groups=all},reorder"


@functools.cache
def planned(seed: int):
    program = random_program(seed)
    return program, run(program, parse_pipeline(PIPELINE), model=load_model())


def stored(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("seed", range(8))
def test_applied_again_it_gives_the_same_graph_and_the_same_file(seed, tmp_path):
    program, result = planned(seed)
    text = plan_text(result)
    again = run(program, read_plans(stored(tmp_path, text)), model=load_model())
    assert again.last.index.fingerprint == result.last.index.fingerprint
    assert again.last.index.names == result.last.index.names
    assert again.program.provenance == result.program.provenance
    assert plan_text(again) == text


def test_some_of_these_runs_use_every_part():
    results = [planned(seed)[1] for seed in range(8)]
    plans = [step.plan for result in results for step in result.steps]
    parts = [name for plan in plans for name, part in plan.parts() if part]
    assert {"buckets", "tags", "order"} <= set(parts)
    assert any(p.left_out for p in plans)


def test_nothing_is_planned_again(tmp_path, monkeypatch):
    program, result = planned(2)
    jobs = read_plans(stored(tmp_path, plan_text(result)))
    for name in ("tag.Tag", "bucket.Bucket", "reorder.Reorder"):
        monkeypatch.setattr(f"commcc.passes.{name}.plan", None)
    assert run(program, jobs).changed


def test_dropped_passes_stay_dropped(tmp_path):
    program, model, undo, _once = improved()
    result = run(program, [*parse_pipeline("reorder"), undo], model=model, rules=Rules(keep_if_better=True))
    dropped = result.steps[1].dropped
    again = run(program, read_plans(stored(tmp_path, plan_text(result))), model=model)
    assert dropped is not None and again.steps[1].dropped == dropped and not again.steps[1].changed
    assert again.last.index.names == result.last.index.names
    assert plan_text(again) == plan_text(result)


@settings(max_examples=examples(300), deadline=None)
@given(st.permutations(range(12)))
def test_moves_give_back_any_order(order):
    names = [f"n{i}" for i in range(12)]
    said = moves.encode(order, names)
    number = {name: i for i, name in enumerate(names)}
    read = [(None if m["after"] is None else number[m["after"]], [number[n] for n in m["nodes"]]) for m in said]
    assert list(moves.decode(12, read)) == list(order)


def test_only_what_moves_is_named():
    names = [f"n{i}" for i in range(6)]
    assert moves.encode((0, 1, 2, 3, 4, 5), names) == []
    assert moves.encode((3, 0, 1, 2, 4, 5), names) == [{"after": None, "nodes": ["n3"]}]
    assert moves.encode((0, 2, 3, 4, 1, 5), names) == [{"after": "n4", "nodes": ["n1"]}]


@pytest.mark.parametrize(
    ("given_moves", "words"),
    [
        ([(0, [1]), (0, [2])], "same place"),
        ([(0, [1, 1])], "moved twice"),
        ([(0, [1]), (2, [1])], "moved twice"),
        ([(1, [2]), (0, [1])], "moved itself"),
    ],
)
def test_moves_that_contradict_each_other(given_moves, words):
    with pytest.raises(ValueError, match=words):
        moves.decode(4, given_moves)


def refusal(program, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        run(program, read_plans(path))
    return str(caught.value)


def test_another_graph_is_refused_with_the_first_node_that_differs(tmp_path):
    program, result = planned(4)
    path = stored(tmp_path, plan_text(result))
    index = build_index(program)
    for name, changed in changes(program):
        text = refusal(changed, path)
        assert f"{path}:" in text and "planned on another graph" in text
        after = build_index(changed)
        first = next(
            (i for i, (a, b) in enumerate(zip(index.names, after.names, strict=False)) if a != b),
            index.position.get(name),
        )
        assert f"node {first}, '{after.names[first]}' (" in text, text


def changes(program):
    """The program with one node changed: another constant, another name, one node more."""
    for name, target in (("constant", "fmod"), ("name", "mm"), ("more", "mm")):
        copy = dataclasses.replace(program, graph=program.graph_module().graph)
        node = next(n for n in copy.graph.nodes if target in str(n.target))
        if name == "constant":
            node.args = (node.args[0], 9)
        elif name == "name":
            node.name = "another_name"
        else:
            with copy.graph.inserting_before(node):
                made = copy.graph.call_function(node.target, node.args, node.kwargs)
            made.meta = dict(node.meta)
        yield node.name, copy


def test_a_graph_that_only_ends_earlier_or_later(tmp_path):
    program, result = planned(4)
    text = plan_text(result)
    count = len(build_index(program))
    longer = random_program(4, layers=7)
    assert f"({count} nodes then, {len(build_index(longer))} now)" in refusal(longer, stored(tmp_path, text))


def test_later_passes_are_checked_too(tmp_path):
    """Whoever takes a bucket out of a plan has to plan what follows again."""
    program, result = planned(2)
    lines = plan_text(result).splitlines(keepends=True)
    at = lines.index("  buckets:\n")
    end = next(i for i in range(at + 2, len(lines)) if lines[i].startswith("  - kind") or lines[i][2] not in " -")
    text = "".join(lines[: at + 1] + lines[end:])
    assert "reorder was planned on another graph: node" in refusal(program, stored(tmp_path, text))


EDITS = [
    ("{launch: ", "{launch: x", "(did you mean '"),
    ("{launch: ", "{launch: qqq", "no node 'qqq"),
    ("role: fsdp", "role: fsdpp", "(did you mean 'fsdp'?)"),
    ("  tags:", "  tagss:", "unknown key 'tagss' (did you mean 'tags'?)"),
    ("commcc_plan: 1", "commcc_plan: 2", "version 2 are not known"),
    ("wait_at:", "waitat:", "did you mean 'wait_at'"),
    ("kind: reduce_scatter", "kind: all_gather", "is no all_gather that can be merged"),
    ("copies: [", "copies: [false, ", ": give true or false for each member, or plan again"),
    ("- after:", "- aftr:", "did you mean 'after'"),
    ("digests: [", "digests: [0 zz, ", "four hexadecimal digits"),
]


@pytest.mark.parametrize(("old", "new", "words"), EDITS, ids=[new for _, new, _ in EDITS])
def test_wrong_edits_are_named_with_their_line(old, new, words, tmp_path):
    program, result = planned(2)
    text = plan_text(result)
    assert old in text
    path = stored(tmp_path, text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    said = refusal(program, path)
    assert words in said
    assert abs(int(said.removeprefix(f"{path}:").split(":")[0]) - line) <= 8, said


@pytest.mark.parametrize("more", ["true, ", "true, false, "])
def test_copies_that_are_too_many_are_counted_where_they_stand(more, tmp_path):
    program, result = planned(2)
    text = plan_text(result)
    bucket = next(step.plan.rewrite.buckets[0] for step in result.steps if isinstance(step.plan.rewrite, Merging))
    members, at = len(bucket.members), text.index("copies: [")
    path = stored(tmp_path, text.replace("copies: [", f"copies: [{more}", 1))
    what = f"'copies' has {members + more.count(',')} values, and the bucket {members} members: give true or false"
    assert refusal(program, path).startswith(f"{path}:{text[:at].count(chr(10)) + 1}: {what}")


def test_a_launch_in_two_buckets(tmp_path):
    program, result = planned(2)
    lines = plan_text(result).splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("  - kind"))
    end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("  - kind") or lines[i][2] not in " -")
    said = refusal(program, stored(tmp_path, "".join(lines[:end] + lines[at:end] + lines[end:])))
    assert "is in a bucket twice" in said


def test_all_mistakes_are_named_at_once(tmp_path):
    program, result = planned(2)
    text = (
        plan_text(result).replace("role: fsdp", "role: fdsp").replace("wait_at:", "waitat:").replace("- after:", "- x:")
    )
    said = refusal(program, stored(tmp_path, text))
    assert "fdsp" in said and "waitat" in said and "'x'" in said


def test_an_order_that_is_not_legal(tmp_path):
    program, result = planned(4)
    at = next(i for i, step in enumerate(result.steps) if isinstance(step.plan.rewrite, Reordering))
    text = plan_text(result)
    index = result.steps[at].before.index
    user = next(i for i in range(len(index)) if index.preds(i) and index.ops[i] != "output")
    bad = f"  order: [{{after: null, nodes: [{index.names[user]}]}}]\n"
    lines = text.splitlines(keepends=True)
    start = lines.index("  order:\n")
    end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith("  options"))
    said = refusal(program, stored(tmp_path, "".join([*lines[:start], bad, *lines[end:]])))
    assert f"'{index.names[user]}' comes before" in said


def test_two_rewrites_in_one_pass(tmp_path):
    program, result = planned(4)
    name = result.first.index.names[0]
    line = f"  dead: [{{nodes: [{name}], reason: none}}]\n"
    text = plan_text(result).replace("  buckets:\n", f"{line}  buckets:\n", 1)
    with pytest.raises(InputError, match="a pass cannot have both 'buckets' and 'dead'"):
        read_plans(stored(tmp_path, text))
    assert refusal(program, stored(tmp_path, text)).startswith(f"{tmp_path / 'plan.yaml'}:")


@settings(max_examples=examples(150), deadline=None)
@given(st.randoms(use_true_random=False))
def test_damaged_files_end_in_one_error_or_in_the_same_program(rng: random.Random):
    """Whatever is done to a file: an InputError, or a result that the verifier has passed."""
    import tempfile
    from pathlib import Path

    program, result = planned(2)
    text = damaged(plan_text(result), rng)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(program, read_plans(stored(Path(folder), text)))
        except InputError as error:
            assert "plan.yaml" in str(error) and len(str(error)) < 20_000


def damaged(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    names = [word.strip(",[]{}\n") for line in lines for word in line.split() if "_" in word]
    body = next(i for i, line in enumerate(lines) if line.startswith("graphs:"))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(body)
        how = rng.randrange(6)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[rng.randrange(body)])
        elif how == 2:
            words = lines[at].split(" ")
            words[rng.randrange(len(words))] = rng.choice(names)
            lines[at] = " ".join(words)
        elif how == 3:
            lines[at] = lines[at].replace(
                rng.choice("[]{}:,-aeiou"), rng.choice(["", "[", "}", ":", "null", "\t", "&a"]), 1
            )
        elif how == 4:
            swap = rng.sample(names, 2)
            lines[at] = lines[at].replace(swap[0], swap[1])
        else:
            lines[at] = (
                lines[at].replace("true", "false") if "true" in lines[at] else lines[at].replace("false", "true")
            )
    return "".join(lines)


@dataclass(frozen=True)
class Newer:
    """A kind of edit that plan files have never seen."""

    pairs: tuple[tuple[Node, ...], ...] = ()
    wrong: int = 0


def test_new_fields_are_stored_by_their_annotation_or_refused():
    names = ["a", "b", "c"]
    assert encode(Newer(((0, 1), (2,))), Newer, names, "x") == {"pairs": [["a", "b"], ["c"]]}
    with pytest.raises(InternalError, match=r"cannot hold 'Newer.wrong'.*Node, NodeOrder or Count"):
        encode(Newer(wrong=3), Newer, names, "x")


def test_every_field_of_every_plan_can_be_stored():
    """Fails when a field of a plan gets an annotation that does not say what its numbers are."""
    seen = list(dict.fromkeys(PARTS.values()))
    for cls in seen:
        hints = list(hints_of(cls).values())
        for hint in hints:
            hints += [part for part in getattr(hint, "__args__", ()) if mark_of(hint) is None]
            assert hint is not int, f"{cls.__name__} has a bare int"
        # a reason is stored as its words
        seen += [h for h in hints if dataclasses.is_dataclass(h) and h is not Reason and h not in seen]
    assert {Bucket, TagEntry, ControlEdge} <= set(seen)
    names = [f"n{i}" for i in range(5)]
    bucket, tag = Bucket(Kind.ALL_GATHER, (1, 2), 1, 2, Reason.of("stated", text="r")), TagEntry(3, Role.FSDP, "e")
    said = encode_plan(Plan("p", "f", Merging((bucket,)), (tag,)), names)
    assert list(said) == ["buckets", "tags"]
    assert said["buckets"] == [
        {"kind": "all_gather", "members": ["n1", "n2"], "launch_at": "n1", "wait_at": "n2", "reason": "r"}
    ]
    said = encode_plan(Plan("p", "f", Reordering((0, 2, 1, 3, 4))), names)
    assert said["order"] == [{"after": "n0", "nodes": ["n2"]}] or said["order"] == [{"after": "n2", "nodes": ["n1"]}]
