"""Numbers for symbols that stand for tokens: what is rewritten, what goes, what is refused, and that it is verified."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import sympy
import torch
from torch import fx

from commcc.base.errors import CommccError, InputError
from commcc.passes.ep_concretize import EpConcretize
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load, save
from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate
from commcc.verify import verify

HINTS = "torchtitan_chunk_symbol_hints"
GRAPH = """\
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[u0, 8][8, 1]cpu", w: "f32[8, 8][8, 1]cpu"):
        size: "Sym(u0)" = torch.ops.aten.sym_size.int(x, 0)
        ge: "Sym(u0 >= 2)" = operator.ge(size, 2)
        check = torch.ops.aten._assert_scalar.default(ge, "tokens")
        half: "Sym((u0//2))" = operator.floordiv(size, 2)
        cut: "f32[(u0//2), 8][8, 1]cpu" = torch.ops.aten.slice.Tensor(x, 0, 0, half)
        mm: "f32[(u0//2), 8][8, 1]cpu" = torch.ops.aten.mm.default(cut, w)
        flat: "f32[8*((u0//2))][1]cpu" = torch.ops.aten.view.default(mm, [-1])
        t: "f32[8, (u0//2)][1, 8]cpu" = torch.ops.aten.transpose.int(mm, 0, 1)
        zeros: "f32[(u0//2), 3][3, 1]cpu" = torch.ops.aten.new_zeros.default(x, [half, 3])
        return (flat, t, zeros)
"""


def program(text: str = GRAPH, **marks: int):
    made = parse_text(text, "test")
    first = next(iter(made.graph.nodes))
    first.meta[HINTS] = marks
    return made


def node(made, name: str) -> fx.Node:
    return next(each for each in made.graph.nodes if each.name == name)


def settled(made, text: str = "ep-concretize"):
    result = run(made, parse_pipeline(text))
    assert result.verified == "proved"
    return result


def test_sizes_become_numbers_and_strides_stay():
    before = program(u0=160)
    result = settled(before)
    after = result.program
    names = [each.name for each in after.graph.nodes]
    assert names == ["x", "w", "cut", "mm", "flat", "t", "zeros", "output"]
    assert node(after, "cut").args == (node(after, "x"), 0, 0, 80)
    assert node(after, "zeros").args[1] == [80, 3]
    t = node(after, "t").meta["val"]
    assert (tuple(t.shape), t.stride()) == ((8, 80), (1, 8))
    assert all(type(size) is int for each in after.graph.nodes for size in getattr(each.meta.get("val"), "shape", ()))
    assert HINTS not in node(after, "x").meta and HINTS in node(before, "x").meta
    assert after.header["fixed"] == {"u0": 160} and "u0" not in after.header.get("symbols", {})
    report = result.steps[-1].report
    assert (report["fixed"], report["sizes_gone"], report["guards_gone"]) == ("u0 = 160", 3, 1)
    x, w = torch.randn(160, 8), torch.randn(8, 8)
    out = after.graph_module()(x, w)
    assert torch.equal(out[1], (x[:80] @ w).T) and out[2].shape == (80, 3)


def test_nothing_is_marked_nothing_changes():
    made = parse_text(GRAPH, "test")
    result = run(made, parse_pipeline("ep-concretize"))
    assert not result.changed and result.steps[0].report["fixed"].startswith("none")


def test_numbers_that_are_given():
    after = settled(parse_text(GRAPH, "test"), "ep-concretize{symbols=u0=32}").program
    assert tuple(node(after, "mm").meta["val"].shape) == (16, 8)


def test_symbols_as_keys_survive_files(tmp_path):
    made = program()
    node(made, "x").meta[HINTS] = {sympy.Symbol("u0"): 160}
    for name in ("a.fx.txt.gz", "a.pt2"):
        save(made, tmp_path / name)
        after = settled(load(tmp_path / name)).program
        assert tuple(node(after, "mm").meta["val"].shape) == (80, 8)
        save(after, tmp_path / f"b{name}")
        again = load(tmp_path / f"b{name}")
        assert again.header["fixed"] == {"u0": 160}
        assert verify(load(tmp_path / name), again).status == "proved"


MIXED = """\
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[u0, 8][8, 1]cpu", n: "i64[][]cpu"):
        item: "Sym(u1)" = torch.ops.aten._local_scalar_dense.default(n)
        size: "Sym(u0)" = torch.ops.aten.sym_size.int(x, 0)
        both: "Sym(u0 + u1)" = operator.add(size, item)
        zeros: "f32[u0 + u1, u0][u0, 1]cpu" = torch.ops.aten.new_zeros.default(x, [both, size])
        return (zeros, size)
