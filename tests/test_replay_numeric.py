"""Numeric verification: results of passes are equal to the bit, wrong graphs are found, verdicts say why."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from commcc.base.errors import InputError
from commcc.graph.ops import op_name
from commcc.graph.program import ProcessGroup
from commcc.passes.options import parse_pipeline
from commcc.replay.numeric import Settings, verify_numeric
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.serialization.attributes import element_bytes
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests import corruptions
from tests.test_ep_chunk_numbers import cut
from tests.verify_graphs import Graph, gathers, gradients

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
MERGED = "bucket{groups=all,bucket_cap_mb=none,max_topo_span=none}"
SMALL = "bucket{groups=all,bucket_cap_mb=0.01}"


@lru_cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


@lru_cache
def rewritten(name, text):
    return run(sample(name), parse_pipeline(text), model=load_model()).program


def copied(program):
    return replace(program, graph=corruptions.copied(program.graph))


def numeric(before, after, **settings):
    return verify_numeric(before, after, Settings(**settings))


LACKING = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 3][3, 1]cpu"):
        _tensor_constant0: "i64[2][1]cpu" = self._tensor_constant0
        lift: "i64[2][1]cpu" = torch.ops.aten.lift_fresh_copy.default(_tensor_constant0)
        rows: "f32[2, 3][3, 1]cpu" = torch.ops.aten.index.Tensor(x, [lift])
        sent: "f32[2, 3][3, 1]cpu" = torch.ops._c10d_functional.all_reduce.default(rows, 'sum', '0')
        wait: "f32[2, 3][3, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(sent)
        _tensor_constant0_1: "i64[2][1]cpu" = self._tensor_constant0
        out: "f32[2, 3][3, 1]cpu" = torch.ops.aten.index_add.default(wait, 0, _tensor_constant0_1, wait)
        return (out,)
"""


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_the_bytes_of_what_is_one_row_of_any_stride(dtype):
    """A contiguous tensor of one element may say any stride."""
    one = torch.arange(2).to(dtype)[::2]
    assert one.stride() == (2,)
    assert element_bytes(one).tolist() == element_bytes(one.clone().view(1)).tolist() == [0] * one.element_size()
    assert element_bytes(torch.conj(torch.tensor([1j]))).view(torch.complex64).tolist() == [-1j]


def test_constants_without_values_are_made_and_leave_it_open(tmp_path):
    """The same synthetic ones for both, within what they index; whether the graphs have the same is not known."""
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text(LACKING)
    other.write_text(LACKING.replace("index_add.default(wait, 0, _tensor_constant0_1, wait)", "relu.default(wait)"))
    found = numeric(load(one), load(one))
    assert all(value.status == "equal" for value in found.values) and found.compared == 1
    assert found.status == "inconclusive"
    assert "_tensor_constant0" in found.notes[-1] and "no file has the values" in found.notes[-1]
    assert numeric(load(one), load(other)).status == "different"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch.ops.aten.view.default(x, [6])", "dump it with include_stride=True"),
        (
            "torch.ops.higher_order.auto_functionalized_v2(torch.ops._c10d_functional.all_reduce_.default,"
            " reduce_op = 'sum', group_name = '0', _input_base_index = 0, _all_bases = [x])",
            "all_reduce_ is handed to higher_order.auto_functionalized_v2",
        ),
    ],
)
def test_what_cannot_be_run_says_what_is_missing(tmp_path, line, said):
    text = f"""class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[2, 3]"):
        x: "f32[3, 2]" = torch.ops.aten.permute.default(primals_1, [1, 0])
        y = {line}
        return (y,)
"""
    (tmp_path / "x.txt").write_text(text)
    program = load(tmp_path / "x.txt")
    with pytest.raises(InputError) as refused:
        numeric(program, program, ranks=1)
    assert said in str(refused.value)


@pytest.mark.full
def test_chunks_are_the_same_within_rounding_and_exact_in_float64():
    """That tokens do not depend on each other is proved, and an experiment shows it as well."""
    before, after = sample("tiny_deepseek_ep2"), cut("tiny_deepseek_ep2", chunks=2)
    assert verify(before, after).status == "proved"
    found = numeric(before, after)
    assert found.status == "within tolerance"
    assert {value.tolerance for value in found.values} == {2e-2}  # of bfloat16, in which the sums are made
    assert all("chunk" in value.reasons[0] for value in found.values)
    exact = numeric(before, after, wide=True)
    assert exact.status == "within tolerance"
    assert max(value.gap.relative for value in exact.values) < 1e-14
    assert {value.tolerance for value in exact.values} == {1e-12}
    assert numeric(before, after, tolerance=1e-6).status == "different"


