"""Module entries, repeated blocks, the module of a collective, and cycles of merges."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.graph.blocks import Item, find_blocks, find_rest, labels
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.modules import Entry, Matcher, _fits, entries_of, parents, syntax_problems
from commcc.plan import Before
from commcc.planning.merge_order import cycles
from tests.effort import examples
from tests.index_maker import IndexMaker
from tests.random_graphs import GraphBuilder, aten

KNOWN = ("tok", "layers.0.attn.wq", "layers.1.attn.wq", "layers.10.attn.wq", "norm", "output", "h1.mlp", "h2.mlp")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["layers.0"], ["layers.0"]),
        (["layers.[0-1]"], ["layers.0", "layers.1"]),
        (["layers.*"], ["layers.0", "layers.1", "layers.10"]),
        (["layers.1*"], ["layers.1", "layers.10"]),
        (["h[1-2]"], ["h1", "h2"]),
        (["layers.[0-1].attn"], ["layers.0.attn", "layers.1.attn"]),
        (["*.[0-1].*"], ["layers.0.attn", "layers.1.attn"]),
        (["norm+output", "tok"], ["norm+output", "tok"]),
        (["layers.[0-1]+norm"], ["layers.[0-1]+norm"]),
    ],
)
def test_entries(texts, names):
    found = entries_of(texts, KNOWN)
    assert found.problems == ()
    assert [entry.name for entry in found.entries] == names


def test_a_sum_is_one_entry_of_all_its_modules():
    (entry,) = entries_of(["layers.[0-1]+norm"], KNOWN).entries
    assert entry.roots == ("layers.0", "layers.1", "norm")


@pytest.mark.parametrize(
    ("path", "entry"),
    [("layers.1", "layers.1"), ("layers.1.attn.wq", "layers.1"), ("layers.10.attn", None), ("output", "norm+output"),
     ("normal", None), ("layers", None), ("", None), (None, None)],
)  # fmt: skip
def test_matching_stops_at_dots(path, entry):
    find = Matcher(entries_of(["layers.[0-1]", "norm+output"], KNOWN).entries)
    found = find(path)
    assert (found and found.name) == entry


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["layers.[0-3]"], "no modules 'layers.2' to 'layers.3' in the graph (asked for by 'layers.[0-3]')"),
        (["layers.[1-2]"], "no module 'layers.2' in the graph"),
        (["layer.[0-3]"], "no module 'layer.[0-3]' in the graph (did you mean 'layers.0'?)"),
        (["wq"], "no module 'wq' in the graph"),
        (["h*", "h1.mlp"], "'h*' and 'h1.mlp' both cover 'h1.mlp'"),
        (["h1.mlp", "h*"], "'h*' and 'h1.mlp' both cover 'h1.mlp'"),
        (["norm+tok", "tok"], "'norm+tok' and 'tok' both cover 'tok'"),
        (["norm+norm"], "'norm+norm' covers 'norm' twice"),
        (["blocks"], "no module 'blocks' in the graph (did you mean 'all_blocks'?)"),
    ],
)
def test_mistakes(texts, problem):
    problems = entries_of(texts, KNOWN, words=("all_blocks",)).problems
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_every_overlap_is_named_once():
    problems = entries_of(["layers.*", "layers.[0-1]", "tok", "tok"], KNOWN).problems
    assert problems == ("'tok' covers 'tok' twice", "'layers.*' and 'layers.[0-1]' both cover 'layers.0'")
    block = Entry("h1", ("h1",), "word")
    assert entries_of(["h1.mlp"], KNOWN, [block]).problems == ("'word' and 'h1.mlp' both cover 'h1.mlp'",)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.text("ab01.*+[-]? \\n(é", max_size=12), max_size=3))
def test_any_text_is_an_entry_or_a_problem(texts):
    found = entries_of(texts, ["a.0", "a.1", "b"])
    assert found.problems or not texts or found.entries
    assert bool(syntax_problems(texts)) <= bool(found.problems)
    if not found.problems:
        roots = [root for entry in found.entries for root in entry.roots]
        assert not any(one in parents(other) for one, other in combinations(roots, 2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("*" * 60 + "b", "no module '***"),
        ("x" * 5_000 + "*x" * 2_000, "no module 'xxx"),
        ("+".join(["x"] * 100_000), "' is longer than 1,000 modules or 10,000 characters: name a module above them"),
        ("x" * 100_000, "' is longer than 1,000 modules or 10,000 characters"),
        ("+".join(["[0-999]"] * 20), "stands for more than 10,000 modules"),
        ("[0-9999]." + "[0-9999]", "stands for more than 10,000 modules"),
        ("+".join(["?"] * 999), "is not a module"),
    ],
    ids=["stars", "stars and letters", "sum", "name", "numbers of a sum", "numbers", "many problems"],
)
def test_texts_that_ask_for_too_much(text, problem):
    """Each would take minutes, or gigabytes, if it were done as it is written."""
    problems = entries_of([text], ["x" * 5_000, "a.b"]).problems
    assert 1 <= len(problems) <= 20 and problem in problems[0]
    assert max(map(len, problems)) < 20_000


def test_paths_of_many_parts_are_passed_over():
    deep = ".".join(["a"] * 100_000)
    assert entries_of(["a"], [deep, "a.b"]).entries == (Entry("a", ("a",), "a"),)
    assert entries_of(["a"], [deep]).problems == ("no module 'a' in the graph",)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_star_stands_for_anything(pattern, name):
    by_regex = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name)
    assert _fits(name, pattern) == bool(by_regex)


def items(*paths, kind="gather"):
    return [Item(path, (kind, "dp"), at) for at, path in enumerate(paths)]


def layers(count, *names, prefix="layers"):
    return [f"{prefix}.{i}.{name}" for i in range(count) for name in names]


def test_blocks_hold_more_than_the_siblings_inside_them():
    held = items("tok", *layers(2, "attn.wq", "attn.wk", "attn.wv", "attn.wo", "norm"), "norm", "output")
    assert find_blocks(held).paths == ("layers.0", "layers.1")
    assert find_rest(held, ("layers.0", "layers.1")) == (("tok",), ("norm", "output"))


def test_blocks_hold_more_than_the_experts_inside_them():
    experts = [f"experts.{expert}.{name}" for expert in range(4) for name in ("w1", "w2")]
    assert find_blocks(items("tok", *layers(2, "router", *experts), "norm")).paths == ("layers.0", "layers.1")


def test_a_backward_graph_has_the_same_blocks_from_the_back():
    forward = items("tok", *layers(3, "wq", "wo"), "norm", "output")
    backward = items(*reversed([item.path for item in forward]))
    assert find_blocks(backward).paths == ("layers.2", "layers.1", "layers.0")
    assert set(find_rest(backward, find_blocks(backward).paths)) == {("norm", "output"), ("tok",)}


def test_a_dense_layer_beside_experts_is_a_block_too():
    held = items("tok", "layers.0.w1", "layers.0.w2", *layers(4, "w1", "w2", "experts")[3:], "norm")
    blocks = find_blocks(held)
    assert blocks.paths == ("layers.0", "layers.1", "layers.2", "layers.3")
    assert blocks.alike


def test_two_families():
    held = items(
        *layers(4, "a", "b", prefix="decoder.layers"), *layers(2, "a", "b", prefix="encoder.h"), "decoder.norm"
    )
    paths = find_blocks(held).paths
    assert paths == (*(f"decoder.layers.{i}" for i in range(4)), "encoder.h.0", "encoder.h.1")
    assert find_rest(held, paths) == (("decoder.norm",),)


def test_numbers_decide_where_nothing_matches():
    held = items("tok", "layers.0.w1", "layers.0.w2", "layers.1.w1", "layers.1.w3", "layers.1.w4", "head.w1", "head.w2")
    blocks = find_blocks(held)
    assert blocks.paths == ("layers.0", "layers.1")
    assert not blocks.alike


def test_blocks_of_one_gather_each():
    assert find_blocks(items("net.0", "net.1", "net.2")).paths == ("net.0", "net.1", "net.2")
    assert find_blocks(items("one")).paths == ()
    assert find_blocks([]).paths == ()


def test_what_lies_between_blocks_stays_apart():
    held = items("tok", "h.0.a", "h.0.b", "mid", "other", "h.1.a", "h.1.b", "norm", "head")
    assert find_rest(held, ("h.0", "h.1")) == (("tok",), ("mid",), ("other",), ("head", "norm"))


def test_the_rest_is_judged_in_every_kind():
    """In a joint graph the embedding is gathered first and reduced last."""
    gathers = ["tok", *layers(2, "a", "b"), "norm", "output"]
    reductions = [Item(path, ("reduce", "dp"), 100 + at) for at, path in enumerate(reversed(gathers))]
    extra = [Item("norm", ("other", "dp"), 50)]
    held = [*items(*gathers), *reductions, *extra]
    assert find_blocks(held).paths == ("layers.0", "layers.1")
    assert find_rest(held, ("layers.0", "layers.1")) == (("tok",), ("norm", "output"))


def test_a_bucket_counts_for_its_members():
    held = [Item("layers.0.a", ("g",), 0, 9), Item("layers.1.a", ("g",), 1, 9), *items("x.0", "x.1", "x.2")]
    assert find_blocks(held).paths == ("layers.0", "layers.1")


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        ("eqkqkqkn", "before 0 0 1 1 2 2 after"),
        ("henabcnabcnabcnah", "before before 0 0 0 0 1 1 1 1 2 2 2 2 after after after"),
        ("xyxyxyQabcabcabcabcR", "0 0 1 1 2 2 between.1 3 3 3 4 4 4 5 5 5 6 6 6 after"),
        ("tBBBn", "before 0 1 2 after"),
        ("abab", "0 0 1 1"),
        ("abcdefgg", None),
        ("abcd", None),
        ("", None),
    ],
)
def test_what_repeats(marks, found):
    named = labels(marks)
    assert (named and " ".join(named).replace("block.", "")) == found


def test_a_long_model_in_time():
    named = labels([*["e"], *(number % 13 for number in range(13 * 300)), "n", "h"])
    assert named is not None
    assert named[1 : 13 * 300 + 1] == [f"block.{number // 13}" for number in range(13 * 300)]


def gather_and_reduce(gather_meta=None, use_meta=None, make_meta=None, header=None):
    build = GraphBuilder()
    shard, x = build.placeholder("primals_1", (4, 8)), build.placeholder("x", (8, 8))
    full = build.gather(shard, 2, "0")
    viewed = build.call(aten.view.default, full, [8, 8])
    y = build.call(aten.mm.default, x, viewed)
    grad = build.call(aten.mm.default, y, x)
    done = build.scatter(build.call(aten.clone.default, grad), 2, "0")
    for node, path in ((full, gather_meta), (y, use_meta), (grad, make_meta)):
        if path:
            node.meta["custom"] = {"module_fqn": path}
    program = build.program([y, done], {"0": 2}, header)
    index = build_index(program)
    return [c.module for c in identify(index).collectives]


def test_the_module_of_a_collective():
    assert gather_and_reduce() == [None, None]
    assert gather_and_reduce("a.b") == ["a.b", None]
    assert gather_and_reduce(use_meta="c") == ["c", None]
    assert gather_and_reduce(make_meta="d.e") == [None, "d.e"]
    assert gather_and_reduce("a.b", "c", "d.e") == ["a.b", "d.e"]


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("layers.3.wq.weight", "layers.3.wq"),
        ("layers.3.wq.parametrizations.weight.original", "layers.3.wq"),
        ("L['model'].layers.3.w", "layers.3"),
        ("scale", None),
    ],
)
def test_the_module_of_a_parameter(target, module):
    """Where no node has a module, the descriptors of inputs and outputs tell it."""
    build = GraphBuilder()
    shard, x = build.placeholder("primals_1", (4, 8)), build.placeholder("x", (8, 8))
    y = build.call(aten.mm.default, x, build.gather(shard, 2, "0"))
    done = build.scatter(build.call(aten.mm.default, y, x), 2, "0")
    index = build_index(build.program([done], {"0": 2}))
    parameter = f"SubclassGetAttrAOTInput(base=ParamAOTInput(target={target!r}), attr='_local_tensor')"
    gradient = f"GradAOTOutput(grad_of=ParamAOTInput(target={target!r}))"
    described = replace(index, descriptors={0: parameter, 1: "PlainAOTInput(idx=0)"}, output_descriptors=(gradient,))
    assert [c.module for c in identify(described).collectives] == [module, module]


def random_merges(seed):
    """A small index, groups of launches in it, and wishes; at random."""
    rng = random.Random(seed)
    make = IndexMaker()
    pool, launches, waits = [make.input()], [], []
    for _ in range(rng.randrange(6, 22)):
        if rng.random() < 0.4:
            launch = make.launch(1, "dp", rng.choice(pool[-4:]))
            launches.append(launch)
            waits.append(make.wait(launch))
            pool.append(waits[-1])
        else:
            pool.append(make.op(1, *(rng.choice(pool[-4:]) for _ in range(rng.randint(1, 2)))))
    index = make.index()
    rng.shuffle(launches)
    groups, rest = [], list(launches)
    while len(rest) > 1 and rng.random() < 0.8:
        size = rng.randint(1, min(3, len(rest)))
        groups.append(sorted(rest[:size]))
        rest = rest[size:]
    before = [Before(rng.choice(launches), rng.choice(waits)) for _ in range(rng.randrange(3)) if launches]
    return index, groups, before


def merged_graph(index, groups, before):
    """Edges between names of what is left after merging, made without looking at how commcc does it."""
    name = {node: f"n{node}" for node in range(len(index))}
    wait = dict(name)
    edges = set()
    for number, group in enumerate(groups):
        for member in group:
            name[member] = f"L{number}"
            for each in index.launches[member].waits:
                wait[each] = f"W{number}"
                edges.add((f"L{number}", f"W{number}"))
                edges.add((f"W{number}", name[each]))
    for node in range(len(index)):
        edges |= {(name[p], name[node] if node in index.launches else wait[node]) for p in index.preds(node)}
    wishes = [(wait[b.first] if b.first in index.wait_of else name[b.first], wait[b.then]) for b in before]
    return edges, wishes


def reach(edges, start):
    found, stack = set(), [start]
    while stack:
        at = stack.pop()
        fresh = {b for a, b in edges if a == at} - found
        found |= fresh
        stack += fresh
    return found


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 100_000))
def test_cycles_are_what_a_search_finds(seed):
    index, groups, before = random_merges(seed)
    edges, wishes = merged_graph(index, groups, before)
    everything = edges | set(wishes)
    on_cycle = {node for node in {n for edge in everything for n in edge} if node in reach(everything, node)}
    found = cycles(index, groups, before)
    assert bool(found) == bool(on_cycle)
    assert {g for cycle in found for g in cycle.groups} == {
        g for g in range(len(groups)) if {f"L{g}", f"W{g}"} & on_cycle
    }
    expected = {n for n, (first, then) in enumerate(wishes) if first == then or first in reach(everything, then)}
    assert {n for cycle in found for n in cycle.before} == expected
    if not before:
        assert cycles(index, [[m] for group in groups for m in group], ()) == []
