"""Graphs as they lie in a container (log, trace, folder), before they are parsed: name, kind and text.

    found = GraphText("0_0/aot_forward_graph", Kind.FORWARD, "run.log", block)
    found.source()        # class text; its line numbers are those of the file it came from

Names are made of the compile id (``0_0``: frame 0, first compile; ``0_0_1`` after a restart) and of what
PyTorch calls the graph, so that the same graph has the same name in TORCH_LOGS output, a TORCH_TRACE
log and a tlparse folder. Graphs of one name are numbered (``.2``, ``.3``) in order of appearance, and
``rankN/`` goes in front when there are several ranks.

Limits: node counts are counted on the text, without parsing it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commcc.serialization.logs.symbol_facts import SymbolFacts

#: Number (from 0) and text of one line.
Line: TypeAlias = "tuple[int, str]"

#: First line of a graph; PyTorch's loggers put a file name or ``<eval_with_key>.7`` before it.
HEADER = re.compile(r" ?(?:[^\s#].{0,4096}? )?class ([^\s(]{1,200})\((?:torch\.)?nn\.Module\):\s*")
_LINE = re.compile(r"[^\n]+")
_STATEMENT = re.compile(r'^ {8}[A-Za-z_]\w*(?::[ ]?"[^"\n]*")? = ', re.MULTILINE)
_FORWARD = re.compile(r"^ {4}def forward\(", re.MULTILINE)
_SIGNATURE_END = re.compile(r"\)(?: ->[^\n]{0,200})?:[ ]*$", re.MULTILINE)
_NESTED = re.compile(r"^ {4}(?:class |def )", re.MULTILINE)
_FLATTENED = re.compile(r"^ {8}([\w, ]+?),? = fx_pytree\.tree_flatten_spec\(", re.MULTILINE)
_PARAMETER = re.compile(r"(?:^|[,\n(])\s*([A-Za-z_]\w*)\s*(?=[:,\n=]|$)")
_QUOTED = re.compile(r'"[^"\n]*"|#[^\n]*')


class Kind(str, Enum):
    """What a graph is; ``DYNAMO`` graphs are not ATen graphs and cannot be loaded."""

    JOINT = "joint"
    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"
    POST_GRAD = "post-grad"
    REPRO = "repro"
    GRAPH = "graph"
    DYNAMO = "dynamo"

    def __str__(self) -> str:
        return self.value


_KINDS = {
    "aot_joint_graph": Kind.JOINT,
    "before_joint_graph": Kind.JOINT,
    "after_joint_graph": Kind.JOINT,
    "aot_forward_graph": Kind.FORWARD,
    "aot_backward_graph": Kind.BACKWARD,
    "aot_inference_graph": Kind.INFERENCE,
    "aot_inference_graph_after_hop_passes": Kind.INFERENCE,
    "before_post_grad_graph": Kind.POST_GRAD,
    "inductor_post_grad_graph": Kind.POST_GRAD,
    "fx_graph_runnable": Kind.REPRO,
    "dynamo_output_graph": Kind.DYNAMO,
    "before_pre_grad_graph": Kind.DYNAMO,
    "after_pre_grad_graph": Kind.DYNAMO,
    "inductor_pre_grad_graph": Kind.DYNAMO,
    "optimize_ddp_split_graph": Kind.DYNAMO,
    "optimize_ddp_split_child": Kind.DYNAMO,
    "compiled_autograd_graph": Kind.DYNAMO,
    "compiled_autograd_graph_pre_reordering": Kind.DYNAMO,
}


def kind_of(title: str) -> Kind:
    """The kind of a graph from PyTorch's name for it; ``GRAPH`` when it is a name of the user's."""
    return _KINDS.get(title, Kind.GRAPH)


@dataclass(frozen=True)
class GraphEntry:
    """A graph as it is listed: ``nodes`` is None where counting was not cheap."""

    name: str
    kind: str
    nodes: int | None

    @property
    def loadable(self) -> bool:
        return self.kind != Kind.DYNAMO.value


@dataclass(frozen=True)
class GraphText:
    """One graph in a container.

    base: name without rank and number; rank: None when the container does not say.
    file: the file to name in errors.
    lines: gives the graph's lines with their numbers (from 0) in ``file``; empty lines may be left out.
    whole: the text of ``file`` where it holds nothing but this graph.
    facts: what the log says about symbols of the graph's compilation.
    """

    base: str
    kind: Kind
    file: str
    lines: Callable[[], Sequence[Line]]
    rank: int | None = None
    name: str = ""
    whole: str | None = None
    facts: SymbolFacts | None = None

    def source(self) -> str:
        """The graph's text, in which every line has the number that it has in ``file``."""
        return join_lines(self.lines()) if self.whole is None else self.whole

    def entry(self) -> GraphEntry:
        text = "\n".join(line for _, line in self.lines()) if self.whole is None else self.whole
        return GraphEntry(self.name, self.kind.value, count_nodes(text))


