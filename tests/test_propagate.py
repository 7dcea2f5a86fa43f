"""Values by propagation: equal to what PyTorch annotated, on every device, without running anything."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from commcc.graph.ops import OpaqueOp
from commcc.graph.program import Program
from commcc.serialization import load, propagate
from commcc.serialization.fake_ops import Evaluator
from commcc.serialization.shapes import ShapeContext, format_val, parse_val
from tests.counting import at_most

DUMPS = Path(__file__).parent / "data" / "containers" / "dumps"
NAMES = sorted(path.name[: -len(".repro.txt")] for path in DUMPS.glob("*.repro.txt"))
aten = torch.ops.aten
c10d = torch.ops._c10d_functional


class Builder:
    """A graph with values on its inputs only."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.ctx = ShapeContext()

    def input(self, name: str, val: str | None) -> fx.Node:
        node = self.graph.placeholder(name)
        if val is not None:
            node.meta["val"] = parse_val(val, self.ctx)
        return node

    def call(self, target: object, *args: object, **kwargs: object) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def program(self, *results: fx.Node) -> Program:
        self.graph.output(results)
        return propagate(Program(self.graph, torch.nn.Module()))


def shown(node: fx.Node) -> object:
    val = node.meta.get("val", "missing")
    return [format_val(item) for item in val] if isinstance(val, (tuple, list)) else format_val(val)


def layout(val: object) -> object:
    """A value without the strides of dimensions of size one, which mean nothing and differ between traces."""
    if isinstance(val, (tuple, list)):
        return [layout(item) for item in val]
    if not isinstance(val, torch.Tensor):
        return format_val(val)
    pairs = zip(map(str, val.shape), map(str, val.stride()), strict=True)
    strides = ["-" if size == "1" else stride for size, stride in pairs]
    return (str(val.dtype), str(tuple(val.shape)), strides, str(val.device))


def values(program: Program) -> dict[str, object]:
    return {node.name: layout(node.meta["val"]) for node in program.graph.nodes if "val" in node.meta}


def on_cuda(path: Path, tmp_path: Path) -> Path:
    """The dump as if it came from a GPU."""
    text = path.read_text().replace(']cpu"', ']cuda:0"').replace("device(type='cpu')", "device(type='cuda', index=0)")
    lines = [
        line.replace(")", ", device=device(type='cuda', index=0))")
        if "= reader.storage(" in line and "s15" not in line
        else line
        for line in text.split("\n")
    ]
    file = tmp_path / path.name
    file.write_text("\n".join(lines))
    return file


def forget(program: Program) -> tuple[Program, dict[str, object]]:
    """The program with values on its inputs only, and what the values were."""
    before = values(program)
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            node.meta.pop("val", None)
    return program, before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("autofunc", "effects", "moe_fw")])
def test_propagated_values_are_those_that_pytorch_printed(name, device, tmp_path):
    path = DUMPS / f"{name}.txt"
    program, before = forget(load(on_cuda(path, tmp_path) if device == "cuda" else path))
    after = values(propagate(program))
    assert after == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("autofunc", "effects", "invoke", "controldeps")]
)
def test_repro_files_get_the_same_values(name, device, tmp_path):
    plain, repro = DUMPS / f"{name}.txt", DUMPS / f"{name}.repro.txt"
    if device == "cuda":
        if name.startswith("sym") or name == "consts":
            pytest.skip("the dump cannot be turned into one from a GPU by replacing words")
        plain, repro = on_cuda(plain, tmp_path), on_cuda(repro, tmp_path)
    expected, found = load(plain), load(repro)
    assert values(found) == values(expected)
    assert [(n.op, n.name, str(n.target)) for n in found.graph.nodes] == [
        (n.op, n.name, str(n.target)) for n in expected.graph.nodes
    ]


