"""JSON documents of the commands: stable keys, ``"schema": 1``, plain values only.

The tables that people see are drawn from these same documents, so that the two never disagree.
Key order is fixed; nothing here depends on the machine, except the seconds that passes took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.options import options_of
from commcc.base.record import plain
from commcc.base.text import Lines
from commcc.report import costs
from commcc.run.forms import from_preset, pipeline_yaml
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.base.options import Option
    from commcc.base.terms import Json
    from commcc.diff import GraphDiff
    from commcc.graph.collectives import Collective, GroupFacts
    from commcc.graph.program import Note, Program
    from commcc.passes.base import Pass
    from commcc.replay.numeric import Numeric
    from commcc.run.forms import Preset
    from commcc.run.pipeline import RunResult
    from commcc.serialization import GraphEntry
    from commcc.timing.snapshot import Snapshot
    from commcc.verify import Verdict
    from commcc.verify.peak import Peak

SCHEMA = 1


def document(command: str, **fields: Json) -> dict[str, Json]:
    """A command's document: schema, command, then its fields."""
    return {"schema": SCHEMA, "command": command, **fields}


def _notes(notes: Iterable[Note]) -> list[Json]:
    return [{"text": note.text, "node": note.node} for note in notes]


def rewriting(
    command: str, files: tuple[str, str], result: RunResult, lost: Sequence[Note], more: Mapping[str, Json]
) -> dict[str, Json]:
    """A command that made a graph; ``files`` are its input and output, ``more`` keys of its own.

    ``options`` are those of its pass; of pipelines they are by pass name, ``bucket#2`` for the second of one name.
    """
    steps: list[Json] = [
        {
            "name": step.name,
            "options": step.options_text,
            "changed": step.changed,
            "dropped": step.dropped,
            "seconds": round(sum(step.seconds.values()), 4),
            "phases": {phase: round(seconds, 4) for phase, seconds in step.seconds.items()},
            "report": step.report,
            "metrics": step.after.to_json(),
        }
        for step in result.steps
    ]
    return document(
        command,
        input=files[0],
        output=files[1],
        **more,
        verified=result.verified,
        options=_options(command, result),
        **costs.costs(result.first, result.last),
        before=result.first.to_json(),
        after=result.last.to_json(),
        passes=steps,
        verdicts=[verdict.to_json() for verdict in result.verdicts],
        warnings=[*result.warnings, *cost_warnings(result.first, result.last)],
        notes=_notes(lost),
    )


def _options(command: str, result: RunResult) -> dict[str, Json]:
    if command not in ("run", "ep-overlap"):
        return dict(result.steps[0].options)
    options: dict[str, Json] = {}
    for number, step in enumerate(result.steps):
        same = 1 + sum(earlier.name == step.name for earlier in result.steps[:number])
        options[step.name if same == 1 else f"{step.name}#{same}"] = dict(step.options)
    return options


def inspection(graph: str, program: Program, seen: Snapshot) -> dict[str, Json]:
    """``inspect`` of one graph."""
    return document(
        "inspect",
        input=graph,
        format=program.format,
        fingerprint=seen.index.fingerprint,
        **costs.costs(seen),
        graph=seen.to_json(),
        primary=seen.ident.primary,
        groups=[_group(seen, group) for group in seen.ident.groups],
        collectives=[collective(seen, each) for each in seen.ident.collectives],
        provenance=list(program.provenance),
        warnings=[*seen.ident.warnings, *cost_warnings(seen)],
        notes=_notes(program.notes),
    )


def _group(seen: Snapshot, group: GroupFacts) -> dict[str, Json]:
    launches = (each.launch for each in seen.ident.collectives if each.group == group.name)
    return {
        "name": group.name,
        "size": group.size,
        "ranks": None if group.ranks is None else list(group.ranks),
        "description": group.description,
        "roles": _counts(group.roles),
        "kinds": _counts(group.kinds),
        "wire_bytes": group.wire_bytes,
        "same_ranks_as": group.same_ranks_as,
        "origin": group.origin,
        "high_priority": group.high_priority,
        **costs.group(seen.prediction, launches),
    }


