"""FSDP collectives in dense parts: where each one goes, what cannot go, and that values stay."""

from __future__ import annotations

import functools

import pytest
import torch

from commcc.base.errors import FindingError, InputError, OptionError
from commcc.base.terms import Kind
from commcc.ep.dense import Dense, layers_of
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.ep_dense import EpDense
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.ep_graphs import ATEN, C10D, Chunked, parse
from tests.step_graphs import on_cpu, run_ranks, sample
from tests.virtual_ranks import same

BUCKET = "tag,dedup,bucket{strategy=module,modules=transformer_block}"


@functools.cache
def bucketed(name: str = "tiny_deepseek_fsdp4_ep2"):
    return run(sample(name), parse_pipeline(BUCKET))


@functools.cache
def placed(waits: str = "end"):
    return run(bucketed().program, [EpDense(reduce_waits=waits)], model=load_model("h100"))


def dense_of(result) -> Dense:
    index = result.last.index
    return Dense(index, annotations_of(result.program, index), layers_of(result.last.ident))


@pytest.mark.full
def test_layers_and_their_first_dense_products():
    dense = dense_of(bucketed())
    index = dense.index
    assert dense.layers == ("layers.0", "layers.1", "layers.2")
    modules = {key: index.modules[node] for key, node in dense.first.items()}
    assert [modules[layer, False] for layer in range(4)] == [*(f"layers.{n}.attention.wq" for n in range(3)), "output"]
    assert [modules[layer, True] for layer in (1, 2)] == ["layers.1.attention.wo", "layers.2.attention.wo"]
    assert dense.layer("tok_embeddings") is None and dense.layer("norm") == 3 and dense.layer("layers.1.moe") == 1


def test_in_the_backward_pass_the_dense_part_begins_behind_the_experts():
    """Attention may be computed again before the experts' backward pass; its own comes later."""
    back = "# autograd_backward: True # Annotation: {'module_fqn': 'layers.0.%s'}"
    lines = [
        "# Annotation: {'module_fqn': 'layers.0.attention'}",
        mm("f", "x", "x"),
        back % "attention",
        mm("again", "f", "x"),
        (back % "moe").replace("'}", "', 'EP': 'compute'}"),
        mm("experts", "again", "x"),
        back % "attention",
        mm("own", "experts", "x"),
        mm("more", "own", "x"),
    ]
    body = "\n".join(f"    {line}" for line in lines)
    program = parse(f'def forward(self, x: "f32[8, 8][8, 1]cuda:0"):\n{body}\n    return (more,)')
    index = build_index(program)
    dense = Dense(index, annotations_of(program, index), ("layers.0",))
    assert {key: index.names[node] for key, node in dense.first.items()} == {(0, False): "f", (0, True): "own"}


@pytest.mark.full
def test_modules_with_experts_are_not_dense():
    dense = dense_of(bucketed())
    notes, index = dense.notes, dense.index
    for (layer, backward), node in dense.first.items():
        assert index.compute[node] and notes[node].part is None
        if backward and layer in (1, 2):
            experts = [n for n, note in enumerate(notes) if index.compute[n] and note.part and note.backward]
            own = [n for n in experts if index.modules[n] and index.modules[n].startswith(f"layers.{layer}.")]
            assert own and max(own) < node, "reductions go behind the experts' backward pass"


def collectives(result, kind: Kind):
    """Launches of parameters as (place, layer, backward)."""
    dense = dense_of(result)
    for each in result.last.ident.collectives:
        if each.kind is kind and each.role.value == "fsdp":
            used = dense.consumer(each.waits)
            backward = kind is Kind.REDUCE_SCATTER or (used is not None and dense.notes[used].backward)
            yield each, dense.layer(each.module), backward


