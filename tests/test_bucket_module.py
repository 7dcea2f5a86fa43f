"""Strategy module on random and on sample graphs: the same bits, proved, idempotent, and prefetched as promised."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import InputError, OptionError
from commcc.base.terms import Kind
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import build, parse_pipeline, to_text
from commcc.passes.strategies import entries
from commcc.passes.strategies.pairs import depth_of
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load
from commcc.verify import verify
from tests.effort import examples
from tests.random_graphs import GraphBuilder, aten, c10d, random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
SAMPLES = Path(__file__).parents[1] / "sample_graphs"

OPTIONS = st.builds(
    Bucket,
    strategy=st.just("module"),
    modules=st.sampled_from(["transformer_block", ("m.*",), ("m.[0-1]", "m.2+m.3"), ("m.0+m.1+m.2", "m.3")]),
    prefetch=st.sampled_from(["next", "next", None, ("2",), ("m.0=m.1", "m.2=m.0", "m.3=m.2")]),
    include_all_reduce=st.booleans(),
    multi_dtype=st.booleans(),
    param_order=st.booleans(),
).filter(lambda options: options.modules != "transformer_block" or "=" not in str(options.prefetch))  # no such blocks


def with_modules(program, seed):
    """The program with a module for every node, at random: any of them may be asked to share a bucket."""
    rng = random.Random(seed)
    for number, node in enumerate(program.graph.nodes):
        path = f"m.{number if number < 4 else rng.randrange(4)}.{rng.choice('ab')}"
        node.meta["custom"] = {"module_fqn": path}
    return program


def bucketed(program, options):
    index = build_index(program)
    plan = options.plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan), plan, index


@RELAXED
@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from([2, 4]), OPTIONS)
def test_the_program_stays_the_same(seed, layers, world, options):
    program = with_modules(random_program(seed, layers, world), seed)
    after, plan, index = bucketed(program, options)
    after.graph.lint()
    inputs = random_inputs(program.graph, world, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    holds(index, plan, after)


def holds(index, plan, after):
    """Whatever else moved, what the plan wants ahead is ahead."""
    place = {node.name: at for at, node in enumerate(after.graph.nodes)}
    merged = {m: b for b in plan.rewrite.buckets for m in b.members}
    made = [n for n in after.graph.nodes if n.meta.get("commcc") and n.meta["commcc"].merged_from]
    launched = {name: node.name for node in made for name in node.meta["commcc"].merged_from}
    for each in plan.rewrite.before:
        first = launched.get(index.names[each.first], index.names[each.first])
        then = index.names[each.then]
        if index.wait_of[each.then] in merged:
            then = f"{launched[index.names[index.wait_of[each.then]]]}_wait"
        assert place[first] < place[then], (first, then)


@pytest.mark.parametrize("seed", [10, 18, 33, 41])
def test_the_order_of_modules_settles(seed):
    """All-reduces wait for reduce-scatters that were moved back, so that the next module is another one."""
    options = Bucket(strategy="module", modules=("m.*",), include_all_reduce=True)
    once, _, _ = bucketed(with_modules(random_program(seed, 6, 2), seed), options)
    _, again, _ = bucketed(once, options)
    assert not again.changes


@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_repeat_are_of_one_kind(seed):
    """Where no collective names its module, what repeats in one kind makes the blocks of that kind."""
    collectives = identify(build_index(random_program(seed, 6, 2))).collectives
    found, made_up = entries.with_modules(Bucket(strategy="module"), collectives)
    assert made_up
    assert all(c.module is None or c.module.startswith(f"{c.kind}.") for c in found)


#: Sets that are cut in pieces which fit together again, or orders of modules that come again in turn.
STUBBORN = (
    (134, 9, 2, "modules=m.0+m.1+m.2:m.3,prefetch=m.0=m.1:m.2=m.0:m.3=m.2,multi_dtype=true"),
    (175, 9, 2, "modules=m.0+m.1+m.2:m.3,multi_dtype=true"),
    (202, 8, 4, "modules=m.0+m.1+m.2:m.3,prefetch=2,multi_dtype=true,param_order=true"),
    (205, 8, 4, "modules=m.0+m.1+m.2:m.3,prefetch=2"),
    (112, 9, 4, "modules=m.0+m.1+m.2:m.3,prefetch=m.0=m.1:m.2=m.0:m.3=m.2"),
    (146, 4, 2, "modules=m.*"),
    (154, 5, 4, "modules=m.*,prefetch=2,multi_dtype=true,param_order=true"),
    (276, 7, 2, "modules=m.[0-1]:m.2+m.3,multi_dtype=true"),
    (302, 8, 4, "modules=m.0+m.1+m.2:m.3,prefetch=2"),
    (415, 7, 2, "modules=m.[0-1]:m.2+m.3,param_order=true"),
)


@pytest.mark.parametrize(("seed", "layers", "world", "text"), STUBBORN)
def test_one_run_is_enough(seed, layers, world, text):
    """What is cut is put together again in the same run, and no old bucket is touched in the next."""
    (options,) = parse_pipeline(f"bucket{{strategy=module,include_all_reduce=true,{text}}}")
    program = with_modules(random_program(seed, layers, world), seed)
    once, plan, _ = bucketed(program, options)
    assert plan.rewrite.buckets
    _, again, _ = bucketed(once, options)
    assert not again.changes, again.rewrite


def test_a_cast_that_serves_two_modules_goes_with_the_first():
    """Its launch is not held back until the second module's launch, which stands behind the free product here."""
    build = GraphBuilder()
    shards = [build.placeholder(f"p{number}", (4, 8), torch.float32) for number in range(3)]
    x = build.placeholder("x", (8, 8))
    first = build.call(c10d.all_gather_into_tensor.default, shards[0], 2, "0")
    free = build.call(aten.mm.default, x, x)
    waited = build.call(c10d.wait_tensor.default, first)
    sources = [build.call(aten.view.default, shards[1], [4, 8]), build.call(aten.view.default, shards[2], [4, 8])]
    full = [waited, *(build.gather(sources[n], 2, "0") for n in (0, 1, 0))]
    for gathered, module in zip(full, ("m.0", "m.0", "m.1", "m.1"), strict=True):
        gathered.meta["custom"] = {"module_fqn": module}
    program = build.program([free, *full], {"0": 2})
    after, plan, _ = bucketed(program, Bucket(strategy="module", modules=("m.*",)))
    assert [len(b.hoist) for b in plan.rewrite.buckets] == [1, 2]
    kinds = [str(node.target) for node in after.graph.nodes]
    first_launch = next(at for at, kind in enumerate(kinds) if "all_gather" in kind)
    assert first_launch < kinds.index("aten.mm.default")
    assert verify(program, after).status == "proved"


