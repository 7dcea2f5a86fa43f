"""Cost texts: what they mean, what is said of bad ones; names and hashes of models; chains of sources."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError, OptionError
from commcc.base.terms import Kind
from commcc.graph.index import Tensor
from commcc.timing.cost import devices, load_model
from commcc.timing.cost.devices import device_names, load_device
from commcc.timing.cost.settings import CostText, parse
from commcc.timing.cost.types import Operation, Price, Settings, Transfer
from tests.effort import examples

H100 = (Path(devices.__file__).parent / "h100-sxm.yaml").read_text()
TABLE = """\
table: 1
collectives:
- {kind: all_gather, group_size: 8, us: {1 MiB: 50, 4 MiB: 110.5}}
- {kind: all_to_all, group_size: 8, us: {1 MiB: 80, 4 MiB: 200}}
"""
PROFILE = """\
profile: 1
ops:
- {op: aten.mm, inputs: ["bfloat16[8, 16]", "bfloat16[16, 32]"], median_us: 12.5}
collectives:
- {kind: reduce_scatter, group_size: 8, input_bytes: 1048576, us: 33}
"""
MIB = 1 << 20


def said(text: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    head, tail = f"cost '{text.strip()}': ", "; as in 'h100,table=coll.yaml,fused=no'"
    assert message.startswith(head), message
    assert message.endswith(tail), message
    return message.removeprefix(head).removesuffix(tail)


# What a text means


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("h100", CostText("h100", (), (), Settings())),
        ("device=h100", CostText("h100", (), (), Settings())),
        ("fused=no,device=mine.yaml", CostText("mine.yaml", (), (), Settings(fused=False))),
        (" h100 , fused = no ", CostText("h100", (), (), Settings(fused=False))),
        (
            "h100,table=a.yaml,profile=x.json,table=b=c.txt,profile=y",
            CostText("h100", ("a.yaml", "b=c.txt"), ("x.json", "y"), Settings()),
        ),
        (
            "a100,skew=1.3,slowdown=1.25,share_link=topology,launch_us=0,ranks_per_node=4,algorithm=tree",
            CostText("a100", (), (), Settings(True, 1.3, 1.25, "topology", 0.0, 4, "tree")),
        ),
    ],
)
def test_what_a_text_means(text, meaning):
    assert parse(text) == meaning


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", True), ("no", False), ("true", True), ("false", False), ("on", True), ("OFF", False), ("Yes", True)],
)
def test_switches(text, value):
    assert parse(f"h100,fused={text}").settings.fused is value


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("1e6", 1e6), ("1.5", 1.5), ("2e1", 20.0)])
def test_numbers(text, value):
    found = parse(f"h100,skew={text},slowdown={text},launch_us={text}").settings
    assert (found.skew, found.slowdown, found.launch_us) == (value,) * 3


# What is said of bad ones

KNOWN = (
    "known: algorithm, device, free_us, fused, launch_us, profile, ranks_per_node, share_link, skew, slowdown, table"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty part"),
        ("h100,,fused=no", "an empty part"),
        ("h100,", "an empty part"),
        ("h100,fused", "'fused' is not key=value"),
        ("h100,fused=", "'fused=' is not key=value"),
        ("fused=no", "no device is named first"),
        ("fused=no,h100", "'h100' is not key=value"),
        ("=no,h100", "no setting is called ''; " + KNOWN + "; 'h100' is not key=value"),
        ("h100,fusde=no", f"no setting is called 'fusde' (did you mean 'fused'?); {KNOWN}"),
        ("h100,tabel=x", f"no setting is called 'tabel' (did you mean 'table'?); {KNOWN}"),
        ("h100,profil=x", f"no setting is called 'profil' (did you mean 'profile'?); {KNOWN}"),
        ("h100,zzz=x", f"no setting is called 'zzz'; {KNOWN}"),
        ("h100,Fused=no", f"no setting is called 'Fused' (did you mean 'fused'?); {KNOWN}"),
        ("h100,device=a100", "device is given twice"),
        ("device=h100,device=a100", "device is given twice"),
        ("h100,fused=no,fused=yes", "fused is given twice"),
        ("h100,fused=maybe", "fused: expected true or false, got 'maybe'"),
        ("h100,skew=high", "skew: expected a number, got 'high'"),
        ("h100,skew=0.9", "skew: must be at least 1, got 0.9"),
        ("h100,skew=nan", "skew: expected a finite number, got 'nan'"),
        ("h100,slowdown=inf", "slowdown: expected a finite number, got 'inf'"),
        ("h100,slowdown=1000001", "slowdown: must be at most 1,000,000, got 1000001"),
        ("h100,launch_us=-1", "launch_us: must be at least 0, got -1"),
        ("h100,ranks_per_node=0", "ranks_per_node: must be at least 1, got 0"),
        ("h100,ranks_per_node=-4", "ranks_per_node: must be at least 1, got -4"),
        ("h100,ranks_per_node=1.5", "ranks_per_node: expected a whole number, got '1.5'"),
        ("h100,ranks_per_node=1000001", "ranks_per_node: must be at most 1,000,000, got 1000001"),
        (
            "h100,algorithm=rings",
            "algorithm: expected one of auto, ring, tree, nvls, got 'rings' (did you mean 'ring'?)",
        ),
        (
            "h100,share_link=topologi",
            "share_link: expected one of none, topology, all, got 'topologi' (did you mean 'topology'?)",
        ),
    ],
)
def test_bad_texts(text, message):
    assert said(text) == message


def test_all_mistakes_at_once():
    assert said("h100,fused=x,skew=y,,algoritm=ring") == (
        "fused: expected true or false, got 'x'; skew: expected a number, got 'y'; an empty part; "
        f"no setting is called 'algoritm' (did you mean 'algorithm'?); {KNOWN}"
    )


def test_a_huge_number_is_a_message():
    assert said(f"h100,ranks_per_node={'9' * 5000}").startswith("ranks_per_node: ")
    assert said(f"h100,skew={'9' * 5000}").startswith("skew: ")


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet="h10,=. fusedkwtabl\n-ex\u0661\u00b2", max_size=40))
def test_any_text_is_understood_or_refused(text):
    try:
        found = parse(text)
    except OptionError as error:
        assert "\n" not in str(error)
    else:
        assert found.device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10", "unknown device 'h10' (did you mean 'h100'?)"),
        ("h100,table=missing.yaml", "missing.yaml: "),
        ("h100,profile=missing.yaml", "missing.yaml: "),
        ("missing.yaml", "missing.yaml: "),
    ],
)
def test_what_is_not_there(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OptionError, InputError)) as caught:
        load_model(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# Names and hashes


def test_names(tmp_path):
    (tmp_path / "coll.yaml").write_text(TABLE)
    (tmp_path / "run.yaml").write_text(PROFILE)
    assert load_model("h100").name == load_model("h100,fused=yes,skew=1").name == "h100-sxm"
    assert load_model("h100,fused=no,skew=1.3").name == "h100-sxm (fused=False, skew=1.3)"
    text = f"h100,profile={tmp_path}/run.yaml,table={tmp_path}/coll.yaml,launch_us=2"
    assert load_model(text).name == "h100-sxm + table coll.yaml + profile run.yaml (launch_us=2.0)"


def test_the_hash_is_of_contents_only(tmp_path):
    (tmp_path / "one").mkdir()
    mine = tmp_path / "one" / "mine.yaml"
    mine.write_text(re.sub("(?m)^title: .*$", "title: another", H100) + "\n# a remark\n")
    assert load_device(str(mine)).title == "another"
    assert load_model(str(mine)).hash == load_model("h100").hash == load_model("H100-SXM").hash
    for folder in (tmp_path, tmp_path / "one"):
        (folder / "coll.yaml").write_text(TABLE)
    (tmp_path / "other.yaml").write_text(TABLE.replace("110.5", "110.500").replace("1 MiB", "1024 KiB"))
    hashes = {load_model(f"h100,table={tmp_path}/{n}").hash for n in ("coll.yaml", "one/coll.yaml", "other.yaml")}
    assert len(hashes) == 1


def test_the_hash_is_the_same_in_every_process():
    def run(seed):
        code = "from commcc.timing.cost import load_model; print(load_model('h100,fused=no,skew=1.5').hash)"
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout

    assert run("1") == run("2") == load_model("h100,fused=no,skew=1.5").hash + "\n"


def test_every_setting_changes_the_hash():
    texts = ("fused=no", "skew=1.1", "slowdown=1.1", "launch_us=7", "ranks_per_node=4", "algorithm=ring", "free_us=2")
    links = ("share_link=topology", "share_link=all")
    hashes = [load_model(f"h100,{text}").hash for text in (*texts, *links)]
    assert {text.split("=")[0] for text in (*texts, *links)} == {f.name for f in dataclasses.fields(Settings)}
    assert len({*hashes, load_model("h100").hash}) == len(hashes) + 1
    assert all(re.fullmatch("[0-9a-f]{12}", found) for found in hashes)


def test_devices_have_different_hashes():
    assert len({load_model(name).hash for name in device_names()}) == len(device_names())


def numbers_in(content, path=()):
    """Paths of all numbers in nested dictionaries and lists."""
    if isinstance(content, dict):
        return [found for key, value in content.items() for found in numbers_in(value, (*path, key))]
    if isinstance(content, list):
        return [found for key, value in enumerate(content) for found in numbers_in(value, (*path, key))]
    return [path] if type(content) in (int, float) else []


def changed(content, path, change):
    """A copy with one number changed."""
    copied = yaml.safe_load(yaml.safe_dump(content))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    return copied


def test_the_device_of_the_benchmarks_differs_from_an_h100_in_latencies_alone():
    rich = Path(__file__).parents[1] / "benchmarks" / "costs" / "latency-rich.yaml"
    mine, theirs = yaml.safe_load(rich.read_text()), yaml.safe_load(H100)
    for content in (mine, theirs):
        for key in ("name", "title", "sources"):
            content.pop(key, None)
    lower = []
    for path in numbers_in(theirs):
        ours, own = mine, theirs
        for key in path:
            ours, own = ours[key], own[key]
        if ours != own:
            assert ours > own and path[0] == "network" and path[-1].endswith("_us"), path
            lower.append((path, own))
    assert len(lower) > 5
    for path, own in lower:
        mine = changed(mine, path, lambda _, own=own: own)
    assert mine == theirs


@pytest.mark.full
def test_every_figure_of_a_device_changes_the_hash(tmp_path):
    content = yaml.safe_load(H100)
    paths = [path for path in numbers_in(content) if path[0] != "sources"]
    assert len(paths) > 25
    hashes = {load_model("h100").hash}
    for count, path in enumerate(paths):
        smaller = changed(content, path, lambda value: value + 1 if type(value) is int else value * 0.99)
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(smaller))
        hashes.add(load_model(f"{tmp_path}/mine.yaml").hash)
        assert len(hashes) == count + 2, path


@pytest.mark.parametrize(("key", "text"), [("table", TABLE), ("profile", PROFILE)])
def test_every_figure_of_a_measured_file_changes_the_hash(tmp_path, key, text):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    hashes = {load_model("h100").hash, load_model(f"h100,{key}={file}").hash}
    content = yaml.safe_load(text)
    paths = [path for path in numbers_in(content) if path[0] != key]
    for count, path in enumerate(paths):
        file.write_text(yaml.safe_dump(changed(content, path, lambda value: value + 1), sort_keys=False))
        hashes.add(load_model(f"h100,{key}={file}").hash)
        assert len(hashes) == count + 3, path
    assert len(paths) >= 3


def test_order_matters_where_it_decides(tmp_path):
    """Of two tables that know a size the later one is asked first; equal models have equal hashes."""
    for name, text in (("a", TABLE), ("b", TABLE.replace("50", "60"))):
        (tmp_path / f"{name}.yaml").write_text(text)
    forth, back = (
        load_model(f"h100,table={tmp_path}/{first}.yaml,table={tmp_path}/{second}.yaml")
        for first, second in ("ab", "ba")
    )
    gather = Transfer(Kind.ALL_GATHER, "0", 8, MIB, 8 * MIB, "bfloat16")
    assert (forth.transfer(gather).ns, back.transfer(gather).ns) == (60_000, 50_000)
    assert forth.hash != back.hash


# Chains of sources


def tensor(*shape):
    count = 1
    for size in shape:
        count *= size
    return Tensor("bfloat16", 2, shape, "cuda:0", count)


@pytest.mark.parametrize(
    "order", ["h100,table={0}/t.yaml,profile={0}/p.yaml", "h100,profile={0}/p.yaml,table={0}/t.yaml"]
)
def test_the_first_source_that_knows_answers(tmp_path, order):
    """Profile, then table, then device, whatever the order in the text."""
    (tmp_path / "t.yaml").write_text(TABLE + "- {kind: reduce_scatter, group_size: 8, us: {1 MiB: 44}}\n")
    (tmp_path / "p.yaml").write_text(PROFILE)
    model, alone = load_model(order.format(tmp_path)), load_model("h100")
    assert [source.name for source in model.sources] == ["profile p.yaml", "table t.yaml", "h100-sxm"]
    mm = Operation("aten.mm", (tensor(8, 16), tensor(16, 32)), (tensor(8, 32),), 8192, True, 1280, 512)
    other = dataclasses.replace(mm, inputs=(tensor(8, 17), tensor(17, 32)))
    scatter = Transfer(Kind.REDUCE_SCATTER, "0", 8, MIB, MIB // 8, "bfloat16")
    gather = Transfer(Kind.ALL_GATHER, "0", 8, MIB, 8 * MIB, "bfloat16")
    reduce = Transfer(Kind.ALL_REDUCE, "0", 8, MIB, MIB, "bfloat16")
    assert model.operation(mm).ns == 12_500
    assert model.operation(other) == alone.operation(other)
    assert (model.transfer(scatter).ns, model.transfer(gather).ns) == (33_000, 50_000)
    assert model.transfer(reduce) == alone.transfer(reduce)
    assert isinstance(model.transfer(reduce), Price)


def test_settings_reach_the_sources(tmp_path):
    (tmp_path / "t.yaml").write_text(TABLE)
    exchange = Transfer(Kind.ALL_TO_ALL, "0", 8, MIB, MIB, "bfloat16", uneven=True)
    for text in ("h100", f"h100,table={tmp_path}/t.yaml"):
        even, skewed = load_model(text).transfer(exchange), load_model(f"{text},skew=2").transfer(exchange)
        assert even.ns < skewed.ns < 2 * even.ns + 1, text
    gather = Transfer(Kind.ALL_GATHER, "0", 16, 64 * MIB, 16 * 64 * MIB, "bfloat16")
    one_node, two_nodes = load_model("h100,ranks_per_node=16"), load_model("h100")
    assert one_node.transfer(gather).ns < two_nodes.transfer(gather).ns
    assert (one_node.ranks_per_node, two_nodes.ranks_per_node) == (16, 8)
    times = {name: load_model(f"h100,algorithm={name}").transfer(gather).ns for name in ("auto", "ring", "nvls")}
    assert times["auto"] == min(times.values())
    assert load_model("h100,launch_us=2.5").launch_ns == 2500
    assert load_model("h100").launch_ns == round(1000 * load_device("h100").launch_us)