# Corruptions of a merged graph, each a mistake that a pass could make.


def swap_members(graph):
    split = [n for n in graph.nodes if n.target is aten.split_with_sizes.default][-1]
    sizes = split.args[1]
    first = next(i for i, size in enumerate(sizes) if sizes.count(size) > 1)
    second = sizes.index(sizes[first], first + 1)
    one, other = (next(n for n in split.users if n.args[1] == i) for i in (first, second))
    one.args, other.args = (split, second), (split, first)


def nodes_of(graph, op):
    return [node for node in graph.nodes if node.op == "call_function" and op_name(node.target) == op]


def gathered(graph):
    """The wait of a gather."""
    return next(iter(nodes_of(graph, "_c10d_functional.all_gather_into_tensor")[1].users))


def lose_a_wait(graph):
    wait = gathered(graph)
    wait.replace_all_uses_with(wait.args[0])
    graph.erase_node(wait)


def wait_late(graph):
    """Everybody reads the buffer, and the wait comes at the end."""
    wait = gathered(graph)
    wait.replace_all_uses_with(wait.args[0])
    graph.output_node().prepend(wait)


def reduce_otherwise(graph):
    nodes_of(graph, "_c10d_functional.reduce_scatter_tensor")[0].update_arg(1, "sum")


def wrong_operand(graph):
    products = nodes_of(graph, "aten.mm")
    one = products[3]
    other = [m for m in products if m.args[1].meta["val"].shape == one.args[1].meta["val"].shape][-1]
    other.update_arg(1, one.args[1])


def round_a_gradient(graph):
    wait = nodes_of(graph, "_c10d_functional.reduce_scatter_tensor")[0].next
    with graph.inserting_after(wait):
        narrow = graph.call_function(aten._to_copy.default, (wait,), {"dtype": torch.bfloat16})
    with graph.inserting_after(narrow):
        wide = graph.call_function(aten._to_copy.default, (narrow,), {"dtype": torch.float32})
    narrow.meta["val"], wide.meta["val"] = wait.meta["val"].to(torch.bfloat16), wait.meta["val"]
    wait.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not narrow)


def swap_outputs(graph):
    output = graph.output_node()
    values = list(output.args[0])
    places = [i for i, value in enumerate(values) if getattr(value, "op", "") == "call_function"]
    one = places[0]
    other = next(i for i in places[1:] if values[i].meta["val"].shape == values[one].meta["val"].shape)
    values[one], values[other] = values[other], values[one]
    output.args = (tuple(values),)


DAMAGES = (swap_members, lose_a_wait, wait_late, reduce_otherwise, wrong_operand, round_a_gradient, swap_outputs)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_llama_hsdp_bw"])
@pytest.mark.sampled(1)
def test_wrong_graphs_are_found(name, damage):
    text = MERGED if damage is swap_members else SMALL
    after = copied(rewritten(name, text))
    damage(after.graph)
    found = numeric(sample(name), after)
    assert found.status == "different"
    assert found.values[0].status == "different"
    assert found.values[0].gap.count > 0 or found.values[0].gap.mismatch
    assert found.values[0].producers
    if damage in (lose_a_wait, wait_late):
        assert any("brings before a wait" in note for note in found.notes)
    if damage in (lose_a_wait, wait_late, wrong_operand):
        assert "is the first that differs, on rank 0" in found.first


def test_a_wrong_operand_is_named():
    after = copied(sample("tiny_llama_fsdp4_bw"))
    wrong_operand(after.graph)
    found = numeric(sample("tiny_llama_fsdp4_bw"), after)
    assert "where BEFORE uses" in found.first
    assert "(aten.mm)" in found.first


def test_after_that_cannot_be_run_is_different():
    after = copied(sample("tiny_moe_fsdp4_ep2_fw"))
    launch = nodes_of(after.graph, "_c10d_functional.all_to_all_single")[-1]
    sent = launch.args[2]
    launch.update_arg(2, [sent[1], sent[0]])
    found = numeric(sample("tiny_moe_fsdp4_ep2_fw"), after)
    assert found.status == "different"
    assert "split sizes" in found.failure or "sends" in found.failure
    assert launch.name in found.failure


