"""A table artefact x command: what PyTorch's own tools write, through the commands of commcc.

    python benchmarks/artefacts.py [--folder out/] [--only NAME] [--bench N] [--json OUT]

Artefacts come from :mod:`artefact_makers`, each maker in a process of its own, and stay in ``--folder`` for the next
run. A log or folder with several graphs is one artefact for the commands that take all of it, and up to three graphs
of it for the others. A cell is what the command gave: a dot where it did what it is for, else its exit code and a
number that refers to the list below the table. What is no graph must be refused by everything, with exit code 2.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SECONDS = 300
#: What is no graph of ATen ops, by the end of its path, and must be refused.
REFUSED = (
    *("refused/any_module.py", "refused/training.log"),
    *(f"dumps/graph_{kind}.txt" for kind in ("fw", "bw", "joint")),
)
#: Folders of makers whose files hold graphs of Dynamo alone.
OF_DYNAMO = ("repro_dynamo",)
#: Columns whose command writes what it is given by name.
WRITERS = ("page", "tag", "dedup", "cleanup", "bucket", "reorder", "auto", "text", "pt2")
#: What the command says of an archive that plain PyTorch does not load.
NEEDS = "torch.export.load needs"
LOADER = """
import json, sys, torch
for path in sys.argv[1:]:
    try:
        torch.export.load(path)
        print(json.dumps([path, 0, ""]))
    except Exception as error:
        print(json.dumps([path, 1, " ".join(f"{type(error).__name__}: {error}".split())[:200]]))
