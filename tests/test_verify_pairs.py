"""The verifier on hand-made pairs: what is proved is the same program, what is undecided is not called different."""

from __future__ import annotations

import itertools

import pytest
import torch

from commcc.verify import verify
from commcc.verify.contents import _FLOAT8, _REAL, _WHOLE, _skips, widens
from tests.verify_graphs import Graph, aten, differs, proved, texts
from tests.verify_pairs import PAIRS

DTYPES = (*sorted(_REAL | _FLOAT8 | _WHOLE, key=str), torch.bool)


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name):
    status, make = PAIRS[name]
    before, after = make()
    verdict = verify(before, after)
    assert verdict.status == status, texts(verdict)


@pytest.mark.parametrize("name", PAIRS)
def test_each_side_is_itself(name):
    _, make = PAIRS[name]
    for one, other in zip(make(), make(), strict=True):
        verdict = verify(one, other)
        assert verdict.status == "proved", texts(verdict)


# Constants in memory


def _constants(make):
    """One constant is written, another one read."""
    g = Graph()
    first, second = make()
    a, b = g.attribute("a", first), g.attribute("b", second)
    g(aten.add_.Tensor, a, 1)
    return g.program(g(aten.sin.default, b))


def test_constants_that_are_one_tensor():
    def shared():
        held = torch.ones(4)
        return held, held

    proved(_constants(shared), _constants(shared))
    differs(_constants(shared), _constants(lambda: (torch.ones(4), torch.ones(4))), "mutation")


def test_constants_that_overlap_are_not_decided():
    def overlapping():
        held = torch.ones(6)
        return held[:4], held[2:]

    for other in (overlapping, lambda: (torch.ones(4), torch.ones(4))):
        verdict = verify(_constants(overlapping), _constants(other))
        assert verdict.status == "unproved"
        assert "constants 'a' and 'b' share memory" in texts(verdict)


# Conversions that lose nothing, on all values of small dtypes and chosen ones of the rest


def _values(dtype):
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    if dtype in _WHOLE:
        near = [2**n + d for n in (7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64) for d in (-1, 0, 1)]
        limits = torch.iinfo(dtype)
        wanted = {0, 1, *near, *(-n for n in near)}
        return torch.tensor([n for n in sorted(wanted) if limits.min <= n <= limits.max], dtype=dtype)
    limits = torch.finfo(dtype)
    special = [0.0, -0.0, 1.0, float("inf"), float("nan"), limits.max, limits.tiny, limits.tiny * limits.eps]
    return torch.cat([torch.tensor(special, dtype=dtype), torch.randn(500, dtype=dtype)])


def _equal(one, other):
    one, other = one.tolist(), other.tolist()
    nan = [a != a and b != b for a, b in zip(one, other, strict=True)]
    return all(
        n or (a == b and str(a == 0 and a) == str(a == 0 and type(a)(b)))
        for n, a, b in zip(nan, one, other, strict=True)
    )


@pytest.mark.parametrize("old", DTYPES, ids=str)
@pytest.mark.sampled(2)
def test_which_conversions_lose_nothing(old):
    values = _values(old)
    for new in DTYPES:
        wide = values.to(new)
        if old != new and new is not torch.bool:
            exact = _equal(values, wide.to(old)) and [float(v) for v in values] == [float(w) for w in wide]
            nan = any(v != v for v in values.tolist())
            assert widens(old, new) <= (exact or nan), (old, new)
            if not nan:
                assert widens(old, new) == exact, (old, new)


@pytest.mark.parametrize("old", DTYPES, ids=str)
@pytest.mark.sampled(3)
def test_which_conversions_may_be_skipped(old):
    values = _values(old)
    for wide, new in itertools.product(DTYPES, DTYPES):
        if old != wide and widens(old, wide) and _skips(old, wide, new):
            assert _equal(values.to(wide).to(new), values.to(new)), (old, wide, new)
