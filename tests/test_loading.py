"""Choosing, reading and refusing files; writing them whole or not at all."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import shutil
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from commcc.base.errors import InputError, OutputError
from commcc.serialization import default_output, list_graphs, load, save, saving, sources, split_spec
from commcc.verify import verify

if TYPE_CHECKING:
    import io

    from commcc.graph.program import Program

DATA = Path(__file__).parent / "data" / "containers"
LOG = DATA / "torch_logs_rank0.txt.gz"
FORWARD = "0_0/aot_forward_graph"
SOURCE = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[2, 3][3, 1]cpu", b: "f32[3, 2][2, 1]cpu"):
        mm: "f32[2, 2][2, 1]cpu" = torch.ops.aten.mm.default(a, b);  a = b = None
        return (mm,)
"""


def names(program: Program) -> list[str]:
    return [node.name for node in program.graph.nodes]


def refusal(path: str | Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path).partition("::")[0])
    return message


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    file = tmp_path / "g.fx.txt"
    file.write_text(SOURCE)
    return file


# choosing


def test_one_graph_needs_no_name(graph_file):
    program = load(graph_file)
    assert names(program) == ["a", "b", "mm", "output"]
    assert (program.format, program.source) == ("fx_text", graph_file)


def test_name_as_option_and_in_the_path():
    assert names(load(LOG, name=FORWARD)) == names(load(f"{LOG}::{FORWARD}"))


def test_end_of_a_name_is_enough_when_it_fits_one():
    assert names(load(LOG, name="aot_backward_graph")) == names(load(LOG, name="0_0/aot_backward_graph"))
    two = DATA / "torch_logs_two_ranks.txt.gz"
    message = refusal(two, name="aot_backward_graph")
    assert "fits 2 graphs: rank0/0_0/aot_backward_graph (20 nodes), rank1/0_0/aot_backward_graph" in message


def test_rank_may_be_given_where_there_is_only_one():
    folder = DATA / "torch_trace"
    assert names(load(next(folder.glob("*rank_1*")), name=f"rank1/{FORWARD}")) == names(
        load(folder, name=f"rank1/{FORWARD}")
    )


def test_several_graphs_are_listed():
    message = refusal(LOG)
    assert f"holds 4 graphs: {FORWARD} (16 nodes), 0_0/aot_backward_graph (20 nodes)" in message
    assert "FILE::NAME" in message


def test_dynamo_graphs_are_not_offered():
    message = refusal(DATA / "tlparse")
    assert "holds 9 graphs" in message
    assert "dynamo" not in message
    assert "Dynamo graph" in refusal(DATA / "tlparse", name="0_0/dynamo_output_graph")


def test_only_dynamo_graphs(tmp_path):
    (tmp_path / "-_0_0_0").mkdir()
    shutil.copy(DATA / "tlparse" / "-_0_0_0" / "dynamo_output_graph_0.txt", tmp_path / "-_0_0_0")
    assert "only Dynamo graphs" in refusal(tmp_path)


def test_wrong_names_get_a_suggestion():
    assert "did you mean '0_0/aot_forward_graph'?" in refusal(LOG, name="0_0/aot_foward_graph")
    assert "did you mean '0_0/aot_forward_graph'?" in refusal(f"{LOG}::aot_forward_grph")
    assert "there are: 0_0/aot_forward_graph" in refusal(LOG, name="zzz")


def test_a_long_list_is_cut(tmp_path):
    file = tmp_path / "many.txt"
    file.write_text("".join(SOURCE.replace("GraphModule", f"G{i}") for i in range(30)))
    message = refusal(file)
    assert "G5 (4 nodes) and 24 more" in message
    assert "G6" not in message
    assert names(load(file, name="G27")) == ["a", "b", "mm", "output"]


def test_split_spec(tmp_path):
    odd = tmp_path / "a::b.txt"
    odd.write_text(SOURCE)
    assert split_spec(odd) == (odd, None)
    assert split_spec("a.log::0_0/x") == (Path("a.log"), "0_0/x")
    assert split_spec("a.log::") == (Path("a.log"), None)
    assert split_spec("a.log", "x") == (Path("a.log"), "x")