def test_constants_of_a_repro_file():
    program = load(DUMPS / "consts.repro.txt")
    assert program.root._tensor_constant2.tolist() == [[1, 2], [3, 4]]
    assert program.root._tensor_constant1.item() == 3.5
    assert isinstance(program.root._tensor_constant0, FakeTensor)
    assert [note.text for note in program.notes] == ["the value of constant _tensor_constant0 is not in the text"]


def test_groups_and_missing_sub_graphs_of_a_repro_file():
    program = load(DUMPS / "flex.repro.txt")
    assert program.groups["0"].size == 4
    assert any("sdpa_score0" in note.text for note in program.notes)


@pytest.mark.parametrize("name", ["invoke", "controldeps"])
def test_without_bodies_the_results_of_sub_graphs_stay_unknown(name):
    program = load(DUMPS / f"{name}.repro.txt")
    assert any("sub-graph is not in the file" in note.text for note in program.notes)
    assert any("nodes without a shape because" in note.text for note in program.notes)
    unknown = [node for node in program.graph.nodes if "val" not in node.meta and node.op == "call_function"]
    assert any(f"{unknown[0].name} has no shape" in note.text for note in program.notes)


@pytest.mark.parametrize("name", ["autofunc", "effects"])
def test_ops_that_nobody_registered(name):
    """Annotated results are kept; the tuple of a multi-output node is made of its items."""
    program = load(DUMPS / f"{name}.txt")
    assert program.notes == ()
    producers = [node for node in program.graph.nodes if "mylib" in str(node.args)]
    assert producers
    for node in producers:
        for user in node.users:
            assert node.meta["val"][user.args[1]] is user.meta["val"]
    unknown, _ = forget(load(DUMPS / f"{name}.txt"))
    assert any("mylib" in note.text or "not registered" in note.text for note in propagate(unknown).notes)


def test_annotations_are_trusted():
    build = Builder()
    a = build.input("a", "f32[2, 3][3, 1]cpu")
    neg = build.call(aten.neg.default, a)
    neg.meta["val"] = parse_val("bf16[7][1]cuda:5", build.ctx)
    split = build.call(aten.split.Tensor, a, 1)
    item = build.call(operator.getitem, split, 1)
    item.meta["val"] = mark = parse_val("f32[9][1]cpu", build.ctx)
    program = build.program(neg, item)
    assert shown(neg) == "bf16[7][1]cuda:5"
    assert shown(split) == ["f32[1, 3][3, 1]cpu", "f32[9][1]cpu"]
    assert split.meta["val"][1] is mark
    assert program.notes == ()


def test_complete_program_is_returned_as_it_is():
    program = load(DUMPS / "symint.txt")
    assert propagate(program) is program


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:3"])
def test_what_a_build_without_cuda_cannot_run(device):
    build = Builder()
    counts = build.input("counts", f"i64[64][1]{device}")
    q = build.input("q", f"bf16[4, 2, 128, 64][16384, 8192, 64, 1]{device}")
    histogram = build.call(aten.histc.default, counts, 8, 0, 8)
    attention = build.call(aten._scaled_dot_product_cudnn_attention.default, q, q, q, None, True, 0.0, True)
    flash = build.call(aten._scaled_dot_product_flash_attention.default, q, q, q, 0.0, True, scale=0.125)
    full = build.call(aten.full.default, [2, 3], 0.0, dtype=torch.float32, device=torch.device(device))
    program = build.program(histogram, attention, flash, full)
    assert program.notes == ()
    assert shown(histogram) == f"i64[8][1]{device}"
    assert shown(full) == f"f32[2, 3][3, 1]{device}"
    for node in (attention, flash):
        assert node.meta["val"][0].device == torch.device(device)
        assert shown(node)[0] == f"bf16[4, 2, 128, 64][16384, 8192, 64, 1]{device}"