"""


@dataclass
class Artefact:
    """A file or folder, or one graph in it. whole: what holds several graphs. refused: nothing may take it."""

    name: str
    spec: str
    whole: bool = False
    refused: bool = False
    cells: dict[str, tuple[int, str]] = field(default_factory=dict)


def make(folder: Path, only: str | None) -> None:
    """Run the makers whose folder is not there yet."""
    from artefact_makers import MAKERS

    script = Path(__file__).with_name("artefact_makers.py")
    for name, (_, settings) in MAKERS.items():
        target = folder / name
        if target.exists() or (only and only not in name):
            continue
        environment = {key: value.format(target) for key, value in settings.items()}
        error = environment.pop("STDERR", None)
        print(f"making {name}", file=sys.stderr)
        command = [sys.executable, str(script), name, str(target)]
        caches = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        done = subprocess.run(
            command, env={**os.environ, **caches, **environment}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        if error is not None:
            Path(error).write_text(done.stderr)


def find(folder: Path) -> list[Artefact]:
    """All artefacts of a folder that makers have filled."""
    from commcc.base.errors import CommccError
    from commcc.serialization import list_graphs

    found: list[Artefact] = []
    tools = ("output_code.py", ".json", "ir_pre_fusion.txt", "ir_post_fusion.txt", "_debug.log", "debug.log")
    for maker in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in maker.rglob("*") if path.is_file() and "storages" not in path.parts)
        if maker.name == "debug":
            found.append(Artefact("debug/", str(maker), whole=True))
        for path in files:
            if path.name.endswith(tools):
                continue
            name = (
                f"{maker.name}/{path.name}"
                if path.parent == maker
                else f"{maker.name}/…/{path.parent.name}/{path.name}"
            )
            refused = str(path).endswith(REFUSED) or maker.name in OF_DYNAMO
            try:
                graphs = [graph.name for graph in list_graphs(path) if graph.loadable]
            except CommccError:
                graphs = []
            if len(graphs) < 2:
                found.append(Artefact(name, str(path), refused=refused))
                continue
            found.append(Artefact(name, str(path), whole=True))
            found += [Artefact(f"{name}::{graph}", f"{path}::{graph}") for graph in graphs[:3]]
    return found


def commands(artefact: Artefact, out: Path, *, bench: bool) -> dict[str, list[str]]:
    """Command lines by column, in the order in which they are run."""
    graph = artefact.spec
    if artefact.whole:
        return {"inspect": ["inspect", graph], "lint": ["lint", graph]}
    auto, text, archive = (str(out / name) for name in ("auto.fx.txt", "text.fx.txt.gz", "archive.pt2"))
    lines = {
        "inspect": ["inspect", graph],
        "simulate": ["simulate", graph],
        "page": ["simulate", graph, "--html", str(out / "page.html"), "--trace", str(out / "trace.json.gz")],
        "explain": ["explain", graph],
        "lint": ["lint", graph],
        "diff": ["diff", graph, graph],
        **{
            name: [name, graph, "-o", str(out / f"{name}.fx.txt")]
            for name in ("tag", "dedup", "cleanup", "bucket", "reorder")
        },
        "auto": ["run", graph, "--preset", "auto", "-o", auto],
        "verify": ["verify", graph, auto],
        "numeric": ["verify", graph, auto, "--numeric"],
        "text": ["convert", graph, "-o", text],
        "text again": ["verify", graph, text],
        "pt2": ["convert", graph, "-o", archive],
        "pt2 again": ["verify", graph, archive],
    }
    if bench:
        lines["bench"] = ["bench", graph, auto, "--nproc", "2", "--repeat", "2", "--warmup", "1"]
    return lines


def call(arguments: list[str]) -> tuple[int, str]:
    """Exit code, and the first line that says why it is not 0."""
    from commcc.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*arguments, "--no-config"])
    except TimeoutError:
        return -1, f"not done after {SECONDS} s"
    except Exception:
        return -2, "crash: " + traceback.format_exc().strip().splitlines()[-1]
    finally:
        signal.alarm(0)
    told = out.getvalue().splitlines()
    said = [line for line in err.getvalue().splitlines() if "error:" in line] or told
    needs = next((line for line in told if NEEDS in line), "")
    return code, said[0] if code and said else needs


def right(artefact: Artefact, column: str, code: int) -> bool:
    """Whether an exit code is what the artefact asks for; lint may have findings."""
    if artefact.refused:
        return code == 2 or (column == "lint" and code == 1)
    needs = column == "torch loads" and NEEDS in artefact.cells["pt2"][1]
    return code == 0 or needs or (column == "lint" and code == 1)


def _stop(*_: Any) -> None:
    raise TimeoutError


def run_here(artefact: Artefact, out: Path, *, bench: bool) -> dict[str, tuple[int, str]]:
    """Every command on an artefact, in this process."""
    out.mkdir(parents=True, exist_ok=True)
    cells = {}
    for column, arguments in commands(artefact, out, bench=bench).items():
        # A result that was not written has said why in its own column.
        files = [word for word in arguments[1:] if word.startswith(f"{out}{os.sep}") and column not in WRITERS]
        if all(Path(file).exists() for file in files) or artefact.refused:
            cells[column] = call(arguments)
    return cells


def run_all(artefact: Artefact, out: Path, *, bench: bool) -> dict[str, tuple[int, str]]:
    """Every command on an artefact, in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.signal(signal.SIGALRM, _stop)
        cells = run_here(artefact, out, bench=bench)
        with os.fdopen(writing, "w") as stream:
            json.dump(cells, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return {key: (code, said) for key, (code, said) in json.loads(text).items()} if text else {"process": (-3, "died")}


def load_all(artefacts: list[Artefact], folder: Path) -> None:
    """What plain PyTorch makes of the archives, in a process that has never seen commcc."""
    archives = {str(folder / str(number) / "archive.pt2"): each for number, each in enumerate(artefacts)}
    there = [path for path in archives if Path(path).exists()]
    command = [sys.executable, "-W", "ignore", "-c", LOADER, *there]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    for line in done.stdout.splitlines():
        path, code, said = json.loads(line)
        archives[path].cells["torch loads"] = (code, said)


def table(artefacts: list[Artefact]) -> str:
    """Markdown: the table, and what failed below it."""
    columns = list(dict.fromkeys(column for artefact in artefacts for column in artefact.cells))
    reasons: dict[str, list[str]] = {}
    lines = ["| artefact | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    runs = failed = 0
    for artefact in artefacts:
        row = []
        for column in columns:
            if column not in artefact.cells:
                row.append("")
                continue
            runs += 1
            code, said = artefact.cells[column]
            if right(artefact, column, code):
                row.append("refused" if artefact.refused else "import" if code and column == "torch loads" else "·")
                continue
            failed += 1
            said = said.replace(artefact.spec, "FILE")
            reasons.setdefault(said, []).append(f"{artefact.name} {column}")
            row.append(f"{code} ({list(reasons).index(said) + 1})")
        lines.append(f"| {artefact.name} | " + " | ".join(row) + " |")
    lines += ["", f"{len(artefacts)} artefacts, {runs} runs, {failed} not as they should be.", ""]
    for number, (said, where) in enumerate(reasons.items(), 1):
        lines.append(f"{number}. `{said}` ({len(where)}: {', '.join(where[:4])}{', …' if len(where) > 4 else ''})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("artefacts"))
    parser.add_argument("--only", help="artefacts whose name holds this text")
    parser.add_argument("--bench", type=int, default=0, help="also time every so manieth graph on two processes")
    parser.add_argument("--json", type=Path, help="write all cells there")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    make(options.folder, None)
    artefacts = [each for each in find(options.folder) if not options.only or options.only in each.name]
    outputs = options.folder.with_name(options.folder.name + "-out")
    shutil.rmtree(outputs, ignore_errors=True)
    # Modules are imported and kernels compiled here, once, before the processes part.
    first = next((each for each in artefacts if not (each.whole or each.refused)), None)
    if first is not None:
        signal.signal(signal.SIGALRM, _stop)
        run_here(first, outputs / "first", bench=False)
    for number, artefact in enumerate(artefacts):
        print(f"{number + 1}/{len(artefacts)} {artefact.name}", file=sys.stderr)
        bench = bool(options.bench) and number % options.bench == 0
        artefact.cells = run_all(artefact, outputs / str(number), bench=bench)
        for column, (code, said) in artefact.cells.items():
            if not right(artefact, column, code):
                print(f"    {column}: {code} {said}", file=sys.stderr)
    load_all(artefacts, outputs)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in artefacts], indent=1))
    print(table(artefacts))


if __name__ == "__main__":
    main()
