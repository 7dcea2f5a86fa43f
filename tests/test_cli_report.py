"""The renderers, on documents written by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from commcc.base.text import escaped
from commcc.report import converting, differing, inspecting, passes, rewriting, verifying
from commcc.report.console import Settings, make_console, make_table
from commcc.report.metrics import compare, costed_by, figures, rows, single


def drawn(*renderables, columns: int | None = None, monkeypatch=None) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    if columns is not None:
        console.width = columns
    for renderable in renderables:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


METRICS = {
    "nodes": 100,
    "compute_nodes": 10,
    "collectives": {"all_gather": 8, "reduce_scatter": 0},
    "bytes": {"all_gather": 2**20, "reduce_scatter": 0},
    "groups": {"dp": 6, "tp": 2},
    "max_consecutive_compute": {"all_gather": 3, "reduce_scatter": 10},
}


def test_metrics_leave_out_what_says_nothing():
    text = drawn(single(METRICS))
    assert "reduce_scatter" not in text  # none in the graph, so that its longest run is no figure
    assert "launches on group tp" in text
    assert "launches on group" not in drawn(single({**METRICS, "groups": {"dp": 8}}))


def test_changes_for_the_better_are_told_from_those_for_the_worse():
    old = {"step_ms": 10.0, "compute_ms": 5.0, "hidden_share": 0.25, "peak_bytes": 100, "in_flight_bytes": 7}
    new = {"step_ms": 9.0, "compute_ms": 6.0, "hidden_share": 0.2, "peak_bytes": 101, "in_flight_bytes": 7}
    found = {row.label: (row.change, row.better, row.delta.style) for row in rows(old, new)}
    assert found == {
        "step time": ("-10.0 %", True, "green"),
        "compute": ("+20.0 %", None, ""),
        "hidden share": ("-5.0 points", False, "red"),
        "peak memory": ("+1.0 %", False, "red"),
        "in flight, at most": ("=", None, "dim"),
    }
    assert [row[0] for row in figures(old, new)] == list(found)


def test_a_share_of_nothing_is_a_dash_beside_one_of_something():
    assert rows({"hidden_share": None}, {"hidden_share": None}) == []
    (row,) = rows({"hidden_share": None}, {"hidden_share": 0.0})
    assert (row.before, row.after, row.change, row.better) == ("-", "0.0 %", "", None)


def test_the_model_is_named_under_simulated_times():
    (line,) = costed_by(escaped({"cost_model": {"name": "h100\x1b[2J", "hash": "abc"}}))
    assert line.plain == "times simulated with h100\\x1b[2J, hash abc"
    assert costed_by({"cost_model": None}) == costed_by({}) == []
    made = {**RESULT, "cost_model": {"name": "h100", "hash": "abc", "sources": []}}
    assert "\ntimes simulated with h100, hash abc\n" in drawn(*rewriting.view(made))


def test_metrics_that_are_not_known_yet_get_a_row_in_their_unit():
    costed = {**METRICS, "step_ms": 12.3456, "hidden_share": 0.25, "peak_bytes": 2**30}
    text = drawn(compare(costed, {**costed, "step_ms": 10.0}))
    assert "step time" in text and "12.346 ms" in text and "10.000 ms" in text
    assert "25.0 %" in text and "1.0 GiB" in text


def test_compare_shows_kinds_that_only_one_graph_has():
    other = {**METRICS, "collectives": {"all_gather": 8, "broadcast": 2}}
    rows = drawn(compare(METRICS, other)).splitlines()
    (row,) = (line.split() for line in rows if line.startswith("broadcast launches"))
    assert row[2:] == ["0", "2", "new"]


STEP = {
    "name": "bucket",
    "options": "bucket{bucket_cap_mb=25}",
    "changed": True,
    "dropped": None,
    "seconds": 0.5,
    "report": {
        "primary_group": "dp",
        "buckets": 3,
        "members": 20,
        "by_kind": {"all_gather": {"buckets": 3, "members": 20}},
        "largest_span": 1234,
        "closed": {"bytes": 2, "span": 1, "dependence": 0, "max_consecutive": 0},
        "knobs": {
            "bucket_cap_mb": {"value": [10.0, 25.0], "fired": 2, "dormant": False},
            "max_topo_span": {"value": 1500, "fired": 0, "dormant": True},
        },
        "copies": 2,
        "shared_casts": 5,
        "reordered_buckets": 1,
        "left_out": {"all_gather: size depends on '...'": 7, "all_reduce: not of the groups": 2},
        "remarks": ["max_consecutive=4 cannot hold"],
    },
}
RESULT = {"before": METRICS, "after": METRICS, "passes": [STEP], "verified": "proved", "output": "o.fx.txt"}


def test_bucket_report():
    text = drawn(*rewriting.view(RESULT))
    for line in (
        "bucket{bucket_cap_mb=25}  0.50 s",
        "20 launches into 3 buckets",
        "2 for bytes, 1 for span",
        "1,234 nodes",
        "max_topo_span=1500 (never closed a bucket)",
        "7 x all_gather: size depends on '...'",
        "left out 9",
        "max_consecutive=4 cannot hold",
        "\nproved to be the same program\nwritten to o.fx.txt",
    ):
        assert line in text, text
    assert text.index("7 x") < text.index("2 x")
    assert "changed nothing" not in text


def test_report_of_a_pass_that_is_not_known():
    step = {**STEP, "changed": False, "report": {"tagged": {"fsdp.all_gather": 3}, "new": 1200, "names": [], "x": None}}
    text = drawn(*rewriting.view({**RESULT, "passes": [step], "verified": "unproved"}))
    assert "changed nothing" in text
    assert "tagged  fsdp.all_gather 3" in text
    assert "new     1,200" in text
    assert "NOT PROVED" in text


def finding(number: int) -> dict:
    return {"rule": "value", "node": f"mm_{number}", "text": "operand [bold]mat2[/] differs"}


def test_verdicts():
    checked = {"values": 1200, "findings": 70, "gaps": 0, "notes": 1}
    verdict = {"findings": [finding(i) for i in range(50)], "unproved": [], "notes": [finding(99)], "checked": checked}
    text = drawn(*verifying.view({"verified": "different", "verdict": verdict}))
    assert text.startswith("different: not the same program\ncompared 1,200 values\n")
    assert "differences: 70 (first 50)" in text
    assert "[bold]mat2[/]" in text  # names are not markup
    assert "harmless: 1" in text and "not decided" not in text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([0, 8, 16, 24], "0-24 step 8"),
        ([0, 1], "0,1"),
        ([5], "5"),
        ([0, 1, 3, 7, 9, 11, 13, 20, 21], "0,1,3,7,9,11,13,20,..."),
    ],
)
def test_ranks(ranks, text):
    group = {"name": "dp", "size": len(ranks), "ranks": ranks, "description": "shards"}
    group |= {"same_ranks_as": "tp", "origin": None}
    document = {
        "input": "g",
        "format": "pt2",
        "graph": METRICS,
        "primary": "dp",
        "groups": [{**group, "roles": {"fsdp": 2}, "kinds": {"all_gather": 2}, "wire_bytes": 10}],
        "collectives": [COLLECTIVE],
    }
    assert f"primary, shards, ranks {text}, same ranks as tp" in drawn(*inspecting.view(document, 5))


COLLECTIVE = {
    "name": "ag",
    "position": 3,
    "kind": "all_reduce",
    "group": "dp",
    "reduction": "avg",
    "dtype": "bfloat16",
    "wire_bytes": 2048,
    "role": "ddp",
    "evidence": "leads to output 3",
    "module": "layers.0",
    "merged_from": ["a", "b"],
}


def test_inspect_lists():
    document = {"input": "g", "format": "pt2", "graph": METRICS, "primary": None, "groups": [], "warnings": []}
    collectives = [{**COLLECTIVE, "name": f"ag_{i}", "position": i, "wire_bytes": i * 1024} for i in range(9)]
    text = drawn(*inspecting.view({**document, "collectives": collectives}, 2))
    assert "largest 2 of 9" in text and "ag_8" in text and "ag_7" in text and "ag_6" not in text
    assert "all_reduce avg" in text
    text = drawn(*inspecting.view({**document, "collectives": collectives}, None))
    assert all(f"ag_{i}" in text for i in range(9)) and "leads to output 3; merged from 2" in text
    assert "no collectives" in drawn(*inspecting.view({**document, "collectives": []}, 2))


def test_listing():
    document = {
        "input": "run.log",
        "graphs": [{"name": "a/fw", "graph": "run.log::a/fw", "kind": "forward", "nodes": 1200, "loadable": True}] * 2,
    }
    text = drawn(*inspecting.view_listing(document))
    other = {"name": "a/dynamo", "graph": "run.log::a/dynamo", "kind": "dynamo", "nodes": 5, "loadable": False}
    assert "dynamo, cannot be loaded" in drawn(
        *inspecting.view_listing({**document, "graphs": [other, *document["graphs"]]})
    )
    file = {**document["graphs"][0], "kind": "file"}
    assert "kind" not in drawn(*inspecting.view_listing({**document, "graphs": [file, file]})) and "kind" in text
    assert "run.log holds 2 graphs" in text and "1,200" in text and "commcc inspect run.log::a/fw" in text


def test_a_listed_step_that_lacks_sizes_says_so():
    timed = {"name": "a/fw", "graph": "g", "kind": "forward", "nodes": 2, "loadable": True, "step_ms": 1.5}
    graphs = [timed, {**timed, "name": "b/fw", "unknown_sizes": {"values": 3}}]
    text = drawn(*inspecting.view_listing({"input": "run.log", "graphs": graphs}))
    one, other = (line for line in text.splitlines() if "/fw " in line)
    assert ">=" not in one and ">= 1.500 ms" in other
    assert "lack sizes" in text and "--hint" in text


def test_conversion():
    notes = [{"text": "dropped", "node": f"n{i}"} for i in range(3)]
    document = {"output": "o.pt2", "nodes": 12, "lost": notes, "notes": []}
    lines = drawn(*converting.view(document)).splitlines()
    assert any(line.split() == ["dropped", "3", "n0"] for line in lines)
    assert "everything in the graph" in drawn(*converting.view({**document, "lost": []}))


def test_passes():
    option = {"name": "span", "type": "int", "default": 5, "choices": [], "none": "no limit", "help": "nodes"}
    document = {"passes": [{"name": "p", "summary": "does", "options": [option]}]}
    assert "Nodes. 'none': No limit." in drawn(*passes.detail(document))
    assert "span" in drawn(*passes.overview(document))
    assert "no options" in drawn(*passes.detail({"passes": [{"name": "p", "summary": "does", "options": []}]}))


def test_a_heading_may_be_wider_than_its_table():
    table = make_table("a heading that is much wider than the table", "a")
    table.add_row("1")
    assert drawn(table).splitlines()[0] == "a heading that is much wider than the table"


def test_narrow_terminals_cut_examples_not_names():
    merge = {
        "into": "reduce_scatter_bucket_0",
        "kind": "reduce_scatter",
        "group": "fsdp",
        "members": [f"reduce_scatter_tensor_{i}" for i in range(9)],
        "evidence": "record",
        "span": 1400,
        "launch_moved": [0, 1400],
        "wait_moved": None,
    }
    lists = "split", "replaced", "moved", "added", "removed", "renamed", "changed", "rewired", "retyped", "groups"
    empty = {key: [] for key in lists}
    document = {"identical": False, "before": METRICS, "after": METRICS, "merged": [merge], **empty}
    text = drawn(*differing.view(document, 10), columns=80)
    (row,) = (line for line in text.splitlines() if line.startswith("reduce_scatter_bucket_0"))
    assert len(row) <= 80 and "0..+1,400" in row


def test_ascii_where_the_stream_cannot_do_more():
    class Ascii(io.StringIO):
        encoding = "ascii"

    stream = Ascii()
    make_console(stream).print(single(METRICS))
    assert stream.getvalue().isascii()


def test_names_in_a_file_cannot_drive_the_terminal():
    evil = "dp\x1b[2J\x07\u202e"
    group = {"name": evil, "size": 2, "ranks": None, "description": evil, "same_ranks_as": evil, "origin": None}
    document = {
        "input": "g",
        "format": "pt2",
        "graph": METRICS,
        "primary": evil,
        "groups": [{**group, "roles": {"fsdp": 2}, "kinds": {"all_gather": 2}, "wire_bytes": 10}],
        "collectives": [{**COLLECTIVE, "group": evil, "module": evil, "evidence": evil}],
    }
    for top in (5, None):
        text = drawn(*inspecting.view(escaped(document), top))
        assert "dp\\x1b[2J\\x07\\u202e" in text
        assert all(line.isprintable() for line in text.splitlines())
    listed = {
        "input": "g",
        "graphs": [{"name": evil, "graph": evil, "kind": "joint", "nodes": 1, "loadable": True}] * 2,
    }
    text = drawn(*inspecting.view_listing(escaped(listed)))
    assert all(line.isprintable() for line in text.splitlines())


def test_a_long_name_leaves_room_for_numbers():
    table = make_table("", "name", "group", "time", numbers=("time",), whole=("name", "group"))
    table.add_text("a_name_" * 20, "0", "0.007 ms")
    printed = io.StringIO()
    Console(width=60, file=printed).print(table)
    assert "0.007 ms" in printed.getvalue()


@pytest.mark.parametrize("width", [60, 78])
def test_options_of_a_pass_are_folded_behind_an_option(width):
    table = make_table("", "after each pass", "step time", "exposed", numbers=("step time", "exposed"))
    table.add_text(
        Settings("bucket{strategy=auto,bucket_cap_mb=25,groups=all}  (no change)"), "796.017 ms", "305.016 ms"
    )
    printed = io.StringIO()
    Console(width=width, file=printed).print(table)
    lines = printed.getvalue().splitlines()[2:]
    assert "796.017 ms  305.016 ms" in lines[0]
    names = [line[: lines[0].index("796")].strip() for line in lines]
    assert "".join(names).replace(" ", "") == "bucket{strategy=auto,bucket_cap_mb=25,groups=all}(nochange)"
    assert len(names) > 1 and all(name.endswith(("{", ",", "}", ")")) for name in names)
    assert any(name.endswith("(no change)") for name in names)


def test_names_are_folded_between_their_parts():
    table = make_table("", "op", "for example", "count", numbers=("count",))
    table.add_text("_c10d_functional.all_gather_into_tensor_coalesced", "all_gather_a_b, all_gather_c", "17")
    printed = io.StringIO()
    Console(width=50, file=printed).print(table)
    lines = printed.getvalue().splitlines()[2:]
    place = lines[0].index("all_gather")
    names = [line[:place].strip() for line in lines]
    assert names[0] == "_c10d_functional." and "".join(names) == "_c10d_functional.all_gather_into_tensor_coalesced"
    assert all(name.endswith(("_", ".")) for name in names[:-1] if name)
    assert [line[place:-5].strip() for line in lines[:2]] == ["all_gather_a_b,", "all_gather_c"]


def test_what_matters_least_gives_way_first():
    table = make_table("", "name", "size", "time", "module", numbers=("size", "time"), whole=("name",))
    table.spare = ("size",)
    table.add_text("reduce_scatter_tensor_290", "220.5 MiB", "7.171 ms", "layers.31.feed_forward.w2")
    for width in (80, 70):
        printed = io.StringIO()
        Console(width=width, file=printed).print(table)
        assert "layers.31.feed_forward.w2" in printed.getvalue() and "7.171 ms" in printed.getvalue()
        assert ("220.5 MiB" in printed.getvalue()) == (width == 80)
        assert ("too narrow for size" in printed.getvalue()) == (width == 70)


def test_numbers_without_room_are_left_out_whole():
    names = ("step time", "exposed", "peak memory", "max consecutive")
    table = make_table("", "after each pass", *names, numbers=names)
    table.add_text(Settings("cleanup{metadata=keep}"), "796.017 ms", "305.016 ms", "53.3 GiB", "3")
    for width, left_out in ((90, None), (60, "max consecutive"), (50, "peak memory, max consecutive")):
        printed = io.StringIO()
        Console(width=width, file=printed).print(table)
        assert "metadata=keep}" in printed.getvalue() and "\u2026" not in printed.getvalue()
        said = f"too narrow for {left_out}\n" if left_out else "\n"
        assert printed.getvalue().endswith(said)
        assert ("53.3 GiB" in printed.getvalue()) == (width > 50)
        assert all(len(line) <= width for line in printed.getvalue().splitlines())