@pytest.mark.parametrize("name", ["g.fx.txt.gz", "g.txt", "g.txt.gz", "g.py", "g.py.gz", "no_extension", "g.pt2"])
def test_content_decides_the_format(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(gzip.compress(SOURCE.encode(), mtime=0) if name.endswith(".gz") else SOURCE.encode())
    assert names(load(file)) == ["a", "b", "mm", "output"]


def test_every_graph_of_every_container_loads():
    for path in (LOG, DATA / "torch_logs_two_ranks.txt.gz", DATA / "torch_trace", DATA / "tlparse"):
        for entry in list_graphs(path):
            if entry.loadable:
                assert len(load(path, name=entry.name).graph.nodes) == entry.nodes, entry


@pytest.mark.parametrize("path", sorted((DATA / "dumps").glob("*.txt")), ids=lambda path: path.name)
def test_every_dump_loads_with_the_nodes_that_are_listed(path):
    assert len(load(path).graph.nodes) == list_graphs(path)[0].nodes


def test_the_same_graph_from_every_container():
    programs = [
        load(DATA / kind, name=name)
        for kind, name in (
            ("tlparse", FORWARD),
            ("torch_trace", f"rank0/{FORWARD}"),
            ("torch_logs_rank0.txt.gz", FORWARD),
            ("tlparse", "0_0/fx_graph_runnable"),
        )
    ]
    described = [
        [(n.op, str(n.target), n.name, str(n.args), str(n.meta.get("val"))) for n in program.graph.nodes]
        for program in programs
    ]
    assert described[1:] == described[:1] * 3


# what modules print and write of themselves


def as_module() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    constant = graph.get_attr("c")
    mm = graph.call_function(torch.ops.aten.mm.default, (a, b))
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (mm, constant)),))
    root = torch.nn.Module()
    root.register_buffer("c", torch.zeros(2))
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize("before", ["", "step 1\n"])
@pytest.mark.parametrize("after", ["", "loss 0.5\n"])
def test_a_printed_module(tmp_path, before, after):
    """With what a program prints around it."""
    file = tmp_path / "x.txt"
    file.write_text(f"{before}{as_module()}\n{after}")
    program = load(file)
    assert names(program) == ["a", "b", "c", "mm_default", "add_tensor", "output"]
    notes = [note.text for note in program.notes]
    assert any("inputs without a shape: 2 (a, b); print_readable(include_stride=True" in text for text in notes)
    file.write_text(f"{as_module()}\n{as_module()}\n")
    assert [entry.name for entry in list_graphs(file)] == ["GraphModule", "GraphModule.2"]
    assert names(load(f"{file}::GraphModule.2")) == names(program)


def test_a_module_written_to_a_folder(tmp_path):
    """Nothing of it is run, its constructor least of all."""
    as_module().to_folder(tmp_path / "step", "Step")
    file = tmp_path / "step" / "module.py"
    file.write_text(file.read_text().replace("super().__init__()", "super().__init__()\n        os.system('touch x')"))
    assert names(load(file)) == ["a", "b", "c", "mm_default", "add_tensor", "output"]
    # A model in a script is no graph.
    file.write_text(file.read_text().replace("self.load_state_dict", "self.load"))
    assert "no graph found in this text" in refusal(file)


@pytest.mark.parametrize("new", [False, True])
def test_a_saved_module_is_never_unpickled(tmp_path, new):
    file = tmp_path / "x.pt2"
    torch.save(as_module(), file, _use_new_zipfile_serialization=new)
    said = refusal(file)
    assert "is a Python pickle, which runs code of its own when it is loaded and is never unpickled here" in said
    assert (
        "save the text of gm.print_readable(print_output=False, include_stride=True, include_device=True), or" in said
    )


# refusing


