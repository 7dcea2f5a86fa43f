"""Read a graph from any file or folder that commcc understands; nothing in it is ever executed.

    program = load("llama.fx.txt.gz")
    program = load("run.log::0_0/aot_backward_graph")
    list_graphs("tl_out")           # (GraphEntry("0_0/aot_joint_graph", "joint", 31), ...)
    node_lines("bw.fx.txt.gz")["mm_3"]      # 412, counted from 1 in the decompressed text

What a file is follows from its content, not from its name. Where several graphs are in one file or
folder, one is chosen by its name, or by the end of its name if that is unique (``aot_backward_graph``).

Limits: Dynamo's own graphs (before AOT autograd) are listed but cannot be loaded; they are no ATen graphs.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import GraphError, InputError
from commcc.base.files import GRAPH_FILES, TEXT_FILES
from commcc.base.text import plural
from commcc.serialization.logs import torch_logs, traces
from commcc.serialization.logs.collected import logged_text
from commcc.serialization.logs.graph_text import GraphEntry, GraphText, Kind, with_names
from commcc.serialization.propagate import propagate
from commcc.serialization.sources import decode, is_zip, is_zip_file, read_content

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.ops.described import Description
    from commcc.graph.program import Program

#: The name of the only graph in a file whose format has no names.
ONLY = "graph"
_MOST_NAMES = 6
_NAMED = re.compile(r'^\s{4,12}([A-Za-z_]\w*)(?::[ ]?"[^"\n]*")?(?: = |,?$|: )')
_PARAMETER = re.compile(r'(?:^|[,(])\s*([A-Za-z_]\w*)\s*(?::[ ]?"[^"\n]*")?\s*(?=,|\)|=|$)')
_RETURN = re.compile(r"^\s+return\b")
_PLAN = re.compile(r"^commcc_plan:", re.MULTILINE)
_PRINTED = re.compile(r"^ {0,8}%\w{1,99} : [^\n]{0,99}= \w+\[target=|^opcode +name +target +args", re.MULTILINE)
_ONE_OR_ALL = "choose one as FILE::NAME, commcc inspect lists them; commcc run takes all with -o FOLDER"
#: Where graphs come from.
CAPTURE_HINT = (
    "dump it with TORCH_LOGS=aot_graphs or TORCH_TRACE=FOLDER, and TORCHINDUCTOR_FORCE_DISABLE_CACHES=1, since not all"
    " graphs of a cache are logged; or with print_readable(include_stride=True, ...)"
)


def load(
    path: str | Path,
    *,
    name: str | None = None,
    trust: bool = False,
    descriptions: Mapping[str, Description] | None = None,
) -> Program:
    """The graph in ``path`` (or ``FILE::NAME``), with shapes filled in where the file does not give them.

    name: which graph, where there are several; in place of ``::NAME``.
    trust: carry over those parts of a ``.pt2`` that run code of the file's choice when PyTorch loads it; nothing of
    them is opened here.
    descriptions: of ops that are not PyTorch's, as :func:`commcc.serialization.op_files.read_ops` gives them.
    Raises :class:`InputError` for whatever is wrong with the file.
    """
    file, name = split_spec(path, name)
    try:
        if _is_archive(file):
            if name not in (None, ONLY):
                raise InputError(f"a .pt2 holds one graph, not {name!r}", where=str(file), hint="leave the name out")
            from commcc.serialization.pt2.program import read_pt2

            program = _with_ops(_with_plain_waits(read_pt2(file, trust=trust)), descriptions)
            return replace(program, source=file, format="pt2")
        # The first ShapeEnv imports it, and PyTorch holds on to the frames that it is imported from until the next
        # collection: here these do not have the text.
        from torch.fx.experimental import validator  # noqa: F401

        return replace(_read_text(file, name, descriptions), source=file, format="fx_text")
    except GraphError as error:
        raise InputError(error.what, where=str(file), hint=error.hint) from error
    except RecursionError:
        raise InputError("is nested too deeply to be a graph", where=str(file)) from None
    except MemoryError:
        raise InputError("needs more memory than there is", where=str(file)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(file)) from None


def _read_text(file: Path, name: str | None, descriptions: Mapping[str, Description] | None) -> Program:
    """The graph called ``name`` in a text or a folder of texts."""
    from commcc.serialization.fx import parse_text
    from commcc.serialization.logs.runnable import parse_runnable

    graph = _choose(_find(file, name), name, str(file))
    if graph.kind is Kind.REPRO:
        program, ctx = parse_runnable(graph.source(), graph.file)
    else:
        program, ctx = parse_text(graph.source(), graph.file), None
    # Shapes behind an op that a user's file describes follow from its description.
    return propagate(_with_ops(_with_facts(_with_plain_waits(program), graph), descriptions), ctx)


def _with_plain_waits(program: Program) -> Program:
    """The program just read, with a wait for each tensor; in sub-graphs too. Refused where these call each other so
    often that nobody could look at all that runs.
    """
    from torch import fx

    from commcc.graph.joint_waits import WAITS, take_apart
    from commcc.graph.program import check_size

    check_size(program)
    apart = take_apart(program.graph)
    for module in program.root.modules():
        if isinstance(module, fx.GraphModule) and take_apart(module.graph):
            apart = True
            module.recompile()
    # Older PyTorch does not know the op, but nothing is lost.
    return replace(program, notes=tuple(n for n in program.notes if WAITS not in n.text)) if apart else program


def _with_facts(program: Program, graph: GraphText) -> Program:
    """The program with what the log around it says of its symbols; the graph's own header wins."""
    told = {} if graph.facts is None else graph.facts.header("\n".join(line for _, line in graph.lines()))
    return replace(program, header={**told, **program.header}) if told else program