def test_before_that_cannot_be_run_is_an_error():
    before = copied(sample("tiny_moe_fsdp4_ep2_fw"))
    launch = nodes_of(before.graph, "_c10d_functional.all_to_all_single")[-1]
    launch.update_arg(2, launch.args[2][:1])
    with pytest.raises(InputError, match=f"BEFORE cannot be run: node '{launch.name}'"):
        numeric(before, before)


def test_a_graph_of_one_rank_that_passes_on_to_its_neighbour_is_told():
    g = Graph()
    x = g.input("x", 4, 4)
    launch = g(c10d.all_to_all_single.default, x, [0, 0, 0, 4], [0, 4, 0, 0], "0", val=x.meta["val"])
    program = g.program(g.wait(launch))
    with pytest.raises(InputError) as caught:
        numeric(program, program)
    assert "may be those of one rank" in str(caught.value)


def test_inputs_are_matched_by_name():
    before, after = gathers(), gathers()
    inputs = after.graph.find_nodes(op="placeholder")
    inputs[0].prepend(inputs[1])  # another order of inputs: values go by their names
    with_groups = [replace(each, groups={"0": ProcessGroup("0", 4)}) for each in (before, after)]
    assert numeric(*with_groups).status == "equal"
    inputs[0].name = "p_O"
    with pytest.raises(InputError, match="AFTER has an input 'p_O' that BEFORE has not"):
        numeric(*with_groups)


def test_no_numbers_prove_nothing():
    def build():
        g = Graph()
        x = g.input("x", 8, 8)
        return g.program(g(aten.sqrt.default, g(aten.neg.default, g(aten.abs.default, x))), g(aten.neg.default, x))

    found = numeric(build(), build())
    assert found.status == "inconclusive"
    assert found.values[0].status == "inconclusive"
    assert found.values[0].nan == 64
    assert "equality there proves nothing" in found.notes[0]


def test_a_number_that_is_none_any_more_is_a_difference():
    def build(damage):
        g = Graph()
        x = g.input("x", 8, 8)
        hidden = g(aten.gt.Scalar, x, 0.05 if damage else 1e9)
        return g.program(g(aten.masked_fill.Scalar, x, hidden, float("nan")))

    found = numeric(build(False), build(True), tolerance=1.0)
    assert found.status == "different"
    assert found.values[0].gap.nan == found.values[0].gap.count > 0


def test_infinities_and_zeros_are_said():
    def build():
        g = Graph()
        x = g.input("x", 4, 4)
        zero = g(aten.mul.Tensor, x, 0.0)
        return g.program(g(aten.abs.default, zero), g(aten.log.default, g(aten.abs.default, zero)))

    found = numeric(build(), build())
    assert found.status == "equal"
    assert [note.split(":")[0] for note in found.notes] == [
        "1 value with infinities, as masks of attention have",
        "1 value of nothing but zeros on all ranks, which proves little",
    ]


def test_zeros_of_another_sign_are_within_rounding():
    def build(sign):
        g = Graph()
        return g.program(g(aten.mul.Tensor, g(aten.abs.default, g.input("x", 4, 4)), sign))

    found = numeric(build(0.0), build(-0.0))
    assert found.status == "within tolerance"
    assert found.values[0].gap.absolute == 0.0


def test_rounding_without_a_changed_sum_is_a_difference():
    """x * 3 and x * 3 rounded at another place: small, and nothing excuses it; unless it was asked for."""

    def build(order):
        g = Graph()
        x = g.input("x", 16, 16)
        one, two = (1.1, 1.3) if order else (1.3, 1.1)
        return g.program(g(aten.mul.Tensor, g(aten.mul.Tensor, x, one), two))

    found = numeric(build(True), build(False))
    assert found.status == "different"
    assert 0 < found.values[0].gap.relative < 1e-6
    assert 1 <= found.values[0].gap.ulps <= 2
    assert found.values[0].reasons == ()
    assert numeric(build(True), build(False), tolerance=1e-6).status == "within tolerance"


