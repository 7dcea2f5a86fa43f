"""Pages of ``simulate --html`` for tests: sides of sample graphs, and of graphs with names made to do harm."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.options import parse_pipeline
from commcc.report.simulation_page import side, write_html
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.predict import Prediction, predict
from commcc.timing.simulate import Simulator

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
HARMFUL = (
    '</script><img src=x onerror="window.harmed=1">',
    "<!--<script>",
    "]]>'\"&amp;<b>",
    "\u2028\ud800\x00 é",
    "__proto__",
    "{{data}}",
)


@cache
def predicted(sample, passes=""):
    """(index, identification, prediction) of a sample, after the passes."""
    program = load(str(SAMPLES / f"{sample}.fx.txt.gz"))
    if passes:
        program = run(program, parse_pipeline(passes)).program
    index = build_index(program)
    return index, identify(index), predict(index, load_model("h100"))


@cache
def sides(sample, passes="tag,bucket{groups=all}"):
    """The sample before and after the passes."""
    return side(*predicted(sample), "before"), side(*predicted(sample, passes), "after")


def page(shown, **more):
    given = {"title": "a graph", "options": {"cost": "h100"}, "explanations": [], **more}
    return write_html(shown, **given)


def harmful_side(sample="tiny_llama_fsdp2_bw", label="before"):
    """A side whose nodes, modules, groups and warnings have harmful names."""
    index, ident, prediction = predicted(sample)
    names = list(index.names)
    modules = list(index.modules)
    launches = list(index.launches)
    for k, harm in enumerate(HARMFUL):
        for node in (launches[k], launches[k] + 1, index.launches[launches[k]].waits[0]):
            names[node] = f"{harm}{node}"
            modules[node] = harm
    index = replace(index, names=tuple(names), modules=tuple(modules), warnings=HARMFUL)
    groups = tuple(replace(group, description=HARMFUL[0]) for group in ident.groups)
    return side(index, replace(ident, groups=groups), prediction, label)


def in_order(index, prediction, order):
    """The same costs in another legal order; the memory stays that of the graph's own."""
    return Prediction(
        prediction.costs, Simulator(index, prediction.costs).run(order), prediction.memory, prediction.bound
    )


def data_text(text):
    """The data of a page as it stands in it."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return found


def data_of(text):
    return json.loads(data_text(text))
