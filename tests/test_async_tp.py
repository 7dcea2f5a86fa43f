"""Fused ops of tensor parallelism: what PyTorch's pass takes, why it leaves the rest, values, files, verification."""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import fx

from commcc.apply.microtp import micro_pipeline
from commcc.base.errors import InputError, OptionError
from commcc.graph.index import build_index
from commcc.graph.ops import op_name
from commcc.graph.program import ProcessGroup, Program
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load, save
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.mesh_groups import parts_by_name
from tests.random_graphs import GraphBuilder, aten, c10d
from tests.replay_inputs import make_input
from tests.step_graphs import SAMPLES, on_cpu, sample, world_size
from tests.virtual_ranks import VirtualRanks

GATHER, SCATTER = "symm_mem.fused_all_gather_matmul", "symm_mem.fused_matmul_reduce_scatter"


@cache
def slices() -> bool:
    """PyTorch 2.11 does not know gathers and scatters put together from slices, as in these backward graphs."""
    return "slice_cat" in inspect.getsource(micro_pipeline())


EXPECTED = {
    "tiny_llama_fsdp2_tp2_fw": ({"all_gather": 5, "reduce_scatter": 4}, 15, 11),
    "tiny_llama_fsdp2_tp2_bw": ({"all_gather": 4, "reduce_scatter": 1}, 5, 10),
    "llama3_8b_fsdp8_tp8_fw": ({"reduce_scatter": 64}, 64, 131),
    "llama3_8b_fsdp8_tp8_bw": ({"all_gather": 64}, 64, 130),
}


def fused(program: Program, text: str = "async-tp"):
    result = run(program, parse_pipeline(text))
    assert result.verified == "proved"
    return result


class Ranks(VirtualRanks):
    """Virtual ranks that know what the fused ops mean."""

    def _call(self, node: fx.Node, env):
        name = op_name(node.target)
        if name not in (GATHER, SCATTER, "prims.inductor_force_stride_order"):
            return super()._call(node, env)
        given = [self._resolve(node.args, env, rank) for rank in range(self.world)]
        if name == "prims.inductor_force_stride_order":
            return [args[0] for args in given]
        results: list = [None] * self.world
        for part in self.groups[given[0][3 if name == GATHER else 4]]:
            for rank, value in zip(
                part, (_gathered if name == GATHER else _scattered)([given[r] for r in part]), strict=True
            ):
                results[rank] = value
        if name == GATHER and not node.kwargs.get("return_A", True):
            return [(None, outs) for _, outs in results]
        return results


def _gathered(args):
    whole = torch.cat([a[0] for a in args], dim=args[0][2])
    return [(whole.clone(), [whole @ b for b in a[1]]) for a in args]


def _scattered(args):
    products = [a[0] @ a[1] for a in args]
    total = torch.stack(products).sum(0)
    if args[0][2] == "avg":
        total = total / len(args)
    return [part.contiguous() for part in total.chunk(len(args), dim=args[0][3])]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_taken(name: str):
    if not (SAMPLES / f"{name}.fx.txt.gz").exists():
        pytest.skip("not in git; see sample_graphs/README.md")
    result = fused(sample(name))
    report = result.steps[0].report
    kinds, matmuls, collectives = EXPECTED[name]
    if not slices() and name.endswith("_bw"):
        kinds, matmuls = {}, 0
    assert (report["fused"], report["matmuls_fused"], report["collectives"]) == (kinds, matmuls, collectives)
    assert sum(report["left"].values()) + sum(report["fused"].values()) == report["collectives"]
    index = result.last.index
    ops = [op for op in index.ops if op in (GATHER, SCATTER)]
    assert len(ops) == sum(report["fused"].values())
    for node, op in enumerate(index.ops):
        if op in (GATHER, SCATTER):
            assert node in index.barriers and index.compute[node] and index.estimates.flops[node] > 0
    assert all("val" in node.meta for node in result.program.graph.nodes if node.op == "call_function")


