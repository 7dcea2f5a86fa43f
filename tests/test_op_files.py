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
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error
from tests.op_libraries import op_library
from tests.verify_graphs import Graph

PUT = "othertitan.put"


def written(tmp_path, text):
    (tmp_path / "ops.yaml").write_text(text)
    return read_ops(tmp_path / "ops.yaml")


@pytest.fixture(scope="module")
def library():
    """An op that is registered here, with a kernel for the CPU and a shape function."""
    runs = {
        "glu": lambda x, gate: x * torch.sigmoid(gate),
        "put": lambda x, index, src: x.scatter_add(0, index, src),
        "centred": lambda x: x - x.mean(0),
    }
    schemas = ("glu(Tensor x, Tensor gate) -> Tensor", "put(Tensor self, Tensor index, Tensor src) -> Tensor")
    shapes = dict.fromkeys(runs, lambda x, *_: torch.empty_like(x))
    with op_library("commcc_tests", (*schemas, "centred(Tensor x) -> Tensor"), runs, shapes) as made:
        yield made


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
        (f"{PUT}: {{arguments: [x, x], shape: x}}", "arguments that are no names, or two of one name: x, x"),
        (f"{PUT}: {{arguments: [x, result], shape: x}}", "arguments that are no names, or two of one name: x, result"),
        (f"{PUT}: {{arguments: [x], writes: [result]}}", "has no argument 'result': x"),
        (f"{PUT}: {{arguments: [x], like: aten.neg(x), writes: [x]}}", "which says all else: leave out writes"),
        (
            f"{PUT}: {{arguments: [x], like: 'aten.mul(x, 3)'}}",
            "it works on Python's objects, name a form, as aten.mul.Tensor",
        ),
        (f"{PUT}: {{arguments: [x], like: 'aten.full(x, {{1: 2}})'}}", "{1: 2} is no argument of an op"),
        (f"{PUT}: {{arguments: [x], flops: '4 // 0'}}", "divides by 0"),
        (f"{PUT}: {{arguments: [x], flops: 'x[0 - 1]'}}", "is no whole number and no size of an argument"),
        (f"{PUT}: {{arguments: [x], flops: '{'1+' * 5000}1'}}", "a formula has at most 500 characters"),
        (f"{PUT}: {{arguments: [x], flops: '{'-' * 400}1'}}", "is no"),
        (f"{PUT}: {{arguments: [x], like: 'aten.neg({'-' * 50000}x)'}}", "a call has at most 500 characters"),
        ("streams.wait_event: {arguments: [e], flops: '1'}", "is PyTorch's: only ops of other libraries"),
        ("prim.Print: {arguments: [e], flops: '1'}", "is PyTorch's: only ops of other libraries"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        written(tmp_path, text + "\n")


@pytest.fixture(scope="module")
def marked():
    """Ops whose schemas say more than what they compute."""
    runs = {
        "hides": lambda x: x.neg_().clone(),
        "gives": lambda x: x.view(-1),
        "draws": lambda x: x + torch.rand_like(x),
        "two": lambda x: (x + 1, x * 2),
    }
    schemas = (
        *("put(Tensor(a!) buffer, Tensor x) -> Tensor(a!)", "part(Tensor(a) x) -> Tensor(a)"),
        *("parts(Tensor(a) x) -> Tensor(a)[]", "two(Tensor x) -> (Tensor, Tensor)"),
        *(f"{name}(Tensor x) -> Tensor" for name in ("noise", "hides", "gives", "draws")),
    )
    with op_library("commcc_marked", schemas, runs, random=("noise",)) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("put: {shape: x}", "its schema says that it writes buffer"),
        ("put: {communicates: true}", "its schema says that it writes buffer"),
        ("put: {arguments: [buffer, y], writes: [buffer]}", "its schema calls its arguments buffer, x"),
        ("put: {like: 'aten.add.Tensor(buffer, x)'}", "its schema says that it writes buffer"),
        ("part: {shape: x}", "its schema says that it gives a view of x"),
        ("parts: {flops: '1'}", "its schema says that it gives a view of x"),
        ("part: {like: aten.neg(x)}", "its schema says that it gives a view of x"),
        ("noise: {shape: x}", "it draws random numbers"),
    ],
)
def test_what_a_schema_says_is_not_left_out(tmp_path, marked, text, message):
    with pytest.raises(InputError, match=message):
        written(tmp_path, f"commcc_marked.{text}\n")


@pytest.mark.parametrize(
    "text",
    ["put: {writes: [buffer]}", "put: {like: 'aten.add_.Tensor(buffer, x)'}", "part: {like: 'aten.view(x, [-1])'}"],
)
def test_what_a_schema_says_may_be_said(tmp_path, marked, text):
    (description,) = written(tmp_path, f"commcc_marked.{text}\n").values()
    fact = facts(OpaqueOp(f"{description.name}.default", description))
    assert fact.views and (fact.writing or "part" in text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hides: {shape: x}", "it writes x"),
        ("hides: {like: aten.neg(x)}", "it does not write what aten.neg.default writes"),
        ("gives: {flops: '1'}", "its result is in the memory of x"),
        ("gives: {like: 'aten.reshape(x, [-1])'}", None),  # which gives a view here too
        ("draws: {shape: x}", "it does not give the same twice"),
        ("two: {flops: '1'}", None),
    ],
)
def test_what_schemas_do_not_say_is_found_by_running(tmp_path, marked, text, message):
    descriptions = written(tmp_path, f"commcc_marked.{text}\n")
    b = Graph()
    x = b.input("x", 4, 4)
    val = x.meta["val"]
    b(getattr(marked, text.split(":")[0]).default, x, val=(val, val) if "two" in text else val)
    program = described(b.program(x), descriptions)
    if message is None:
        assert check(program, descriptions.values()) == []
        return
    with pytest.raises(OptionError, match=message):
        check(program, descriptions.values())


def test_an_op_like_one_that_trusts_its_arguments_is_not_called_with_others(tmp_path):
    text = "m.f: {arguments: [g, o], like: 'aten._log_softmax_backward_data(g, o, -1, 6)'}\n"
    (description,) = written(tmp_path, text).values()
    with pytest.raises(ValueError, match="'output' is"):
        description.call((torch.zeros(8, 64), torch.zeros(1)), {})


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("all_reduce(x, 'sum', '0')", "all_reduce(x, 'avg', '0')"),
        ("all_reduce(x, 'sum', '0')", "all_reduce(x, 'sum', '1')"),
        ("broadcast(x, 0, '0')", "broadcast(x, 1, '0')"),
    ],
)
def test_constants_of_an_op_like_a_collective_count(tmp_path, was, now):
    def calling(name):
        texts = "".join(
            f'm.{n}: {{arguments: [x], like: "_c10d_functional.{like}"}}\n'
            for n, like in zip("ab", (was, now), strict=True)
        )
        b = Graph()
        x = b.input("x", 4)
        launch = b(OpaqueOp(f"m.{name}.default"), x, val=x.meta["val"])
        return described(b.program(b.wait(launch)), written(tmp_path, texts))

    assert verify(calling("a"), calling("a")).status == "proved"
    assert verify(calling("a"), calling("b")).status == "different"
