"""Values of new nodes, where sizes are known at run time only."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.apply.fakes import contiguous_strides, is_contiguous


@pytest.fixture
def count():
    return ShapeEnv().create_unbacked_symint()


def test_strides_of_a_size_that_nobody_knows(count):
    first, second, third = contiguous_strides((3, count, 4))
    assert str(first) in ("4*Max(1, u0)", "Max(4, 4*u0)")
    assert (second, third) == (4, 1)
    assert contiguous_strides((3, 0, 4)) == (4, 4, 1)


def test_what_surely_is_contiguous(count):
    with FakeTensorMode(shape_env=count.node.shape_env):
        assert is_contiguous(torch.zeros(count, 4))
        assert is_contiguous(torch.zeros(4, count))
        assert not is_contiguous(torch.zeros(4, 2, count).transpose(0, 1))
    assert is_contiguous(torch.zeros(3, 2)) and not is_contiguous(torch.zeros(3, 2).t())
