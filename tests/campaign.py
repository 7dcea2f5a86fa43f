"""A campaign against the whole command line: damaged files, valid and invalid options, from a seed.

with Campaign(folder, seed=1) as campaign:
    for _ in range(100):
        campaign.once()
campaign.figures()          # inputs, exit codes by command, crashes, hangs, memory

Commands run in this process. A crash is the exit code 3, an exception that escapes, an error of several lines, an
input that changed, or a temporary file that stays. Options that run code a file chooses, or that start processes,
are not given.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from commcc.cli.main import COMMANDS, make_group, run
from tests.campaign_damage import ODD, damaged

SKIPPED = {"trust", "numeric", "nproc", "virtual_ranks", "help", "debug"}
COMMANDS_SKIPPED = {"bench", "replay", "profile", "capture"}
TEXTS = {
    "cost": (
        "h100",
        "none",
        "a100,fused=no",
        "DEVICE",
        "h100,table=TABLE",
        "h100,profile=PROFILE",
        "h100,skew=-1",
        "x",
    ),
    "hints": ("u*=512", "u0=3", "s0=1", "u0=", "=3", "u0=99999999999999999999", "*=x"),
    "passes": (
        "tag",
        "tag,bucket,reorder",
        "bucket{strategy=module}",
        "bucket{bucket_cap_mb=}",
        "reorder{",
        "dedup,tag,",
        "x",
    ),
    "params": ("bucket.bucket_cap_mb=1,25,none", "bucket.max_topo_span=1,x", "reorder.effort=0", "x.y=1", "="),
    "preset": ("pre-overlap", "autoparallel", "simple-fsdp", "auto", "overlap-preserving", "ep-overlap", "x"),
    "strategy": ("greedy", "module", "overlap", "auto", "x"),
    "groups": ("auto", "all", "primary", "0", "nobody", "0:1"),
    "modules": ("layers.*", "transformer_block", "layers.[0-5].moe", "*", "["),
    "memory_budget": ("auto", "own", "none", "0", "-1", "1e9", "x"),
    "symbols": ("known", "u0=3", "all", "x=1"),
    "collective": ("ag", "all_gather_into_tensor_3", "0", "nobody"),
    "hiding": ("HIDING", "graph", "x"),
    "roles": ("ep", "fsdp:ep", "all", "x"),
    "rule": (
        "peak-memory.max=1GiB",
        "rank-agreement=warning",
        "x=error",
        "peak-memory",
        "collective-count.max.all_gather=1",
    ),
    "only": ("peak-memory", "rank-agreement,never-waited", "x"),
    "chunks": ("auto", "2", "3", "0", "x"),
    "order": ("phase", "wavefront", "auto", "x"),
}
NUMBERS = ("0", "1", "2", "5", "-1", "25", "1e3", "none", "auto", "999999999999999999999", "x", "")
OUTPUTS = {"output": ".fx.txt", "trace": ".json", "page": ".html", "plan_out": ".yaml", "dump": ""}
ENDINGS = ("", "", "", "", ".gz", ".pt2", ".json", ".yaml", ".html", ".txt")


class HangError(BaseException):
    """A command did not end in time."""


@dataclass
class Campaign:
    """seeds: contents of whole files by name. limit: seconds for one command. keep: where crashing inputs go."""

    folder: Path
    seed: int
    seeds: dict[str, bytes]
    limit: float = 60.0
    keep: Path | None = None
    codes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    crashes: dict[str, list[str]] = field(default_factory=dict)
    hangs: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    inputs: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.mild = False  # most options valid, files whole more often than not
        self.group = make_group()
        context = click.Context(self.group, info_name="commcc")
        names = [name for name in COMMANDS if name not in COMMANDS_SKIPPED]
        self.commands = {name: self.group.get_command(context, name) for name in names}
        self.memory = _memory()
        self.memory_by = ""

    def once(self) -> None:
        """One command line on files of its own."""
        self.inputs += 1
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self.mild = self.chance.random() < 0.6
        if self.chance.random() < 0.1:
            (work / "commcc.yaml").write_bytes(damaged(self.chance, "commcc.yaml", self.seeds["commcc.yaml"]))
        name = self.chance.choice(sorted(self.commands))
        arguments = [name, *self._arguments(name, work)]
        before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
        here = Path.cwd()
        os.chdir(work)  # contextlib.chdir is not in Python 3.10
        try:
            problem = self._run(name, arguments)
        finally:
            os.chdir(here)
        # A baseline is the one file that may be both read and written, when that is asked for.
        kept = {p: c for p, c in before.items() if "--update-baseline" not in arguments or "baseline" not in p.name}
        problem = problem or _left(work, kept)
        if problem:
            self._record(problem, arguments, before)

    def _arguments(self, name: str, work: Path) -> list[str]:
        found: list[str] = []
        for parameter in self.commands[name].params:  # type: ignore[union-attr]
            if parameter.name in SKIPPED:
                continue
            if isinstance(parameter, click.Argument):
                count = self.chance.choice((0, 1, 1, 2, 3)) if parameter.nargs == -1 else 1
                count = count if parameter.required or self.chance.random() < 0.5 else 0
                found += [self._argument(str(parameter.name), work) for _ in range(count)]
            elif parameter.required or self.chance.random() < (0.08 if self.mild else 0.15):
                found += self._option(parameter, work)
        self.chance.shuffle(found) if self.chance.random() < 0.02 else None
        return found

    def _argument(self, name: str, work: Path) -> str:
        return self._text(name, work) if name in ("collective", "name") else self._file("graph", work)

    def _option(self, option: click.Parameter, work: Path) -> list[str]:
        flag = self.chance.choice([*option.opts, *option.secondary_opts])
        if getattr(option, "is_flag", False):
            return [flag]
        if self.chance.random() < 0.05 and not self.mild:
            return [flag, self.chance.choice(ODD).replace("\0", "")]
        name = str(option.name)
        if name in OUTPUTS:
            return [flag, f"out{OUTPUTS[name]}{'' if self.mild else self.chance.choice(ENDINGS)}"]
        if isinstance(option.type, click.Path):
            return [flag, self._file(name, work)]
        if isinstance(option.type, click.Choice):
            return [flag, self.chance.choice([*map(str, option.type.choices), "x"])]
        return [flag, "1" if name == "jobs" else self._text(name, work)]

    def _text(self, name: str, work: Path) -> str:
        texts = TEXTS.get(name, NUMBERS)
        text = self.chance.choice(texts[:3] if self.mild else texts)
        for word in ("DEVICE", "TABLE", "PROFILE", "HIDING"):
            if word in text:
                text = text.replace(word, self._file(word.lower(), work))
        return text

    def _file(self, sort: str, work: Path) -> str:
        """A file of a sort (the start of a seed's name), damaged more often than not; now and then another sort."""
        names = [name for name in self.seeds if name.startswith(sort)]
        if not names or (self.chance.random() < 0.03 and not self.mild):
            names = sorted(self.seeds)
        name = self.chance.choice(names)
        content = self.seeds[name]
        if self.chance.random() < (0.4 if self.mild else 0.75):
            content = damaged(self.chance, name, content)
        path = f"rank{sum(1 for _ in work.iterdir())}.{name}"  # lint takes graphs of such names for ranks
        (work / path).write_bytes(content)
        return path

    def _run(self, name: str, arguments: list[str]) -> str:
        """Run it; what is wrong, or nothing."""
        out, err = io.StringIO(), io.StringIO()
        started = time.process_time()
        signal.signal(signal.SIGALRM, _hang)
        signal.setitimer(signal.ITIMER_REAL, self.limit)
        code: Any = "exception"
        problem = ""
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(arguments)
        except HangError:
            self.hangs.append(" ".join(arguments))
            code = "hang"
            problem = "hang"
        except BaseException:  # this is what is looked for
            problem = traceback.format_exc().strip().splitlines()[-1]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.codes[name][str(code)] += 1
        self.slowest = max(self.slowest, (time.process_time() - started, " ".join(arguments)))
        now = _memory()
        if now > self.memory:
            self.memory, self.memory_by = now, " ".join(arguments)
        reported = name == "lint" and code == 2  # graphs that cannot be read are part of its report
        return problem or ("" if reported else _problem(code, err.getvalue()))

    def _record(self, problem: str, arguments: list[str], before: dict[Path, bytes]) -> None:
        self.crashes.setdefault(problem, []).append(" ".join(arguments))
        if self.keep is not None and len(self.crashes[problem]) <= 2:
            place = self.keep / f"crash-{len(self.crashes)}-{len(self.crashes[problem])}"
            place.mkdir(parents=True, exist_ok=True)
            for path, content in before.items():
                (place / path.name).write_bytes(content)
            (place / "command.txt").write_text(f"{arguments!r}\n{problem}\n", errors="backslashreplace")

    def figures(self) -> str:
        """What happened, for people."""
        lines = [f"{self.inputs:,} command lines, seed {self.seed}"]
        for name, codes in sorted(self.codes.items()):
            lines.append(f"  {name:14} " + ", ".join(f"{count:,} x {code}" for code, count in sorted(codes.items())))
        crashes = sum(map(len, self.crashes.values()))
        lines.append(
            f"crashes: {crashes:,} ({len(self.crashes)} different); hangs over {self.limit:g} s: {len(self.hangs)}"
        )
        lines += [
            f"  {len(lines_)} x {problem}: commcc {lines_[0][:160]!r}" for problem, lines_ in self.crashes.items()
        ]
        lines.append(f"slowest: {self.slowest[0]:.1f} s of CPU time: commcc {self.slowest[1][:120]!r}")
        lines.append(f"memory: {self.memory / 1024:,.0f} MiB at the most: commcc {self.memory_by[:120]!r}")
        return "\n".join(lines)


def _hang(_signal: int, _frame: Any) -> None:
    raise HangError


def _memory() -> int:
    """Most memory so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _problem(code: Any, err: str) -> str:
    if code not in (0, 1, 2):
        return f"exit code {code}: {_errors(err)[-1:] or err[-300:]}"
    if code == 2 and len(_errors(err)) != 1:
        return f"{len(_errors(err))} errors with exit code 2: {err[-300:]}"
    return "a traceback is shown" if "Traceback (most" in err else ""


def _errors(err: str) -> list[str]:
    return [line for line in err.split("\n") if "error: " in line[:40]]


def _left(work: Path, before: dict[Path, bytes]) -> str:
    changed = [path.name for path, content in before.items() if not path.exists() or path.read_bytes() != content]
    hidden = [path.name for path in work.rglob(".commcc-*")]
    return f"changed: {changed}" if changed else "a temporary file stays" if hidden else ""


def limit_memory(gigabytes: float) -> None:
    """What takes more gets a MemoryError."""
    size = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def make_seeds(folder: Path, samples: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Whole files of every sort, made by commands where commands make them."""
    from tests.campaign_files import FILES, GRAPHS

    folder.mkdir(parents=True, exist_ok=True)
    found = {name: text.encode() for name, text in {**FILES, **GRAPHS}.items()}
    root = Path(__file__).parents[1]
    for sample in samples:
        found[f"graph_{sample}"] = (root / "sample_graphs" / sample).read_bytes()
    small = folder / "small.fx.txt"
    small.write_bytes(found["graph_fsdp.fx.txt"])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(["convert", str(small), "-o", str(folder / "graph.pt2")])
        run(["bucket", str(small), "-o", str(folder / "graph_bucket.fx.txt.gz")])
        run(
            [
                "run",
                str(small),
                "--passes",
                "tag,bucket,reorder",
                "-o",
                str(folder / "x.fx.txt"),
                "--plan-out",
                str(folder / "plan.yaml"),
            ]
        )
        run(["lint", str(small), "--update-baseline", "--baseline", str(folder / "baseline.yaml")])
    for name in ("graph.pt2", "graph_bucket.fx.txt.gz", "plan.yaml", "baseline.yaml"):
        found[name] = (folder / name).read_bytes()
    device = root / "commcc" / "timing" / "cost" / "devices" / "h100-sxm.yaml"
    found["device.yaml"] = device.read_bytes()
    os.environ.pop("COLUMNS", None)
    return found