def with_names(graphs: Iterable[GraphText], *, several_ranks: bool | None = None) -> tuple[GraphText, ...]:
    """Give every graph its unique name (see the module's docstring).

    several_ranks: whether to put the rank in front; None: if there are several.
    """
    graphs = list(graphs)
    if several_ranks is None:
        several_ranks = len({graph.rank for graph in graphs} - {None}) > 1
    counts: Counter[str] = Counter()
    taken: set[str] = set()
    out = []
    for graph in graphs:
        wanted = graph.base if graph.rank is None or not several_ranks else f"rank{graph.rank}/{graph.base}"
        name = wanted
        # A graph of the user's may be called like a numbered one.
        while name in taken or counts[wanted] == 0:
            counts[wanted] += 1
            name = wanted if counts[wanted] == 1 else f"{wanted}.{counts[wanted]}"
        taken.add(name)
        out.append(replace(graph, name=name))
    return tuple(out)


def numbered_lines(text: str) -> Iterator[Line]:
    """The lines that are not empty, numbered from 0."""
    number = end = 0
    for match in _LINE.finditer(text):
        start = match.start()
        number += start - end  # between two lines there are only line ends
        yield number, match.group()
        end = match.end()


def name_of(compile_id: str | None, title: str) -> str:
    """``0_0/aot_forward_graph`` from ``0/0`` and ``aot_forward_graph``."""
    parts = [re.sub(r"[^\w.-]+", "_", part).strip("_") for part in (compile_id or "", title)]
    return "/".join(part for part in parts if part) or "graph"


def join_lines(lines: Iterable[Line]) -> str:
    """Numbered lines as one text in which every line keeps its number (0-based, increasing)."""
    out: list[str] = []
    following = 0
    for number, line in lines:
        if number > following:
            out.append("\n" * (number - following))
        out.append(line + "\n")
        following = number + 1
    return "".join(out)


def count_nodes(source: str) -> int | None:
    """Nodes of the outermost graph: inputs, statements and the output; None when there is no forward."""
    forward = _FORWARD.search(source)
    signature_end = _SIGNATURE_END.search(source, forward.end()) if forward is not None else None
    # A repro whose class has no forward of its own, or a text that is cut.
    if forward is None or signature_end is None:
        return None
    start = signature_end.end()
    nested = _NESTED.search(source, start)
    end = nested.start() if nested is not None else len(source)
    statements = len(_STATEMENT.findall(source, start, end))
    flattened = _FLATTENED.search(source, start, end)
    # Joint graphs take one list apart: those are the inputs.
    if flattened is not None:
        return statements + len(str(flattened.group(1)).split(",")) + 1
    inputs = _PARAMETER.findall(_QUOTED.sub("", source[forward.end() : signature_end.start()]))
    return statements + len([name for name in inputs if name != "self"]) + 1
