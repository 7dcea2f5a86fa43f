"""bucket_cap_mb: numbers by bucket, and auto, where the bandwidth of each group saturates under the cost model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from commcc.base.errors import EXIT_OK, EXIT_USAGE, OptionError
from commcc.base.terms import MIB, Kind
from commcc.cli.main import run
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline, to_text
from commcc.planning.bucket_model import key_of, size_of
from commcc.planning.caps import ByteCaps, byte_caps
from commcc.report import pass_lines
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.alphabeta import SATURATED, saturation_bytes
from commcc.timing.cost.types import Settings, Transfer

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
#: The first has a group of four ranks and one of two; the second shards over one pair, and reduces over another.
GRAPHS = ("tiny_moe_fsdp4_ep2_bw", "tiny_llama_hsdp_bw")
DEVICES = ("h100", "a100", "h100,ranks_per_node=2")


@cache
def context(name: str, cost: str) -> PlanContext:
    return PlanContext.of(load(SAMPLES / f"{name}.fx.txt.gz"), load_model(cost))


def caps_of(made: PlanContext) -> dict[tuple[str, ...], float]:
    taken = [c for c in made.ident.collectives if c.derived in ("param", "terminal")]
    return dict(byte_caps("auto", made.index, made.model, taken, multi_dtype=False).by_key)


@pytest.mark.parametrize("cost", DEVICES)
@pytest.mark.parametrize("name", GRAPHS)
def test_auto_is_where_the_bandwidth_of_each_group_saturates(name, cost):
    made = context(name, cost)
    model, groups = made.model, made.index.groups
    caps = caps_of(made)
    assert len({key[1] for key in caps}) > 1, "several groups"
    assert len(set(caps.values())) > 1, "which differ"
    for (kind, group, *_), cap in caps.items():
        ranks = groups[group].ranks
        network = model.device.network
        assert cap == saturation_bytes(network, Kind(kind), len(ranks), ranks, model.settings, SATURATED)


@pytest.mark.parametrize("name", GRAPHS)
def test_devices_have_caps_of_their_own(name):
    h100, a100, pairs = (caps_of(context(name, cost)) for cost in DEVICES)
    assert h100.keys() == a100.keys() == pairs.keys()
    assert all(h100[key] != a100[key] for key in h100)
    assert all(pairs[key] >= h100[key] for key in h100), "a group that crosses nodes saturates later"


@pytest.mark.parametrize("strategy", ["greedy", "overlap"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_report_says_which_sizes_were_chosen(name, strategy):
    made = context(name, "h100")
    report = Bucket(strategy=strategy, bucket_cap_mb="auto", groups="all").plan(made).report.to_json()
    expected = {" ".join(filter(None, key)): round(cap / MIB, 3) for key, cap in caps_of(made).items()}
    assert report["caps_mb"] == expected
    shown = [text for label, text in pass_lines.lines("bucket", report) if label == "cap"]
    assert shown == [f"{key}: {cap:,.1f} MiB".replace(".0 MiB", " MiB") for key, cap in expected.items()]
    plain = Bucket(strategy=strategy, groups="all").plan(made).report.to_json()
    assert "caps_mb" not in plain


@pytest.mark.parametrize("strategy", ["greedy", "overlap"])
def test_buckets_keep_to_the_caps_of_their_groups(strategy, monkeypatch):
    """With caps small enough to bind, and another one for each group."""
    made = context(GRAPHS[0], "h100")
    sizes = {key: 8e4 if key[1] == "0" else 3e4 for key in caps_of(made)}
    monkeypatch.setattr(
        type(made.model), "saturation_bytes", lambda _self, transfer: 8e4 if transfer.group == "0" else 3e4
    )
    options = Bucket(strategy=strategy, bucket_cap_mb="auto", groups="all", max_topo_span=None)
    if strategy == "overlap":
        options = Bucket(strategy=strategy, bucket_cap_mb="auto", max_topo_span=None, memory_budget=None)
    plan = options.plan(made)
    held = {c.launch: c for c in made.ident.collectives}
    filled: dict[str, int] = {}
    for bucket in plan.rewrite.buckets:
        members = [held[m] for m in bucket.members]
        total = sum(map(size_of, members))
        assert total <= sizes[key_of(members[0], False)]
        filled[members[0].group] = max(filled.get(members[0].group, 0), total)
    if strategy == "greedy":
        assert filled["0"] > 3e4, "more than the other group may hold"
        assert plan.report.to_json()["closed"]["bytes"]


@pytest.mark.parametrize("strategy", ["greedy", "overlap"])
def test_auto_takes_a_cost_model(strategy):
    program = context(GRAPHS[1], "h100").program
    with pytest.raises(OptionError, match=r"needs a cost model.*--cost"):
        Bucket(strategy=strategy, bucket_cap_mb="auto").plan(PlanContext.of(program))
    with pytest.raises(OptionError, match="needs a cost model"):
        byte_caps("auto", build_index(program), None, [], multi_dtype=False)


def test_numbers():
    caps = byte_caps((10.0, 25.0), None, None, [], multi_dtype=False)
    assert [caps.of(("k",), number) for number in range(4)] == [10 * MIB, 25 * MIB, 25 * MIB, 25 * MIB]
    assert byte_caps(None, None, None, [], multi_dtype=False).of(("k",), 7) == float("inf")
    assert ByteCaps((1.0,), {("a",): 5.0}).of(("a",), 3) == 5.0


def test_as_text():
    (made,) = parse_pipeline("bucket{bucket_cap_mb=auto}")
    assert made.bucket_cap_mb == "auto" and to_text(made) == "bucket{bucket_cap_mb=auto}"
    with pytest.raises(OptionError, match="bucket_cap_mb"):
        parse_pipeline("bucket{bucket_cap_mb=auto:10}")
    with pytest.raises(OptionError, match="not of module"):
        parse_pipeline("bucket{strategy=module,bucket_cap_mb=auto}")


TABLE = """\
table: 1
collectives:
- kind: all_gather
  group_size: 2
  us: {64 KiB: 60, 1 MiB: 70, 16 MiB: 200, 256 MiB: 2400}
