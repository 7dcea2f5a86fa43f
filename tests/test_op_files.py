"""Files that describe ops of other libraries: read strictly, believed, compared with the op where it runs."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError, OptionError
from commcc.ep.chunk.refuse import Refused
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp, argument, facts, op_name
from commcc.serialization.fake_ops import Evaluator
from commcc.serialization.op_files import check, described, read_ops
from commcc.serialization.shapes import ShapeContext
from tests.chunk_graphs import MOE, Layers, aten, chunked, error

PUT = "othertitan.put"


def written(tmp_path, text):
    (tmp_path / "ops.yaml").write_text(text)
    return read_ops(tmp_path / "ops.yaml")


@pytest.fixture(scope="module")
def library():
    """An op that is registered here, with a kernel for the CPU and a shape function."""
    lib = torch.library.Library("commcc_tests", "FRAGMENT")
    lib.define("glu(Tensor x, Tensor gate) -> Tensor")
    lib.define("put(Tensor self, Tensor index, Tensor src) -> Tensor")
    lib.define("centred(Tensor x) -> Tensor")
    lib.impl("glu", lambda x, gate: x * torch.sigmoid(gate), "CPU")
    lib.impl("put", lambda x, index, src: x.scatter_add(0, index, src), "CPU")
    lib.impl("centred", lambda x: x - x.mean(0), "CPU")
    for name in ("glu", "put", "centred"):
        torch.library.register_fake(f"commcc_tests::{name}", lambda x, *_: torch.empty_like(x), lib=lib)
    yield torch.ops.commcc_tests
    lib._destroy()


GLU = "commcc_tests.glu:\n  shape: x\n  tokens: {x: 0, gate: 0, result: 0}\n  flops: 4 * x[0] * x[1]\n"
LIKE = "commcc_tests.put:\n  like: aten.scatter_add(self, 0, index, src)\n"


def step(op, *, rows=8):
    """A module that calls ``op`` on its tokens and what comes back for them."""
    b = Layers()
    x = b.tokens("x", rows, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        y = op(b, x, y)
    return b.done([y])


def glu(library):
    return step(lambda b, x, y: b.call(library.glu.default, x, y))


def test_an_op_by_itself(tmp_path, library):
    program = glu(library)
    descriptions = written(tmp_path, GLU)
    before = described(program, descriptions)
    assert check(before, descriptions.values()) == []
    node = next(n for n in before.graph.nodes if isinstance(n.target, OpaqueOp))
    assert facts(node.target).pure and op_name(node.target) == "commcc_tests.glu"
    index = build_index(before)
    assert index.estimates.flops[index.position[node.name]] == 4 * 8 * 4
    assert error(before, chunked(before, chunks=2)) < 1e-12


def test_an_op_that_communicates_is_not_run_for_each_chunk(tmp_path, library):
    before = described(glu(library), written(tmp_path, GLU + "  communicates: true\n"))
    with pytest.raises(Refused, match=r"'glu' .*communicates"):
        chunked(before, chunks=2)


def test_an_op_like_another(tmp_path, library):
    def put(b, x, y):
        rows = b.call(aten.argsort.default, b.call(operator.getitem, b.call(aten.sort.default, y, 0), 1), 0)
        return b.call(library.put.default, b.call(aten.zeros_like.default, x), rows, y)

    descriptions = written(tmp_path, LIKE)
    before = described(step(put), descriptions)
    assert check(before, descriptions.values()) == []
    node = next(n for n in before.graph.nodes if isinstance(n.target, OpaqueOp))
    assert op_name(node.target) == "aten.scatter_add"
    assert argument(node, "dim") == 0 and argument(node, "src") is node.args[2]


def test_an_op_that_cannot_be_loaded_has_a_shape(tmp_path):
    text = f"{PUT}:\n  arguments: [x, w]\n  shape: x[0], 2 * w[1]\n"
    target = OpaqueOp(f"{PUT}.default", written(tmp_path, text)[PUT])
    ctx = ShapeContext()
    x, w = (ctx.tensor(shape, [shape[1], 1], torch.bfloat16, torch.device("cpu")) for shape in ([6, 3], [3, 5]))
    made = Evaluator(ctx).run(target, (x, w), {})
    assert list(made.shape) == [6, 10] and made.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LIKE.replace("add(", "reduce.two(").replace("src)", "src, 'amax')"),
            "differs from that of aten.scatter_red",
        ),
        (GLU.replace("shape: x", "shape: x[0], 7"), r"its result has the shape \[8, 4\], not \[8, 7\]"),
        ("commcc_tests.centred:\n  tokens: {x: 0, result: 0}\n", "of half of the tokens it does not give half"),
    ],
)
def test_what_is_not_so(tmp_path, library, text, message):
    def called(b, x, y):
        if "put" in text:
            rows = b.call(aten._to_copy.default, b.call(aten.gt.Scalar, x, 0), dtype=torch.int64)
            return b.call(library.put.default, x, rows, y)
        return b.call(library.glu.default, x, y) if "glu" in text else b.call(library.centred.default, y)

    descriptions = written(tmp_path, text)
    program = described(step(called), descriptions)
    with pytest.raises(OptionError, match=message):
        check(program, descriptions.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("glu: {like: aten.mul(x, y)}", "'glu' is no op: LIBRARY.OP is needed"),
        (f"{PUT}: {{like: 'aten.mul(x, y)'}}", "is not registered here: name its arguments"),
        (f"{PUT}: {{arguments: [x, y], like: 'aten.mul(x, z)'}}", "do not agree on y, z"),
        (f"{PUT}: {{arguments: [x, y], like: 'aten.mull(x, y)'}}", "aten.mull is no op of PyTorch"),
        (f"{PUT}: {{arguments: [x, y], like: '__import__(x, y)'}}", "is not an op"),
        (f"{PUT}: {{arguments: [x], flops: 'x.numel()'}}", "is no whole number and no size of an argument"),
        (f"{PUT}: {{arguments: [x], flops: '2 ** x[0]'}}", "is no whole number and no size of an argument"),
        (f"{PUT}: {{arguments: [x], shape: y}}", "'y' is no argument: x, or sizes such as"),
        (f"{PUT}: {{arguments: [x], tokens: {{y: 0}}}}", "has no argument 'y': x"),
        (f"{PUT}: {{arguments: [x]}}", "nothing is said of othertitan.put"),
        (f"{PUT}: {{arguments: [x], shapes: x}}", "did you mean 'shape'"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        written(tmp_path, text + "\n")
