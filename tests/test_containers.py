"""Finding graphs in logs, traces and folders: names, kinds, counts, text, ranks."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from commcc.base.errors import InputError
from commcc.serialization import list_graphs
from commcc.serialization.logs import torch_logs as logs
from commcc.serialization.logs import traces
from commcc.serialization.logs.graph_text import GraphEntry, GraphText, count_nodes, with_names
from commcc.serialization.sources import read_text

DATA = Path(__file__).parent / "data" / "containers"
FORWARD = "0_0/aot_forward_graph"
LOG = [
    (FORWARD, "forward", 16),
    ("0_0/aot_backward_graph", "backward", 20),
    ("0_0/inductor_post_grad_graph", "post-grad", 16),
    ("0_0/inductor_post_grad_graph.2", "post-grad", 20),
]
TRACE = [
    ("0_0/dynamo_output_graph", "dynamo", 19),
    ("0_0/before_pre_grad_graph", "dynamo", 19),
    ("0_0/after_pre_grad_graph", "dynamo", 19),
    ("0_0/aot_joint_graph", "joint", 35),
    (FORWARD, "forward", 16),
    ("0_0/aot_backward_graph", "backward", 20),
    ("0_0/fx_graph_runnable", "repro", 16),
    ("0_0/before_post_grad_graph", "post-grad", 16),
    ("0_0/inductor_post_grad_graph", "post-grad", 16),
    ("0_0/fx_graph_runnable.2", "repro", 20),
    ("0_0/before_post_grad_graph.2", "post-grad", 20),
    ("0_0/inductor_post_grad_graph.2", "post-grad", 20),
]
HEAD = 'class GraphModule(torch.nn.Module):\n    def forward(self, a: "f32[2][1]cpu"):\n'
TINY = HEAD + '        neg: "f32[2][1]cpu" = torch.ops.aten.neg.default(a);  a = None\n        return (neg,)\n'
PREFIX = "I1121 06:44:03.583000 4743 torch/_functorch/_aot_autograd/graph_compile.py:1833] [0/0] [__aot_graphs] "


def listed(path: Path) -> list[tuple[str, str, int | None]]:
    return [(entry.name, entry.kind, entry.nodes) for entry in list_graphs(path)]


def with_rank(rank: int, entries: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return [(f"rank{rank}/{name}", kind, nodes) for name, kind, nodes in entries]


def logged(text: str, prefix: str = PREFIX, title: str = "Forward graph 0") -> str:
    lines = ["TRACED GRAPH", f" ===== {title} =====", *text.rstrip("\n").split("\n"), "", ""]
    return "".join(f"{prefix}{line}\n" for line in lines)


def dense(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def test_torch_logs_of_one_rank():
    assert listed(DATA / "torch_logs_rank0.txt.gz") == LOG


def test_torch_logs_of_two_ranks_mixed_line_by_line():
    found = listed(DATA / "torch_logs_two_ranks.txt.gz")
    dynamo = [("0_0/dynamo_output_graph", "dynamo", 19)]
    for rank in (0, 1):
        assert [entry for entry in found if entry[0].startswith(f"rank{rank}/")] == with_rank(rank, dynamo + LOG)
    assert len(found) == 10


def test_mixing_ranks_does_not_change_their_graphs():
    alone = logs.find_graphs(read_text(DATA / "torch_logs_rank0.txt.gz"), "a")
    mixed = with_names(logs.find_graphs(read_text(DATA / "torch_logs_two_ranks.txt.gz"), "b"))
    for graph in with_names(alone):
        for rank in (0, 1):
            twin = next(other for other in mixed if other.name == f"rank{rank}/{graph.name}")
            bodies = [dense(text)[1:] for text in (graph.source(), twin.source())]
            assert [line for line in bodies[0] if "# " not in line] == [line for line in bodies[1] if "# " not in line]


def test_line_numbers_are_those_of_the_log():
    text = read_text(DATA / "torch_logs_two_ranks.txt.gz")
    lines = text.split("\n")
    for graph in logs.find_graphs(text, "b"):
        for number, line in enumerate(graph.source().split("\n")):
            assert not line.strip() or line.split("(torch.nn.Module)")[0] in lines[number]


def test_trace_log_folder_and_file():
    folder = DATA / "torch_trace"
    assert listed(folder) == with_rank(0, TRACE) + with_rank(1, TRACE)
    assert listed(next(folder.glob("*rank_1*"))) == TRACE


def test_tlparse_folder_has_the_names_of_the_trace():
    assert listed(DATA / "tlparse") == TRACE


def test_folder_of_one_compile(monkeypatch):
    assert listed(DATA / "tlparse" / "-_0_0_0") == TRACE
    monkeypatch.chdir(DATA / "tlparse" / "-_0_0_0")
    assert listed(Path()) == TRACE


def test_tlparse_folder_of_several_ranks(tmp_path):
    for rank in (0, 2, 10):
        shutil.copytree(DATA / "tlparse", tmp_path / f"rank_{rank}")
    assert listed(tmp_path) == with_rank(0, TRACE) + with_rank(2, TRACE) + with_rank(10, TRACE)


def test_tlparse_files_are_the_payloads_of_the_trace():
    trace = with_names(traces.find_in_log(read_text(next((DATA / "torch_trace").glob("*rank_0*"))), "t"))
    folder = with_names(traces.find_in_folder(DATA / "tlparse"))
    for a, b in zip(trace, folder, strict=True):
        assert (a.name, a.kind, dense(a.source())) == (b.name, b.kind, dense(b.source()))


def test_restarted_compile_and_second_run_of_a_rank_have_names_of_their_own(tmp_path):
    ids = {"rank": 3, "frame_id": 2, "frame_compile_id": 1, "attempt": 1}
    record = {"aot_forward_graph": {}, **ids, "has_payload": "x"}
    payload = "".join(f"\t{line}\n" for line in TINY.split("\n"))
    text = f"V1121 06:44:03.587000 47 torch/a.py:1886] {json.dumps(record)}\n{payload}"
    (tmp_path / "dedicated_log_torch_trace_rank_3_aa.log").write_text(text)
    assert listed(tmp_path) == [("2_1_1/aot_forward_graph", "forward", 3)]
    (tmp_path / "dedicated_log_torch_trace_rank_3_bb.log").write_text(text)
    names = [name for name, _, _ in listed(tmp_path)]
    assert names == ["2_1_1/aot_forward_graph", "dedicated_log_torch_trace_rank_3_bb/2_1_1/aot_forward_graph"]


@pytest.mark.parametrize("outer", ["[default3]:[rank3]:", "[rank3]:", "3: ", "[default3]:", "[trainer0|3]:", "node-3:"])
def test_prefixes_of_launchers(tmp_path, outer):
    other = outer.replace("3", "1")
    pairs = zip(logged(TINY, outer + PREFIX).splitlines(), logged(TINY, other + PREFIX).splitlines(), strict=True)
    file = tmp_path / "run.log"
    file.write_text("".join(f"{a}\n{b}\nstep 1 loss 2.0\n" for a, b in pairs))
    assert listed(file) == [(f"rank3/{FORWARD}", "forward", 3), (f"rank1/{FORWARD}", "forward", 3)]


TIMES = (
    "2026-11-23T08:11:{:02d}.123456Z ",
    "2026-11-23 08:11:{:02d},123 INFO stderr: ",
    "[2026/11/23 08:11:{:02d}+01:00] ",
    "17639{:05d}.123 ",
    "Epoch 1:  {:2d}%|██▌       | {}/99 [00:01<00:10,  1.0it/s]",
    "step\rEpoch 1: {:3d}%|██▌       | {}/99\r",
)


@pytest.mark.parametrize("outer", TIMES)
@pytest.mark.parametrize("prefix", [PREFIX, f"[rank1]:{PREFIX}", f"[default1]:{PREFIX}"])
def test_times_and_progress_bars_before_the_lines(tmp_path, outer, prefix):
    lines = logged(TINY, prefix).splitlines(keepends=True)
    file = tmp_path / "run.log"
    file.write_text("".join(outer.format(number, number) + line for number, line in enumerate(lines)), newline="")
    assert [(name.removeprefix("rank1/"), nodes) for name, _, nodes in listed(file)] == [(FORWARD, 3)]
    graph = next(each for each in logs.find_graphs(read_text(file), "x"))
    assert dense(graph.source()) == dense(TINY)


def test_logs_of_powershell(tmp_path):
    file = tmp_path / "run.log"
    file.write_bytes(logged(TINY).replace("\n", "\r\n").encode("utf-16"))
    assert listed(file) == [(FORWARD, "forward", 3)]


def test_processes_without_a_rank_are_kept_apart(tmp_path):
    a, b = logged(TINY), logged(TINY, PREFIX.replace("4743", "4744"))
    file = tmp_path / "run.log"
    file.write_text("".join(x + y for x, y in zip(a.splitlines(True), b.splitlines(True), strict=True)))
    assert listed(file) == [(FORWARD, "forward", 3), (f"{FORWARD}.2", "forward", 3)]


def test_colours_carriage_returns_and_prefixed_class_lines(tmp_path):
    coloured = TINY.replace("neg:", "\x1b[31mneg\x1b[0m:").replace("class G", "/x/my file.py class G")
    file = tmp_path / "run.log"
    file.write_bytes(logged(coloured).replace("\n", "\r\n").encode())
    assert listed(file) == [(FORWARD, "forward", 3)]
    text = read_text(file)
    assert "\x1b" not in text
    assert "\r" not in text
    assert dense(logs.find_graphs(text, "x")[0].source()) == dense(TINY)


def test_lines_of_another_artifact_do_not_join_a_graph(tmp_path):
    other = PREFIX.replace("aot_graphs", "output_code")
    lines = logged(TINY).rstrip("\n").split("\n")
    later = [f"{other}    def call(args):", f"{other}        return ()", PREFIX.replace("0/0", "1/0") + "        junk"]
    file = tmp_path / "run.log"
    file.write_text("\n".join(lines[:-2] + later))
    (graph,) = logs.find_graphs(file.read_text(), "x")
    assert dense(graph.source()) == dense(TINY)


def test_only_the_first_line_has_a_prefix(tmp_path):
    file = tmp_path / "run.log"
    file.write_text(f"epoch 1\n===== Forward graph 0 =====\n <eval_with_key>.3 {TINY}epoch 2\n")
    assert listed(file) == [("aot_forward_graph", "forward", 3)]


def test_graphs_that_aotautograd_found_in_its_cache(tmp_path):
    """They have other titles."""
    file = tmp_path / "run.log"
    parts = [f"{part} graph (from cache)\n\n{TINY}\n" for part in ("Joint", "Forward", "Backward")]
    file.write_text("".join(f"{PREFIX}{line}\n" for part in parts for line in part.split("\n")))
    kinds = ("joint", "forward", "backward")
    assert listed(file) == [(f"0_0/aot_{kind}_graph", kind, 3) for kind in kinds]


def test_plain_text_with_several_classes(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(f"import torch\n\n{TINY}\n\n{TINY.replace('GraphModule', '<lambda>')}\nx = 1\n{TINY}")
    assert listed(file) == [("GraphModule", "graph", 3), ("lambda", "graph", 3), ("GraphModule.2", "graph", 3)]


def test_comments_before_a_class_belong_to_it():
    (graph,) = logs.find_graphs(f"x = 1\n# commcc: a\n\n# commcc: b\n{TINY}", "f")
    assert dense(graph.source()) == ["# commcc: a", "# commcc: b", *dense(TINY)]


def test_a_class_inside_a_comment_or_a_string_is_no_graph(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("# class GraphModule(torch.nn.Module):\n    x = 1\n")
    with pytest.raises(InputError, match="no graph found"):
        list_graphs(file)


@pytest.mark.parametrize("path", sorted((DATA / "dumps").glob("*.txt")), ids=lambda path: path.name)
def test_single_dumps_are_single(path):
    (entry,) = list_graphs(path)
    assert entry.kind == ("repro" if ".repro." in path.name else "graph")
    assert entry.nodes is not None


def test_nothing_is_listed_where_too_few_can_be_loaded(monkeypatch):
    log, dump = DATA / "torch_logs_rank0.txt.gz", next(iter(sorted((DATA / "dumps").glob("*.txt"))))
    loadable = sum(entry.loadable for entry in list_graphs(log))
    assert loadable > 1
    assert list_graphs(log, least=loadable) == list_graphs(log)
    assert list_graphs(log, least=loadable + 1) == ()
    monkeypatch.setattr(GraphText, "entry", lambda _: pytest.fail("nodes were counted"))
    assert list_graphs(dump, least=2) == ()


def test_counting_takes_the_outermost_graph_only():
    assert count_nodes(TINY + "\n    class inner(torch.nn.Module):\n" + TINY.replace("\n", "\n    ")) == 3
    assert count_nodes("x = 1\n") is None


def test_loadable():
    assert GraphEntry("a", "joint", 1).loadable
    assert not GraphEntry("a", "dynamo", 1).loadable


def test_a_folder_of_other_things(tmp_path):
    (tmp_path / "x.txt").write_text(TINY)
    with pytest.raises(InputError, match="the folder itself is no graph"):
        list_graphs(tmp_path)


def test_a_folder_of_graph_files_is_no_graph(tmp_path):
    (tmp_path / "bw.fx.txt").write_text(TINY)
    with pytest.raises(InputError, match=r"is a folder of 1 graph file; name one, as in .*bw\.fx\.txt; commcc inspect"):
        list_graphs(tmp_path)


def test_graphs_in_folders_below_are_looked_for_elsewhere(tmp_path):
    (tmp_path / "below").mkdir()
    with pytest.raises(InputError, match=r"the folder itself is no graph; commcc inspect lists those in .* below"):
        list_graphs(tmp_path)


def test_links_in_folders_are_not_followed(tmp_path):
    (tmp_path / "-_0_0_0").mkdir()
    (tmp_path / "-_0_0_0" / "aot_forward_graph_1.txt").symlink_to(DATA / "dumps" / "moe_fw.txt")
    (tmp_path / "-_0_1_0").symlink_to(DATA / "tlparse" / "-_0_0_0")
    with pytest.raises(InputError, match="the folder itself is no graph"):
        list_graphs(tmp_path)


def test_gzip_is_recognised_by_content(tmp_path):
    file = tmp_path / "plain_name.txt"
    file.write_bytes(gzip.compress(TINY.encode()))
    assert listed(file) == [("GraphModule", "graph", 3)]


def as_docker(line):
    return {"log": line + "\n", "stream": "stderr", "time": "2026-11-21T06:44:03.583Z"}


def as_vector(line):
    return {"host": "a-node-with-a-long-name", "message": line, "source_type": "kubernetes_logs"}


def as_google(line):
    return {"insertId": "x", "jsonPayload": {"message": line, "pod": "p"}, "severity": "INFO"}


@pytest.mark.parametrize("written", [as_docker, as_vector, as_google])
def test_logs_of_collectors(written, tmp_path):
    text = read_text(DATA / "torch_logs_two_ranks.txt.gz")
    path = tmp_path / "pod.json"
    path.write_text("".join(json.dumps(written(line)) + "\n" for line in text.splitlines()))
    plain = tmp_path / "plain.log"
    plain.write_text(text)
    assert listed(path) == listed(plain) != []
    # What was cut off where the copy of a log ends costs no more than that line.
    path.write_text(path.read_text() + '{"log": "[rank0')
    assert listed(path) == listed(plain)


def test_a_long_line_goes_on_in_the_next_record(tmp_path):
    """Docker cuts lines of more than 16 KiB; the last part alone ends the line."""
    path = tmp_path / "pod.json"
    parts = [TINY[at : at + 30] for at in range(0, len(TINY), 30)]
    path.write_text("".join(json.dumps({"log": part}) + "\n" for part in parts))
    assert listed(path) == [("GraphModule", "graph", 3)]


def test_what_is_no_log_of_a_collector_stays(tmp_path):
    path = tmp_path / "mixed.json"
    for text in ('{"a": 1}\n' + TINY, '{"log": "x"\n{"log": "y"}\n', '{}\n{"log": 1}\n', "[1]\n"):
        path.write_text(text)
        if "class" in text:
            assert listed(path) == [("GraphModule", "graph", 3)]
        else:
            with pytest.raises(InputError, match="no graph found"):
                list_graphs(path)


@pytest.mark.parametrize("indent", ["  ", "    ", " " * 12])
def test_graphs_that_are_indented(indent, tmp_path):
    """As in ``print(exported_program)``."""
    path = tmp_path / "program.txt"
    inside = "".join(indent + line + "\n" for line in TINY.splitlines())
    path.write_text(f"ExportedProgram:\n{inside}{indent}\nGraph signature:\n    # inputs\n    a: USER_INPUT\n\n")
    assert listed(path) == [("GraphModule", "graph", 3)]
    path.write_text(TINY + path.read_text() + TINY)
    assert [nodes for _, _, nodes in listed(path)] == [3, 3, 3]
