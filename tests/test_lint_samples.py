"""The gate on real graphs: healthy ones have no errors, every limit fires, and passes make what they are for better."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from commcc.lint import RULES, Settings, Severity, Task, lint
from commcc.lint.expand import Item
from commcc.lint.reading import layers_of
from commcc.lint.running import Run
from commcc.passes.options import parse_pipeline
from commcc.report import linting
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.random_graphs import random_program

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.lint import Report
    from commcc.timing.cost import CostModel

SAMPLES = [
    f"sample_graphs/tiny_{name}"
    for name in ("llama_fsdp2_fw.pt2", "llama_ddp_bw.fx.txt.gz", "llama_hsdp_bw.fx.txt.gz", "moe_ep2_fw.fx.txt.gz")
]
LIMITS = {
    "collective-count": "max=0",
    "collective-bytes": "max=0",
    "max-consecutive-compute": "max.all_gather=0",
    "step-time": "max=0 ns",
    "exposed-communication": "max=0 ns",
    "bound-gap": "max=0",
    "peak-memory": "max=0",
    "in-flight-bytes": "max=0",
    "module-plan": "modules=nowhere",
    "topological-span": "max=0",
}


@pytest.fixture(scope="module")
def model():
    return load_model("h100")


def strict() -> Settings:
    return Settings(layers_of(f"{rule}.{option}" for rule, option in LIMITS.items()))


def found(report, graph: str | None = None) -> dict[str, int]:
    """Findings by rule."""
    counts = {}
    for result in report.results:
        for outcome in result.outcomes if graph in (None, result.graph) else ():
            counts[outcome.rule] = counts.get(outcome.rule, 0) + len(outcome.findings)
    return counts


def test_samples_have_no_errors(model):
    report = lint(SAMPLES, Settings(), Task(model))
    assert len(report.results) == len(SAMPLES)
    assert not report.failed and not report.unread
    assert report.count(Severity.WARNING) > 50


def test_the_heaviest_findings_come_first(model):
    report = checked(load("sample_graphs/tiny_llama_fsdp4_bw.fx.txt.gz"), Settings(), model)
    weights = [[finding.weight for finding in outcome.findings] for outcome in report.outcomes]
    assert weights == [sorted(each, reverse=True) for each in weights]
    assert max(len(set(each)) for each in weights) > 3


def test_every_limit_fires_on_a_sharded_backward(model):
    graph = "sample_graphs/tiny_llama_fsdp4_bw.fx.txt.gz"
    counts = found(lint([graph], strict(), Task(model)))
    silent = [rule for rule in LIMITS if not counts[rule] and rule != "topological-span"]
    assert silent == []
    assert set(LIMITS) == {rule.id for rule in RULES if rule.needs}


@pytest.mark.full
def test_what_a_finding_advises_helps(model):
    """Bucketing leaves no small collectives, reordering fewer waits directly after launches."""
    program = load("sample_graphs/tiny_llama_fsdp4_bw.fx.txt.gz")
    better = run(program, parse_pipeline("bucket{bucket_cap_mb=0.02},reorder"), model=model).program
    before, after = (found(checked(each, Settings(), model)) for each in (program, better))
    assert before["small-collective"] and before["wait-after-launch"] == 41
    assert after["small-collective"] == 0
    assert after["wait-after-launch"] < 10


def checked(program: Program, settings: Settings, model: CostModel) -> Report:
    run_of_rules = Run(settings, Task(model, load=lambda _: program))
    run_of_rules.add(Item("graph"))
    return run_of_rules.report()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, model):
    """No rule fails on them, whatever they are, and what is said is the same every time."""
    documents = [json.dumps(linting.document(checked(random_program(seed), strict(), model))) for _ in range(2)]
    assert documents[0] == documents[1]
    assert json.loads(documents[0])["graphs"][0]["error"] is None
