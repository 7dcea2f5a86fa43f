"""Writes plan files; see :mod:`commcc.run.planfile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc import __version__
from commcc.graph.structure import structure_of
from commcc.run.planfile.fields import encode_plan

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.run.pipeline import RunResult

VERSION = 1
#: Names of nodes on one line.
NAMES_A_LINE = 10
#: Nodes whose digests stand on one line behind the number of the first, four hexadecimal digits each.
NODES_A_LINE = 25

_HEAD = """\
# What commcc decided; review it, keep it, and apply it to the same graph again:
#   commcc run GRAPH --plan FILE
#   torch.compile(model, backend=commcc.backend(plan="FILE"))
"""


def plan_text(result: RunResult) -> str:
    """The plans of a finished run as YAML; steps that were dropped or changed nothing are listed without edits."""
    from commcc.base.yaml_text import dump

    graphs: dict[str, Json] = {}
    passes: list[Json] = []
    for step in result.steps:
        index = step.before.index
        edits = encode_plan(step.plan, index.names) if step.dropped is None else {"dropped": step.dropped}
        told: dict[str, Json] = {"pass": step.options_text, "name": step.name, "graph": step.plan.fingerprint}
        passes.append({**told, **edits, "options": dict(step.options), "report": step.report})
        graphs[index.fingerprint] = {
            "fingerprint": index.fingerprint,
            "nodes": len(index),
            "digests": _digests(index.digests),
        }
    costs = None if result.first.prediction is None else result.first.prediction.costs
    data: dict[str, Json] = {
        "commcc_plan": VERSION,
        "commcc": __version__,
        "cost_model": None if costs is None else {"name": costs.model, "hash": costs.hash},
        "passes": passes,
        "source": _source(result.source),
        "graphs": list(graphs.values()),
    }
    return _HEAD + dump(data)


def _source(program: Program) -> Json:
    """What finds the graph that came in again where its nodes and groups have other names, and those of here."""
    structure = structure_of(program)
    known = [program.groups.get(name) for name in structure.groups]
    groups: list[Json] = [
        {"name": name, "ranks": None if group is None or group.ranks is None else list(group.ranks)}
        for name, group in zip(structure.groups, known, strict=True)
    ]
    starts = range(0, len(structure.names), NAMES_A_LINE)
    return {
        "structure": structure.fingerprint,
        "digests": _digests(structure.digests),
        "groups": groups,
        "names": [" ".join(structure.names[at : at + NAMES_A_LINE]) for at in starts],
    }


def _digests(digests: bytes) -> list[Json]:
    """Four hexadecimal digits for each node, in lines that begin with a node's number."""
    starts = range(0, len(digests) // 2, NODES_A_LINE)
    return [f"{at} {digests[2 * at : 2 * (at + NODES_A_LINE)].hex()}" for at in starts]