@settings(RELAXED, max_examples=examples(60))
@given(st.integers(0, 10_000), st.integers(2, 9), OPTIONS)
def test_running_twice_changes_nothing(seed, layers, options):
    """With entries that are named: blocks are found by what modules hold, which random graphs change at random."""
    if options.modules == "transformer_block":
        options = replace(options, modules=("m.*",))
    once, _, _ = bucketed(with_modules(random_program(seed, layers, 2), seed), options)
    _, again, _ = bucketed(once, options)
    assert not again.changes, again.rewrite


@RELAXED
@given(st.integers(0, 10_000), OPTIONS)
def test_same_input_same_plan(seed, options):
    first = bucketed(with_modules(random_program(seed, 6, 2), seed), options)
    second = bucketed(with_modules(random_program(seed, 6, 2), seed), options)
    assert first[1] == second[1]
    assert [str(n) for n in first[0].graph.nodes] == [str(n) for n in second[0].graph.nodes]


@cache
def sample(name):
    found = [path for end in (".fx.txt", ".fx.txt.gz") if (path := SAMPLES / f"{name}{end}").exists()]
    if not found:
        pytest.skip(f"{name} is not made: make samples ARGS=--all")
    return load(found[0])


#: Blocks of transformer_block and the rest beside them, then buckets of gathers and of reductions.
FOUND = {
    "tiny_llama_fsdp2_fw": (2, ["tok_embeddings", "norm+output"], 3, 0),
    "tiny_llama_fsdp2_bw": (2, ["tok_embeddings", "norm+output"], 3, 3),
    "tiny_llama_fsdp2_tp2_bw": (2, ["tok_embeddings", "norm+output"], 3, 3),
    "tiny_llama_hsdp_bw": (2, ["tok_embeddings", "norm+output"], 3, 3),
    "tiny_llama_joint": (2, ["tok_embeddings", "norm+output"], 3, 3),
    "tiny_moe_fsdp4_ep2_fw": (2, ["tok_embeddings", "norm+output"], 4, 0),
    "tiny_moe_fsdp4_ep2_bw": (2, ["tok_embeddings", "norm+output"], 4, 4),
    "llama3_8b_fsdp64_fw": (32, ["tok_embeddings", "norm+output"], 33, 0),
    "llama3_8b_fsdp64_bw": (32, ["tok_embeddings", "norm+output"], 33, 33),
    "llama3_8b_fsdp8_tp8_bw": (32, ["tok_embeddings", "norm+output"], 33, 33),
    "llama3_8b_hsdp_bw": (32, ["tok_embeddings", "norm+output"], 33, 33),
    "llama3_8b_joint": (32, ["tok_embeddings", "norm+output"], 33, 33),
    "moe_ep8_fw": (16, ["tok_embeddings", "norm+output"], 32, 0),
    "moe_ep8_bw": (16, ["tok_embeddings", "norm+output"], 32, 32),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.sampled(1)
def test_samples(name):
    blocks, rest, gathers, reductions = FOUND[name]
    result = run(sample(name), [Bucket(strategy="module", strict=True)])
    report = result.steps[0].report
    entries = list(dict.fromkeys(row["entry"] for row in report["modules"]))
    assert sorted(e for e in entries if e.startswith("layers.")) == sorted(f"layers.{i}" for i in range(blocks))
    assert {e for e in entries if not e.startswith("layers.")} == set(rest)
    made = {kind: each["buckets"] for kind, each in report["by_kind"].items()}
    assert made == {k: n for k, n in (("all_gather", gathers), ("reduce_scatter", reductions)) if n}
    assert result.verified == "proved"
    assert report["uncovered"] == []
    index = build_index(result.program)
    prefetched(index)
    assert not Bucket(strategy="module", strict=True).plan(PlanContext(result.program, index, identify(index))).changes


def prefetched(index):
    """Each module's gathers are launched before the waits of the module before it; reductions the other way."""
    stops = {}
    for each in identify(index).collectives:
        if each.derived is not None and each.kind is not Kind.ALL_REDUCE:
            block = ".".join(each.module.split(".")[:2])
            stop = block if block.startswith("layers.") else each.module.replace("output", "norm")
            stops.setdefault(each.kind, {}).setdefault(stop, []).append(each)
    for kind, by_stop in stops.items():
        order = list(by_stop.values())
        for this, following in pairwise(order):
            waits, launches = [c.waits[0] for c in this], [c.launch for c in following]
            if kind is Kind.ALL_GATHER:
                assert max(launches) < min(waits), index.names[this[0].launch]
            else:
                assert min(waits) > min(launches), index.names[this[0].launch]


@pytest.mark.parametrize("name", ["tiny_llama_hsdp_bw", "tiny_llama_ddp_bw"])
def test_all_reduces_when_asked(name):
    bucket = Bucket(strategy="module", include_all_reduce=True)
    result = run(sample(name), [bucket])
    assert result.steps[0].report["by_kind"]["all_reduce"] == {"buckets": 3, "members": 20}
    assert result.verified == "proved"
    assert not run(result.program, [bucket]).changed
    left_alone = run(sample(name), [replace(bucket, include_all_reduce=False)])
    assert "all_reduce" not in left_alone.steps[0].report["by_kind"]


@pytest.mark.parametrize(
    ("name", "blocks", "gathers"),
    [
        ("tiny_llama_fsdp2_fw", 2, [1, 9, 9, 2]),
        ("llama3_8b_fsdp64_fw", 32, [1, *[9] * 32, 2]),
        ("tiny_moe_ep2_fw", 0, []),
    ],
)
@pytest.mark.sampled(1)
def test_a_graph_that_says_nothing_of_its_modules(name, blocks, gathers):
    """As PyTorch prints it: blocks are what repeats."""
    program = sample(name)
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    for node in graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key == "val"}
    program = replace(program, graph=graph, source=None, carrier=None)
    result = run(program, [Bucket(strategy="module")])
    report = result.steps[0].report
    assert [row["members"] for row in report["modules"]] == gathers
    assert sum("block" in row["entry"] for row in report["modules"]) == blocks
    assert result.verified == "proved"
    assert "transformer_block" in report["remarks"][0]
    assert not run(result.program, [Bucket(strategy="module")]).changed