"""


def test_a_measured_group_saturates_by_what_was_measured(tmp_path):
    """Bytes of a rank's input are in the table; the full tensor is twice as large."""
    path = tmp_path / "coll.yaml"
    path.write_text(TABLE)
    model = load_model(f"h100,table={path}")
    transfer = Transfer(Kind.ALL_GATHER, "g", 2, 1, 2, "bfloat16", (0, 1))

    def rate(full):
        return full / model.transfer(Transfer(Kind.ALL_GATHER, "g", 2, full // 2, full, "bfloat16", (0, 1))).ns

    cap = model.saturation_bytes(transfer)
    highest = max(rate(1 << power) for power in range(10, 35))
    assert rate(cap) >= SATURATED * highest > rate(cap * 0.99)
    scatter = Transfer(Kind.REDUCE_SCATTER, "g", 2, 2, 1, "bfloat16", (0, 1))
    assert model.saturation_bytes(scatter) == saturation_bytes(
        model.device.network, Kind.REDUCE_SCATTER, 2, (0, 1), Settings()
    ), "no table has these"


def test_from_the_command_line(tmp_path, capsys):
    graph = SAMPLES / f"{GRAPHS[1]}.fx.txt.gz"
    out = tmp_path / "out.fx.txt"
    given = ["bucket", str(graph), "--bucket-cap-mb", "auto", "--groups", "all", "-o", str(out)]
    assert run(given) == EXIT_OK
    said = capsys.readouterr().out
    assert "all_gather 3 bfloat16: 74.7 MiB" in said
    assert "all_reduce 1 avg float32: 48.1 MiB" in said
    assert identify(build_index(load(out))).collectives
    assert run([*given[:-1], str(tmp_path / "other.fx.txt"), "--cost", "none"]) == EXIT_USAGE
    assert "bucket_cap_mb=auto needs a cost model" in capsys.readouterr().err
