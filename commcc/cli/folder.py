"""``commcc run FOLDER``: passes on every graph of a folder, as ``commcc capture`` writes one, or of PyTorch's logs.

A forward and its backward are rewritten as one step. Nothing is written before all graphs are done. Logs and folders
of PyTorch's often hold one graph several times; it is rewritten once.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import EXIT_OK, CommccError, InputError, OptionError, OutputError
from commcc.base.files import GRAPH_FILES, output_folder, replace_text
from commcc.base.text import plural
from commcc.cli.stepping import Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.cli.rewriting import Request
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.run.pipeline import RunResult
    from commcc.run.step import StepRun


def graphs_in(path: str, output: str | None) -> dict[str, str]:
    """Graphs that are all to be rewritten, as they are loaded, by their names in ``path``; none for a single graph.

    Graph files of a folder as ``commcc capture`` writes them; or the graphs in a log, or in texts and logs below a
    folder, where ``-o`` names a folder. Raises for an empty folder.
    """
    folder = Path(path)
    if folder.is_dir():
        if not any(folder.iterdir()):
            raise InputError("the folder is empty", where=path, hint="commcc capture writes folders of graphs")
        files = sorted(file for file in folder.iterdir() if file.name.lower().endswith(GRAPH_FILES) and file.is_file())
        if files:
            return {file.name: str(file) for file in files}
    # A folder that is there, or a name that no file has.
    to_folder = output is not None and (Path(output).is_dir() or not Path(output).suffix)
    if not to_folder or (folder.is_file() and path.lower().endswith(GRAPH_FILES)):
        return {}
    from commcc.lint.expand import expand

    graphs = [item.graph for item in expand([path]) if item.error is None]
    if folder.is_dir() and not graphs:
        raise no_graphs(path)
    if not folder.is_dir() and len(graphs) < 2:
        return {}
    names = [graph.removeprefix(path).lstrip("/:") for graph in graphs]
    # What all names begin with, as folders named after a date and a process, tells none from another.
    parts = [name.split("/") for name in names]
    shared = next((i for i, here in enumerate(zip(*parts, strict=False)) if len(set(here)) > 1), 0)
    return dict(zip(("/".join(part[shared:]) for part in parts), graphs, strict=True))


def no_graphs(folder: str) -> InputError:
    """For a folder in which nothing was found, wherever it was looked for."""
    from commcc.serialization.loading import CAPTURE_HINT

    return InputError("the folder holds no graphs", where=folder, hint=CAPTURE_HINT)


def rewrite_folder(session: Session, request: Request, graphs: Mapping[str, str]) -> int:
    """Run the passes on all ``graphs``, verify, write them and their plans, and report; the exit code."""
    extras = request.extras
    from commcc.run.pipeline import Job

    if extras.dump is not None or any(isinstance(instance, Job) for instance in request.passes):
        raise OptionError(
            "--plan and --dump-after-each are of one graph", hint=f"name one, as in {next(iter(graphs.values()))}"
        )
    session.inputs += [Path(graph.partition("::")[0]) for graph in graphs.values()]
    places = _Places.of(session, request, graphs)
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import folder as report
        from commcc.run.planfile import plan_text
        from commcc.run.step import pairs

        programs: dict[str, Program] = {}
        for name, graph in graphs.items():
            say(f"reading {graph}")
            programs[name] = session.load(graph)
        again = _again(programs)
        for name in again:
            del programs[name]
        if again:
            name, other = next(iter(again.items()))
            more = " and so on" if len(again) > 1 else ""
            session.warn(f"{len(again)} of {plural(len(graphs), 'graph')} left out: {name} is {other} once more{more}")
        work = Work(session, request, say)
        steps: dict[tuple[str, str], StepRun] = {}
        results: dict[str, RunResult] = {}
        for ahead, behind in pairs(programs):
            with _about(f"{graphs[ahead]} and {graphs[behind]}"):
                steps[ahead, behind] = both = work.both(programs[ahead], programs[behind])
            results |= {ahead: both.forward, behind: both.backward}
        for name in [name for name in programs if name not in results]:
            with _about(graphs[name]):
                results[name] = work.one(programs[name])
        places.make()
        notes = [note for program in programs.values() for note in program.notes]
        for name in programs:
            notes += serialization.save(results[name].program, places.outputs[name])
            if name in places.plans:
                replace_text(places.plans[name], plan_text(results[name]))
    session.report_notes(notes)
    ordered = {name: results[name] for name in programs}
    for warning in dict.fromkeys(text for result in ordered.values() for text in result.warnings):
        session.warn(warning)
    session.report_costs(request.hints, *(result.last for result in ordered.values()))
    document = report.foldered(request.graph, places.said(graphs), ordered, steps, extras.said)
    session.emit(document, brief=[str(places.outputs[name]) for name in programs], view=report.view)
    return EXIT_OK


@contextmanager
def _about(graph: str) -> Iterator[None]:
    """Errors of the block say which graph of the folder they are about."""
    try:
        yield
    except CommccError as error:
        where = graph if error.where is None else f"{graph}: {error.where}"
        raise type(error)(error.what, where=where, hint=error.hint) from error


@dataclass(frozen=True)
class _Places:
    """Where graphs and plans go, by the file name of each graph. plan_folder: None without ``--plan-out``."""

    folder: Path
    plan_folder: Path | None
    outputs: dict[str, Path]
    plans: dict[str, Path]

    @staticmethod
    def of(session: Session, request: Request, graphs: Mapping[str, str]) -> _Places:
        """Refuses, before any work is done, what could not be written after."""
        folder = Path(request.output or f"{request.graph.rstrip('/')}.run")
        plans = None if request.extras.plan_out is None else Path(request.extras.plan_out)
        for path, flag in ((folder, "-o"), (plans, "--plan-out")):
            if path is not None and (path.is_file() or path.suffix in (".yaml", ".yml", ".txt", ".gz", ".pt2")):
                raise OutputError("is not a folder", where=str(path), hint=f"{flag} of a folder of graphs is a folder")
            if path is not None:
                output_folder(path, f"choose another with {flag}")
        files = {
            name: name if name.lower().endswith(GRAPH_FILES) else re.sub(r"[^\w.-]+", ".", name).strip(".") + ".fx.txt"
            for name in graphs
        }
        stems = {name: file[: -len(_extension(file))] for name, file in files.items()}
        twice = sorted(name for name, stem in stems.items() if list(stems.values()).count(stem) > 1)
        if twice:
            raise InputError(f"'{twice[0]}' and '{twice[1]}' have one name", where=request.graph, hint="take one away")
        outputs = {name: folder / file for name, file in files.items()}
        for path in outputs.values():
            if path.exists():
                session.output(str(path), GRAPH_FILES)
        told = {} if plans is None else {name: plans / f"{stem}.yaml" for name, stem in stems.items()}
        return _Places(folder, plans, outputs, told)

    def make(self) -> None:
        for folder in filter(None, (self.folder, self.plan_folder)):
            folder.mkdir(parents=True, exist_ok=True)

    def said(self, graphs: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
        """For the document, by graph: input, output and plan."""
        plans = {name: None if name not in self.plans else str(self.plans[name]) for name in self.outputs}
        return {
            name: {"input": graphs[name], "output": str(path), "plan": plans[name]}
            for name, path in self.outputs.items()
        }


def _again(programs: Mapping[str, Program]) -> dict[str, str]:
    """Graphs of logs that another text tells as well or better, node by node, with the name of that one.

    What somebody wrote to a file of its own is wanted as a file of its own.
    """
    from commcc.graph.index import build_index

    alike: dict[str, list[str]] = {}
    for name, program in programs.items():
        if not name.lower().endswith(GRAPH_FILES):
            alike.setdefault(build_index(program).fingerprint, []).append(name)
    # Notes are about what a text leaves out, such as strides and devices.
    best = {name: min(names, key=lambda each: len(programs[each].notes)) for names in alike.values() for name in names}
    return {name: other for name, other in best.items() if other != name}


def _extension(name: str) -> str:
    return max((extension for extension in GRAPH_FILES if name.lower().endswith(extension)), key=len)
