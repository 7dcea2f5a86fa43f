"""FLOPs of nodes against PyTorch's own counter on real runs, and by hand where it has no formula."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from commcc.graph import ops
from commcc.graph.index.estimates import flops
from commcc.graph.index.hints import SizeHints
from commcc.graph.ops import OpaqueOp
from tests.random_graphs import aten

HINTS = SizeHints({}, {})
SDPA = torch.nn.attention.SDPBackend


def node_of(target, *args, **kwargs):
    """A node of the op with these tensors as arguments, and its result from a real run."""
    graph = fx.Graph()

    def put(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder("x")
        made.meta["val"] = value
        return made

    node = graph.call_function(target, *torch.utils._pytree.tree_map(put, (args, kwargs)))
    node.meta["val"] = target(*args, **kwargs)
    return node


def counted(work) -> int:
    with FlopCounterMode(display=False) as mode:
        work()
    return mode.get_total_flops()


def t(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("target", "args", "count"),
    [
        (aten.mm.default, (t(3, 5), t(5, 7)), 2 * 3 * 5 * 7),
        (aten.mm.default, (t(5, 3).t(), t(7, 5).t()), 2 * 3 * 5 * 7),
        (aten.mm.default, (t(0, 5), t(5, 7)), 0),
        (aten.bmm.default, (t(4, 3, 5), t(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
        (aten.addmm.default, (t(7), t(3, 5), t(5, 7)), 2 * 3 * 5 * 7),
        (aten.baddbmm.default, (t(4, 3, 7), t(4, 3, 5), t(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
        (
            aten.convolution.default,
            (t(2, 3, 8, 9), t(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
            None,
        ),
        (
            aten.convolution.default,
            (t(2, 4, 8, 9), t(6, 2, 3, 3), t(6), [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
            None,
        ),
        (aten.convolution.default, (t(2, 3, 8), t(3, 4, 3), None, [2], [0], [1], True, [0], 1), None),
        (
            aten.convolution_backward.default,
            (
                *(t(2, 4, 8, 9), t(2, 3, 8, 9), t(4, 3, 3, 3), [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
                [True, True, False],
            ),
            None,
        ),
        (
            aten.convolution_backward.default,
            (
                *(t(2, 4, 8, 9), t(2, 3, 8, 9), t(4, 3, 3, 3), [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
                [False, True, False],
            ),
            None,
        ),
    ],
)
def test_as_many_as_pytorch_counts(target, args, count):
    by_torch = counted(lambda: target(*args))
    assert flops(node_of(target, *args), HINTS) == by_torch
    assert count is None or by_torch == count
    assert by_torch or count == 0


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.linear.default, (t(2, 3, 5), t(7, 5))),
        (aten.linear.default, (t(2, 3, 5), t(7, 5), t(7))),
        (aten.linear.default, (t(5), t(7, 5))),
        (aten.matmul.default, (t(2, 3, 5), t(2, 5, 7))),
        (aten.matmul.default, (t(2, 3, 5), t(5, 7))),
        (aten.matmul.default, (t(3, 5), t(2, 5, 7))),
    ],
)
def test_ops_that_pytorch_takes_apart_first(target, args):
    """The counter sees the ops that these are made of."""
    assert flops(node_of(target, *args), HINTS) == counted(lambda: target(*args)) > 0


@pytest.mark.parametrize(
    ("target", "args", "count"),
    [
        (aten.mv.default, (t(3, 5), t(5)), 2 * 3 * 5),
        (aten.dot.default, (t(5), t(5)), 2 * 5),
        (aten.addmv.default, (t(3), t(3, 5), t(5)), 2 * 3 * 5),
        (aten.matmul.default, (t(5), t(5)), 2 * 5),
        (aten.matmul.default, (t(3, 5), t(5)), 2 * 3 * 5),
        (aten._int_mm.default, (t(32, 16, dtype=torch.int8), t(16, 24, dtype=torch.int8)), 2 * 32 * 16 * 24),
    ],
)
def test_ops_that_pytorch_does_not_count(target, args, count):
    assert flops(node_of(target, *args), HINTS) == count


ATTENTION = [
    ((2, 4, 8, 16),) * 3,
    ((2, 4, 6, 16), (2, 4, 10, 16), (2, 4, 10, 16)),
    ((2, 8, 6, 16), (2, 2, 6, 16), (2, 2, 6, 16)),
]


def attention_node(target, q, k, v, *more):
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in "qkv"]
    for node, shape in zip(nodes, (q, k, v), strict=True):
        node.meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(target, (*nodes, *more))
    node.meta["val"] = torch.empty((*q[:-1], v[-1]), device="meta")
    return node


@pytest.mark.parametrize("shapes", ATTENTION)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(shapes, causal):
    """Query times key and weights times value, also under a mask: what a run with the plain kernel counts."""
    tensors = [torch.ones(shape) for shape in shapes]
    attention = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(SDPA.MATH):
        by_torch = counted(lambda: attention(*tensors, is_causal=causal, enable_gqa=True))
    (batch, heads, rows, width), columns = shapes[0], shapes[1][2]
    assert by_torch == 2 * 2 * batch * heads * rows * columns * width
    for name in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"):
        assert flops(attention_node(getattr(aten, name).default, *shapes), HINTS) == by_torch, name
    for name in ("flash", "efficient", "cudnn"):
        target = getattr(aten, f"_scaled_dot_product_{name}_attention").default
        assert flops(attention_node(target, *shapes), HINTS) == by_torch, name


def test_attention_backward():
    """Scores again, then what each of weights, values, queries and keys gets: five matmuls of each head."""
    grad, q, k, v = (2, 4, 6, 32), (2, 4, 6, 16), (2, 4, 10, 16), (2, 4, 10, 32)
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("grad", "q", "k", "v")]
    for node, shape in zip(nodes, (grad, q, k, v), strict=True):
        node.meta["val"] = torch.empty(shape, device="meta")
    for name in ("flash_attention", "efficient_attention", "flash_attention_for_cpu", "fused_attention_overrideable"):
        node = graph.call_function(getattr(aten, f"_scaled_dot_product_{name}_backward").default, tuple(nodes))
        assert flops(node, HINTS) == 2 * 2 * 4 * 6 * 10 * (3 * 16 + 2 * 32), name


@pytest.mark.parametrize("backend", [SDPA.MATH, SDPA.FLASH_ATTENTION])
def test_attention_forward_and_backward_of_a_real_run(backend):
    """The whole training step, traced into aten ops on this machine, against the counter."""
    q, k, v = (torch.ones(2, 4, 8, 16, requires_grad=True) for _ in range(3))

    def step():
        with torch.nn.attention.sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()

    with Recorder() as seen:
        step()
    ours = sum(flops(node, HINTS) for node in seen.nodes if ops.is_compute(node.target))
    scores = 2 * 2 * 4 * 8 * 8 * 16
    assert ours == (6 if backend is SDPA.MATH else 7) * scores
    if backend is SDPA.MATH:
        assert counted(step) == ours


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Makes a node of every op that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[fx.Node] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        graph = fx.Graph()

        def put(value):
            made = graph.placeholder("x") if isinstance(value, torch.Tensor) else value
            if isinstance(made, fx.Node):
                made.meta["val"] = value
            return made

        node = graph.call_function(func, *torch.utils._pytree.tree_map(put, (args, kwargs or {})))
        node.meta["val"] = out
        self.nodes.append(node)
        return out


def test_a_whole_network_of_a_real_run():
    """Forward and backward of convolutions and linear layers: node by node the sum is the counter's."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1, groups=2)),
        *(torch.nn.Flatten(), torch.nn.Linear(8 * 7 * 7, 32), torch.nn.GELU(), torch.nn.Linear(32, 5, bias=False)),
    )
    x = torch.randn(4, 3, 16, 16)
    by_torch = counted(lambda: net(x).sum().backward())
    with Recorder() as seen:
        net(x).sum().backward()
    found = {node: flops(node, HINTS) for node in seen.nodes if ops.is_compute(node.target)}
    assert sum(found.values()) == by_torch > 0
    assert len(found) >= 9


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        ((12, 5), (3, 5, 7), 2 * 12 * 5 * 7),  # rows in three groups
        ((12, 5), (5, 21), 2 * 12 * 5 * 21),  # both cut along 5: each part of it once
        ((3, 4, 5), (3, 5, 7), 3 * 2 * 4 * 5 * 7),  # one matmul for each group
        ((3, 4, 5), (5, 21), 2 * 4 * 5 * 21),  # columns in three groups
    ],
)
def test_grouped_matmuls(a, b, count):
    """As many as the matmuls of the groups, run one by one, with groups that split evenly."""
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in "ab"]
    for node, shape in zip(nodes, (a, b), strict=True):
        node.meta["val"] = torch.empty(shape, device="meta")
    for target in (aten._grouped_mm.default, aten._scaled_grouped_mm.default):
        node = graph.call_function(target, tuple(nodes))
        node.meta["val"] = torch.empty((1,), device="meta")
        assert flops(node, HINTS) == count
    assert counted(lambda: [x @ y for x, y in groups_of(a, b)]) == count