def test_tags_and_other_passes():
    """Tagged first, and after greedy buckets, which stay as they are and are prefetched."""
    program = sample("tiny_llama_fsdp2_bw")
    tagged = run(program, parse_pipeline("tag,bucket{strategy=module}"))
    assert tagged.steps[1].report["by_kind"]["all_gather"]["buckets"] == 3
    assert tagged.verified == "proved"
    greedy = run(program, parse_pipeline("bucket{bucket_cap_mb=0.01},bucket{strategy=module}"))
    assert greedy.verified == "proved"


def test_prefetch_holds_two_modules_at_most():
    """A third module's gather is not launched before the first one's wait."""
    program = run(sample("tiny_llama_fsdp4_fw"), [Bucket(strategy="module")]).program
    index = build_index(program)
    gathers = [c for c in identify(index).collectives if c.derived]
    for first, third in zip(gathers, gathers[2:], strict=False):
        assert third.launch > first.waits[0]


WRONG = {
    "modules=layers.[0-5]": ["no modules 'layers.2' to 'layers.5' in the graph (asked for by 'layers.[0-5]')"],
    "modules=nrom:layer.0": ["no module 'nrom' in the graph (did you mean 'norm'?)", "did you mean 'layers.0'?"],
    "modules=transformer_blok": ["did you mean 'transformer_block'?"],
    "modules=layers.*:layers.1.attention": ["'layers.*' and 'layers.1.attention' both cover 'layers.1.attention'"],
    "modules=norm+output:output": ["'norm+output' and 'output' both cover 'output'"],
    "modules=transformer_block:layers.1": ["'layers.1' and 'transformer_block' both cover 'layers.1'"],
    "modules=nrom,groups=9": ["no group '9' in the graph", "no module 'nrom' in the graph (did you mean 'norm'?)"],
    "modules=norm:norm": ["'norm' covers 'norm' twice"],
    "modules=norm,strict=true": ["20 collectives are in no entry", "(tok_embeddings)", "and 15 more"],
    "modules=norm,prefetch=norm=outptu": ["prefetch: 'outptu' is in no entry"],
    "modules=norm:nrom,prefetch=norm=outptu": ["no module 'nrom'", "prefetch: 'outptu' is in no entry"],
}


