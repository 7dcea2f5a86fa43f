"""The page of ``simulate --html`` as text: its data, its safety, its size. What it does is in test_report_page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from commcc.base.text import escaped, one_line
from commcc.graph.memory import live_bytes
from commcc.report import diff_page, lint_page, list_page, simulation_page, sweeping
from commcc.report.simulation_page import FAMILIES, side, slack, write_html
from commcc.timing.predict import Prediction
from commcc.timing.simulate import Simulator, lower_bound
from tests.index_maker import IndexMaker, Shape, random_maker
from tests.report_pages import HARMFUL, data_of, data_text, harmful_side, page, predicted, sides

SOURCES = Path(simulation_page.__file__).parent / "html"
SAMPLE = "tiny_llama_fsdp2_tp2_bw"


def of_maker(make, **costs):
    index = make.index()
    prices = make.costs(**costs)
    return index, Prediction(prices, Simulator(index, prices).run(), live_bytes(index), lower_bound(index, prices))


def test_columns_give_the_timeline_back():
    index, ident, prediction = predicted(SAMPLE)
    made = side(index, ident, prediction, "graph").to_json()
    nodes, timeline = made["nodes"], prediction.timeline
    order = timeline.order
    assert nodes["name"] == [index.names[node] for node in order]
    ends = list(accumulate(gap + ns for gap, ns in zip(nodes["gap"], nodes["ns"], strict=True)))
    assert ends == [timeline.end[node] for node in order]
    assert [end - ns for end, ns in zip(ends, nodes["ns"], strict=True)] == [timeline.start[node] for node in order]
    assert tuple(accumulate(nodes["live"])) == prediction.memory.live
    assert tuple(accumulate(nodes["in_flight"])) == timeline.in_flight
    ops = [nodes["op"]["table"][number] for number in nodes["op"]["column"]]
    assert ops == [index.ops[node] for node in order]
    tail = timeline.step_ns - max(ends)
    assert sum(nodes["stall"][1]) + tail == timeline.exposed_ns > 0
    assert made["step"] == timeline.step_ns
    assert {"busiest stream", "group streams, heads and tails"} < set(made["bound"]["parts"])
    assert made["bound"]["name"] in made["bound"]["parts"]
    assert nodes["name"][made["peak"]] == index.names[prediction.memory.peak_at]
    assert made["metrics"]["step_ms"] == timeline.step_ns / 1e6
    assert made["metrics"]["nodes"] == len(index)


def test_collectives_are_those_of_the_timeline():
    index, ident, prediction = predicted(SAMPLE)
    made = side(index, ident, prediction, "graph")
    assert len(made.collectives) == len(ident.collectives) == len(prediction.timeline.spans) > 20
    for row in made.collectives:
        launch = prediction.timeline.order[row.node]
        span, known = prediction.timeline.spans[launch], ident.by_launch[launch]
        assert (row.queued, row.start, row.end, row.stream) == (span.queued_at, span.start, span.end, span.stream)
        assert (row.kind, row.role, row.group, row.bytes) == (known.kind, known.role, known.group, known.wire_bytes)
        assert row.exposed == prediction.timeline.exposed.get(launch, 0)
        assert [made.nodes.name[wait] for wait in row.waits] == [index.names[wait] for wait in known.waits]
        assert made.nodes.family[row.node] == FAMILIES.index("launch")
    assert sum(row.exposed for row in made.collectives) == prediction.timeline.exposed_ns


@pytest.mark.full
def test_families_by_op():
    made, _ = sides("llama3_8b_fsdp64_bw")
    found = {}
    for op, family in zip(made.nodes.op.column, made.nodes.family, strict=True):
        found.setdefault(made.nodes.op.table[op], set()).add(FAMILIES[family])
    assert found["aten.mm"] == {"matmul"}
    assert found["aten.mul"] == {"pointwise"}
    assert found["aten.view"] == {"nothing"}
    assert found["_c10d_functional.wait_tensor"] == {"wait"}
    assert [families for op, families in found.items() if "attention" in op] == [{"attention"}]
    assert found["_c10d_functional.all_gather_into_tensor"] == {"launch"}


def test_merged_collectives_name_their_members():
    before, after = sides(SAMPLE)
    names = set(before.nodes.name)
    merged = [row for row in after.collectives if row.merged]
    assert merged
    assert all(member in names for row in merged for member in row.merged)
    assert not any(row.merged for row in before.collectives)


def test_slack_by_hand():
    make = IndexMaker()
    source = make.op(5, make.input())
    early = make.op(7)
    launch = make.launch(50, "dp", make.view(source))
    make.op(11)
    wait = make.wait(make.view(launch))
    user = make.op(3, make.view(wait))
    index, prediction = of_maker(make)
    assert slack(index, prediction) == {launch: (source, user)}
    assert early not in slack(index, prediction)[launch]


def test_slack_when_nothing_is_there():
    make = IndexMaker()
    launch = make.launch(5, "dp", make.view(make.input()))
    make.wait(launch)
    index, prediction = of_maker(make)
    assert slack(index, prediction) == {launch: (None, None)}


@pytest.mark.parametrize("seed", range(60))
def test_slack_against_all_ancestors(seed: int):
    """ready: the last timed ancestor; needed: among all that follow by data, the first that acts."""
    make = random_maker(seed, Shape(nodes=14))
    index, prediction = of_maker(make)
    launches = index.launches

    def acts(node):
        synchronous = node in launches and not launches[node].asynchronous
        return node in index.wait_of or synchronous or (node not in launches and prediction.costs.ns[node] > 0)

    above = []
    for node in range(len(index)):
        above.append({x for p in index.preds(node) for x in (p, *above[p])})
    for launch, (ready, needed) in slack(index, prediction).items():
        assert ready == max((x for x in above[launch] if acts(x)), default=None)
        below = first_that_act(index, launches[launch].waits or (launch,), lambda n: acts(n) or n in launches)
        assert needed == min(below, default=None)


def first_that_act(index, nodes, acts):
    """Users of the nodes that act, those that do not looked through."""
    users = [user for node in nodes for user in index.users[node]]
    passive = [user for user in users if not acts(user)]
    return [user for user in users if acts(user)] + (first_that_act(index, passive, acts) if passive else [])


def test_the_same_to_the_byte():
    index, ident, prediction = predicted(SAMPLE)
    twice = [page([side(index, ident, prediction, "graph")]) for _ in range(2)]
    assert twice[0] == twice[1]


def test_one_page_holds_everything():
    text = page(sides(SAMPLE))
    assert text.isascii()
    assert "{{" not in text.replace(data_text(text), "")
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", text)
    assert not re.search(r"https?://|@import|url\(", text)
    made = data_of(text)
    assert [len(each["nodes"]["name"]) for each in made["sides"]] == [len(each.nodes.name) for each in sides(SAMPLE)]
    assert made["sides"] == [each.to_json() for each in sides(SAMPLE)]


def test_policy_lets_only_this_script_run():
    text = page(sides(SAMPLE))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    style = re.search(r"<style>(.*)</style>", text, re.DOTALL)[1]
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:"
    )


def test_scripts_make_no_markup_of_text():
    """The scripts of all pages: each is in one, and none of them can make markup or load anything."""
    folder = SOURCES.parent
    scripts = {str(path.relative_to(folder)): path.read_text() for path in folder.glob("html*/*.js")}
    pages = (simulation_page, diff_page, lint_page, list_page, sweeping)
    assert set(scripts) == {name for each in pages for name in each.PAGE.scripts}
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp|import\("
    for name, text in scripts.items():
        assert not re.search(banned, text), name
        assert text.isascii(), name
        assert text.startswith("// "), f"{name} does not say what it does"
        assert text.count("\n") <= 400, name
        assert max(map(len, text.splitlines())) <= 180, name


def test_harmful_names_stay_data():
    made = harmful_side()
    text = page([made], title=HARMFUL[0], options={HARMFUL[0]: HARMFUL[1]}, explanations=[{"name": HARMFUL[0]}])
    assert not set("<>&") & set(data_text(text))
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    back = data_of(text)
    assert back["title"] == one_line(HARMFUL[0])
    assert back["options"] == {one_line(HARMFUL[0]): one_line(HARMFUL[1])}
    assert back["sides"][0] == escaped(made.to_json())
    assert "<title>&lt;/script&gt;&lt;img src=x" in text


def test_figures_are_those_of_all_reports():
    rows = {label: rest for label, *rest in data_of(page(sides(SAMPLE)))["figures"]}
    before, after = (each.metrics for each in sides(SAMPLE))
    assert rows["nodes"][:2] == [f"{before['nodes']:,}", f"{after['nodes']:,}"]
    step = next(rest for label, rest in rows.items() if label.startswith("step"))
    assert step[:2] == [f"{before['step_ms']:,.3f} ms", f"{after['step_ms']:,.3f} ms"]


@pytest.mark.parametrize("count", [0, 3])
def test_one_side_or_two(count: int):
    with pytest.raises(ValueError, match=f"not {count}"):
        write_html(list(sides(SAMPLE)[:1]) * count, title="", options={}, explanations=[])


@pytest.mark.full
def test_a_production_page_is_small():
    text = page(sides("llama3_8b_fsdp64_bw"))
    assert len(text) < 3_000_000
    assert sum(len(each.nodes.name) for each in sides("llama3_8b_fsdp64_bw")) > 17_000


def test_a_graph_without_collectives():
    make = IndexMaker()
    make.op(3, make.input(8), size=4)
    index, prediction = of_maker(make)
    from commcc.graph.collectives import Identification

    made = side(index, Identification((), (), None), prediction, "graph")
    assert data_of(page([made]))["sides"][0]["metrics"]["hidden_share"] is None


def test_sources_travel_with_the_package():
    assert re.search(r'"?report/html/\*"?', (SOURCES.parents[2] / "pyproject.toml").read_text())


def test_no_torch_for_a_page():
    code = (
        "import sys; from commcc.report import page, simulation_page; "
        "page._source('html/shell.html'); assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_script_is_valid_json_free_of_surprises():
    """The data survives a reader that is not ours."""
    text = data_text(page(sides(SAMPLE)))
    assert json.dumps(json.loads(text), separators=(",", ":")) == text.replace("\\u003c", "<").replace(
        "\\u003e", ">"
    ).replace("\\u0026", "&")