def groups_of(a, b):
    """The matmuls that three even groups come to."""
    x, y = torch.ones(a), torch.ones(b)
    if len(a) == len(b) == 3:
        return list(zip(x, y, strict=True))
    if len(a) == 2 and len(b) == 3:
        return list(zip(x.chunk(3), y, strict=True))
    if len(a) == 3:
        return list(zip(x, y.chunk(3, dim=1), strict=True))
    cuts = [0, 2, 4, 5]
    return [(x[:, i:j], y[i:j]) for i, j in pairwise(cuts)]


def test_no_formula_and_no_number():
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    rows = env.create_unbacked_symint()
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    with FakeTensorMode(shape_env=env):
        x.meta["val"], w.meta["val"] = torch.empty(rows, 5), torch.empty(5, 7)
        made = torch.empty(rows, 7)
    node = graph.call_function(aten.mm.default, (x, w))
    node.meta["val"] = made
    assert flops(node, SizeHints({}, {})) is None
    assert flops(node, SizeHints({"u0": 3}, {})) == 2 * 3 * 5 * 7
    for target in (aten.einsum.default, aten.mul.Tensor, OpaqueOp("mylib.mm.default")):
        other = graph.call_function(target, (x, w))
        other.meta["val"] = made
        assert flops(other, SizeHints({"u0": 3}, {})) is None, target
    del x.meta["val"]
    assert flops(node, SizeHints({"u0": 3}, {})) is None


def test_ops_with_a_formula_are_compute_nodes():
    """Both ways: what PyTorch counts is in our table, and nothing else has FLOPs in a graph."""
    from torch.utils.flop_counter import flop_registry

    names = {ops.op_name(getattr(target, "default", target)) for target in flop_registry}
    assert {name for name in names if name not in ops.COMPUTE} == set()