def _with_ops(program: Program, descriptions: Mapping[str, Description] | None) -> Program:
    if not descriptions:
        return program
    from commcc.serialization.op_files import described

    return described(program, descriptions)


def list_graphs(path: str | Path, *, least: int = 0) -> tuple[GraphEntry, ...]:
    """The graphs in a file or folder, in order; node counts are counted on the text and may be None.

    least: none are listed, and no nodes are counted, where fewer than so many can be loaded.
    """
    file = Path(path)
    if _is_archive(file):
        return (GraphEntry(ONLY, "exported", None),) if least <= 1 else ()
    graphs = _find(file, None)
    few = sum(graph.kind is not Kind.DYNAMO for graph in graphs) < least
    return () if few else tuple(graph.entry() for graph in graphs)


def node_lines(path: str | Path) -> dict[str, int]:
    """Lines by node name; empty for a ``.pt2``. Raises :class:`commcc.base.errors.InputError` as reading does."""
    return file_and_lines(path)[1]


def file_and_lines(path: str | Path) -> tuple[str, dict[str, int]]:
    """The file that a graph is in, in a folder too, and :func:`node_lines`.

    Found by a look at the text, without parsing it: the first assignment to a name, or its place in the signature.
    """
    file, name = split_spec(path)
    if _is_archive(file):
        return str(file), {}
    graph = _choose(_find(file, name), name, str(file))
    lines: dict[str, int] = {}
    inside = False
    for number, text in enumerate(graph.source().split("\n"), 1):
        if text.lstrip().startswith("def forward("):
            if inside:
                break  # a sub-graph's
            inside = True
            for parameter in _PARAMETER.findall(text.partition("(")[2]):
                lines.setdefault(parameter, number)
        elif inside and _RETURN.match(text):
            lines.setdefault("output", number)
            break
        elif inside and (match := _NAMED.match(text)) is not None:
            lines.setdefault(match[1], number)
    return graph.file, lines


def split_spec(path: str | Path, name: str | None = None) -> tuple[Path, str | None]:
    """``FILE::NAME`` as (FILE, NAME), also in a folder; a file that really has ``::`` in its name wins."""
    if name is None and not Path(path).exists():
        file, separator, graph = str(path).partition("::")
        inside = Path(file, graph.partition("::")[0])
        if separator and graph and Path(file).is_dir() and inside.is_file():  # as folders of texts and logs are listed
            return split_spec(Path(file, graph))
        if separator:
            return Path(file), graph or None
    return Path(path), name


def _is_archive(file: Path) -> bool:
    if not file.exists():
        folder = file.parent
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        close = difflib.get_close_matches(file.name, names, n=1)
        hint = f"did you mean {folder / close[0]}?" if close else None
        raise InputError("no such file", where=str(file), hint=hint)
    if not file.is_file() and not file.is_dir():
        raise InputError("is neither a file nor a folder", where=str(file), hint="save what it gives to a file first")
    return file.is_file() and is_zip_file(file)


