"""Numbers for symbols that a log states on other lines than those of its graphs.

``data/symbols`` holds what PyTorch 2.13 wrote for one layer with data-dependent exchanges and a masked ``index``,
traced with a dynamic batch: TORCH_LOGS="+dynamic,aot_graphs,post_grad_graphs", and the TORCH_TRACE records of symbols.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commcc.cli.main import run as command_line
from commcc.ep.concrete import recorded_sizes
from commcc.graph.index import build_index
from commcc.serialization import load
from commcc.serialization.logs.symbol_facts import SymbolFacts

DATA = Path(__file__).parent / "data" / "symbols"
LOG, TRACE = DATA / "moe_dynamic.log.gz", DATA / "moe_dynamic_trace.log.gz"
GRAPHS = (
    *(f"{LOG}::0_0/{name}" for name in ("aot_forward_graph", "aot_backward_graph")),
    *(f"{LOG}::0_0/inductor_post_grad_graph{number}" for number in ("", ".2")),
    *(f"{TRACE}::0_0/{name}" for name in ("aot_forward_graph", "aot_backward_graph")),
)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda name: name.rpartition("::")[2])
def test_every_size_but_that_of_the_mask_has_a_number(graph):
    program = load(graph)
    index = build_index(program)
    hints = {hint.symbol: (hint.value, hint.source) for hint in index.estimates.hints}
    assert hints["s77"] == (256, "file")
    assert hints["u0"] == hints["u3"] == (128, "balanced"), "Eq(u0 + u1 + u2 + u3, 2*s77)"
    # Nobody knows how many rows a mask keeps, under either of its names; nothing else is missing.
    unknown = [str(index.tensors[node].shape) for node in index.estimates.unknown]
    assert unknown and all("'u8'" in shape or "'u37'" in shape for shape in unknown)
    assert not build_index(program, {"u8": 100, "u37": 100}).estimates.unknown


def test_they_survive(tmp_path, capsys):
    target = str(tmp_path / "bw.fx.txt")
    assert command_line(["tag", GRAPHS[1], "-o", target, "--json"]) == 0
    capsys.readouterr()
    assert build_index(load(target)).estimates.hints == build_index(load(GRAPHS[1])).estimates.hints
    assert command_line(["verify", GRAPHS[1], target, "-q"]) == 0


def test_a_step_says_the_same_of_both_halves(capsys):
    assert command_line(["simulate", *GRAPHS[:2], "--json", "--hint", "u8=100"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert "unknown_sizes" not in graph["metrics"]


TEXT = "x: f32[s0, s1, u0, u1, u2, u7]"


def facts(*lines):
    known = SymbolFacts()
    for line in lines:
        known.line(line)
    return known.header(TEXT)


@pytest.mark.parametrize(
    ("lines", "symbols"),
    [
        (["create_symbol s0 = 8 for L['x'].size()[0] [2, int_oo] y = x + 1  # t.py:1 in f"], {"s0": [2, None, 8]}),
        (["create_symbol s9 = 8 for L['x'].size()[0] [2, int_oo] y"], {}),
        (["set_replacement s1 = 16 (range_refined_to_singleton) VR[16, 16]"], {"s1": [None, None, 16]}),
        (
            ["create_symbol s0 = 8 for a [2, int_oo] b", "set_replacement s1 = 2*s0 + 1 (solve) VR[5, int_oo]"],
            {"s0": [2, None, 8], "s1": [None, None, 17]},
        ),
        (["_update_var_to_range u0 = VR[0, 9223372036854775806] (update)"], {"u0": [0, None, None]}),
        (["_update_var_to_range u0 = VR[0, 512] (update)"], {"u0": [0, 512, None]}),
        (["set_replacement u7 = u0 (rename_unbacked_to) VR[0, 512]"], {"u0": [0, 512, None], "u7": [0, 512, None]}),
        (["set_replacement s0 = s1 (x) VR[2, int_oo]", "set_replacement s1 = s0 (x) VR[2, int_oo]"], ...),
        (["create_symbol s0 = -3 for L['n'] [-int_oo, int_oo] n"], {"s0": [None, None, None]}),
        (["set_replacement s0 = 9**9**9**9 (x) VR[2, int_oo]"], {}),
        (["set_replacement s0 = __import__('os') (x) VR[2, int_oo]"], {}),
    ],
)
def test_lines(lines, symbols):
    found = facts(*lines).get("symbols", {})
    if symbols is ...:  # it ends
        assert all(entry[2] is None for entry in found.values())
    else:
        assert {name: entry for name, entry in found.items() if entry != [None, None, None] or name == "s0"} == symbols


@pytest.mark.parametrize(
    ("said", "sums"),
    [
        ("runtime_assert Eq(u0 + u1 + u2, 2*s0) [guard added] x", [[["u0", "u1", "u2"], 16]]),
        ("runtime_assert Eq(2*s0, u0 + u1) [guard added] x", [[["u0", "u1"], 16]]),
        ("eval Eq(u0 + u1, 40) [guard added] x", [[["u0", "u1"], 40]]),
        ("runtime_assert Eq(u0 + u1, 2*s0) == True [statically known]", []),
        ("eval Eq(u0 + u1, u2) [guard added] x", []),
        ("eval Eq(2*u0 + u1, 40) [guard added] x", []),
        ("eval Eq(u0 + u0, 40) [guard added] x", []),
        ("eval Eq(s0, 8) [guard added] x", []),
        ("eval Eq(u4 + u5, 40) [guard added] x", []),
        ("eval Eq(u0 + u1, -4) [guard added] x", []),
    ],
)
def test_sums(said, sums):
    assert facts("create_symbol s0 = 8 for L['x'].size()[0] [2, int_oo] y", said).get("sums", []) == sums


def test_two_compilations_have_numbers_of_their_own(tmp_path):
    prefix = "I1122 06:44:03.583000 4743 torch/x.py:18] "
    graph = (
        "class GraphModule(torch.nn.Module):\n"
        '    def forward(self, a: "Sym(s0)", x: "f32[s0][1]cpu"):\n'
        '        y: "f32[s0][1]cpu" = torch.ops.aten.relu.default(x)\n'
        "        return (y,)\n"
    )
    lines = []
    for number, value in ((0, 8), (1, 24)):
        lines.append(f"{prefix}[0/{number}] create_symbol s0 = {value} for L['x'].size()[0] [2, int_oo] z")
        lines.append(f"{prefix}[0/{number}] [__aot_graphs]  ===== Forward graph {number} =====")
        lines += [f"{prefix}[0/{number}] [__aot_graphs] {line}" for line in graph.splitlines()]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    for number, value in ((0, 8), (1, 24)):
        index = build_index(load(f"{path}::0_{number}/aot_forward_graph"))
        assert index.tensors[index.position["y"]].numel == value


REPRO = """import torch
u2 = 24