def test_missing_file_names_a_similar_one(graph_file):
    message = refusal(graph_file.with_name("g.fx.text"))
    assert "no such file" in message
    assert str(graph_file) in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b" \n\t\n", "the file is empty"),
        (pickle.dumps({"a": 1}), "a Python pickle, which runs code"),
        (b"\x7fELF\x02\x01", "a compiled library"),
        ("class".encode("utf-16"), "no graph found"),
        (b"\xff\xfe\0", "no graph found"),
        (b"class A\0\0\0", "a binary file"),
        (b"hello\nwor\xffld\n", "byte 0xff is not UTF-8"),
        (b"<html><body>tlparse</body></html>", "no graph found"),
        (b'{"a": 1}\n', "no graph found"),
        (gzip.compress(SOURCE.encode(), mtime=0)[:-20], "the gzip data ends too early"),
        (
            gzip.compress(SOURCE.encode(), mtime=0)[:30] + b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            "damaged gzip data",
        ),
        (b"\x1f\x8b\x07" + b"0" * 40, "damaged gzip data"),
        (gzip.compress(b"PK\x03\x04aaaa", mtime=0), "gzip-compressed archive"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"class GraphModule(torch.nn.Module):\n", ""),
        (SOURCE[:150].encode(), ""),
        (SOURCE.replace("torch.ops.aten.mm.default", "os.system").encode(), "os.system"),
        (b"PK\x03\x04" + b"\0" * 100, ""),
        (b"PK\x05\x06" + b"\0" * 18, ""),
    ],
)
def test_what_is_no_graph_is_refused_in_one_line(tmp_path, content, expected):
    file = tmp_path / "x.fx.txt"
    file.write_bytes(content)
    assert expected in refusal(file)


def test_bad_utf8_is_located(tmp_path):
    file = tmp_path / "x.txt"
    file.write_bytes(SOURCE.encode() + b"# \xe9\n")
    assert str(refusal(file)).startswith(f"{file}:5: byte 0xe9")


