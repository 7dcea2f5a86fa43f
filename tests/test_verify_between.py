"""Chunks that folding would make right: what happens to shared memory between them, and rows that are not alike."""

from __future__ import annotations

import operator

import pytest

from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, named
from tests.test_ep_chunk import moved


def graphs(kind):
    """A module with a buffer, cut in two chunks; then names of a clone and of what is to follow it."""
    b = Layers()
    x, c, d = b.tokens("x", 8, 4), b.buffer("c", 4), b.buffer("d", 4)
    early = {"a write": aten.zero_.default, "a read": aten.sin.default}.get(kind)
    outside = None if early is None else b.call(early, c)
    with b.module(MOE):
        results = [moved(b, x)]
        if kind != "a write":
            added = b.call(aten.add_.Tensor, c, b.call(aten.sum.dim_IntList, x, [0]))
        if kind != "a read":
            results.append(b.call(aten.mul.Tensor, x, c if early else d))
    if kind == "a read":
        results.append(outside)
    before = b.done(results)
    moves = {
        "a write": (lambda: f"{results[1].name}_chunk0", lambda: outside.name),
        "a read": (lambda: f"{added.name}_chunk0", lambda: outside.name),
        "a read of a chunk": (lambda: f"{added.name}_chunk0", lambda: f"{results[1].name}_chunk0"),
    }
    after = chunked(before, chunks=2)
    for program in () if early else (before, after):  # what ep-chunk would not cut
        nodes = named(program)
        for user in list(nodes["d"].users):
            user.replace_input_with(nodes["d"], nodes["c"])
    return before, after, tuple(name() for name in moves[kind])


@pytest.mark.parametrize("kind", ["a write", "a read", "a read of a chunk"])
def test_what_meets_shared_memory_between_two_chunks(kind):
    before, after, (clone, follows) = graphs(kind)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12
    nodes = named(after)
    nodes[clone].append(nodes[follows])
    after.graph.lint()
    assert error(before, after) > 0.1
    verdict = verify(before, after)
    assert verdict.status == "unproved"
    assert f"at '{follows}': between" in verdict.unproved[0].text


def test_rows_that_are_alike_are_no_elements_that_are():
    """Seen as a list, the rows of a bias have an order, which is not that of what was sorted."""
    b = Layers()
    x, w = b.tokens("x", 8, 4), b.weight("w", 4)
    with b.module(MOE):
        results = [moved(b, x)]
        keys = b.call(aten.view.default, x, [-1])
        both = b.call(aten.sort.default, keys)
        rows, order = (b.call(operator.getitem, both, place) for place in range(2))
        bias = b.call(aten.view.default, b.call(aten.add.Tensor, b.call(aten.zeros_like.default, x), w), [-1])
        twice = b.call(aten.add.Tensor, rows, rows)
        results.append(b.call(aten.index_copy.default, b.call(aten.zeros_like.default, keys), 0, order, twice))
    before = b.done([*results, bias])
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    for program in (before, after):  # what ep-chunk would not cut
        nodes = named(program)
        for name in nodes.keys() & {twice.name, *(f"{twice.name}_chunk{chunk}" for chunk in range(2))}:
            nodes[name].args = (nodes[name].args[0], nodes[name.replace(twice.name, bias.name)])
    assert error(before, after) > 0.1
    assert verify(before, after).status == "unproved"