def test_inputs_that_require_grad_do_not_reach_autograd():
    """On a fake CUDA tensor, autograd aborts a process whose PyTorch has no CUDA."""
    build = Builder()
    w = build.graph.placeholder("w")
    w.meta["val"] = build.ctx.tensor([4, 4], [4, 1], torch.float32, torch.device("cuda:0"), requires_grad=True)
    mm = build.call(aten.mm.default, w, w)
    soft = build.call(aten._softmax.default, mm, -1, False)
    with torch.enable_grad():
        build.program(soft)
    assert shown(soft) == "f32[4, 4][4, 1]cuda:0"
    assert not soft.meta["val"].requires_grad


def test_results_never_require_grad():
    build = Builder()
    w = build.input("w", "f32[4, 4][4, 1]cpu")
    w.meta["val"].requires_grad_()
    mm = build.call(aten.mm.default, w, w)
    with torch.enable_grad():
        build.program(mm)
    assert not mm.meta["val"].requires_grad


def test_real_kernels_never_stand_in_for_shape_functions():
    build = Builder()
    histogram = build.call(aten.histogram.bin_ct, build.input("x", "f32[2][1]cpu"), 10)
    assert "UnsupportedOperatorException" in build.program(histogram).notes[0].text


def test_unbacked_sizes_are_made_and_flow_through_collectives():
    build = Builder()
    counts = build.input("counts", "i64[2][1]cuda:0")
    x = build.input("x", "f32[8, 4][4, 1]cuda:0")
    first = build.call(aten._local_scalar_dense.default, build.call(aten.select.int, counts, 0, 0))
    second = build.call(aten._local_scalar_dense.default, build.call(aten.select.int, counts, 0, 1))
    check = build.call(aten._assert_scalar.default, build.call(operator.ge, first, 0), "no")
    exchange = build.call(c10d.all_to_all_single.default, x, [first, second], [4, 4], "0")
    wait = build.call(c10d.wait_tensor.default, exchange)
    total = build.call(torch.sym_sum, [first, second, 3])
    program = build.program(wait, check, total)
    assert program.notes == ()
    assert shown(wait) == "f32[u0 + u1, 4][4, 1]cuda:0"
    assert shown(total) == "Sym(u0 + u1 + 3)"
    assert check.meta["val"] is None
    assert len(free_unbacked_symbols(wait.meta["val"])) == 2


def test_sizes_given_by_value_stay_symbols(tmp_path):
    """PyTorch before 2.13 writes ``reader.symint(512)`` and ``u8 = u9 = 512``; neither is a constant of the graph."""
    text = (DUMPS / "moe_bw.repro.txt").read_text()
    text = re.sub(r"reader\.symint\(None, expr='u\d'\)", "reader.symint(512)", text)
    text = text.replace("reader.symint(None, expr='u0 + u1 + u2 + u3')", "reader.symint(2048)")
    file = tmp_path / "old.py"
    file.write_text(text.replace("(reader):\n", "(reader):\n    u4 = u5 = u6 = u7 = 512\n"))
    program = load(file)
    shapes = {node.name: shown(node) for node in program.graph.nodes}
    assert program.notes == ()
    assert shapes["_local_scalar_dense_1"] == "Sym(s9)"
    assert shapes["mm_2"] == "f32[u4 + u5 + u6 + u7, 32][32, 1]cpu"
    assert shapes["wait_tensor_5"] == "f32[s10 + s11 + s8 + s9, 32][32, 1]cpu"


def test_new_symbols_do_not_take_names_of_the_file():
    build = Builder()
    build.input("n", "Sym(u0)")
    counts = build.input("counts", "i64[2][1]cpu")
    item = build.call(aten.item.default, build.call(aten.select.int, counts, 0, 0))
    build.program(item)
    assert shown(item) == "Sym(u1)"


def test_in_place_ops_do_not_change_the_values_of_their_inputs():
    build = Builder()
    a = build.input("a", "f32[2, 3][3, 1]cpu")
    turned = build.call(aten.t_.default, a)
    copied = build.call(aten.copy_.default, a, a)
    build.program(turned, copied)
    assert shown(a) == "f32[2, 3][3, 1]cpu"
    assert shown(turned) == "f32[3, 2][1, 3]cpu"
    assert shown(copied) == "f32[2, 3][3, 1]cpu"