def test_bomb_stops_early(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_HARMLESS_BYTES", 4 << 20)
    file = tmp_path / "bomb.fx.txt.gz"
    file.write_bytes(gzip.compress(b"\n" * (40 << 20)))
    assert "decompression bomb" in refusal(file)
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    assert "expands to more than 1 MiB" in refusal(file)


def test_real_text_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_HARMLESS_BYTES", 1 << 20)
    digits = random.Random(0)
    body = "".join(
        f'        mm_{i}: "f32[2, 2][2, 1]cpu" = torch.ops.aten.mm.default(a, b);  # layer {digits.randrange(80)}\n'
        for i in range(30_000)
    )
    file = tmp_path / "large.fx.txt.gz"
    file.write_bytes(gzip.compress(body.encode()))
    assert len(sources.read_text(file)) > 2 << 20


def test_too_large_file(graph_file, monkeypatch):
    monkeypatch.setattr(sources, "MAX_BYTES", 100)
    assert "larger than" in refusal(graph_file)


def test_too_many_lines(graph_file, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINES", 3)
    assert "more than 3 lines" in refusal(graph_file)


def test_what_is_neither_file_nor_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refusal(tmp_path / "pipe")
    assert "neither a file nor a folder" in refusal("/dev/zero")


def test_folder_without_graphs(tmp_path):
    assert "holds no graphs" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file(graph_file):
    graph_file.chmod(0)
    assert "Permission denied" in refusal(graph_file)


@pytest.mark.parametrize("depth", [1_000, 200_000])
def test_brackets(tmp_path, depth):
    for text in (
        SOURCE.replace("(a, b)", "(a, " + "[" * depth + ")"),
        SOURCE.replace("(a, b)", "(a, " + "[" * depth + "]" * depth + ")"),
        SOURCE.replace("(a, b)", "(a, " + "-" * depth + "1)"),
        SOURCE.replace("f32[2, 2]", "f32[" + "(" * depth + "2, 2]"),
    ):
        file = tmp_path / "deep.txt"
        file.write_text(text)
        refusal(file)


REPRO = DATA / "dumps" / "symint.repro.txt"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import os\nos.system('touch {mark}')\nimport torch\n"),
        ("    buf0 = reader.storage(None, 16*s15*(s15 - 1) + 16*s15)", "    open('{mark}', 'w')"),
        ("reader.symint(8, expr='s15')", "reader.symint(8, expr=\"__import__('os').system('touch {mark}')\")"),
        ("reader.symint(8, expr='s15')", "reader.symint(__import__('os').system('touch {mark}'))"),
        ("(s15, 4*s15)", "(__import__('os').system('touch {mark}'), 4)"),
        ("{'0': {'size': 4, 'rank': 0}}", "{'0': {'size': __import__('os').system('touch {mark}')}}"),
        ("        super().__init__()", "        super().__init__()\n        __import__('os').system('touch {mark}')"),
        ("s15 = 8\n", "s15 = 8 + __import__('os').system('touch {mark}')\n"),
        ("arg2_1 * 2", "torch.ops.aten.from_file.default('{mark}', True, 16)"),
        ("arg2_1 * 2", "torch.ops.aten.save.default(arg3_1, '{mark}')"),
        ("arg2_1 * 2", "torch.ops.debugprims.load_tensor.default('{mark}', [1], [1])"),
        ("arg2_1 * 2", "open('{mark}', 'w')"),
        ("arg2_1 * 2", "torch.save(arg3_1, '{mark}')"),
    ],
)
def test_nothing_in_a_repro_file_runs(tmp_path, monkeypatch, old, new):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "mark"
    text = REPRO.read_text()
    assert old in text
    file = tmp_path / "evil.py"
    file.write_text(text.replace(old, new.replace("{mark}", str(mark))))
    try:
        load(file)
    except InputError as error:
        assert "\n" not in str(error)
    assert not mark.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["evil.py"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    reader.symint(17, expr='s77')  # arg2_1\n", "", "load_args gives 3 arguments to a graph of 4 inputs"),
        ("reader.tensor(buf1, ", "reader.tensor(buf7, ", ":78: a tensor without a storage"),
        ("{'size': 4, 'rank': 0}", "{'size': 8, 'rank': 0}", "group '0' has 4 ranks in a collective and 8"),
        ("{'size': 4, 'rank': 0}", "{'size': -4, 'rank': 0}", ":84: process group '0' has size -4"),
        ("{'size': 4, 'rank': 0}", "4", ":84: setup_fake_process_groups is not a table of groups"),
        ("(s77, 4*s15), is_leaf=True", "(s77, 4*s15), dtype=torch.os", ":78: unknown dtype 'torch.os'"),
        ("(s77, 4*s15)", "(s77, -4)", ":78: a size cannot be -4"),
    ],
)
def test_repro_files_that_do_not_fit_together(tmp_path, old, new, expected):
    file = tmp_path / "r.py"
    text = REPRO.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert expected in refusal(file)


# writing


def test_save_reads_back(graph_file, tmp_path):
    program = load(graph_file)
    for name in ("a.fx.txt", "a.txt", "a.fx.txt.gz", "A.TXT.GZ"):
        save(program, tmp_path / name)
        assert names(load(tmp_path / name)) == names(program)


@pytest.mark.parametrize("path", sorted((DATA / "dumps").glob("*.txt")), ids=lambda path: path.name)
def test_what_was_saved_is_saved_again_as_the_same_bytes(path, tmp_path):
    first = load(path)
    save(first, tmp_path / "a.fx.txt")
    second = load(tmp_path / "a.fx.txt")
    save(second, tmp_path / "b.fx.txt")
    assert (tmp_path / "a.fx.txt").read_bytes() == (tmp_path / "b.fx.txt").read_bytes()
    assert second.notes == first.notes


def test_two_saved_graphs_in_one_file(tmp_path):
    for name in ("moe_fw", "consts"):
        save(load(DATA / "dumps" / f"{name}.txt"), tmp_path / f"{name}.fx.txt")
    both = tmp_path / "both.fx.txt"
    both.write_text("".join((tmp_path / f"{name}.fx.txt").read_text() for name in ("moe_fw", "consts")))
    found = [entry.name for entry in list_graphs(both)]
    assert found == ["GraphModule", "lambda"]
    for name, graph in zip(("moe_fw", "consts"), found, strict=True):
        save(load(both, name=graph), tmp_path / "again.fx.txt")
        assert (tmp_path / "again.fx.txt").read_bytes() == (tmp_path / f"{name}.fx.txt").read_bytes()