"""


def test_foreign_symbols_stay():
    after = settled(program(MIXED, u0=160)).program
    zeros = node(after, "zeros").meta["val"]
    assert [str(size) for size in zeros.shape] == ["u1 + 160", "160"]
    assert zeros.stride() == (160, 1)
    assert node(after, "both").args == (160, node(after, "item"))
    returned = list(after.graph.nodes)[-1].args[0][1]
    assert returned.name == "size" and returned.meta["val"] == 160, "what the graph returns stays a node"


def test_tuples_examples_and_inputs_that_are_sizes():
    text = """\
class GraphModule(torch.nn.Module):
    def forward(self, s7: "Sym(s7)", x: "f32[s7, 8][8, 1]cpu"):
        split = torch.ops.aten.split_with_sizes.default(x, [s7], 0)
        part: "f32[s7, 8][8, 1]cpu" = split[0]
        return (part,)
"""
    made = propagate(program(text, s7=6))
    part = node(made, "part")
    part.meta["example_value"] = part.meta["val"].shape[0]
    after = settled(made).program
    assert node(after, "s7").meta["val"] == 6
    assert node(after, "split").args[1] == [6]
    assert tuple(node(after, "split").meta["val"][0].shape) == (6, 8)
    assert node(after, "part").meta["example_value"] == 6


def with_subgraph():
    text = """\
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[u0, 8][8, 1]cpu", y: "f32[u0, 8][8, 1]cpu"):
        relu: "f32[u0, 8][8, 1]cpu" = torch.ops.aten.relu.default(x)
        mul: "f32[u0, 8][8, 1]cpu" = torch.ops.aten.mul.Tensor(relu, y)
        return (mul,)
"""
    from commcc.apply import apply_plan
    from commcc.graph.index import build_index
    from commcc.plan import ControlEdge, Plan

    made = program(text, u0=4)
    index = build_index(made)
    edge = ControlEdge(index.position["mul"], index.position["relu"], "test")
    return apply_plan(made, index, Plan("test", index.fingerprint, edits=(edge,)))


def test_subgraphs_too():
    before = with_subgraph()
    after = settled(before).program
    inner = after.root.get_submodule("subgraph_mul")
    shapes = [tuple(each.meta["val"].shape) for each in inner.graph.nodes if "val" in each.meta]
    assert shapes and set(shapes) == {(4, 8)}
    old = before.root.get_submodule("subgraph_mul")
    assert any("u0" in str(each.meta["val"].shape) for each in old.graph.nodes if "val" in each.meta), "untouched"


#: As PyTorch 2.13 dumps two calls of a ``nested_compile_region`` that sends n = x.shape[0] // 4 rows to each rank.
REGIONS = """\
class GraphModule(torch.nn.Module):
    def forward(self, rows: "Sym(s77)", x: "f32[s77, 8][8, 1]cpu", w: "f32[8, 8][8, 1]cpu", v: "f32[8, 8][8, 1]cpu"):
        n: "Sym((s77//4))" = rows // 4
        body = self.body
        first = torch.ops.higher_order.invoke_subgraph(body, 'subgraph_0', rows, x, n, w)
        a: "f32[4*((s77//4)), 8][8, 1]cpu" = first[0]
        body_1 = self.body
        second = torch.ops.higher_order.invoke_subgraph(body_1, 'subgraph_0', rows, a, n, v)
        b: "f32[4*((s77//4)), 8][8, 1]cpu" = second[0]
        return (b,)

    class body(torch.nn.Module):
        def forward(self, rows: "Sym(s77)", x: "f32[s77, 8][8, 1]cpu", n: "Sym((s77//4))", w: "f32[8, 8][8, 1]cpu"):
            sent: "f32[4*((s77//4)), 8][8, 1]cpu" = torch.ops._c10d_functional.all_to_all_single.default(x, [n, n, n, n], [n, n, n, n], '0')
            wait: "f32[4*((s77//4)), 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(sent)
            mm: "f32[4*((s77//4)), 8][8, 1]cpu" = torch.ops.aten.mm.default(wait, w)
            return (mm,)
