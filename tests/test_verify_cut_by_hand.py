"""Modules cut by hand in chunks that no pass would make: what the rules for rows have to see by themselves."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.verify import verify
from tests.verify_graphs import Graph, aten

ROWS, HALF = 8, 4


def noted(node, role, **more):
    node.meta.update(chunked_region_fqn="m", chunked_region_role=role, **more)
    return node


def whole(make):
    """make: called with the graph, two lists of rows and a table; the last op of those that it gives is the result."""
    g = Graph()
    x, y, w = g.input("x", ROWS), g.input("y", ROWS), g.input("w", ROWS, 3)
    made = make(g, x, y, w)
    return g.program(made[-1]), [node.name for node in made]


def halves(make, names, *, add):
    """The same for either half, put together again."""
    g = Graph()
    x, y, w = g.input("x", ROWS), g.input("y", ROWS), g.input("w", ROWS, 3)
    splits = [noted(g(aten.split_with_sizes.default, rows, [HALF, HALF]), "split_boundary") for rows in (x, y)]
    results = []
    for chunk in range(2):
        parts = [noted(g(operator.getitem, split, chunk), "chunk_input", chunk_id=chunk) for split in splits]
        made = make(g, *parts, w)
        for node, name in zip(made, names, strict=True):
            noted(node, "body", chunk_id=chunk, chunked_original_name=name)
        results.append(made[-1])
    joined = g(aten.add.Tensor, *results) if add else g(aten.cat.default, results)
    return g.program(noted(joined, "materialization"))


def scaled(g, x, y, _w):
    return (factor := g(aten.add.Tensor, y, 1), g(aten.mul.Tensor, x, factor))


def summed(g, x, _y, _w):
    return (g(aten.sum.dim_IntList, x, [0]),)


@pytest.mark.parametrize(("make", "add"), [(scaled, False), (summed, True)])
def test_rows_and_sums(make, add):
    before, names = whole(make)
    assert verify(before, halves(make, names, add=add)).status == "proved"


def let_through(g, x, _y, w):
    """Rows of a table for which a mask holds that is as long as the table: half of it fits no table."""
    mask = g(aten.gt.Scalar, x, 0)
    with g.mode:
        val = aten.index.Tensor(torch.empty(ROWS, 3), [torch.empty(ROWS, dtype=torch.bool)])
    rows = g(aten.index.Tensor, w, [mask], val=val)
    return mask, rows, g(aten.sum.dim_IntList, rows, [0])


def where_equal(g, x, y, _w):
    """PyTorch has ``equal`` among what works element by element, and it gives one answer for all of them."""
    same = g(aten.equal.default, x, y, val=True)
    return same, g(aten.mul.Tensor, x, same)


def binned(*ends):
    """Counts in bins between two numbers or, where these are one, between the least and the largest of all rows."""

    def make(g, x, _y, _w):
        return (g(aten.histc.default, x, 4, *ends),)

    return make


@pytest.mark.parametrize("ends", [(-2, 2), (0, 4), (0, 0.5)])
def test_counts_in_bins_of_their_own(ends):
    before, names = whole(binned(*ends))
    assert verify(before, halves(binned(*ends), names, add=True)).status == "proved"


ASKING = [(let_through, True), (where_equal, False), (binned(0, 0), True), (binned(), True), (binned(3.0, 3), True)]


@pytest.mark.parametrize(("make", "add"), ASKING)
def test_what_asks_all_rows_at_once(make, add):
    before, names = whole(make)
    assert verify(before, halves(make, names, add=add)).status == "unproved"
