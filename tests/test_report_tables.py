"""The pages of ``diff`` and ``lint``, and the list of several graphs, in a real browser: what they show and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commcc.cli.main import run
from commcc.report.diff_page import write_html as diff_html
from commcc.report.lint_page import write_html as lint_html
from commcc.report.list_page import write_html as list_html
from tests.page_driver import needs_browser, text_of
from tests.report_pages import SAMPLES
from tests.test_cli_commands import FSDP, document, files, ok, output, refused

HARMFUL = "</script><img src=x onerror=window.harmed=1>"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.fx.txt").write_text(FSDP)
    return tmp_path / "g.fx.txt"


@pytest.fixture
def folder(graph) -> Path:
    (graph.parent / "dumps").mkdir()
    for name in ("rank1", "rank0", "rank10"):
        (graph.parent / "dumps" / f"{name}.fx.txt").write_text(FSDP)
    return graph.parent / "dumps"


def diff_document(capsys, graph: Path) -> dict:
    ok("run", graph, "--passes", "tag,bucket{groups=all},reorder", "-o", "o.fx.txt")
    output(capsys)
    ok("diff", "g.fx.txt", "o.fx.txt", "--html", "d.html", "--json")
    return document(capsys)


def harmless(shown, path: Path, text: str) -> None:
    """The page holds a harmful name as text, and nothing of it as markup."""
    path.write_text(text)
    assert HARMFUL not in text and text.count("<script") == 2
    page = shown(path)
    assert page.data("errors") is None and page.data("ready") == "yes"
    assert page.evaluate("window.harmed") is None and page.evaluate("document.images.length") == 0


def fits(shown) -> bool:
    return bool(shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def rows(shown, selector: str) -> list[list[str]]:
    cells = "[...row.cells].map((cell) => cell.textContent)"
    return shown.evaluate(f"[...document.querySelectorAll('{selector} tbody tr')].map((row) => {cells})")


@needs_browser
def test_diff(graph, capsys, browser):
    doc = diff_document(capsys, graph)
    assert doc["html"] == "d.html" and doc["merged"] and doc["added"]
    shown = browser.open(Path("d.html"), size=(420, 900))
    assert fits(shown)
    shown = browser.open(Path("d.html"), size=(1400, 900), dark=True)
    assert shown.data("errors") is None and fits(shown)
    assert text_of(shown, "h1") == "g.fx.txt \u2192 o.fx.txt"
    assert [row[0] for row in rows(shown, "#merged")] == [merge["into"] for merge in doc["merged"]]
    assert len(rows(shown, "#ops")) == len(doc["added"]) + len(doc["removed"])
    assert f"from {doc['before']['nodes']}" in text_of(shown, ".card[data-key=nodes]")
    shown.evaluate("document.querySelector('#merged button.link').click()")
    shown.settle()
    assert shown.data("chosen") == "0"
    shown.evaluate("document.querySelector('#changes-tools input').focus()")
    shown.type(doc["merged"][0]["into"] + " all-gather")  # of the kind no other table says anything
    assert [row[0] for row in rows(shown, "#merged")] == [doc["merged"][0]["into"]]
    assert shown.evaluate("document.querySelector('#ops').hidden")


@needs_browser
@pytest.mark.full
def test_diff_of_equal_graphs_and_of_harmful_names(graph, capsys, browser):
    from commcc.diff import diff
    from commcc.serialization import load

    ok("diff", "g.fx.txt", "g.fx.txt", "--html", "d.html")
    assert "page written to d.html" in output(capsys)
    shown = browser.open(Path("d.html"))
    assert "The same nodes in the same order." in text_of(shown, "#verdict")
    assert shown.evaluate("document.querySelector('#picture').hidden")
    doc = diff_document(capsys, graph)
    result = diff(load("g.fx.txt"), load("o.fx.txt"))
    assert "html" in doc and diff_html(doc, result) == Path("d.html").read_text()  # the same to the byte
    for key in ("moved", "removed", "added"):
        for item in doc[key]:
            item["op"] = HARMFUL
    doc["rewired"] = [HARMFUL]
    harmless(browser.open, Path("h.html"), diff_html(doc, result))


def lint_document(capsys, graph: Path, *more: str) -> dict:
    run(["lint", str(graph), "--html", "l.html", "--json", *more])
    return document(capsys)


@needs_browser
def test_lint(folder, capsys, browser):
    (folder / "broken.fx.txt").write_text("nothing")
    doc = lint_document(capsys, folder, "--rule", "collective-count.max.all_gather=1")
    total = sum(len(outcome["findings"]) for graph in doc["graphs"] for outcome in graph["rules"])
    assert doc["html"] == "l.html" and doc["counts"]["error"] and total > doc["counts"]["error"]
    shown = browser.open(Path("l.html"), size=(420, 900))
    assert fits(shown)
    shown = browser.open(Path("l.html"), dark=True)
    assert shown.data("errors") is None and fits(shown)
    assert text_of(shown, "#verdict").startswith("Failed: 4 graphs")
    assert "broken.fx.txt" in text_of(shown, "#unread-list")
    assert int(shown.data("shown")) == total + sum(len(outcome["findings"]) for outcome in doc["across"])
    shown.evaluate("document.querySelector('#findings-tools .toggle[data-key=error]').click()")
    assert int(shown.data("shown")) == total - doc["counts"]["error"]
    shown.evaluate("document.querySelector('#graphs-table button.link').click()")
    names = {row[2] for row in rows(shown, "#findings-table")}
    assert len(names) <= 1
    assert {row[0] for row in rows(shown, "#rules-table")} >= {"collective-count", "wait-after-launch"}


@needs_browser
@pytest.mark.full
def test_lint_without_findings_and_with_harmful_names(graph, capsys, browser):
    doc = lint_document(capsys, graph, "--only", "rank-agreement")
    shown = browser.open(Path("l.html"))
    assert text_of(shown, "#verdict").startswith("Passed") and "Nothing was found." in text_of(shown, "#findings-table")
    doc = lint_document(capsys, graph)
    for outcome in doc["graphs"][0]["rules"]:
        for finding in outcome["findings"]:
            finding["text"], finding["remedy"], finding["details"] = HARMFUL, HARMFUL, [HARMFUL]
            for spot in finding["nodes"]:
                spot["node"] = spot["module"] = HARMFUL
                spot["line"] = 17561
    doc["graphs"][0]["graph"] = HARMFUL
    harmless(browser.open, Path("h.html"), lint_html(doc))
    assert "line 17561" in text_of(browser.open(Path("h.html")), "#findings-table")


@needs_browser
def test_list_of_several(folder, capsys, browser):
    (folder / "broken.fx.txt").write_text("nothing")
    assert run(["simulate", "dumps", "--html", "list.html", "--json"]) == 2  # what cannot be read is said at the end
    doc = document(capsys)
    assert [graph["name"] for graph in doc["graphs"]] == ["broken.fx.txt", *(f"rank{n}.fx.txt" for n in (0, 1, 10))]
    assert doc["graphs"][0]["error"] == "no graph found in this text" and doc["graphs"][0]["page"] is None
    shown = browser.open(Path("list.html"), size=(420, 900))
    assert fits(shown)
    shown = browser.open(Path("list.html"), dark=True)
    assert shown.data("errors") is None and fits(shown)
    pages = shown.evaluate("[...document.querySelectorAll('#graphs-table a')].map((a) => a.getAttribute('href'))")
    assert pages == [graph["page"] for graph in doc["graphs"][1:]]
    assert [row[1] for row in rows(shown, "#graphs-table")] == [
        str(sum(graph["metrics"]["collectives"].values())) for graph in doc["graphs"][1:]
    ]
    assert "broken.fx.txt: no graph found" in text_of(shown, "#unread-list")
    one = browser.open(Path(pages[0]))
    assert one.data("errors") is None and "rank0.fx.txt" in text_of(one, "h1")


@needs_browser
def test_all_figures_of_a_list_are_in_sight_on_a_telephone(folder, browser):
    ok("simulate", "dumps", "--html", "list.html", "-q")
    wide = browser.open(Path("list.html"))
    heads = wide.evaluate(
        "[...document.querySelectorAll('#graphs-table th[scope=col]')].map((e) => e.innerText).filter(Boolean)"
    )
    shown = browser.open(Path("list.html"), size=(390, 900))
    assert shown.evaluate("[...document.querySelectorAll('.scroll')].every((b) => b.scrollWidth <= b.clientWidth)")
    labels = """[...document.querySelector('#graphs-table tbody tr').cells].map(
        (cell) => getComputedStyle(cell, '::before').content).filter((text) => text !== 'none')"""
    assert [json.loads(label) for label in shown.evaluate(labels)] == heads[1:]


@needs_browser
def test_names_of_files_break_at_their_parts(folder, browser):
    name = "a_backward_graph_of_many_parts_under_fsdp64_and_tp8.fx.txt"
    (folder / "rank0.fx.txt").rename(folder / name)
    ok("simulate", "dumps", "--html", "list.html", "-q")
    shown = browser.open(Path("list.html"), size=(700, 900))
    assert shown.evaluate("[...document.querySelectorAll('.scroll')].every((b) => b.scrollWidth <= b.clientWidth)")
    lines = """(() => {
        const cell = document.querySelector('#graphs-table a'), tops = new Map(), range = document.createRange();
        for (const part of [...cell.childNodes].filter((node) => node.data))
            for (let k = 0; k < part.length; k++) {
                range.setStart(part, k); range.setEnd(part, k + 1);
                const { top } = range.getBoundingClientRect();
                tops.set(top, (tops.get(top) ?? "") + part.data[k]);
            }
        return [...tops.values()];
    })()"""
    parts = shown.evaluate(lines)
    assert "".join(parts) == name and len(parts) > 1
    assert all(part[-1] in "_." for part in parts[:-1])


def test_list_is_for_several(folder, capsys):
    ok("simulate", "g.fx.txt", "--html", "one.html", "-q")
    assert "step" in output(capsys) and not Path("one").exists()
    ok("simulate", "dumps", "--html", "all.html", "--passes", "tag,bucket", "-q")
    assert output(capsys).splitlines() == [f"all/00{k}-rank{n}.fx.txt.html" for k, n in ((1, 0), (2, 1), (3, 10))]
    assert "name one of those" in refused(capsys, "simulate", "dumps", "--html", "x.html", "--trace", "x.json")
    Path("taken").write_text("")
    assert "is a file" in refused(capsys, "simulate", "dumps", "--html", "taken.html")
    assert "x.html" not in files(Path()) and "taken.html" not in files(Path())
    doc = {
        "cost_model": None,
        "graphs": [{"name": HARMFUL, "error": HARMFUL, "page": None, "metrics": None, "before": None}],
    }
    text = list_html(doc, HARMFUL)
    assert HARMFUL not in text and text.count("<script") == 2 and json.dumps(HARMFUL)[1:-1] not in text


@needs_browser
@pytest.mark.full
def test_pages_of_a_production_graph(tmp_path, capsys, browser, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample = SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"
    ok("run", sample, "--passes", "tag,bucket,reorder", "-o", "o.fx.txt")
    ok("diff", sample, "o.fx.txt", "--html", "d.html", "--quiet")
    run(["lint", str(sample), "--html", "l.html"])
    output(capsys)
    for name in ("d.html", "l.html"):
        for width in (400, 1900):
            shown = browser.open(Path(name), size=(width, 900))
            assert shown.data("errors") is None and fits(shown)
            assert name == "l.html" or len(rows(shown, "#moved")) == 25
