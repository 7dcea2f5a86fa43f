"""Where collectives and copies write: into one piece of memory, and into nothing that another one of them touches."""

from __future__ import annotations

import pytest
import torch

from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d

CPU = {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False}


def reduced(*, holes: bool, op: str):
    """A reduction in a column of a matrix, in place, or in a row."""
    g = Graph()
    x = g.input("x", 4)
    whole = g(aten.empty.memory_format, [4, 2] if holes else [2, 4], **CPU)
    part = g(aten.copy_.default, g(aten.select.int, whole, 1 if holes else 0, 0), x)
    rest = (part, "sum", "0") if op == "all_reduce_" else (part, 0, "0")
    waited = g(c10d.wait_tensor.default, g(getattr(c10d, op).default, *rest))
    return g.program(g(aten.relu.default, waited))


def plain(op: str):
    g = Graph()
    x = g.input("x", 4)
    rest = (x, "sum", "0") if op == "all_reduce" else (x, 0, "0")
    return g.program(g(aten.relu.default, g(c10d.wait_tensor.default, g(getattr(c10d, op).default, *rest))))


@pytest.mark.parametrize("op", ["all_reduce", "broadcast"])
def test_a_collective_in_place_of_a_tensor_with_holes(op):
    assert verify(plain(op), reduced(holes=False, op=f"{op}_")).status == "proved"
    assert verify(plain(op), reduced(holes=True, op=f"{op}_")).status == "different"
    same = reduced(holes=True, op=f"{op}_")
    assert verify(same, same).status == "proved"


def scattered(start: int | None):
    """A reduce-scatter into a part of what it sends, or into memory of its own."""
    g = Graph()
    x = g(aten.relu.default, g.input("x", 8))
    if start is None:
        launch = g(c10d.reduce_scatter_tensor.default, x, "sum", 2, "0")
    else:
        part = g(aten.slice.Tensor, x, 0, start, start + 4)
        launch = g(c10d.reduce_scatter_tensor_out.default, x, "sum", 2, "0", out=part)
    return g.program(g(aten.relu.default, g(c10d.wait_tensor.default, launch)))


def test_a_scatter_in_place_writes_the_row_of_its_rank():
    assert verify(scattered(None), scattered(2)).status == "different"
    for start in (0, 4):
        assert verify(scattered(None), scattered(start)).status == "proved"


def copied(pairs, *, at_once: bool):
    """Copies between parts of one tensor of 12 elements and three inputs."""
    g = Graph()
    whole = g(aten.clone.default, g.input("whole", 12))
    named = {name: g.input(name, 4) for name in "abc"}
    named.update({str(i): g(aten.slice.Tensor, whole, 0, i, i + 4) for i in (0, 2, 4, 8)})
    targets, sources = ([named[pair[side]] for pair in pairs] for side in (0, 1))
    if at_once:
        g(aten._foreach_copy_.default, targets, sources, val=[])
    else:
        for target, source in zip(targets, sources, strict=True):
            g(aten.copy_.default, target, source)
    return g.program(g(aten.relu.default, whole), *(g(aten.relu.default, named[name]) for name in "abc"))


@pytest.mark.parametrize("pairs", [("0a", "4b", "8c"), ("0a", "80"), ("ab", "cb"), ("0a", "40")[:1]])
def test_copies_of_apart_memory_at_once(pairs):
    apart = all(pair != "80" for pair in pairs)
    status = verify(copied(pairs, at_once=False), copied(pairs, at_once=True)).status
    assert status == "proved" if apart else status != "proved"


@pytest.mark.parametrize("pairs", [("ab", "ca"), ("ab", "ac"), ("ab", "ba"), ("0a", "2b"), ("0a", "b2"), ("4a", "02")])
def test_copies_at_once_have_no_order(pairs):
    assert verify(copied(pairs, at_once=False), copied(pairs, at_once=True)).status != "proved"
    same = copied(pairs, at_once=True)
    assert verify(same, same).status == "proved"
