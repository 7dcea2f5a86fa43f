"""Reads plan files and makes jobs of them; see :mod:`commcc.run.planfile`.

The file is read whole and checked as far as that goes without a graph; every step is then checked
against the graph that it meets, and names of nodes become numbers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from commcc.base.errors import InputError
from commcc.base.text import shown
from commcc.base.yaml_file import parse_yaml, read_text
from commcc.plan import PARTS, PassReport, Plan, StoredReport
from commcc.run.pipeline import Job
from commcc.run.planfile.fields import Decoder, to_json
from commcc.run.planfile.legal import problems
from commcc.run.planfile.writing import VERSION

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.base.yaml_file import Node
    from commcc.graph.index import GraphIndex
    from commcc.passes.base import PlanContext

_HEX = re.compile(r"[0-9a-f]*")
_KEYS = ("pass", "name", "graph")
_MORE = ("dropped", "options", "report")


@dataclass(frozen=True)
class StoredGraph:
    """What a plan file knows of a graph: two bytes of every node."""

    nodes: int
    digests: bytes


@dataclass(frozen=True)
class StoredStep:
    """One pass in a plan file. body: the mapping that holds its edits."""

    text: str
    name: str
    fingerprint: str
    graph: StoredGraph
    dropped: str | None
    report: dict[str, Json]
    body: Node

    def plan(self, context: PlanContext) -> Plan:
        """The plan for this graph; :class:`InputError` when it is another one, or when an edit does not fit it."""
        if context.index.fingerprint != self.fingerprint:
            self._refuse(context.index)
        return self._plan(context.index)

    def plan_elsewhere(self, context: PlanContext) -> Plan:
        """As :meth:`plan`, for a graph of the same structure, whose devices and names of sizes are others."""
        if len(context.index) != self.graph.nodes:
            self._refuse(context.index)
        return self._plan(context.index)

    def _refuse(self, index: GraphIndex) -> NoReturn:
        raise InputError(
            f"{self.name} was planned on another graph: {difference(self.graph, index)}",
            where=f"{self.body.file.path}:{self.body.line}",
            hint="plan again, or give the graph that the plan was made for",
        )

    def _plan(self, index: GraphIndex) -> Plan:
        # Its edits made the step longer and were never stored.
        if self.dropped is not None:
            return Plan(self.text, index.fingerprint, report=StoredReport(self.report))
        plan = Decoder(index).plan(_edits(self.body), self.text, index.fingerprint, StoredReport(self.report))
        self.body.file.check()
        # Names are right by now, so what is said here is of nodes that are there.
        for path, what in problems(plan, index):
            _at(self.body, path).fail(what)
        self.body.file.check()
        return plan


@dataclass(frozen=True)
class Source:
    """The graph that a plan was made for, to be found again under other names; see :mod:`commcc.graph.structure`.

    groups: names and ranks, where these are known, in the order in which nodes name them.
    """

    structure: str
    digests: bytes
    names: tuple[str, ...]
    groups: tuple[tuple[str, tuple[int, ...] | None], ...]


@dataclass(frozen=True)
class StoredPlan:
    """A plan file. elsewhere: its jobs, for a graph of the structure of ``source``, which is None in a file that does
    not say it. hash: of the text. writer: the version of commcc that wrote it; empty where the file does not say it.
    """

    path: Path
    jobs: tuple[Job, ...]
    elsewhere: tuple[Job, ...]
    source: Source | None
    hash: str
    writer: str = ""


def read_plans(path: str | Path) -> list[Job]:
    """The steps of a plan file; :class:`InputError` names every mistake with its line."""
    return list(read_plan_file(path).jobs)


def read_plan_file(path: str | Path) -> StoredPlan:
    """A whole plan file; :class:`InputError` names every mistake with its line."""
    text = read_text(path)
    file = parse_yaml(text, str(path))
    root = file.root.mapping(("commcc_plan", "passes", "graphs"), ("commcc", "cost_model", "source"))
    version = root["commcc_plan"].integer()
    # What follows is read by the rules of this version, so other mistakes would be noise.
    if version != VERSION and not root["commcc_plan"].missing:
        root["commcc_plan"].fail(f"plan files of version {version} are not known, only {VERSION}")
        file.check()
    graphs = dict(map(_read_graph, root["graphs"].items()))
    read = [_read_step(entry, graphs) for entry in root["passes"].items()]
    if not read:
        root["passes"].fail("no pass")
    source = _read_source(root["source"]) if "source" in root else None
    writer = root["commcc"].text() if "commcc" in root else ""
    file.check()
    jobs = [pair for pair in read if pair is not None]
    elsewhere = tuple(replace(job, plan=step.plan_elsewhere) for job, step in jobs)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return StoredPlan(Path(path), tuple(job for job, _ in jobs), elsewhere, source, digest, writer)


def difference(graph: StoredGraph, index: GraphIndex) -> str:
    """The first node in which a graph differs from the one of a plan, in words."""
    then, now = graph.digests, index.digests
    unlike = [i for i in range(min(graph.nodes, len(index))) if then[2 * i : 2 * i + 2] != now[2 * i : 2 * i + 2]]
    counts = f"{graph.nodes:,} nodes then, {len(index):,} now"
    if unlike:
        first = unlike[0]
        others = f", {len(unlike) - 1:,} others at their places too" if graph.nodes == len(index) else ""
        return (
            f"node {first:,}, '{index.names[first]}' ({index.ops[first]}), is the first that differs{others} ({counts})"
        )
    if graph.nodes < len(index):
        first = graph.nodes
        return f"node {first:,}, '{index.names[first]}' ({index.ops[first]}), is the first that is new ({counts})"
    if graph.nodes > len(index):
        return f"it ends before node {len(index):,} of the plan's graph ({counts})"
    return f"no digest tells in which node ({counts})"


def _read_graph(node: Node) -> tuple[str, StoredGraph]:
    parts = node.mapping(("fingerprint", "nodes", "digests"))
    digests = _read_digests(parts["digests"], parts["nodes"].integer(least=0))
    return parts["fingerprint"].text(), StoredGraph(len(digests) // 2, digests)


def _read_source(node: Node) -> Source:
    parts = node.mapping(("structure", "digests", "groups", "names"))
    names = tuple(chain.from_iterable(line.text().split() for line in parts["names"].items()))
    if len(set(names)) != len(names):
        parts["names"].fail("two nodes have the same name")
    groups = [(group["name"].text(), _ranks(group["ranks"])) for group in map(_group, parts["groups"].items())]
    # What two groups send would be merged and proved as of one.
    if len({name for name, _ in groups}) != len(groups):
        parts["groups"].fail("two groups have the same name")
    digests = _read_digests(parts["digests"], len(names))
    return Source(parts["structure"].text(), digests, names, tuple(groups))


def _group(node: Node) -> dict[str, Node]:
    return node.mapping(("name", "ranks"))


def _ranks(node: Node) -> tuple[int, ...] | None:
    if node.is_null:
        return None
    ranks = tuple(rank.integer(least=0) for rank in node.items())
    if not ranks or len(set(ranks)) != len(ranks):
        node.fail("a group has one rank or more, each once")
    return ranks


def _read_digests(node: Node, count: int) -> bytes:
    """Two bytes for each of ``count`` nodes."""
    digits = "".join(line.text().partition(" ")[2] for line in node.items())
    if not _HEX.fullmatch(digits) or len(digits) != 4 * count:
        node.fail(f"digests must be four hexadecimal digits for each of {count:,} nodes")
        return b""
    return bytes.fromhex(digits)


def _read_step(node: Node, graphs: dict[str, StoredGraph]) -> tuple[Job, StoredStep] | None:
    parts = node.mapping(_KEYS, (*_MORE, *PARTS))
    fingerprint = parts["graph"].text()
    graph = graphs.get(fingerprint)
    if fingerprint and graph is None:
        parts["graph"].fail(f"graph '{shown(fingerprint)}' is not among the graphs below")
    dropped = parts["dropped"].text() if "dropped" in parts else None
    if dropped is None:
        Decoder().plan(_edits(node), "", "", PassReport())
    elif any(name in parts for name in PARTS):
        node.fail("a pass that was dropped has no edits")
    options, report = (
        {name: to_json(value) for name, value in parts[key].entries().items()} if key in parts else {}
        for key in ("options", "report")
    )
    text, name = parts["pass"].text(), parts["name"].text()
    if graph is None:
        return None
    step = StoredStep(text, name, fingerprint, graph, dropped, report, node)
    return Job(name, text, options, step.plan, f"{node.file.path}:{node.line}", dropped), step


def _edits(node: Node) -> Node:
    """The mapping of a pass without the keys that are no parts of a plan."""
    if not isinstance(node.value, dict):
        return node
    body = {key: part for key, part in node.value.items() if key not in (*_KEYS, *_MORE)}
    return replace(node, value=body)


def _at(node: Node, path: tuple[str | int, ...]) -> Node:
    """The value at a path of keys and positions, or the last one on the way that is there."""
    for step in path:
        value = node.value
        inner = value.get(str(step)) if isinstance(value, dict) else None
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            inner = value[step]
        node = inner or node
    return node