def _counts(counts: Mapping[str, int]) -> dict[str, Json]:
    return {str(name): number for name, number in counts.items()}


def collective(seen: Snapshot, each: Collective) -> dict[str, Json]:
    """One collective with all that is known of it."""
    index = seen.index
    return {
        "name": index.names[each.launch],
        "position": each.launch,
        "waits": [index.names[wait] for wait in each.waits],
        "kind": str(each.kind),
        "group": each.group,
        "group_size": each.group_size,
        "reduction": each.reduction,
        "dtype": each.dtype,
        "input_bytes": each.input_bytes,
        "output_bytes": each.output_bytes,
        "wire_bytes": each.wire_bytes,
        "role": str(each.role),
        "evidence": each.evidence,
        "module": each.module,
        "merged_from": list(index.merged_from.get(each.launch, ())),
        **costs.collective(seen.prediction, each.launch),
    }


def listing(graph: str, entries: Iterable[GraphEntry]) -> dict[str, Json]:
    """``inspect`` of a file that holds several graphs."""
    graphs: list[Json] = [{"name": e.name, "kind": e.kind, "nodes": e.nodes, "loadable": e.loadable} for e in entries]
    return document("inspect", input=graph, graphs=graphs)


def verification(
    before: str, after: str, verdict: Verdict, numeric: Numeric | None = None, peak: Peak | None = None
) -> dict[str, Json]:
    """``verify``; ``numeric`` is null without ``--numeric``, ``memory`` without ``--memory-budget``."""
    inputs: dict[str, Json] = {"before": before, "after": after}
    return document(
        "verify",
        inputs=inputs,
        verified=str(verdict.status),
        verdict=verdict.to_json(),
        numeric=None if numeric is None else numeric.to_json(),
        memory=None if peak is None else peak.to_json(),
    )


def difference(before: str, after: str, result: GraphDiff) -> dict[str, Json]:
    """``diff``."""
    inputs: dict[str, Json] = {"before": before, "after": after}
    return document("diff", inputs=inputs, **costs.costs(result.first, result.last), **result.to_json())


def conversion(graph: str, output: str, program: Program, lost: Iterable[Note]) -> dict[str, Json]:
    """``convert``; ``notes`` are what the reader assumed, ``lost`` what the format written cannot hold."""
    nodes = len(program.graph.nodes)
    return document("convert", input=graph, output=output, nodes=nodes, lost=_notes(lost), notes=_notes(program.notes))


def passes(classes: Iterable[type[Pass]], presets: Iterable[Preset]) -> dict[str, Json]:
    """``passes``."""
    found: list[Json] = [
        {"name": cls.name, "summary": cls.summary, "options": [_option(each) for each in options_of(cls).values()]}
        for cls in classes
    ]
    named: list[Json] = [
        {
            "name": each.name,
            "summary": each.summary,
            "pipeline": each.text,
            "yaml": Lines(pipeline_yaml(from_preset(each.name))),
        }
        for each in presets
    ]
    return document("passes", passes=found, presets=named)


def _option(each: Option) -> dict[str, Json]:
    return {
        "name": each.name,
        "type": each.kind,
        "default": plain(each.default),
        "choices": list(each.choices),
        "none": each.none,
        "help": each.help,
    }


def brief(metrics: Mapping[str, Any]) -> str:
    """Metrics on one line: ``5,937 nodes, 290 all_gather, 291 reduce_scatter``."""
    launches = [f"{number:,} {kind}" for kind, number in metrics["collectives"].items() if number]
    return ", ".join([f"{metrics['nodes']:,} nodes", *(launches or ["no collectives"])])


def difference_brief(document: Mapping[str, Any]) -> str:
    """A diff on one line."""
    if document["identical"]:
        return "identical"
    nodes = {key: sum(len(group["nodes"]) for group in document[key]) for key in ("added", "removed")}
    lengths = {key: len(document[key]) for key in ("merged", "split", "moved", "renamed", "changed")}
    return ", ".join(f"{number:,} {key}" for key, number in {**lengths, **nodes}.items() if number)
