"""Our own profile files, matching, and the figures that a profile source gives."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.base.text import short_size
from commcc.graph.index import Tensor, build_index
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.interpolate import Curve
from commcc.timing.cost.profiles import ProfileSource, load_profile
from commcc.timing.cost.profiles.measured import CollectiveKey, Occurrence, OpKey, Pool, median
from commcc.timing.cost.profiles.profile_yaml import profile_text
from commcc.timing.cost.types import Operation, Price, Transfer
from tests.effort import examples
from tests.trace_files import TraceFile, gpu_trace

SAMPLES = Path(__file__).parents[1] / "sample_graphs"

PROFILE = """\
profile: 1
device: laptop
ops:
- op: aten.mm
  inputs: ["bfloat16[8, 16]", "bfloat16[16, 32]"]
  median_us: 12.5
  count: 3
- {op: aten.relu, inputs: ["float32[4]"], median_us: 0.25}
- {op: aten.embedding_dense_backward, inputs: ["float32[4, 8]", "int64[4]"], median_us: 1}
collectives:
- {kind: all_gather, group_size: 8, input_bytes: 1048576, dtype: bfloat16, us: 100, count: 4}
- {kind: all_gather, group_size: 8, input_bytes: 2097152, dtype: bfloat16, us: 150}
- {kind: all_gather, group_size: 2, input_bytes: 1048576, us: 50}
- {kind: all_reduce, group_size: 8, input_bytes: 1e6, us: 0}
"""


def tensor(dtype: str, *shape: int | str, itemsize: int = 2) -> Tensor:
    numel = 1
    for size in shape:
        numel *= size if isinstance(size, int) else 1
    return Tensor(dtype, itemsize, shape, "cuda:0", numel)


def source_of(path: Path, text: str = PROFILE) -> ProfileSource:
    path.write_text(text)
    return load_profile([str(path)])


MM = Operation(
    "aten.mm",
    (tensor("bfloat16", 8, 16), tensor("bfloat16", 16, 32)),
    (tensor("bfloat16", 8, 32),),
    read_bytes=1280,
    written_bytes=512,
)
GATHER = Transfer(Kind.ALL_GATHER, "fsdp", 8, 1 << 20, 8 << 20, "bfloat16")


def test_exact_match_and_nothing_else(tmp_path: Path):
    source = source_of(tmp_path / "run.yaml")
    a, b = MM.inputs
    assert source.operation(MM) == Price(12_500, "profile, median of 3")
    others = [
        replace(MM, op="aten.bmm"),
        replace(MM, inputs=(b, a)),
        replace(MM, inputs=(a,)),
        replace(MM, inputs=(a, b, b)),
        replace(MM, inputs=(a, replace(b, dtype="float16"))),
        replace(MM, inputs=(a, replace(b, shape=(16, 31)))),
        replace(MM, inputs=(a, replace(b, shape=(16, "u0")))),
        replace(MM, inputs=()),
    ]
    assert [source.operation(other) for other in others] == [None] * len(others)
    # Tensors without dimensions do not count: eager PyTorch makes them of Python numbers.
    assert source.operation(replace(MM, inputs=(a, tensor("float32"), b))) == source.operation(MM)
    assert source.name == "profile run.yaml"


def test_what_a_profile_must_not_price(tmp_path: Path):
    source = source_of(tmp_path / "run.yaml")
    relu = Operation("aten.relu", (tensor("float32", 4, itemsize=4),), (tensor("float32", 4, itemsize=4),))
    assert source.operation(replace(relu, read_bytes=16, written_bytes=16)) == Price(250, "profile, median of 1")
    # In a fused chain: its result stays in the kernel, or another op pays for the kernel.
    assert source.operation(replace(relu, read_bytes=16, written_bytes=0)) is None
    assert source.operation(replace(relu, read_bytes=16, written_bytes=16, kernels=0)) is None
    assert source.operation(Operation("aten.relu", (tensor("float32", 4, "u0"),), ())) is None
    # The number of embeddings, which no input tells, decides the time.
    given = (tensor("float32", 4, 8, itemsize=4), tensor("int64", 4, itemsize=8))
    assert source.operation(Operation("aten.embedding_dense_backward", given, ())) is None


def test_collectives_exact_between_and_beyond(tmp_path: Path):
    source = source_of(tmp_path / "run.yaml")
    assert source.transfer(GATHER) == Price(100_000, "profile, median of 4", 50_000)
    assert source.transfer(replace(GATHER, dtype="float32", group="other")) == source.transfer(GATHER)
    between = replace(GATHER, input_bytes=3 << 19)
    assert source.transfer(between) == Price(125_000, "profile, 1 MiB to 2 MiB", 50_000)
    assert source.transfer(replace(GATHER, input_bytes=10)) == Price(100_000, "profile, 1 MiB", 100_000)
    beyond = source.transfer(replace(GATHER, input_bytes=4 << 20))
    note = "profile: all_gather over 8 ranks is extrapolated beyond 2 MiB"
    assert beyond == Price(250_000, "profile, 1 MiB to 2 MiB", 50_000, note)
    # Only one size was measured over 2 ranks.
    assert source.transfer(replace(GATHER, size=2)) == Price(50_000, "profile, median of 1")
    assert source.transfer(replace(GATHER, size=2, input_bytes=10)) is None
    assert source.transfer(replace(GATHER, size=4)) is None
    assert source.transfer(replace(GATHER, kind=Kind.BROADCAST)) is None


def test_yaml_goes_round_and_facts_hold_no_path(tmp_path: Path):
    source = source_of(tmp_path / "run.yaml")
    again = source_of(tmp_path / "again.yaml", profile_text(source.profile))
    assert again.profile == source.profile
    assert again.facts() == source.facts()
    text = json.dumps(source.facts())
    assert "run.yaml" not in text
    assert ["aten.mm", [["bfloat16", [8, 16]], ["bfloat16", [16, 32]]], 12_500] in json.loads(text)["ops"]
    assert ["all_gather", 2, 1 << 20, 50_000] in json.loads(text)["collectives"]
    slower = source_of(tmp_path / "run.yaml", PROFILE.replace("12.5", "12.6"))
    assert slower.facts() != source.facts()


def test_the_profile_in_the_documentation(tmp_path: Path):
    document = (SAMPLES.parent / "docs" / "cost-profiles.md").read_text()
    source = source_of(tmp_path / "run.yaml", document.split("```yaml\n")[1].split("```")[0])
    given = (tensor("bfloat16", 4096, 4096), tensor("bfloat16", 4096, 14336))
    assert source.operation(Operation("aten.mm", given, ())) == Price(812_400, "profile, median of 24")
    assert source.transfer(replace(GATHER, input_bytes=16 << 20)) == Price(143_200, "profile, median of 12")


def test_yaml_and_traces_are_one_pool(tmp_path: Path):
    gpu = gpu_trace().write(tmp_path / "gpu.json")
    yaml = tmp_path / "run.yaml"
    key = OpKey("aten.linear", (("bfloat16", (8, 16)), ("bfloat16", (32, 16)), ("bfloat16", (32,))))
    inputs = '["bfloat16[8,16]", "bfloat16[32, 16]", "bfloat16[ 32 ]"]'
    # Calls of 502, 522 and 542 us; with four of 600 us more the middle one is 600.
    for count, expected in ((1, 532_000), (2, 542_000), (4, 600_000)):
        yaml.write_text(f"profile: 1\nops: [{{op: aten.linear, inputs: {inputs}, median_us: 600, count: {count}}}]")
        source = load_profile([str(yaml), str(gpu)])
        assert source.profile.ops[key].ns == expected
    assert source.name == "profile run.yaml and 1 more"


MISTAKES = {
    "- 1": "run.yaml:1: the file must be a mapping",
    "profile: 2\nops: []": "run.yaml:1: 'profile' must be at most 1, not 2",
    "ops: []": "run.yaml:1: the file has no 'profile'",
    "profile: 1": "run.yaml:1: the file has neither 'ops' nor 'collectives'",
    "profile: 1\nopps: []": "run.yaml:2: unknown key 'opps' (did you mean 'ops'?)",
    "profile: 1\nops: {}": "run.yaml:2: 'ops' must be a list",
    "profile: 1\nops:\n- {op: aten.mm, inputs: [], median_us: 1}": "run.yaml:3: an op without tensors cannot be",
    "profile: 1\nops:\n- {op: aten::mm, inputs: ['float32[2]'], median_us: 1}": "run.yaml:3: 'aten::mm' is no op: wr",
    "profile: 1\nops:\n- {op: a.b, inputs: ['float32[2'], median_us: 1}": "run.yaml:3: 'float32[2' is no tensor",
    "profile: 1\nops:\n- {op: a.b, inputs: ['float33[2]'], median_us: 1}": "run.yaml:3: dtype 'float33' is not known "
    "(did you mean 'float32'?)",
    "profile: 1\nops:\n- {op: a.b, inputs: ['float32[2]'], median_us: -1}": "run.yaml:3: 'median_us' must be at least",
    "profile: 1\nops:\n- {op: a.b, inputs: ['float32[2]']}": "run.yaml:3: 'ops' has no 'median_us'",
    "profile: 1\nops:\n- &x {op: a.b, inputs: ['int8[2]'], median_us: 1}": "run.yaml:3: anchors and aliases",
    "profile: 1\nops:" + 2 * "\n- {op: a.b, inputs: ['int8[2]'], median_us: 1}": "run.yaml:4: the same as in line 3",
    "profile: 1\ncollectives:\n- {kind: allgather, group_size: 2, input_bytes: 1, us: 1}": (
        "run.yaml:3: 'kind' 'allgather' is not known (did you mean 'all_gather'?)"
    ),
    "profile: 1\ncollectives:\n- {kind: all_reduce, group_size: 0, input_bytes: 1.5, us: x}": (
        "run.yaml:3: 'group_size' must be at least 1, not 0; line 3: 'input_bytes' must be a whole number"
    ),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_in_yaml(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError) as error:
        source_of(tmp_path / "run.yaml", text)
    assert str(error.value).startswith(f"{tmp_path}/{message}")


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, len(PROFILE)), st.text(max_size=6), st.integers(0, 20))
def test_damaged_yaml(tmp_path_factory, at: int, junk: str, cut: int):
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_bytes((PROFILE[:at] + junk + PROFILE[at + cut :]).encode("utf-8", "replace"))
    try:
        json.dumps(load_profile([str(path)]).facts())
    except InputError as error:
        assert str(path) in str(error)


def test_notes(tmp_path: Path):
    trace = TraceFile(0)
    for us, concrete in ((10.0, "[0]"), (30.0, "[1]"), (12.0, "[0]")):
        op = trace.op("aten::sum", 100 * us, 50, ("float", [64, 8]), concrete=["", concrete])
        trace.kernel(100 * us + 5, us, op)
    trace.collective(9000, 40, "allreduce", (8, 8))
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    total = source.operation(Operation("aten.sum", (tensor("float32", 64, 8),), ()))
    assert total is not None
    assert (total.ns, total.how) == (12_000, "profile, median of 3")
    assert total.note is not None
    assert "other arguments took different times" in total.note
    reduced = source.transfer(Transfer(Kind.ALL_REDUCE, "0", 2, 16, 16, "bfloat16"))
    assert reduced is not None
    assert reduced.note is not None
    assert "one rank only" in reduced.note


def test_no_files_no_prices():
    source = load_profile([])
    assert source.operation(MM) is None
    assert source.transfer(GATHER) is None
    assert source.facts() == {"ops": [], "collectives": []}


def test_in_a_cost_model(tmp_path: Path):
    """A sample graph: a profile prices what it knows, the device the rest, and the hash is that of the figures."""
    found = next(SAMPLES.glob("tiny_llama_fsdp2_fw.fx.txt*"))
    index = build_index(load(found))
    shapes = [index.tensors[p] for i, op in enumerate(index.ops) if op == "aten.mm" for p in index.data_preds[i]][:2]
    inputs = json.dumps([f"{t.dtype}{list(t.shape)}" for t in shapes if t is not None])
    text = f"profile: 1\nops: [{{op: aten.mm, inputs: {inputs}, median_us: 77}}]\ncollectives:\n"
    text += "- {kind: all_gather, group_size: 2, input_bytes: 0, us: 33}\n"
    text += "- {kind: all_gather, group_size: 2, input_bytes: 1000000, us: 33}\n"
    (tmp_path / "run.yaml").write_text(text)
    model = load_model(f"h100,profile={tmp_path}/run.yaml")
    costs = model.price(index)
    priced = {(index.ops[i], costs.ns[i]) for i, by in enumerate(costs.priced_by) if by == 0}
    assert priced == {("aten.mm", 77_000), ("_c10d_functional.all_gather_into_tensor", 33_000)}
    assert costs.sources[0] == "profile run.yaml"
    assert 1 in costs.priced_by
    (tmp_path / "copy.yaml").write_text(text.replace("us: 33}", "us: 33.000, count: 9}"))
    assert load_model(f"h100,profile={tmp_path}/copy.yaml").hash == model.hash
    assert load_model("h100").hash != model.hash


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 5)), min_size=1, max_size=8))
def test_weighted_median(times: list[tuple[int, int]]):
    spread = [ns for ns, count in times for _ in range(count)]
    assert median(times) == int(statistics.median(spread) + 0.5)


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=4))
def test_minimum_over_ranks(ranks: list[list[int]]):
    key = CollectiveKey(Kind.ALL_GATHER, 4, 64)
    pool = Pool()
    pool.occurrences([Occurrence("g", key, ns) for ns in rank] for rank in ranks)
    equal = len({len(rank) for rank in ranks}) == 1
    expected = [min(rank[n] for rank in ranks) for n in range(len(ranks[0]))] if equal else [min(map(min, ranks))]
    assert pool.profile().collectives[key].ns == int(statistics.median(expected) + 0.5)


POINTS = st.dictionaries(st.integers(0, 1000), st.integers(0, 1000), min_size=1, max_size=6)


@given(POINTS, st.integers(0, 3000))
def test_curve(points: dict[int, int], size: int):
    curve = Curve.of(points.items())
    reading = curve.read(size)
    smallest, largest = min(points), max(points)
    assert reading.beyond == (size > largest)
    assert 0 <= reading.fixed_ns <= reading.ns
    if size in points:
        assert reading.ns == points[size]
    elif size < smallest:
        assert reading.ns == points[smallest]
    elif size < largest:
        low, high = max(p for p in points if p < size), min(p for p in points if p > size)
        exact = points[low] + (points[high] - points[low]) * (size - low) / (high - low)
        assert abs(reading.ns - exact) <= 0.5
    elif len(points) > 1:
        assert reading.ns >= points[largest]


def test_a_curve_does_not_turn_noise_into_slope():
    curve = Curve.of([(1000, 110), (2000, 210), (2001, 260)])
    assert curve.read(4002).ns == 560  # through 1000 and 2001 bytes; through the last two it would be 100,000
    assert Curve.of([(1000, 100)]).read(3000).ns == 300
    with pytest.raises(ValueError, match="one for each size"):
        Curve.of([(1, 2), (1, 3)])
    assert [short_size(size) for size in (0, 1023, 1536, 1 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1 MiB",
        "3 TiB",
    ]
