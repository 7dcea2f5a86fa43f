"""``commcc run FOLDER``: passes on every graph of a folder, as ``commcc capture`` writes one.

A forward and its backward are rewritten as one step. Nothing is written before all graphs are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import EXIT_OK, InputError, OptionError, OutputError
from commcc.base.files import GRAPH_FILES, output_folder, replace_text
from commcc.cli.stepping import Work

if TYPE_CHECKING:
    from commcc.cli.rewriting import Request
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.run.pipeline import RunResult


def graphs_in(path: str, output: str | None) -> list[Path]:
    """Graph files of a folder as ``commcc capture`` writes them, by name; none for a file, or a folder of logs.

    Raises for an empty folder, and for one of logs of which all graphs are to be written to a folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        return []
    if not any(folder.iterdir()):
        raise InputError("the folder is empty", where=path, hint="commcc capture writes folders of graphs")
    files = sorted(file for file in folder.iterdir() if file.name.lower().endswith(GRAPH_FILES) and file.is_file())
    if not files and output is not None and not Path(output).suffix:
        hint = "choose one as FOLDER::NAME, and a file with -o; commcc inspect lists them"
        raise InputError("holds no graph files; graphs in logs are rewritten one by one", where=path, hint=hint)
    return files


def rewrite_folder(session: Session, request: Request, files: list[Path]) -> int:
    """Run the passes on all ``files``, verify, write them and their plans, and report; the exit code."""
    extras = request.extras
    from commcc.run.pipeline import Job

    if extras.dump is not None or any(isinstance(instance, Job) for instance in request.passes):
        raise OptionError("--plan and --dump-after-each are of one graph", hint=f"name one, as in {files[0]}")
    session.inputs += files
    places = _Places.of(session, request, files)
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import folder as report
        from commcc.run.planfile import plan_text
        from commcc.run.step import pairs

        programs: dict[str, Program] = {}
        for file in files:
            say(f"reading {file}")
            programs[file.name] = session.load(str(file))
        work = Work(session, request, say)
        steps = {(ahead, behind): work.both(programs[ahead], programs[behind]) for ahead, behind in pairs(programs)}
        results: dict[str, RunResult] = {}
        for (ahead, behind), both in steps.items():
            results |= {ahead: both.forward, behind: both.backward}
        results |= {name: work.one(program) for name, program in programs.items() if name not in results}
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
    document = report.foldered(request.graph, places.said, ordered, steps, extras.said)
    session.emit(document, brief=[str(path) for path in places.outputs.values()], view=report.view)
    return EXIT_OK


@dataclass(frozen=True)
class _Places:
    """Where graphs and plans go, by the file name of each graph. plan_folder: None without ``--plan-out``."""

    folder: Path
    plan_folder: Path | None
    outputs: dict[str, Path]
    plans: dict[str, Path]

    @staticmethod
    def of(session: Session, request: Request, files: list[Path]) -> _Places:
        """Refuses, before any work is done, what could not be written after."""
        folder = Path(request.output or f"{request.graph.rstrip('/')}.run")
        plans = None if request.extras.plan_out is None else Path(request.extras.plan_out)
        for path, flag in ((folder, "-o"), (plans, "--plan-out")):
            if path is not None and (path.is_file() or path.suffix in (".yaml", ".yml", ".txt", ".gz", ".pt2")):
                raise OutputError("is not a folder", where=str(path), hint=f"{flag} of a folder of graphs is a folder")
            if path is not None:
                output_folder(path, f"choose another with {flag}")
        stems = {file.name: file.name[: -len(_extension(file.name))] for file in files}
        twice = sorted(name for name, stem in stems.items() if list(stems.values()).count(stem) > 1)
        if twice:
            raise InputError(f"'{twice[0]}' and '{twice[1]}' have one name", where=request.graph, hint="take one away")
        outputs = {file.name: folder / file.name for file in files}
        for file in files:
            if outputs[file.name].exists():
                session.output(str(outputs[file.name]), GRAPH_FILES)
        told = {} if plans is None else {name: plans / f"{stem}.yaml" for name, stem in stems.items()}
        return _Places(folder, plans, outputs, told)

    def make(self) -> None:
        for folder in filter(None, (self.folder, self.plan_folder)):
            folder.mkdir(exist_ok=True)

    @property
    def said(self) -> dict[str, dict[str, str | None]]:
        """For the document, by graph: output and plan."""
        plans = {name: None if name not in self.plans else str(self.plans[name]) for name in self.outputs}
        return {name: {"output": str(path), "plan": plans[name]} for name, path in self.outputs.items()}


def _extension(name: str) -> str:
    return max((extension for extension in GRAPH_FILES if name.lower().endswith(extension)), key=len)
