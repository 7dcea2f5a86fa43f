"""Writes plan files; see :mod:`commcc.run.planfile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc import __version__
from commcc.run.planfile.fields import encode_plan

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.run.pipeline import RunResult

VERSION = 1
#: Nodes whose digests stand on one line behind the number of the first, four hexadecimal digits each.
NODES_A_LINE = 25

_HEAD = """\
# What commcc decided; review it, keep it, and apply it to the same graph again:
#   commcc run GRAPH --plan FILE
"""


def plan_text(result: RunResult) -> str:
    """The plans of a finished run as YAML; steps that were dropped or changed nothing are listed without edits."""
    from commcc.base.yaml_text import dump

    graphs: dict[str, Json] = {}
    passes: list[Json] = []
    for step in result.steps:
        index = step.before.index
        starts = range(0, len(index), NODES_A_LINE)
        lines: list[Json] = [f"{at} {index.digests[2 * at : 2 * (at + NODES_A_LINE)].hex()}" for at in starts]
        edits = encode_plan(step.plan, index.names) if step.dropped is None else {"dropped": step.dropped}
        told: dict[str, Json] = {"pass": step.options_text, "name": step.name, "graph": step.plan.fingerprint}
        passes.append({**told, **edits, "options": dict(step.options), "report": step.report})
        graphs[index.fingerprint] = {"fingerprint": index.fingerprint, "nodes": len(index), "digests": lines}
    costs = None if result.first.prediction is None else result.first.prediction.costs
    data: dict[str, Json] = {
        "commcc_plan": VERSION,
        "commcc": __version__,
        "cost_model": None if costs is None else {"name": costs.model, "hash": costs.hash},
        "passes": passes,
        "graphs": list(graphs.values()),
    }
    return _HEAD + dump(data)
