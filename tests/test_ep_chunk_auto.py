"""chunks=auto: the simulator compares two and four chunks with none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commcc.base.errors import InputError, OptionError
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.ep_schedule import EpSchedule
from commcc.passes.options import parse_pipeline, to_text
from commcc.report.pass_lines import lines
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from commcc.timing.cost.types import Price
from tests.step_graphs import sample

AUTO = EpChunk(chunks="auto")


class Bytes:
    """Ops cost so much a byte, all-to-alls too and a latency each; other collectives cost nothing."""

    name = "bytes"
    warnings = ()

    def __init__(self, op_ns, exchange_ns, latency_ns):
        self.op_ns, self.exchange_ns, self.latency_ns = op_ns, exchange_ns, latency_ns

    def facts(self):
        return [self.op_ns, self.exchange_ns, self.latency_ns]

    def operation(self, operation):
        return Price((operation.read_bytes + operation.written_bytes) * self.op_ns, "bytes")

    def transfer(self, transfer):
        if transfer.kind.value != "all_to_all":
            return Price(0, "bytes", 0)
        return Price(self.latency_ns + transfer.full_bytes * self.exchange_ns, "bytes", self.latency_ns)


def model_of(*figures):
    model = load_model("h100,launch_us=0")
    return replace(model, sources=(Bytes(*figures), *model.sources))


def chosen(model):
    step = run(sample("tiny_deepseek_ep2"), [AUTO], model=model).steps[0]
    return step, step.report["tried_ms"]


@pytest.mark.full
def test_exchanges_as_long_as_compute_are_cut():
    step, tried = chosen(model_of(1, 100, 0))
    assert step.report["chunks"] in (2, 4)
    assert tried[str(step.report["chunks"])] == min(tried.values()) < tried["1"]
    assert {len(region.sizes) for region in step.plan.rewrite.chunked} == {step.report["chunks"]}


@pytest.mark.full
def test_latency_alone_is_not_cut():
    step, tried = chosen(model_of(0, 0, 100_000))
    assert step.report["chunks"] == 1
    assert not step.changed
    assert min(tried.values()) == tried["1"]


@pytest.mark.full
def test_where_nothing_is_cut_there_is_nothing_to_order():
    """The rest of the pipeline goes on; without ep-chunk a graph that is not chunked stays an error."""
    result = run(sample("tiny_deepseek_ep2"), [AUTO, EpSchedule()], model=model_of(0, 0, 100_000))
    assert not result.changed
    (remark,) = result.steps[1].report["remarks"]
    assert "chunks do not pay" in remark and dict(lines("ep-schedule", result.steps[1].report)) == {"remark": remark}
    assert any(label == "steps" and "taken: 1" in text for label, text in lines("ep-chunk", result.steps[0].report))
    with pytest.raises(InputError, match="run ep-chunk first"):
        run(sample("tiny_deepseek_ep2"), [EpChunk(chunks=1), EpSchedule()])


def test_without_costs_there_is_nothing_to_choose_by():
    with pytest.raises(OptionError, match="chunks=auto needs a cost model"):
        run(sample("tiny_deepseek_ep2"), [AUTO])


def test_as_text():
    assert parse_pipeline("ep-chunk{chunks=auto}") == [AUTO]
    assert to_text(AUTO) == "ep-chunk{chunks=auto}"