@pytest.mark.full
def test_gathers_are_launched_in_the_layer_before_in_the_same_direction():
    """Without dedup, so that the backward pass gathers again."""
    once = run(sample("tiny_deepseek_fsdp4_ep2"), parse_pipeline(BUCKET.replace("dedup,", "")))
    result = run(once.program, [EpDense()])
    assert result.verified == "proved"
    first = dense_of(result).first
    seen = set()
    for each, layer, backward in collectives(result, Kind.ALL_GATHER):
        beside = None if layer is None else first.get((layer + 1 if backward else layer - 1, backward))
        if beside is not None and not (backward and layer == 3):
            assert each.launch < beside < min(each.waits)
            assert not [n for n in range(each.launch, beside) if result.last.index.compute[n]], "right before it"
            seen.add((layer, backward))
    assert seen == {(1, False), (2, False), (3, False), (2, True), (1, True), (0, True)}


@pytest.mark.full
def test_reductions_are_launched_in_the_layer_behind_and_waited_for_at_the_end():
    result = placed()
    index, first = result.last.index, dense_of(result).first
    checked = 0
    for each, layer, _ in collectives(result, Kind.REDUCE_SCATTER):
        made = max(index.preds(each.launch))
        if layer is not None and layer > 0:
            anchor = first[layer - 1, True]
            assert each.launch > max(index.data_preds[each.launch])
            assert each.launch < anchor or made > anchor, "before the product, or when the gradient is there"
            assert not [n for n in range(each.launch, anchor) if index.compute[n]]
            checked += 1
        assert not [n for n in range(each.waits[0], len(index)) if index.compute[n] or n in index.launches]
    assert checked >= 3


def test_waits_in_the_next_layer_hold_less_memory_in_flight():
    ends, layers = placed("end"), placed("layer")
    flying = [run_.last.prediction.timeline.in_flight_bytes for run_ in (ends, layers)]
    assert flying[1] < flying[0]


@pytest.mark.parametrize("waits", ["end", "layer"])
@pytest.mark.sampled(1)
def test_values_stay(waits: str):
    result = placed(waits)
    assert result.verified == "proved" and result.changed
    before, after = (on_cpu(program, torch.float64) for program in (bucketed().program, result.program))
    assert same(run_ranks(before, 3), run_ranks(after, 3))


@pytest.mark.parametrize("waits", ["end", "layer"])
def test_a_second_run_changes_nothing(waits: str):
    assert not run(placed(waits).program, [EpDense(reduce_waits=waits)]).changed


def test_nothing_but_collectives_and_what_prepares_them_moves():
    """What is left when these are taken out stands in its old order."""
    before, after = placed().steps[0].before.index, placed().last.index
    moved = {node for i in (before, after) for node in i.names if node.startswith(("all_gather", "reduce_scatter"))}
    feeding = {name for name in before.names if after_bucket(name)}
    left = [name for name in before.names if name not in moved | feeding and before.compute[before.position[name]]]
    assert left == [name for name in after.names if after.compute[after.position[name]]]


def after_bucket(name: str) -> bool:
    return "bucket" in name


@pytest.mark.full
def test_layers_that_are_chunked_as_a_whole_have_no_dense_part():
    """Attention is in the bodies then: only the last layer's gathers have a place, beside the output's gradient."""
    program = run(sample("tiny_deepseek_fsdp4_ep2"), [EpChunk(modules="layers.*", chunks=2)]).program
    result = run(program, [EpDense(layers=("layers.[1-2]",))])
    report = result.steps[0].report
    assert report["reductions_placed"] == 0
    assert set(dense_of(result).first) & {(layer, False) for layer in (1, 2)} == set()
    assert report["remarks"] == ["no layer has dense products outside of chunked regions: nothing is launched there"]
    assert placed().steps[0].report["remarks"] == []


def test_the_report_counts():
    report = placed().steps[0].report
    assert report["layers"] == 3 and report["blocked"] == 0
    assert report["gathers_placed"] == 5 and report["reductions_placed"] == 5
    assert len(report["step_ms"]) == 2


