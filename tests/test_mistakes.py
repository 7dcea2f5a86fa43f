"""What people type wrongly: each mistake gets one line that says what, where and what to do, and no traceback."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest
from torch import fx

from commcc.cli.main import run

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
#: One matmul that would take millions of years; each of its tensors is small enough for PyTorch to describe.
HUGE = """class GraphModule(torch.nn.Module):
    def forward(self, p: "f32[2000000000, 2000000000][2000000000, 1]cuda:0"):
        mm: "f32[2000000000, 2000000000][2000000000, 1]cuda:0" = torch.ops.aten.mm.default(p, p)
        return (mm,)
"""
#: Bytes that do not add up in 64 bits, and next to no time.
WIDE = """class GraphModule(torch.nn.Module):
    def forward(self, p: "f32[1000000000, 1000000000][1000000000, 1]cuda:0", q: "f32[1000000000, 1000000000]\
[1000000000, 1]cuda:0"):
        return (p,)
"""
#: What is typed, and what the one line holds.
MISTAKES = {
    "inspcet g.fx.txt": "no such command 'inspcet' (did you mean 'inspect'?)",
    "inspect": "Missing argument 'GRAPH'; see 'commcc inspect -h'",
    "inspect ''": "the name is empty",
    "inspect nope.fx.txt": "nope.fx.txt: no such file",
    "inspect link.fx.txt": "link.fx.txt: is a link to what does not exist",
    "inspect empty.txt": "empty.txt: the file is empty",
    "inspect random.bin": "is a binary file, not a graph",
    "inspect data.pkl": "is a Python pickle, which runs code",
    "inspect script.py": "no graph found in this text; dump it with",
    "run plan.yaml --preset auto": "plan.yaml: is a plan, not a graph; commcc run GRAPH --plan plan.yaml applies it",
    "inspect printed.txt": "holds a graph as print(graph) or print_tabular() shows it",
    "inspect named.fx.txt": "named.fx.txt: the folder holds no graphs; dump it with",
    "inspect unread": "unread: none of the graphs could be read; x.fx.txt: the file is empty",
    "inspect rootless.pt2": "an entry of the archive lies in no folder; is this a .pt2 file?",
    "inspect folder": "the folder holds no graphs; dump it with",
    "inspect g.fx.txt::nobody": "no graph 'nobody'; there are: GraphModule",
    "inspect g.fx.txt --cots none": "no such option '--cots' (did you mean '--cost'?)",
    "bucket g.fx.txt --cap 3": "no such option '--cap' (did you mean '--bucket-cap-mb'?)",
    "bucket g.fx.txt --xyz 3": "error: no such option '--xyz'; see 'commcc bucket -h'",
    "run g.fx.txt --passes bucket{cap=3}": "no option 'cap' (did you mean 'bucket_cap_mb'?); see 'commcc passes",
    "inspect g.fx.txt --cost h1000": "unknown device 'h1000' (did you mean 'h100'?)",
    "inspect g.fx.txt --cost h100,skew=nan": "skew: expected a finite number",
    "inspect g.fx.txt --cost h100,launch_us=1e300": "launch_us: must be at most 1,000,000",
    "inspect g.fx.txt --hint u0=abc": "'abc' is not a whole number",
    "inspect huge.fx.txt": "'mm' alone would take 3.45e+09 days by h100-sxm: too much to simulate",
    "reorder huge.fx.txt -o o.fx.txt": "too much to simulate; look at its sizes",
    "convert huge.fx.txt -o o.et": "too much to simulate",
    "simulate wide.fx.txt": "all tensors together hold 7,105.4 PiB: too much to simulate",
    "bucket g.fx.txt -o g.fx.txt": "would overwrite the input; choose another name with -o",
    "bucket g.fx.txt -o ''": "the name is empty",
    "bucket g.fx.txt -o g.fx.txt/o.fx.txt": "'g.fx.txt' is not a folder; choose another with -o",
    "bucket g.fx.txt -o locked/o.fx.txt": "folder 'locked' cannot be written; choose another with -o",
    "bucket g.fx.txt -o o.xyz": "unknown extension; use .fx.txt",
    "bucket g.fx.txt --bucket-cap-mb 25MB": "bucket_cap_mb: expected auto or a number without a unit, got '25MB'",
    "bucket g.fx.txt --bucket-cap-mb nan": "expected a finite number",
    "bucket g.fx.txt --max-topo-span 1e30": "must be at most 1,000,000,000,000,000",
    "bucket g.fx.txt --memory-budget 3": "an option of strategy overlap, auto and module, not of greedy",
    "bucket g.fx.txt --strategy best": "expected one of greedy, overlap",
    "reorder g.fx.txt --memory-budget 1e300": "memory_budget: must be at most",
    "run g.fx.txt": "nothing says what to run; give --passes",
    "run g.fx.txt --passes bukcet": "no pass 'bukcet' (did you mean 'bucket'?)",
    "run g.fx.txt --passes bucket{bucket_cap_mb=[1,2]}": "an option takes one value, no '[...]'; commcc sweep tries",
    "run g.fx.txt --passes bucket{x},tag{y}": "error: pipeline: option 'x' has no value (write name=value); option 'y'",
    "run g.fx.txt --passes bucket{": "cannot read 'bucket{'",
    "run g.fx.txt --preset auto --passes tag": "both say what to run",
    "run g.fx.txt --pipeline bad.yaml": "bad.yaml:2: not YAML",
    "run g.fx.txt --passes tag -o o.fx.txt --dump-after-each locked/d": "cannot be written; name one with --dump",
    "run g.fx.txt g.fx.txt --preset auto -o locked/out": "locked/out: cannot be written; choose another with -o",
    "simulate cut --html cut.html": "cut: none of the graphs could be read; x.fx.txt: the graph 'f' has no return",
    "run folder --preset auto -o out": "folder: the folder is empty",
    "run logs --preset auto -o out": "logs: the folder holds no graphs; dump it with",
    "simulate g.fx.txt --html page.txt": "unknown extension; use .html",
    "explain g.fx.txt --worst few": "'few' is not a whole number; see 'commcc explain -h'",
    "verify g.fx.txt g.fx.txt --numeric --tolerance low": "'low' is not a number; see 'commcc verify -h'",
    "sweep g.fx.txt --param reorder.effort=1,2": "--pipeline FILE.yaml or --preset NAME",
    "inspect cut.pt2": "not a readable zip archive: File is not a zip file; copy or save the file again",
    "explain g.fx.txt nobody": "no node 'nobody' in the graph",
    "diff g.fx.txt": "Missing argument 'AFTER'",
    "lint g.fx.txt --only nobody": "no rule 'nobody'; see 'commcc lint --rules'",
    "lint g.fx.txt --rule peak-memory.max=5": "must be a size such as 25 MiB, not '5': no unit",
    "capture script.py --mesh dp=2 -o out": "names no function; write FILE.py:FUNCTION",
    "capture script.py:build --mesh dp -o out": "'dp' is no axis; write NAME=SIZE",
    "bench g.fx.txt --nproc 0": "0 is not in the range",
    "bench g.fx.txt --timeout nan": "nan is not a number",
    "verify g.fx.txt g.fx.txt --numeric --tolerance nan": "nan is not a number",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copy(SAMPLES / "tiny_llama_fsdp2_fw.fx.txt", folder / "g.fx.txt")
    (folder / "huge.fx.txt").write_text(HUGE)
    (folder / "wide.fx.txt").write_text(WIDE)
    (folder / "empty.txt").touch()
    (folder / "random.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "data.pkl").write_bytes(pickle.dumps({"a": 1}))
    (folder / "script.py").write_text("print(1)\n")
    (folder / "plan.yaml").write_text("# A comment\ncommcc_plan: 1\npasses: []\n")
    (folder / "printed.txt").write_text(str(fx.symbolic_trace(lambda x: x + 1).graph))
    (folder / "cut.pt2").write_bytes(b"PK\x03\x04" + bytes(100))
    (folder / "bad.yaml").write_text("a: [1\n")
    (folder / "link.fx.txt").symlink_to("gone.fx.txt")
    with zipfile.ZipFile(folder / "rootless.pt2", "w") as archive:
        archive.writestr("version", "3")
    for name in ("cut", "folder", "locked", "logs", "named.fx.txt", "unread"):
        (folder / name).mkdir()
    (folder / "logs" / "run.log").touch()
    for name in ("x.fx.txt", "y.fx.txt"):  # begin as a graph does
        (folder / "cut" / name).write_text("class f(torch.nn.Module):\n    def forward(self, x):\n        pass\n")
    (folder / "unread" / "x.fx.txt").touch()
    return folder


@pytest.mark.parametrize("typed", MISTAKES)
def test_mistake(typed, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "locked" and access(path, mode))
    files = sorted(place.iterdir())
    for more in ([], ["--json"]):
        assert run([*shlex.split(typed), *more]) == 2
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert line.startswith("commcc: error: ") and MISTAKES[typed] in line
        if more:
            assert json.loads(said.out)["error"]["what"] in line
    assert sorted(place.iterdir()) == files


def test_an_option_without_its_value_names_the_help_of_its_command(capsys):
    assert run(["simulate", "g.fx.txt", "--html"]) == 2
    assert capsys.readouterr().err == "commcc: error: Option '--html' requires an argument; see 'commcc simulate -h'\n"