def test_a_sum_under_another_name_is_no_excuse_and_one_of_other_parts_is():
    def build(name, parts):
        g = Graph()
        x, y = g.input("x", 16, 16), g.input("y", 16, 16)
        if parts == 1:
            return g.program(g(aten.mul.Tensor, g(aten.mul.Tensor, g(aten.mm.default, x, y, name=name), 1.1), 1.3))
        halves = [
            g(aten.mm.default, g(aten.slice.Tensor, x, 1, at, at + 8), g(aten.slice.Tensor, y, 0, at, at + 8))
            for at in (0, 8)
        ]
        return g.program(g(aten.mul.Tensor, g(aten.mul.Tensor, g(aten.add.Tensor, *halves), 1.3), 1.1))

    def turned(name):
        g = Graph()
        product = g(aten.mm.default, g.input("x", 16, 16), g.input("y", 16, 16), name=name)
        return g.program(g(aten.mul.Tensor, g(aten.mul.Tensor, product, 1.3), 1.1))

    assert numeric(build("mm", 1), turned("mm_other")).status == "different"
    found = numeric(build("mm", 1), build("mm", 2))
    assert found.status == "within tolerance"
    assert "mm_default_1 (mm of [16, 8] and [8, 16])" in found.values[0].reasons
    assert found.values[0].tolerance == 1e-5


def test_written_inputs_are_compared():
    def build(step):
        g = Graph()
        x, counter = g.input("x", 4), g.input("counter", 4)
        g(aten.add_.Tensor, counter, x, alpha=step)
        return g.program(g(aten.neg.default, x))

    assert numeric(build(1), build(1)).compared == 2
    found = numeric(build(1), build(2))
    assert [(value.name, value.status) for value in found.values] == [("input counter", "different")]
    assert found.values[0].node == "add__tensor"


def test_shapes_and_kinds_that_differ():
    def build(kept, rows):
        g = Graph()
        x = g.input("x", 4, 4)
        outputs = [g(aten.slice.Tensor, x, 0, 0, rows), x][: kept + 1]
        return g.program(*outputs)

    found = numeric(build(1, 4), build(1, 3))
    assert found.values[0].gap.mismatch == "float32[4, 4] against float32[3, 4]"
    found = numeric(build(1, 4), build(0, 4))
    assert found.values[0].gap.mismatch == "float32[4, 4] against nothing"


def test_merged_reductions_excuse_rounding_on_real_ranks_only():
    from commcc.graph.index import build_index
    from commcc.replay.numeric.causes import Reasons

    before, after = (build_index(gradients(merge)) for merge in (None, Graph.merged_scatter))
    outputs = tuple(node for node in after.outputs if node is not None)
    assert "reduce_scatter_tensor of" in Reasons(before, after, reductions=True).of(outputs)[0]
    assert Reasons(before, after, reductions=False).of(outputs) == ()
    assert Reasons(before, after, reductions=False).tolerance(outputs) is None


def test_many_ranks_are_run_when_asked_for():
    def build(size):
        g = Graph()
        return g.program(
            g.reduce(g(aten.neg.default, g.input("x", 3, 4)), "sum"), groups={"0": ProcessGroup("0", size)}
        )

    with pytest.raises(InputError, match="for 64 ranks") as caught:
        numeric(build(64), build(64))
    assert "--virtual-ranks 64" in str(caught.value)
    found = numeric(build(64), build(64), ranks=64)
    assert (found.status, found.ranks) == ("equal", 64)


def test_what_does_not_fit_is_refused_before_anything_is_made():
    g = Graph()
    x = g.input("x", 2**20, 2**16)
    program = g.program(g(aten.neg.default, x))
    with pytest.raises(InputError, match=r"1 virtual ranks need about [\d,.]+ GiB of memory, and [\d,.]+ GiB are free"):
        numeric(program, program)


def test_seeds_are_other_inputs():
    before, after = sample("tiny_llama_fsdp2_bw"), copied(sample("tiny_llama_fsdp2_bw"))
    round_a_gradient(after.graph)
    worst = [numeric(before, after, seed=seed).values[0].gap for seed in (0, 0, 1)]
    assert worst[0] == worst[1]
    assert worst[0] != worst[2]


def test_the_json_has_stable_keys_and_plain_values():
    after = copied(sample("tiny_llama_fsdp2_bw"))
    reduce_otherwise(after.graph)
    found = numeric(sample("tiny_llama_fsdp2_bw"), after).to_json()
    assert list(found) == [
        *("status", "ranks", "backend", "seed", "precision", "compared", "counts", "failure", "first_difference"),
        *("values", "notes", "seconds"),
    ]
    assert sum(found["counts"].values()) == found["compared"]
    assert found["counts"]["different"] == len(found["values"]) == 1
    assert found["values"][0]["difference"]["relative"] == pytest.approx(1.0)