class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, u0, x, u1, s0, y):
        relu = torch.ops.aten.relu.default(x);  x = None
        cat = torch.ops.aten.cat.default([relu, y])
        return (cat,)

def load_args(reader):
    u0 = 40
    reader.symint(None, expr='u0')  # u0
    buf0 = reader.storage(None, 256*u0)
    reader.tensor(buf0, (u0, 64), is_leaf=True)  # x
    reader.symint(NUMBER, expr='u1')  # u1
    reader.symint(8, expr='s0')  # s0
    buf1 = reader.storage(None, 256*u1)
    reader.tensor(buf1, (u1 + s0 + u2, 64), is_leaf=True)  # y
load_args._version = 0
"""


@pytest.mark.parametrize(("number", "rows"), [("16", 88), ("None", None)])
def test_numbers_of_repro_files(number, rows, tmp_path):
    """Sizes that data decides have the numbers that ``load_args`` and the lines around it give, wherever that is."""
    path = tmp_path / "fx_graph_runnable.py"
    path.write_text(REPRO.replace("NUMBER", number))
    program = load(path)
    index = build_index(program)
    assert index.tensors[index.position["relu"]].numel == 40 * 64
    cat = index.tensors[index.position["cat"]]
    assert cat.numel == (None if rows is None else rows * 64)
    assert bool(index.estimates.unknown) is (rows is None)
    # What was one number of many is no size to be fixed.
    assert set(recorded_sizes(program)) == {"s0"}