def _find(file: Path, name: str | None) -> tuple[GraphText, ...]:
    """All graphs of a text file or folder, named; those of other ranks may be left out when ``name`` has one."""
    if file.is_dir():
        # Reading one rank only can save most of the work.
        rank = re.match(r"rank(\d{1,7})/", name or "")
        graphs = traces.find_in_folder(file, only_rank=int(rank.group(1)) if rank else None)
        if not graphs:
            raise _no_graphs_in(file)
        # The names that were listed have the rank, so these must too.
        return with_names(graphs, several_ranks=True if rank else None)
    content = read_content(file)
    # A .pt2 must be seekable.
    if is_zip(content):
        raise InputError("is a gzip-compressed archive", where=str(file), hint="decompress it with gunzip first")
    text = logged_text(decode(content, str(file)))
    find_graphs = traces.find_in_log if traces.is_trace_log(text) else torch_logs.find_graphs
    graphs = find_graphs(text, str(file))
    if not graphs and _PLAN.search(text):
        raise InputError("is a plan, not a graph", where=str(file), hint=f"commcc run GRAPH --plan {file} applies it")
    if not graphs:
        printed = "holds a graph as print(graph) or print_tabular() shows it, which has neither shapes nor quotes"
        kind = printed if _PRINTED.search(text) else "no graph found in this text"
        raise InputError(kind, where=str(file), hint=CAPTURE_HINT)
    return with_names(graphs, several_ranks=None)


def _no_graphs_in(folder: Path) -> InputError:
    """For a folder that no tool of PyTorch's laid out; it may hold graph files or other folders of graphs."""
    inside = sorted(folder.iterdir())
    files = [path.name for path in inside if path.name.lower().endswith(GRAPH_FILES)]
    if files:
        hint = f"name one, as in {folder / files[0]}; commcc inspect, lint, run and simulate --html take all"
        return InputError(f"is a folder of {plural(len(files), 'graph file')}", where=str(folder), hint=hint)
    if any(path.is_dir() or path.name.endswith(TEXT_FILES) for path in inside):
        hint = "commcc inspect lists those in texts and folders below it; choose one, or all with commcc run -o FOLDER"
        return InputError("the folder itself is no graph", where=str(folder), hint=hint)
    return InputError("the folder holds no graphs", where=str(folder), hint=CAPTURE_HINT)


def _choose(graphs: Sequence[GraphText], name: str | None, file: str) -> GraphText:
    loadable = [graph for graph in graphs if graph.kind is not Kind.DYNAMO]
    if name is None:
        # Dynamo graphs do not count: nobody can mean them.
        if len(loadable) == 1:
            return loadable[0]
        if not loadable:
            raise InputError("holds only Dynamo graphs, which are no ATen graphs", where=file, hint=CAPTURE_HINT)
        what = f"holds {len(loadable)} graphs: {_listing(loadable)}"
        raise InputError(what, where=file, hint=_ONE_OR_ALL)
    matching = [graph for graph in graphs if graph.name == name]
    if not matching:  # the end of a name, or a name with a rank that goes without saying
        matching = [
            graph
            for graph in loadable
            if graph.name.endswith("/" + name) or (graph.rank is not None and name == f"rank{graph.rank}/{graph.name}")
        ]
    if len(matching) > 1:
        raise InputError(f"{name!r} fits {len(matching)} graphs: {_listing(matching)}", where=file)
    if not matching:
        close = difflib.get_close_matches(name, [graph.name for graph in loadable], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "choose one of those"
        raise InputError(f"no graph {name!r}; there are: {_listing(loadable)}", where=file, hint=hint)
    if matching[0].kind is Kind.DYNAMO:
        raise InputError(f"{name!r} is a Dynamo graph, not an ATen graph", where=file, hint=CAPTURE_HINT)
    return matching[0]


def _listing(graphs: Sequence[GraphText]) -> str:
    shown = [graph.entry() for graph in graphs[:_MOST_NAMES]]
    names = [entry.name if entry.nodes is None else f"{entry.name} ({entry.nodes} nodes)" for entry in shown]
    more = len(graphs) - len(shown)
    return ", ".join(names) + (f" and {more} more" if more else "")