def test_gzip_output_is_deterministic(graph_file, tmp_path):
    program = load(graph_file)
    save(program, tmp_path / "a.fx.txt.gz")
    save(program, tmp_path / "b.fx.txt.gz")
    assert (tmp_path / "a.fx.txt.gz").read_bytes() == (tmp_path / "b.fx.txt.gz").read_bytes()
    assert (tmp_path / "a.fx.txt.gz").read_bytes()[3:8] == bytes(5)


@pytest.mark.parametrize("name", ["a", "a.py", "a.log", "a.json", ".txt", "a.fx.txt.zip"])
def test_unknown_extension(graph_file, tmp_path, name):
    with pytest.raises(OutputError, match=r"use one of \.fx\.txt, "):
        save(load(graph_file), tmp_path / name)
    assert list(tmp_path.iterdir()) == [graph_file]


def test_source_is_never_overwritten(graph_file, tmp_path):
    program = load(graph_file)
    (tmp_path / "link.fx.txt").symlink_to(graph_file)
    (tmp_path / "hard.fx.txt").hardlink_to(graph_file)
    (tmp_path / "dir").symlink_to(tmp_path)
    for target in (graph_file, tmp_path / "link.fx.txt", tmp_path / "hard.fx.txt", tmp_path / "dir" / "g.fx.txt"):
        with pytest.raises(OutputError, match="that the graph was read from"):
            save(program, target)
    assert graph_file.read_text() == SOURCE


def test_files_of_a_source_folder_are_not_overwritten(tmp_path):
    folder = tmp_path / "tl"
    shutil.copytree(DATA / "tlparse", folder)
    program = load(folder, name=FORWARD)
    with pytest.raises(OutputError, match="that the graph was read from"):
        save(program, folder / "-_0_0_0" / "aot_forward_graph_7.txt")
    save(program, folder / "new.fx.txt")