@pytest.mark.parametrize("text", WRONG)
def test_entries_that_are_wrong(text):
    (made,) = parse_pipeline(f"bucket{{strategy=module,{text}}}")
    with pytest.raises(OptionError) as caught:
        run(sample("tiny_llama_fsdp2_fw"), [made])
    assert str(caught.value).startswith("pass 'bucket': ")
    assert str(caught.value).endswith("modules of this graph: tok_embeddings, layers, norm, output")
    for words in WRONG[text]:
        assert words in str(caught.value), str(caught.value)


def test_options_that_no_graph_could_make_right():
    given = {
        "strategy": "module",
        "modules": "layers.[3-1]:norm+:a..b:x?:a.[0-99].[0-999]",
        "prefetch": "layers.0:a=a",
        "max_topo_span": "3",
        "strictt": "1",
    }
    with pytest.raises(OptionError) as caught:
        build(Bucket, given)
    del given["strictt"]
    assert "did you mean 'strict'" in str(caught.value)
    with pytest.raises(OptionError) as caught:
        build(Bucket, given)
    for words in (
        "'layers.[3-1]' has a range that ends before it begins",
        "'' in 'norm+' has an empty name",
        "'a..b' has an empty name",
        "'x?' is not a module",
        "stands for more than 10,000 modules",
        "prefetch: 'layers.0' is neither next, nor a number, nor a pair",
        "prefetch: 'a=a' lets a module prefetch itself",
        "max_topo_span is an option of strategy greedy",
    ):
        assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "bucket{strategy=module}",
        "bucket{strategy=module,modules=layers.[0-5]:norm+output,prefetch=2,strict=true}",
        "bucket{strategy=module,modules=[a:b],prefetch=a=b:b=c}",
        "bucket{strategy=module,prefetch=none,include_all_reduce=true}",
    ],
)
def test_text_and_object_are_the_same(text):
    (made,) = parse_pipeline(text)
    assert parse_pipeline(to_text(made)) == [made]
    assert to_text(made) == text.replace("[a:b]", "a:b")
    assert depth_of("next") == 1
    assert depth_of(("2",)) == 2
    assert depth_of(("a=b",)) is None