def chain(late: bool = False) -> str:
    """Three layers that gather and multiply, forward. late: layer 2's weight is used in layer 0 already."""
    inputs = ", ".join(f'p{n}: "f32[4, 8][8, 1]cuda:0"' for n in range(3))
    lines: list[str] = []

    def line(module: str, name: str, call: str, shape: str = "f32[8, 8][8, 1]cuda:0", more: str = "") -> None:
        lines.extend((f"# {more}Annotation: {{'module_fqn': '{module}'}}", f'{name}: "{shape}" = {call}'))

    for n in range(3):
        line(f"layers.{n}.wq", f"a{n}", f"{C10D}.all_gather_into_tensor.default(p{n}, 2, '0')")
        line(f"layers.{n}.wq", f"w{n}", f"{C10D}.wait_tensor.default(a{n})")
        line(f"layers.{n}.wq", f"y{n}", f"{ATEN}.mm.default({f'y{n - 1}' if n else 'x'}, w{n})")
    if late:
        at = next(i for i, text in enumerate(lines) if text.startswith("w0"))
        lines[at + 1 : at + 1] = lines[12:16]
        del lines[16:20]
        lines[at + 5 : at + 5] = ["# Annotation: {'module_fqn': 'layers.0.wq'}", mm("z", "x", "w2")]
    returned = "y2, z" if late else "y2"
    body = "\n".join(f"    {text}" for text in lines)
    return f'def forward(self, {inputs}, x: "f32[8, 8][8, 1]cuda:0"):\n{body}\n    return ({returned},)'


def mm(name: str, one: str, other: str) -> str:
    return f'{name}: "f32[8, 8][8, 1]cuda:0" = {ATEN}.mm.default({one}, {other})'


def names(result) -> list[str]:
    return [name for name in result.last.index.names if name[0] in "awyz"]


def test_a_chain_of_layers():
    result = run(parse(chain()), [EpDense()])
    assert names(result) == ["a0", "w0", "a1", "y0", "w1", "a2", "y1", "w2", "y2"]
    assert result.verified == "proved"


def test_layers_by_name():
    result = run(parse(chain()), [EpDense(layers=("layers.*",))])
    assert names(result) == ["a0", "w0", "a1", "y0", "w1", "a2", "y1", "w2", "y2"]
    with pytest.raises(OptionError, match="no module 'blocks"):
        run(parse(chain()), [EpDense(layers=("blocks.*",))])


def test_a_gather_that_is_needed_earlier_is_blocked():
    program = parse(chain(late=True))
    result = run(program, [EpDense()])
    (left,) = result.steps[0].plan.left_out
    assert "waited for before the first dense product in the forward pass of layer 1" in str(left.reason)
    with pytest.raises(FindingError, match=r"1 collectives cannot be moved: 'a2': it is waited for before"):
        run(program, [EpDense(strict=True)])


REPLICAS = """def forward(self, x: "f32[8, 8][8, 1]cuda:0"):
    # autograd_backward: True # Annotation: {'module_fqn': 'layers.1.wq'}
    g1: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(x, x)
    r1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.default(g1, 'sum', 2, '0')
    s1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(r1)
    b1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(s1, 'sum', '1')
    c1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(b1)
    # autograd_backward: True # Annotation: {'module_fqn': 'layers.0.wq'}
    g0: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(g1, x)
    r0: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.default(g0, 'sum', 2, '0')
    s0: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(r0)
    b0: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(s0, 'sum', '1')
    c0: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(b0)
    return (c0, c1)
"""


def test_a_reduction_that_another_collective_needs_is_blocked():
    """With replicas, what was reduced and scattered is reduced once more."""
    with pytest.raises(FindingError, match=r"2 collectives cannot be moved: 'r1': 'b1' depends on its result; 'r0'"):
        run(parse(REPLICAS), [EpDense(layers=("layers.*",), strict=True)])
    assert not run(parse(REPLICAS), [EpDense(layers=("layers.*",))]).changed


def test_backward_graphs_number_layers_from_behind():
    result = run(sample("tiny_llama_fsdp4_bw"), [EpDense()])
    assert dense_of(result).layers == ("layers.0", "layers.1")
    assert result.verified == "proved"


def test_a_graph_without_layers_is_refused():
    with pytest.raises(InputError, match="no layers are alike"):
        run(parse(Chunked(2).forward().text()), [EpDense()])