def given_inputs(program: Program):
    """Inputs of every rank, its own for all of them."""
    nodes = program.graph.find_nodes(op="placeholder")
    for rank in range(world_size(program)):
        yield [make_input(node, torch.Generator().manual_seed(100 * rank + i)) for i, node in enumerate(nodes)]


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_fw", "tiny_llama_fsdp2_tp2_bw"])
@pytest.mark.sampled(1)
def test_values_stay(name: str):
    program = on_cpu(sample(name), torch.float64)
    after = fused(program).program
    parts = parts_by_name(program)
    inputs = [[torch.zeros(0) if t is None else t for t in one] for one in given_inputs(program)]
    before = VirtualRanks(program.graph, inputs, program.root, parts).run()
    now = Ranks(after.graph, inputs, after.root, parts).run()
    for old, new in zip(before, now, strict=True):
        for a, b in zip(old, new, strict=True):
            assert (a is None) == (b is None)
            if isinstance(a, torch.Tensor):
                assert a.shape == b.shape
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_plans_are_stored(tmp_path):
    before = sample("tiny_llama_fsdp2_tp2_fw")
    result = fused(before)
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(before, read_plans(tmp_path / "plan.yaml"))
    assert again.verified == "proved" and plan_text(again) == plan_text(result)
    assert again.last.index.fingerprint == result.last.index.fingerprint
    index = result.first.index
    other = next(index.names[n] for n, launch in index.launches.items() if launch.group == "1")
    wrong = plan_text(result).replace(index.names[result.steps[0].plan.rewrite.fusions[0].launch], other, 1)
    (tmp_path / "wrong.yaml").write_text(wrong)
    with pytest.raises(InputError, match="cannot be applied"):
        run(before, read_plans(tmp_path / "wrong.yaml"))


def test_files_hold_fused_ops(tmp_path):
    before = sample("tiny_llama_fsdp2_tp2_fw")
    after = fused(before).program
    for name in ("a.fx.txt.gz", "a.pt2"):
        save(after, tmp_path / name)
        again = load(tmp_path / name)
        assert verify(before, again).status == "proved"
        assert build_index(again).ops == build_index(after).ops


class Tp(GraphBuilder):
    """Small graphs on a group of two ranks."""

    def made(self, *outputs) -> Program:
        program = self.program(list(outputs), {"tp": 2})
        return replace(program, groups={"tp": ProcessGroup("tp", 2, (0, 1))})


def only(program: Program):
    """The one reason for which the one collective is left."""
    result = run(program, parse_pipeline("async-tp{groups=tp}"))
    report = result.steps[0].report
    assert not result.changed and report["collectives"] == 1, report
    (reason,) = report["left"]
    return reason


def test_no_consumer():
    b = Tp()
    x = b.placeholder("x", (4, 8))
    assert "no matmul takes what it gathers as its left operand (it goes to relu)" in only(
        b.made(b.call(aten.relu.default, b.gather(x, 2, "tp")))
    )


def test_the_other_operand_depends():
    b = Tp()
    w = b.gather(b.placeholder("x", (4, 8)), 2, "tp")
    assert only(b.made(b.call(aten.mm.default, w, w))) == "the other operand of its matmul depends on what it gathers"


@pytest.mark.parametrize("through", ["", "view"])
def test_what_is_written_in_place_behind_the_gather_is_written_ahead_of_the_fused_op(through):
    """The other operand is a buffer, filled by ops that no data leads on from (PyTorch 2.11 fills buckets so)."""
    b = Tp()
    x, w = b.placeholder("x", (4, 8)), b.placeholder("w", (8, 8))
    whole = b.gather(x, 2, "tp")
    buffer = b.call(aten.empty.memory_format, [8, 8], dtype=torch.float64, device="cpu")
    part = b.call(aten.view.default, buffer, [-1]) if through else buffer
    b.call(aten.copy_.default, part, b.call(aten.view.default, w, [-1]) if through else w)
    result = fused(b.made(b.call(aten.mm.default, whole, buffer)), "async-tp{groups=tp}")
    assert result.steps[0].report["matmuls_fused"] == 1
    names = [op_name(node.target) for node in result.program.graph.nodes if node.op == "call_function"]
    assert names.index("aten.copy_") < names.index(GATHER)


def test_what_is_written_in_place_with_what_is_gathered():
    b = Tp()
    x = b.placeholder("x", (4, 8))
    whole = b.gather(x, 2, "tp")
    buffer = b.call(aten.empty.memory_format, [8, 8], dtype=torch.float64, device="cpu")
    b.call(aten.copy_.default, buffer, b.call(aten.relu.default, whole))
    left = only(b.made(b.call(aten.mm.default, whole, buffer)))
    assert left == "the other operand of its matmul depends on what it gathers"


@pytest.mark.parametrize("early", [True, False])
def test_an_operand_that_is_written_to_before_the_scatter_is_waited_for(early):
    b = Tp()
    x, w = b.placeholder("x", (4, 8)), b.placeholder("w", (8, 8))
    product = b.call(aten.mm.default, x, w)
    if early:
        b.call(aten.zero_.default, w)
    waited = b.scatter(product, 2, "tp")
    if not early:
        b.call(aten.zero_.default, w)
    program = b.made(waited)
    if early:
        assert only(program) == "an operand of its matmul is written to before the fused op would read it"
    else:
        assert fused(program, "async-tp{groups=tp}").steps[0].report["matmuls_fused"] == 1