def test_failure_leaves_nothing_behind(graph_file, tmp_path, monkeypatch):
    program = load(graph_file)
    target = tmp_path / "out.fx.txt"
    target.write_text("old")

    def fail(_program: Program, _extension: str, stream: io.BufferedWriter) -> tuple[()]:
        stream.write(b"half")
        raise OutputError("cannot be held")

    monkeypatch.setattr(saving, "_write", fail)
    with pytest.raises(OutputError, match="cannot be held"):
        save(program, target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.fx.txt", "out.fx.txt"]


def test_missing_folders_are_made_and_a_folder_is_no_target(graph_file, tmp_path):
    program = load(graph_file)
    save(program, tmp_path / "new" / "folder" / "a.txt")
    assert names(load(tmp_path / "new" / "folder" / "a.txt")) == names(program)
    with pytest.raises(OutputError, match=r"a\.txt' is not a folder; choose another name"):
        save(program, tmp_path / "new" / "folder" / "a.txt" / "b.txt")
    (tmp_path / "d.txt").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        save(program, tmp_path / "d.txt")


def test_permissions(graph_file, tmp_path):
    program = load(graph_file)
    save(program, tmp_path / "new.txt")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o666 & ~mask
    (tmp_path / "new.txt").chmod(0o640)
    save(program, tmp_path / "new.txt")
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640


def test_writing_through_a_link_keeps_the_link(graph_file, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    save(load(graph_file), tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert names(load(tmp_path / "real.txt")) == ["a", "b", "mm", "output"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("d/llama.fx.txt.gz", "d/llama.bucket.fx.txt.gz"),
        ("llama.fx.txt", "llama.bucket.fx.txt"),
        ("llama.txt.gz", "llama.bucket.txt.gz"),
        ("m.pt2", "m.bucket.pt2"),
        ("repro.py", "repro.bucket.fx.txt"),
        ("run.log.gz", "run.bucket.fx.txt"),
        ("run.log::0_0/aot_forward_graph", "run.0_0.aot_forward_graph.bucket.fx.txt"),
        ("tl_out::rank0/0_0/fx_graph_runnable.2", "tl_out.rank0.0_0.fx_graph_runnable.2.bucket.fx.txt"),
        ("v1.5/model", "v1.5/model.bucket.fx.txt"),
        ("model.v1.fx.txt", "model.v1.bucket.fx.txt"),
    ],
)
def test_default_output(source, expected):
    assert default_output(source, "bucket") == Path(expected)


def test_a_zip_that_is_no_archive_of_a_graph(tmp_path):
    file = tmp_path / "x.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("hello.txt", "hi")
    refusal(file)


def test_what_fx_generates_without_a_class_is_a_graph(tmp_path):
    lines = SOURCE.split("\n")[1:]
    code = "\n\n\n" + "\n".join(line.removeprefix("    ") for line in lines)
    for text in (code, code.lstrip("\n")):
        path = tmp_path / "code.py"
        path.write_text(text)
        assert names(load(path)) == ["a", "b", "mm", "output"]
    path.write_text(code + code)
    assert "holds 2 graphs: GraphModule (4 nodes), GraphModule.2" in refusal(path)


def test_errors_in_code_without_a_class_name_the_line(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("\n\ndef forward(self, a):\n    b = torch.ops.aten.neg.default(c)\n    return (b,)\n")
    assert f"{path}:4" in refusal(path)


@pytest.mark.parametrize("body", ['    """A layer."""\n', "    size = 3\n", "    def __init__(self):\n        pass\n"])
def test_modules_that_people_write_are_no_graphs(tmp_path, body):
    path = tmp_path / "model.py"
    layer = f"class Layer(nn.Module):\n{body}\n    def forward(self, x):\n        return (x,)\n"
    path.write_text(layer + layer.replace("Layer", "Other"))
    assert "no graph found" in refusal(path)


def test_a_repro_of_dynamo_is_no_aten_graph(tmp_path):
    text = (
        "class Repro(torch.nn.Module):\n    def forward(self, x):\n        y = torch.relu(x)\n        return (y,)\n"
        "def load_args(reader):\n    pass\n"
        "if __name__ == '__main__':\n    from torch._dynamo.repro.after_dynamo import run_repro\n"
    )
    path = tmp_path / "minifier_launcher.py"
    path.write_text(text)
    assert "holds only Dynamo graphs" in refusal(path)


@pytest.mark.parametrize("offset", [*range(0, 249, 31), 248])
def test_a_thousand_brackets_are_found_wherever_they_begin(offset):
    """Only some bytes are looked at first."""
    with pytest.raises(InputError, match="nests brackets"):
        sources.decode(b"x" * offset + b"([{" * 333 + b"(" + b"x" * 10, "f")
    assert sources.decode(b"x" * offset + b"([{" * 333 + b"x" * 1000, "f").count("(") == 333


def test_strides_that_only_one_text_tells_are_no_difference(tmp_path):
    text = """class GraphModule(torch.nn.Module):
    def forward(self, y: "f32[4, 8]%s", x: "f32[8, 4]%s"):
        mul: "f32[8, 4]%s" = torch.ops.aten.mul.Tensor(x, 2)
        mm: "f32[8, 8]%s" = torch.ops.aten.mm.default(mul, y)
        return (mm,)
"""
    for name, strides in (("told", ("[8, 1]cpu", "[1, 8]cpu", "[1, 8]cpu", "[8, 1]cpu")), ("silent", ("",) * 4)):
        (tmp_path / f"{name}.txt").write_text(text % strides)
    told, silent = load(tmp_path / "told.txt"), load(tmp_path / "silent.txt")
    for before, after in ((told, silent), (silent, told)):
        verdict = verify(before, after)
        assert (verdict.status, "does not tell strides" in str(verdict.unproved)) == ("unproved", True)
    assert verify(silent, silent).status == "proved"
