"""Graphs in free text: TORCH_LOGS output, dumps in the middle of a program's output, plain text files.

    [rank0]:I1121 06:44:03.583000 4743 torch/x.py:1833] [0/0] [__aot_graphs]  ===== Forward graph 0 =====
    [rank0]:I1121 06:44:03.583000 4743 torch/x.py:1833] [0/0] [__aot_graphs]  <...> class GraphModule(torch.nn.Module):
    [rank0]:I1121 06:44:03.583000 4743 torch/x.py:1833] [0/0] [__aot_graphs]     def forward(self, ...

becomes the graph ``0_0/aot_forward_graph`` of rank 0. Lines of several ranks and processes may be mixed;
whatever a launcher puts before a line (``[default3]:``, ``3: ``) keeps them apart too, but for the time and for the
progress bar of a line that had not ended. A graph may be indented as a whole, as in ``print(exported_program)``.

Limits: a line that another process breaks in the middle breaks the graph, and the parser says where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from commcc.serialization.logs.graph_text import HEADER, GraphText, Kind, Line, kind_of, name_of, numbered_lines
from commcc.serialization.logs.symbol_facts import FACTS, SymbolFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX = re.compile(
    r"(?:\[rank(?P<rank>\d{1,7})\]:)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (?P<process>\d{1,20}) "
    r"[^\]\n]{1,500}:\d{1,9}\]"
    r"(?: \[(?P<compile>[^\]\s_][^\]\s]{0,60})\])?(?: \[__(?P<artifact>\w{1,60})\])?(?: |$)"
)
#: How the lines of a graph start: indented, or with a table that commcc writes below its graphs.
_INSIDE = ("  ", "# commcc: meta ", "# commcc: constant ")
_LONGEST_OUTER_PREFIX = 200
_TITLE = re.compile(r" ?===== (.{1,200}?)(?: (\d+))? =====")
#: What stands in place of a title where AOTAutograd found the graph in its cache.
_CACHED = re.compile(r"((?:Joint|Forward|Backward) graph) \(from cache\)$")
_OUTER_RANK = re.compile(r"(?:^|\D)(\d{1,6})\]?: ?$")
#: What stands before a line and is another thing before the next line of the same process: a time, a progress bar.
_CHANGING = re.compile(
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d{4}[-/]\d\d[-/]\d\d|\d{10,19}(?:\.\d{1,9})?|[^\[\]]{0,80}\d{1,3}%\|.*\|[^|\]]*\]?"
)
_TITLES = {
    "joint graph": "aot_joint_graph",
    "forward graph": "aot_forward_graph",
    "backward graph": "aot_backward_graph",
    "inference graph": "aot_inference_graph",
    "after post grad": "inductor_post_grad_graph",
    "before post grad": "before_post_grad_graph",
    "before pre grad": "before_pre_grad_graph",
    "after pre grad": "after_pre_grad_graph",
    "compiled autograd graph": "compiled_autograd_graph",
}
_CANONICAL = '# commcc: {"fx_text"'
_CLASS = re.compile(r"^class ([^\s(]{1,200})\(", re.MULTILINE)
_FUNCTION = re.compile(r"def forward\(self")
#: What only the repro of one of Dynamo's own graphs imports.
_OF_DYNAMO = "from torch._dynamo.repro.after_dynamo import"
#: How the constructor ends that ``gm.to_folder()`` writes.
_LOADED = "self.load_state_dict(torch.load(r"
_REPRO = re.compile(r"^def load_args\(reader\):", re.MULTILINE)


@dataclass
class _Stream:
    """What was seen on the lines of one process; ``block`` is the graph that is being read, ``indent`` what its lines
    begin with. facts: by compilation.
    """

    rank: int | None = None
    title: str | None = None
    tag: tuple[str | None, str | None] = (None, None)
    comments: list[Line] = field(default_factory=list)
    block: list[Line] | None = None
    indent: str = ""
    base: str = ""
    kind: Kind = Kind.GRAPH
    facts: dict[str | None, SymbolFacts] = field(default_factory=dict)


def find_graphs(text: str, file: str) -> list[GraphText]:
    """All graphs in ``text``, in order of appearance, not yet named."""
    if text.startswith(_CANONICAL) and text.count(_CANONICAL) == 1 and (match := _CLASS.search(text)) is not None:
        # What commcc writes has nothing around it; this saves taking it apart twice.
        return [GraphText(name_of(None, match.group(1)), Kind.GRAPH, file, _whole(text), whole=text)]
    # A repro inside of a log is not one file, but its class is still a graph.
    if _REPRO.search(text) is not None and _PREFIX.search(text) is None:
        kind = Kind.DYNAMO if _OF_DYNAMO in text else Kind.REPRO
        return [GraphText("Repro", kind, file, _whole(text), whole=text)]
    graphs = list(_Splitter(file).split(text))
    return graphs or _code(text, file)


def _code(text: str, file: str) -> list[GraphText]:
    """Graphs in ``GraphModule.code``, or below it in ``print(gm)``: the function that FX generates, without a class
    around it. What is not indented any more stands behind it.
    """
    found: list[list[Line]] = []
    inside = False
    for number, line in numbered_lines(text):
        if _FUNCTION.match(line):
            # The line before is empty in what FX gives; where it is not there, all lines are one further down.
            shift, inside = 0 if number else 1, True
            found.append([(number - 1 + shift, "class GraphModule(torch.nn.Module):")])
        elif not line.startswith((" ", "#")):
            inside = False
        if inside and not line.startswith("#"):
            found[-1].append((number + shift, f"    {line}"))
    return [GraphText("GraphModule", Kind.GRAPH, file, partial(list, block)) for block in found]


def _is_graph(block: list[Line]) -> bool:
    """Whether a class is one that FX prints: it begins with ``forward``, or makes its constants and is a repro, or
    loads them and is a module of ``gm.to_folder()``.
    """
    header = HEADER.fullmatch(next(line for _, line in block if HEADER.fullmatch(line)))
    inside = [line.strip() for _, line in block if line.startswith(" ")]
    first = next((line for line in inside if line and not line.startswith("#")), "")
    made = (header is not None and header.group(1) == "Repro") or any(line.startswith(_LOADED) for line in inside)
    return first.startswith("def forward(") or (made and first.startswith("def __init__("))


def _whole(text: str) -> Callable[[], list[Line]]:
    return lambda: list(numbered_lines(text))


class _Splitter:
    """Sorts lines by process and cuts out the classes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.streams: dict[tuple[str, str | None, str], _Stream] = {}
        self.started: list[tuple[int, GraphText]] = []

    def split(self, text: str) -> Iterator[GraphText]:
        prefixed = _PREFIX.search(text) is not None
        plain = _Stream()
        for number, line in numbered_lines(text):
            match = _PREFIX.search(line, 0) if prefixed else None
            # A line of the program that quotes a log line.
            if match is None or match.start() > _LONGEST_OUTER_PREFIX:
                self._line(plain, (None, None), number, line)
            else:
                outer, rank = _CHANGING.sub("", line[: match.start()]), match["rank"]
                key = (outer, rank, match["process"])
                if key not in self.streams:
                    # Launchers write the rank before the line, PyTorch only when it knows it.
                    launched = _OUTER_RANK.search(outer) if rank is None else None
                    rank = rank if launched is None else launched.group(1)
                    self.streams[key] = _Stream(None if rank is None else int(rank))
                stream = self.streams[key]
                self._line(stream, (match["compile"], match["artifact"]), number, line[match.end() :])
        for stream in (plain, *self.streams.values()):
            self._close(stream)
        return (graph for _, graph in sorted(self.started, key=lambda item: item[0]))

    def _line(self, stream: _Stream, tag: tuple[str | None, str | None], number: int, line: str) -> None:
        own = line.removeprefix(stream.indent)
        # Still inside of a graph.
        if stream.block is not None and tag == stream.tag and own.startswith(_INSIDE):
            stream.block.append((number, own))
            return
        if not line or line.isspace():
            return
        self._close(stream)
        text = line.lstrip(" ")
        # What PyTorch logs is not indented.
        stream.indent = line[: len(line) - len(text)] if line.startswith("  ") and tag == (None, None) else ""
        header = HEADER.fullmatch(line.removeprefix(stream.indent))
        if header is not None:
            title = stream.title if stream.tag == tag else None
            compile_id, artifact = tag
            class_name = header.group(1)
            stream.base = name_of(compile_id, title or artifact or class_name)
            stream.kind = kind_of(title or class_name)
            stream.tag, stream.title = tag, None
            stream.block = [*stream.comments, (number, f"class {class_name}(torch.nn.Module):")]
        elif line.startswith("#"):
            # May be the header of a graph that commcc wrote.
            stream.comments.append((number, line))
            return
        elif (match := _TITLE.match(line) or _CACHED.match(line)) is not None:
            # PyTorch's structured logs have other names for the titles of its text logs.
            text = match.group(1)
            compiled = text.startswith("__compiled_fn")
            stream.title = "dynamo_output_graph" if compiled else _TITLES.get(text.lower(), text)
            stream.tag = tag
        elif line.startswith(FACTS):
            stream.facts.setdefault(tag[0], SymbolFacts()).line(line)
        elif stream.tag != tag:
            # The title was for another compilation.
            stream.title = None
        stream.comments = []

    def _close(self, stream: _Stream) -> None:
        if stream.block is None:
            return
        block, stream.block = stream.block, None
        if not _is_graph(block):
            return
        # Later lines of the compilation say more of its symbols.
        facts = stream.facts.setdefault(stream.tag[0], SymbolFacts())
        graph = GraphText(stream.base, stream.kind, self.file, lambda: block, stream.rank, facts=facts)
        self.started.append((block[0][0], graph))