def test_the_last_dimension():
    for width, users, reason in ((8, 0, "smaller than 1024"), (1024, 1, "not only matmuls use it"), (1024, 0, "")):
        b = Tp()
        x, m = b.placeholder("x", (4, width)), b.placeholder("m", (2 * width, 4))
        pieces = b.call(aten.split.Tensor, b.gather(x, 2, "tp"), 4)
        halves = [b.call(operator.getitem, pieces, i) for i in range(2)]
        whole = b.call(aten.cat.default, halves, -1)
        outputs = [b.call(aten.mm.default, whole, m), *(b.call(aten.relu.default, whole) for _ in range(users))]
        program = b.made(*outputs)
        if reason:
            assert reason in only(program)
        else:
            assert fused(program, "async-tp{groups=tp}").changed


def test_results_with_other_users_and_no_matmul():
    b = Tp()
    product = b.call(aten.mm.default, b.placeholder("x", (4, 8)), b.placeholder("w", (8, 8)))
    both = b.made(b.scatter(product, 2, "tp"), b.call(aten.relu.default, product))
    assert only(both) == "the result of its matmul has other users too"
    b = Tp()
    relu = b.call(aten.relu.default, b.placeholder("x", (4, 8)))
    assert only(b.made(b.scatter(relu, 2, "tp"))) == "what it reduces is no result of a matmul (relu)"
    b = Tp()
    assert only(b.made(b.scatter(b.placeholder("x", (4, 8)), 2, "tp"))) == (
        "what it reduces is no result of a matmul (an input)"
    )


def test_forms_that_are_not_known():
    b = Tp()
    launch = b.call(c10d.all_gather_into_tensor.default, b.placeholder("x", (4, 8)), 2, "tp")
    waits = [b.call(c10d.wait_tensor.default, launch) for _ in range(2)]
    program = b.made(*(b.call(aten.mm.default, wait, b.placeholder(f"w{i}", (8, 8))) for i, wait in enumerate(waits)))
    program.graph.lint()
    assert "no form that PyTorch's pass knows" in only(program)


def test_results_of_two_fused_ops_are_added():
    """What fused ops stand for has no value of its own: numbers that meet it are still among floats."""
    b = Tp()
    products = [
        b.call(aten.mm.default, b.placeholder(f"x{i}", (4, 8)), b.placeholder(f"w{i}", (8, 8))) for i in range(2)
    ]
    parts = [b.scatter(product, 2, "tp") for product in products]
    both = b.call(aten.add.Tensor, *parts)
    program = b.made(both, b.call(aten.add.Tensor, *parts, alpha=2))
    assert fused(program, "async-tp{groups=tp}").steps[0].report["matmuls_fused"] == 2


def test_layouts_stay():
    """The fused op returns rows of the gathered dimension first; what follows sees what it saw before."""
    b = Tp()
    x, w = b.placeholder("x", (3, 4, 8)), b.placeholder("w", (8, 8))
    pieces = b.call(aten.split.Tensor, b.gather(x, 2, "tp"), 3)
    whole = b.call(aten.cat.default, [b.call(operator.getitem, pieces, i) for i in range(2)], 1)
    flat = b.call(aten.view.default, whole, [24, 8])
    out = b.call(aten.view.default, b.call(aten.mm.default, flat, w), [3, 8, 8])
    program = b.made(b.call(aten.view.default, out, [24, 8]))
    after = fused(program, "async-tp{groups=tp}").program
    names = [op_name(node.target) for node in after.graph.nodes if node.op == "call_function"]
    assert names == [
        "prims.inductor_force_stride_order",
        GATHER,
        "operator.getitem",
        "operator.getitem",
        "aten.clone",
        "aten.view",
    ]
    inputs = [[torch.randn(3, 4, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)] for _ in range(2)]
    groups = {"tp": ((0, 1),)}
    old = VirtualRanks(program.graph, inputs, None, groups).run()
    new = Ranks(after.graph, inputs, None, groups).run()
    torch.testing.assert_close(old[0][0], new[0][0])


def test_a_copy_with_other_strides_is_made_before_a_write():
    """It holds what was there: leaving it out would have the fused op read what was written."""
    b = Tp()
    x, w = b.placeholder("x", (3, 4, 8)), b.placeholder("w", (8, 8))
    b.call(aten.add_.Tensor, b.call(aten.view.default, x, [-1]), 1)
    pieces = b.call(aten.split.Tensor, b.gather(x, 2, "tp"), 3)
    whole = b.call(aten.cat.default, [b.call(operator.getitem, pieces, i) for i in range(2)], 1)
    product = b.call(aten.mm.default, b.call(aten.view.default, whole, [24, 8]), w)
    program = b.made(b.call(aten.view.default, product, [3, 8, 8]))
    after = fused(program, "async-tp{groups=tp}").program
    named = {op_name(node.target): node for node in after.graph.nodes if node.op == "call_function"}
    named["aten.add_"].prepend(named["prims.inductor_force_stride_order"])
    assert verify(program, after).status == "different"