def test_causes_and_consequences_are_noted_apart():
    build = Builder()
    a, mesh, _unused = build.input("a", "f32[2][1]cpu"), build.input("mesh", None), build.input("unused", None)
    opaque = build.call(OpaqueOp("mylib.f.default"), a)
    after = build.call(aten.neg.default, opaque)
    wrong = build.call(aten.mm.default, a, a)
    program = build.program(build.call(aten.neg.default, after), mesh, wrong)
    assert [(note.node, note.text.split(" (")[0]) for note in program.notes] == [
        (None, "inputs without a shape: 1"),
        (opaque.name, f"{opaque.name} has no shape: mylib.f.default is not registered with this PyTorch"),
        (wrong.name, f"{wrong.name} has no shape: RuntimeError: a must be 2D"),
        (None, "nodes without a shape because an argument has none: 2"),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda build, x, mark: build.call(aten.from_file.default, mark, True, 16),
        lambda build, x, mark: build.call(aten.save.default, x, mark),
        lambda build, x, mark: build.call(
            torch.ops.debugprims.load_tensor.default, mark, [1], [1], dtype=torch.float32, device=torch.device("cpu")
        ),
        lambda build, x, mark: build.call(torch.ops.profiler._record_function_enter.default, mark),
        lambda build, x, mark: build.call(torch.ops.higher_order.print, mark),
        lambda build, x, mark: build.call(torch.ops.prim.Print.default, mark),
        lambda build, x, mark: build.call(aten.initial_seed.default),
    ],
)
def test_ops_that_could_do_something_are_not_run(make, tmp_path, capfd):

    build = Builder()
    x = build.input("x", "f32[2][1]cpu")
    node = make(build, x, str(tmp_path / "mark"))
    program = build.program(node)
    # Either nothing comes out of the op, which needs no run to know, or the note says why it was not run.
    assert node.meta.get("val") is None
    assert ("val" in node.meta) == (program.notes == ())
    assert all(re.search("is not run on shapes|has no shape function", note.text) for note in program.notes)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (operator.pow, (10, 10**9)),
        (operator.lshift, (1, 10**12)),
        (operator.mul, ("a", 10**9)),
        (aten.split.Tensor, ("x", 1)),
        (aten.unbind.int, ("x",)),
        (aten.chunk.default, ("x", 10**9)),
    ],
)
def test_hostile_sizes_take_no_time(target, args):
    build = Builder()
    x = build.input("x", "f32[1000000000000][1]cpu")
    args = tuple(x if arg == "x" else arg for arg in args)
    with at_most(100_000):
        program = build.program(build.call(target, *args))
    assert len(program.notes) == 1


@pytest.mark.parametrize("name", ["controldeps", "invoke"])
def test_sub_graphs_without_annotations_get_values_from_their_operands(name, tmp_path):
    text = (DUMPS / f"{name}.txt").read_text()
    start = text.index("    class ")
    bare = re.sub(r': "[^"]*"', "", text[start:])
    file = tmp_path / "bare.txt"
    file.write_text(text[:start] + bare)
    program, before = forget(load(file))
    assert values(propagate(program)) == before
    assert program.notes == ()


def test_effect_tokens_come_first():
    build = Builder()
    token, x = build.input("token", "f32[0][1]cpu"), build.input("x", "f32[2, 3][3, 1]cpu")
    wrap = torch.ops.higher_order.with_effects
    one, several = build.call(wrap, token, aten.neg.default, x), build.call(wrap, token, aten.max.dim, x, 0)
    none = build.call(wrap, token, aten._assert_async.default, x)
    build.program(one, several, none)
    assert shown(one) == ["f32[0][1]cpu", "f32[2, 3][3, 1]cpu"]
    assert shown(several) == ["f32[0][1]cpu", "f32[3][1]cpu", "i64[3][1]cpu"]
    assert none.meta["val"] == (token.meta["val"], None)