def test_a_stored_plan_gives_the_same_graph(tmp_path):
    program = sample("tiny_llama_fsdp2_bw")
    bucket = Bucket(strategy="module", modules=("layers.*", "norm", "output", "tok_embeddings"))
    result = run(program, [bucket])
    assert result.steps[0].plan.rewrite.moves and result.steps[0].plan.rewrite.before
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(result))
    again = run(program, read_plans(path))
    assert again.last.index.fingerprint == result.last.index.fingerprint


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("  - {first: wait_tensor_1, then: all_gather_into_tensor_1}", "cannot come before 'all_gather_into_tensor_1'"),
        ("  - {first: output, then: wait_tensor}", "the output has to stay last"),
    ],
)
def test_a_stored_plan_that_cannot_be(edit, words, tmp_path):
    program = sample("tiny_llama_fsdp2_fw")
    lines = plan_text(run(program, [Bucket(strategy="module")])).splitlines()
    lines.insert(lines.index("  before:") + 1, edit)
    path = tmp_path / "plan.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=words):
        run(program, read_plans(path))


def test_what_a_bucket_is_sent_counts_against_the_budget():
    """A gradient that is cast with the others of its bucket lives until the last one is there, past what is largest."""
    b = GraphBuilder()
    rows, columns = b.placeholder("rows", (64, 8)), b.placeholder("columns", (8, 64))

    def reduced(factor):
        gradient = b.call(aten.mm.default, b.call(aten.mul.Tensor, rows, factor), columns)
        return b.scatter(b.call(torch.ops.prims.convert_element_type.default, gradient, torch.float32), 2, "0")

    first = reduced(2.0)
    large = b.call(aten.sum.default, b.call(aten.cat.default, [rows] * 80))
    program = b.program([first, large, reduced(3.0)], {"0": 2})
    for node in program.graph.nodes:
        node.meta["custom"] = {"module_fqn": "m.0"}
    merged = {}
    for budget in ("own", "auto"):
        result = run(program, [Bucket(strategy="module", modules=("m.0",), memory_budget=budget)])
        merged[budget] = len(result.steps[0].plan.rewrite.buckets) if result.changed else 0
        peaks = [live_bytes(index).peak_bytes for index in (build_index(program), result.last.index)]
        assert (peaks[1] > peaks[0]) == (budget == "auto")
    assert merged == {"own": 0, "auto": 1}


def test_what_holds_memory_in_any_case_is_not_all_that_is_given_up():
    """A gathered weight lives at the peak, as it does in every order; what passes the budget is another gradient."""
    b = GraphBuilder()
    rows, columns = b.placeholder("rows", (64, 8)), b.placeholder("columns", (8, 64))

    def reduced(module, factor):
        gradient = b.call(aten.mm.default, b.call(aten.mul.Tensor, rows, factor), columns)
        last = b.scatter(b.call(torch.ops.prims.convert_element_type.default, gradient, torch.float32), 2, "0")
        modules.update({node: module for node in b.graph.nodes if node not in modules})
        return last

    modules = {}
    early = [reduced("m.1", 4.0), reduced("m.1", 5.0)]
    weight = b.gather(b.call(aten.add.Tensor, columns, 1.0), 2, "0")
    first = reduced("m.0", 2.0)
    large = b.call(aten.sum.default, b.call(aten.cat.default, [rows] * 80))
    used = b.call(aten.mul.Tensor, weight, large)
    program = b.program([*early, first, used, reduced("m.0", 3.0)], {"0": 2})
    for node in program.graph.nodes:
        node.meta["custom"] = {"module_fqn": modules.get(node, "m.0")}
    result = run(program, [Bucket(strategy="module", modules=("m.0", "m.1"), memory_budget="own")])
    peaks = [live_bytes(index).peak_bytes for index in (build_index(program), result.last.index)]
    assert peaks[1] <= peaks[0]
    assert len(result.steps[0].plan.rewrite.buckets) == 1