"""  # noqa: E501


def test_regions_that_are_called_with_fixed_sizes():
    before = parse_text(REGIONS, "test")
    after = settled(before, "ep-concretize{symbols=s77=16}").program
    sent = node(after.root.get_submodule("body"), "sent")
    assert sent.args[1] == [4, 4, 4, 4] and tuple(sent.meta["val"].shape) == (16, 8)
    sent.args = (sent.args[0], [3, 5, 4, 4], *sent.args[2:])
    assert verify(before, after).status == "different"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("invoke_subgraph(body_1, 'subgraph_0', rows, a, 8, v)", "operand 2 is not known"),
        ("invoke_subgraph(body_1, 'subgraph_0', 17, a, n, v)", "operand 0 is not known"),
        ("invoke_subgraph(body_1, 'subgraph_0', rows, y, n, v)", "operand 1 is not known"),
        ("invoke_subgraph(body_1, 'subgraph_0', rows, z, n, v)", "operand 1 is not known"),
        ("invoke_subgraph(body_1, 'subgraph_0', rows, a, m, v)", "operand 2 is not known"),
        ("invoke_subgraph(body_1, 'subgraph_0', rows, a, n)", "which operand becomes which input"),
        ("wrap(body_1, rows, a, n, w=v)", "what it hands a sub-graph"),
        ("map_impl(body_1, [rows, a, n], [v])", "what it hands a sub-graph"),
    ],
)
def test_regions_that_are_called_with_other_sizes_too(call, why):
    """One that was compiled for other sizes: what AFTER has is right for those that are fixed only."""
    second = "invoke_subgraph(body_1, 'subgraph_0', rows, a, n, v)"
    text = REGIONS.replace(second, call).replace(
        '(self, rows: "Sym(s77)", x: "f32[s77, 8][8, 1]cpu", w',
        '(self, m: "Sym(s5)", y: "f32[12, 8][8, 1]cpu", z: "f32[s5, 8][8, 1]cpu", '
        'rows: "Sym(s77)", x: "f32[s77, 8][8, 1]cpu", w',
    )
    before = parse_text(text, "test")
    result = run(before, parse_pipeline("ep-concretize{symbols=s77=16}"))
    gaps = [gap.text for gap in verify(before, result.program).unproved]
    assert result.verified == "unproved"
    assert re.match(why, gaps[0]) and verify(before, before).status == "proved"


@pytest.mark.parametrize(
    ("marks", "options", "message"),
    [
        ({"u0": 1}, "", "does not hold for u0 = 1: tokens"),
        ({"u0": -1}, "", "a number from 1"),
        ({"u0": True}, "", "a number from 1"),
        ({"u9": 4}, "", "'u9' is no size of an input.*can be fixed: u0"),
        ({}, "{symbols=u0}", "'u0' is not a symbol and its number"),
        ({}, "{symbols=u0=3:u0=4}", "'u0' is given twice"),
        ({}, "{symbols=u0=0}", "is not a symbol and its number"),
    ],
)
def test_what_is_refused(marks, options, message):
    with pytest.raises(CommccError, match=message):
        run(program(**marks), parse_pipeline(f"ep-concretize{options}"))


def test_sizes_of_the_device_and_out_of_range_are_refused():
    with pytest.raises(InputError, match="'u1' is no size of an input"):
        run(program(MIXED), parse_pipeline("ep-concretize{symbols=u1=4}"))
    made = replace(program(u0=160), header={"symbols": {"u0": [2, 100, None]}})
    with pytest.raises(InputError, match="'u0' cannot be 160: the graph says that it is from 2 to 100"):
        run(made, parse_pipeline("ep-concretize"))
    second = program(u0=160)
    node(second, "w").meta["custom"] = {HINTS: {"u0": 80}}
    with pytest.raises(InputError, match="'u0' is 80 here and 160"):
        run(second, parse_pipeline("ep-concretize"))


def test_sizes_that_an_exported_program_does_not_take(tmp_path):
    """Its ranges count as those of a text do, for the pass and for the verifier."""

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x.reshape(-1) * 2

    shapes = {"x": {0: torch.export.Dim("rows", min=3, max=100)}}
    torch.export.save(torch.export.export(Doubled(), (torch.ones(6, 4),), dynamic_shapes=shapes), tmp_path / "m.pt2")
    made = load(tmp_path / "m.pt2")
    (name,) = {str(each) for each in next(iter(made.graph.nodes)).meta["val"].shape[0].node.expr.free_symbols}
    for number in (2, 200):
        with pytest.raises(InputError, match=f"'{name}' cannot be {number}: the graph says that it is from 3 to 100"):
            run(made, parse_pipeline(f"ep-concretize{{symbols={name}={number}}}"))
    after = settled(made, f"ep-concretize{{symbols={name}=7}}").program
    assert verify(made, after).status == "proved"
    narrow = replace(made, graph=made.copied_graph())
    env = next(iter(narrow.graph.nodes)).meta["val"].fake_mode.shape_env
    for symbol, known in env.var_to_range.items():
        env.var_to_range[symbol] = type(known)(3, 5) if str(symbol) == name else known
    verdict = verify(narrow, after)
    assert [f"'{name}' is fixed to 7, in BEFORE it is from 3 to 5"] == [f.text for f in verdict.findings]


def test_the_verifier_sees_wrong_numbers():
    before = program(u0=160)
    after = settled(before).program
    assert [str(note) for note in verify(before, after).notes if note.rule == "input"] == [
        "input: compared for u0 = 160 only, which AFTER is fixed to"
    ]
    lied = replace(after, header={**after.header, "fixed": {"u0": 161}})
    assert verify(before, lied).status == "different"
    for claim in ({"u0": "160"}, {"u5": 3}, {"u0": 1}, {"u0": True}):
        assert verify(before, replace(after, header={"fixed": claim})).status == "different", claim
    assert verify(before, replace(after, header={})).status == "different"


def test_the_verifier_sees_an_assert_that_is_gone():
    before = program(
        MIXED.replace(
            'both: "',
            'ge: "Sym(u1 >= 2)" = operator.ge(item, 2)\n        '
            'check = torch.ops.aten._assert_scalar.default(ge, "m")\n        both: "',
        ),
        u0=8,
    )
    after = settled(before).program
    assert "check" in [each.name for each in after.graph.nodes], "it asks for what only the device knows"
    node(after, "check").graph.erase_node(node(after, "check"))
    verdict = verify(before, after)
    assert verdict.status == "proved"
    assert ("effect", "check", "is not checked in AFTER") in [(f.rule, f.node, f.text) for f in verdict.notes]


def test_plans_are_stored(tmp_path):
    before = program(MIXED, u0=160)
    result = settled(before)
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(before, read_plans(tmp_path / "plan.yaml"))
    assert again.verified == "proved" and again.last.index.fingerprint == result.last.index.fingerprint
    for number in ("0", "-3", "u1"):
        text = plan_text(result).replace("value: 160", f"value: {number}")
        (tmp_path / "wrong.yaml").write_text(
            text if number != "u1" else plan_text(result).replace("symbol: u0", "symbol: u1")
        )
        with pytest.raises(InputError):
            run(before, read_plans(tmp_path / "wrong.yaml"))


def test_options_print_back():
    (made,) = parse_pipeline("ep-concretize{symbols=u0=160:u3=8}")
    assert isinstance(made, EpConcretize) and made.symbols == ("u0=160", "u3=8")


def test_the_verifier_sees_an_assert_that_fails():
    """A graph without the assert, fixed to a size for which it does not hold."""
    lines = [line for line in GRAPH.splitlines(True) if "check" not in line and " ge:" not in line]
    after = settled(program("".join(lines)), "ep-concretize{symbols=u0=1}").program
    verdict = verify(program(), after)
    assert verdict.status == "different"
    assert [finding.rule for finding in verdict.findings] == ["effect"]
    assert verify(program("".join(lines)), after).status == "proved"


def test_a_mean_over_tokens_is_divided_by_a_number():
    text = """\
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[u0, 8][8, 1]cpu"):
        size: "Sym(u0)" = torch.ops.aten.sym_size.int(x, 0)
        total: "f32[8][1]cpu" = torch.ops.aten.sum.dim_IntList(x, [0])
        mean: "f32[8][1]cpu" = torch.ops.aten.div.Tensor(total, size)
        return (mean,)
"""
    after = settled(program(text, u0=160)).program
    assert node(after, "mean").args[1] == 160