def test_triton_kernels_return_copies_of_what_they_write():
    from torch._higher_order_ops.triton_kernel_wrap import (
        triton_kernel_wrapper_functional,
        triton_kernel_wrapper_mutation,
    )

    build = Builder()
    x, out = build.input("x", "f32[4][1]cuda:0"), build.input("out", "bf16[4][1]cuda:0")
    launch = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)], "tma_descriptor_metadata": {}}
    kernel = build.call(
        triton_kernel_wrapper_functional, **launch, kwargs={"in_ptr": x, "out_ptr": out}, tensors_to_clone=["out_ptr"]
    )
    item = build.call(operator.getitem, kernel, "out_ptr")
    mutation = build.call(triton_kernel_wrapper_mutation, **launch, kwargs={"in_ptr": x, "out_ptr": out})
    program = build.program(item, mutation)
    assert program.notes == ()
    assert shown(item) == "bf16[4][1]cuda:0"
    assert mutation.meta["val"] is None


def test_sub_graphs_are_evaluated_only_where_needed():
    program = load(DUMPS / "flex.txt")
    attention = next(node for node in program.graph.nodes if node.name == "flex_attention")
    assert isinstance(attention.meta["val"][0], FakeTensor)
    assert "val" not in next(node for node in program.graph.nodes if node.name == "sdpa_score0").meta


def test_an_annotated_graph_pays_only_for_what_is_missing(monkeypatch):
    build = Builder()
    node = build.input("a", "f32[2, 3][3, 1]cpu")
    val = node.meta["val"]
    for _ in range(500):
        node = build.call(aten.neg.default, node)
        node.meta["val"] = val
    best = build.call(aten.max.dim, node, 0)
    items = [build.call(operator.getitem, best, index) for index in (0, 1)]
    for item in items:
        item.meta["val"] = val
    split = build.call(aten.split.Tensor, node, 1)
    ran = []
    monkeypatch.setattr(Evaluator, "call", lambda self, function, args, kwargs: ran.append(function) or [val, val])
    build.program(*items, split)
    assert ran == [aten.split.Tensor]  # the schema of max says that its two items are all there is
    assert best.meta["val"] == (val, val)


def test_a_long_graph_without_annotations_is_bearable():
    build = Builder()
    node = build.input("a", "bf16[64, 64][64, 1]cuda:0")
    for _ in range(1000):
        node = build.call(aten.mm.default, node, node)
    with at_most(2_000_000):
        build.program(node)
    assert shown(node) == "bf16[64, 64][64, 1]cuda:0"


def test_items_of_a_list_among_results_are_annotated_one_by_one():
    """``(Tensor?, Tensor[])`` and the like: a list has no annotation of its own, and results nobody takes count."""
    import torch.distributed._symmetric_memory  # it registers the op

    build = Builder()
    a, b = build.input("a", "bf16[8, 4][4, 1]cuda:0"), build.input("b", "bf16[4, 6][6, 1]cuda:0")
    fused = build.call(torch.ops.symm_mem.fused_all_gather_matmul.default, a, [b], 0, "unknown")
    gathered, products = build.call(operator.getitem, fused, 0), build.call(operator.getitem, fused, 1)
    product = build.call(operator.getitem, products, 0)
    gathered.meta["val"] = parse_val("bf16[16, 4][4, 1]cuda:0", build.ctx)
    product.meta["val"] = parse_val("bf16[16, 6][6, 1]cuda:0", build.ctx)
    other = build.call(torch.ops.symm_mem.fused_all_gather_matmul.default, a, [b], 0, "unknown")
    first = build.call(operator.getitem, other, 0)
    first.meta["val"] = parse_val("bf16[16, 4][4, 1]cuda:0", build.ctx)
    program = build.program(product, first)
    assert fused.meta["val"] == (gathered.meta["val"], [product.meta["val"]])
    assert shown(products) == ["bf16[16, 6][6, 1]cuda:0"]
    assert other.meta["val"][1:] == (None,)
    assert program.notes == ()
