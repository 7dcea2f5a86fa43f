"""The sample graphs that are kept: what their README says about them, and that capturing makes them again."""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from commcc.base.errors import OptionError
from commcc.capture.recipes import RECIPES
from commcc.capture.samples import KEPT, choose, main
from commcc.graph.ops import collective_of, is_wait, op_name
from commcc.serialization import load

FOLDER = Path(__file__).parents[1] / "sample_graphs"
FILES = sorted(name for recipe in RECIPES for name in recipe.files if recipe.small or name in KEPT)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
FIGURES = {name: tuple(map(int, numbers)) for name, *numbers in ROW.findall((FOLDER / "README.md").read_text())}


def content(path):
    """What a file holds, whichever zlib packed it, and whichever build of a PyTorch release wrote it."""
    if path.suffix == ".pt2":
        with ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        return {name: re.sub(rb'("torch_version": "[\d.]+)\+\w+"', rb'\1"', data) for name, data in members.items()}
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def collectives(program):
    return [n for n in program.graph.nodes if n.op == "call_function" and collective_of(n.target) is not None]


def test_readme_has_a_row_for_every_sample():
    assert set(FIGURES) == {name.split(".")[0] for recipe in RECIPES for name in recipe.files}


@pytest.mark.parametrize("name", FILES)
def test_sample_is_what_the_readme_says(name):
    program = load(FOLDER / name)
    counts = Counter(str(collective_of(n.target).kind) for n in collectives(program))
    assert (len(program.graph.nodes), *(counts[kind] for kind in KINDS)) == FIGURES[name.split(".")[0]]
    assert program.notes == ()
    assert all(group.ranks for group in program.groups.values())
    assert set(program.header["mesh"]["group_names"].values()) >= set(program.groups)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".pt2")])
@pytest.mark.sampled(1)
def test_both_formats_hold_one_graph(name):
    text = next(FOLDER / other for other in FILES if other.startswith(name.removesuffix("pt2") + "fx.txt"))
    one, other = load(FOLDER / name).graph, load(text).graph
    assert [(n.name, n.target, str(n.args), n.kwargs) for n in one.nodes] == [
        (n.name, n.target, str(n.args), n.kwargs) for n in other.nodes
    ]


@pytest.mark.parametrize("name", ["llama3_8b_fsdp64_fw.fx.txt.gz", "llama3_8b_fsdp64_bw.fx.txt.gz"])
def test_production_graphs_look_like_production(name):
    graph = load(FOLDER / name).graph
    gathers = [n for n in graph.nodes if op_name(n.target).startswith("_c10d_functional.all_gather")]
    assert {n.args[1:] for n in gathers} == {(64, "0")}
    assert {op_name(n.args[0].target) for n in gathers} == {"prims.convert_element_type"}
    assert all(is_wait(user.target) for n in gathers for user in n.users)
    attention = [n for n in graph.nodes if "flash_attention" in op_name(n.target)]
    assert len(attention) == 32
    devices = {val.device for n in graph.nodes if isinstance(val := n.meta.get("val"), torch.Tensor)}
    assert devices == {torch.device("cuda:0")}


def test_expert_exchanges_are_uneven_and_annotated():
    graph = load(FOLDER / "tiny_moe_fsdp4_ep2_fw.fx.txt.gz").graph
    exchanges = [n for n in graph.nodes if "all_to_all" in op_name(n.target)]
    marks = [{key: value for key, value in n.meta["custom"].items() if key.startswith("EP")} for n in exchanges]
    assert marks == [
        {"EP": "dispatch", "EP_token_count_exchange": "dispatch"},
        {"EP": "dispatch", "EP_token_exchange": "dispatch"},
        {"EP": "combine", "EP_token_exchange": "combine"},
    ]
    assert [n.meta["custom"]["module_fqn"] for n in exchanges] == ["layers.1.moe"] * 3
    assert [isinstance(n.meta["val"].shape[0], torch.SymInt) for n in exchanges] == [False, True, True]
    host = [n for n in graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor) and v.device.type == "cpu"]
    assert {op_name(n.target) for n in host} == {"aten._to_copy", "aten.select"}


@pytest.mark.skipif(
    not (torch.__version__.startswith("2.13.") and sys.version_info[:2] == (3, 11)),
    reason="the samples were made by PyTorch 2.13 on Python 3.11",
)
@pytest.mark.parametrize("pattern", ["tiny_llama_fsdp2_fw", "tiny_moe_fsdp4_ep2_*", "tiny_deepseek_*"])
@pytest.mark.full
def test_samples_come_out_again_to_the_byte(pattern, tmp_path, capsys):
    assert main([pattern, "--out", str(tmp_path)]) == 0
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == 2
    assert [name for name in made if content(tmp_path / name) != content(FOLDER / name)] == []
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_unknown_sample(capsys):
    assert main(["llama9"]) == 2
    assert capsys.readouterr().err == "error: no sample is called 'llama9'; --all --list names them\n"
    with pytest.raises(OptionError):
        choose(["tiny_*", "nothing*"])


def test_list_writes_nothing(capsys, tmp_path):
    assert main(["--list", "--out", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.split() == [name for recipe in RECIPES for name in recipe.files if name in FILES]
