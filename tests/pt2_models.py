"""Exported models of every sort that a ``.pt2`` file can hold: what the tests of the format run on."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import nn
from torch.export import Dim, export

Case = namedtuple("Case", "exported args kwargs")


class Everything(nn.Module):
    """Parameters, buffers of both kinds, a mutated buffer, a constant, keywords, None and number outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 2.0)

    def forward(self, x, *, y=None):
        self.calls.add_(1)
        left, _ = torch.split(self.linear(x) + self.calls + self.constant + self.scratch, 2, 1)
        largest = torch.max(left, 1)
        either = torch.cond(x.sum() > 0, lambda t: (t + 1, t * 2), lambda t: (t - 1, t * 3), (x,))
        return {"o": largest.values * y, "n": None, "q": either[1], "k": 3}


class Sizes(nn.Module):
    """Sizes as numbers: arithmetic on them, and lists that mix them with constants."""

    def forward(self, x, y):
        b = x.shape[0]
        z = x.reshape(b * 2, -1).new_zeros(b // 2 + 1, max(b, 3))
        return z, x.view(1, b, 4), b * 3 + y.shape[0] // 2, torch.cat([x, y[: x.shape[0]]])


class Data(nn.Module):
    """Sizes known only at run time."""

    def forward(self, x):
        n = x.sum().item()
        torch._check(n >= 0)
        torch._check(n < 100)
        return torch.zeros(n + 1), x.nonzero(), x.repeat_interleave(2)


class Loops(nn.Module):
    def forward(self, x):
        def more(i, v):
            return i < 3

        def step(i, v):
            return i + 1, v * 2

        return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), x))


class Nested(nn.Module):
    def forward(self, x):
        def inner(t):
            return torch.cond(t.max() > 1, lambda u: u.sin(), lambda u: u.cos(), (t,))

        return torch.cond(x.sum() > 0, inner, lambda t: t.clone(), (x,))


class Mutates(nn.Module):
    def forward(self, x, w):
        x.add_(1)
        w.mul_(2)
        return x + w


class Structures(nn.Module):
    """Nested inputs and outputs, constants among the inputs, inputs returned as they are, twice."""

    def forward(self, items, scale: float, flag: bool, name: str, nothing):
        a, b = items["a"], items["b"][0]
        return [a, (a, {"left": a * scale, "right": b})], {"flag": flag, "b": b, "none": nothing}


class Indices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4)

    def forward(self, x, i):
        x = x.clone()
        x[:, i] = 1.5
        best = x.topk(2, -1)
        parts = x.unbind(0)
        mean = torch.var_mean(x, 1)
        out = self.bag(i.view(1, -1))
        return (
            best.indices,
            parts[1],
            mean[0],
            x[None, ..., 1:],
            out,
            torch.full((2,), float("inf")),
            x.to(torch.bfloat16),
        )


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2, return_indices=True))
        self.rnn = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        y, i = self.layers(x.contiguous(memory_format=torch.channels_last))
        with torch.no_grad():
            z = y.detach() * 2
        out, (h, _) = self.rnn(y.flatten(2).transpose(1, 2))
        return y, i, z, out, h, torch.randn(2) * 0


class Attention(nn.Module):
    def forward(self, q):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            m = q @ q.transpose(-1, -2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True), m


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("view", self.a.weight.data[1:3])

    def forward(self, x):
        return self.b(self.a(x)) + self.view.sum()


@torch.library.custom_op("commcc_test::split_add", mutates_args=())
def split_add(x: torch.Tensor, parts: list[int], scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return x * scale, x + len(parts)


@split_add.register_fake
def _(x, parts, scale=1.0):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("commcc_test::fill", mutates_args=("x",))
def fill(x: torch.Tensor, value: int) -> None:
    x.fill_(value)


@fill.register_fake
def _(x, value):
    return None


class Custom(nn.Module):
    def forward(self, x):
        a, b = torch.ops.commcc_test.split_add(x, [], scale=2.0)
        c = torch.zeros_like(a)
        torch.ops.commcc_test.fill(c, 3)
        return a + b + c


def _everything():
    batch = Dim("batch", max=64)
    args, kwargs = (torch.randn(3, 4),), {"y": torch.randn(3)}
    return export(Everything(), args, kwargs, dynamic_shapes={"x": {0: batch}, "y": {0: batch}}), args, kwargs


def _sizes():
    n = Dim("n", min=2, max=32)
    args = (torch.randn(6, 4), torch.randn(12, 4))
    return export(Sizes(), args, dynamic_shapes={"x": {0: n}, "y": {0: 2 * n}}), args, {}


def _plain(module, *args):
    def make():
        return export(module, args, strict=False), args, {}

    return make


def _decomposed(module, *args):
    def make():
        return export(module, args).run_decompositions(), args, {}

    return make


def _structures():
    args = ({"a": torch.randn(2), "b": [torch.randn(2)]}, 2.5, True, "mode", None)
    return export(Structures(), args), args, {}


_IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
_ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)

MAKERS = {
    "everything": _everything,
    "sizes": _sizes,
    "data": _plain(Data(), torch.tensor([1, 2, 3])),
    "loops": _plain(Loops(), _ROWS),
    "nested": _plain(Nested(), _ROWS),
    "mutates": _plain(Mutates(), _ROWS.clone(), _ROWS.clone()),
    "structures": _structures,
    "indices": _plain(Indices(), _ROWS, torch.tensor([0, 2])),
    "conv": _plain(Conv(), _IMAGE),
    "conv_decomposed": _decomposed(Conv(), _IMAGE),
    "attention": _plain(Attention(), _IMAGE),
    "attention_decomposed": _decomposed(Attention(), _IMAGE),
    "tied": _plain(Tied(), _ROWS),
    "custom": _plain(Custom(), _ROWS),
    "custom_decomposed": _decomposed(Custom(), _ROWS),
}


def make(name: str) -> Case:
    """The exported model called ``name`` with the inputs it was exported for."""
    torch.manual_seed(0)
    return Case(*MAKERS[name]())