def test_the_verifier_sees_through_fused_ops():
    before = sample("tiny_llama_fsdp2_tp2_fw")

    def changed(name: str, place: int, value) -> str:
        after = fused(before).program
        node = next(n for n in after.graph.nodes if n.op == "call_function" and op_name(n.target) == name)
        node.args = (*node.args[:place], value, *node.args[place + 1 :])
        return verify(before, after).status

    assert changed(GATHER, 2, 0) == "different"
    assert changed(GATHER, 3, "1") == "different"
    assert changed(SCATTER, 2, "avg") == "different"
    assert changed(SCATTER, 3, 0) == "different"


def test_groups_are_checked_and_torch_is_left_as_it_was():
    before = sample("tiny_llama_fsdp2_tp2_fw")
    switch = torch.distributed.is_nccl_available
    with pytest.raises(OptionError, match="no group '33' in the graph"):
        run(before, parse_pipeline("async-tp{groups=33}"))
    fused(before)
    assert torch.distributed.is_nccl_available is switch
    assert not torch.distributed._symmetric_memory._is_test_mode
    assert not run(sample("tiny_llama_ddp_fw"), parse_pipeline("async-tp")).changed, "it has no tensor parallelism"


def test_a_plan_that_fuses_what_is_no_collective_is_refused_by_its_line(tmp_path):
    before = sample("tiny_llama_fsdp2_tp2_fw")
    text = plan_text(fused(before))
    launch = text.partition("launch: ")[2].partition(",")[0].partition("\n")[0]
    (tmp_path / "plan.yaml").write_text(text.replace(f"launch: {launch}", f"launch: {matmul_of(before)}", 1))
    with pytest.raises(InputError, match=f"'{matmul_of(before)}' launches no collective") as caught:
        run(before, read_plans(tmp_path / "plan.yaml"))
    assert "plan.yaml:" in str(caught.value)


def matmul_of(program: Program) -> str:
    """The name of a matmul."""
    return next(node.name for node in program.graph.nodes if node.target is aten.mm.default)


def test_sizes_of_the_run_are_left():
    """The fused op would need them as arguments."""
    x, shard, whole = ("f32[s0, 64][64, 1]cuda:0", "f32[s1, 64][64, 1]cuda:0", "f32[2*s1, 64][64, 1]cuda:0")
    half = "f32[(s0//2), 64][64, 1]cuda:0"
    text = f"""class G(torch.nn.Module):
    def forward(self, s0: "Sym(s0)", s1: "Sym(s1)", x: "{x}", y: "{shard}", w: "f32[64, 64][64, 1]cuda:0"):
        product: "{x}" = torch.ops.aten.mm.default(x, w)
        scatter: "{half}" = torch.ops._c10d_functional.reduce_scatter_tensor.default(product, 'sum', 2, '0')
        part: "{half}" = torch.ops._c10d_functional.wait_tensor.default(scatter)
        gather: "{whole}" = torch.ops._c10d_functional.all_gather_into_tensor.default(y, 2, '0')
        wait: "{whole}" = torch.ops._c10d_functional.wait_tensor.default(gather)
        out: "{whole}" = torch.ops.aten.mm.default(wait, w)
        return (part, out)
"""
    result = fused(parse_text(text, "symbols"), "async-tp{groups=0}")
    assert not result.steps[0].changed
    assert result.steps[0].report["left"] == {"its sizes are known only at run time": 2}


def test_twice_changes_nothing():
    once = fused(sample("tiny_llama_fsdp2_tp2_fw")).program
    assert not run(once, parse_pipeline("async-tp")).changed


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_in_another_order_than_the_ranks_are_left(turned):
    b = GraphBuilder()
    x, w = (b.placeholder(name, (4, 4), torch.float64) for name in ("x", "w"))
    whole = b.call(c10d.wait_tensor.default, b.call(c10d.all_gather_into_tensor.default, x, 2, "0"))
    parts = b.call(aten.split.Tensor, whole, 4)
    pieces = [b.call(operator.getitem, parts, i) for i in ((1, 0) if turned else (0, 1))]
    wide = b.call(aten.reshape.default, b.call(aten.cat.default, [*pieces], 1), [4, 8])
    tall = b.call(aten.cat.default, [w, w])
    product = b.call(aten.mm.default, wide, tall)
    rows = b.call(aten.split.Tensor, product, 2, 1)
    halves = [b.call(operator.getitem, rows, i) for i in ((1, 0) if turned else (0, 1))]
    launch = b.call(c10d.reduce_scatter_tensor.default, b.call(aten.cat.default, halves), "sum", 2, "0")
    report = (
        fused(b.program([b.call(c10d.wait_tensor.default, launch)], {"0": 2}), "async-tp{groups=0}").steps[0].report
    )
    assert report["fused"].get("reduce_scatter", 0) == (0 if turned else 1)
