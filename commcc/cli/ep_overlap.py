"""``commcc ep-overlap``: the whole pipeline for expert parallelism, and what became of the token exchanges."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import OptionError
from commcc.cli import configured
from commcc.cli.config.types import Named
from commcc.cli.outputs import check_output
from commcc.cli.parameters import (
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    option_help,
    option_metavar,
    output_option,
    trust_option,
)
from commcc.cli.rewriting import Extras, Request, require_proof_option, rewrite
from commcc.cli.run import said
from commcc.cli.simulate import PAGES, TRACES, write_page, write_trace_file
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.ep_schedule import EpSchedule
from commcc.passes.options import build, value_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.passes.base import Pass
    from commcc.run.pipeline import RunResult

PRESET = "ep-overlap"
HELP = f"""Cut the tokens of expert-parallel modules in chunks, and run exchanges while other chunks compute.

{GRAPH_HELP} Runs the preset '{PRESET}' ('commcc passes {PRESET}' shows its passes; 'commcc run' takes any other
pipeline). A graph that is chunked already is only scheduled. That tokens do not depend on each other cannot be
proved from the graph; everything else about the result is.
"""
#: Options of the command, and which pass each belongs to.
_CHUNK = ("modules", "chunks", "dim")
_SCHEDULE = ("order", "in_flight", "memory_budget")


@click.pass_obj
def _overlap(session: Session, /, **given: Any) -> int:
    trace = _target(session, given.pop("trace"), TRACES, "--trace")
    page = _target(session, given.pop("page"), PAGES, "--html")
    if (trace or page) and given["cost"] is None:
        raise OptionError("--trace and --html show simulated times, and need costs", hint="leave out --cost none")
    passes = _passes(session, given)
    shared = {key: given[key] for key in ("graph", "output", "require_proof", "cost", "hints")}

    def report(result: RunResult) -> dict[str, Json]:
        from commcc.report.overlap_data import overlap

        _write(trace, page, result, given)
        written: dict[str, Json] = {"trace": _text(trace), "html": _text(page)}
        return {**written, "overlap": overlap(result)}

    extras = Extras(said=said(Named("preset", PRESET), passes), report=report)
    return rewrite(session, Request(PRESET, passes, **shared, extras=extras))


def _passes(session: Session, given: Mapping[str, Any]) -> Sequence[Pass]:
    """The preset with the options that were given."""
    from commcc.passes.async_tp import AsyncTp
    from commcc.passes.ep_dense import EpDense
    from commcc.passes.reorder import Reorder
    from commcc.run import forms as pipelines

    own = configured.defaults(session)
    made = pipelines.from_preset(PRESET, own)
    wanted = {
        "ep-chunk": {name: given[name] for name in _CHUNK if given[name] is not None},
        "ep-schedule": {name: given[name] for name in _SCHEDULE if given[name] is not None},
    }
    passes = [_with(each, wanted.get(each.name, {})) for each in made]
    if any(isinstance(each, EpChunk) and each.chunks in (0, 1) for each in passes):
        raise OptionError("one chunk leaves nothing that could run beside an exchange", hint="--chunks takes 2 or more")
    if given["keep_chunks"]:
        if wanted["ep-chunk"]:
            raise OptionError(f"--keep-chunks leaves no use for --{next(iter(wanted['ep-chunk']))}")
        passes = [each for each in passes if each.name != "ep-chunk"]
    behind: dict[str, type[Pass]] = {"reorder": Reorder, "dense": EpDense, "async_tp": AsyncTp}
    usual: dict[str, Mapping[str, Any]] = {"reorder": {"memory_budget": "own"}}
    for flag, cls in behind.items():
        passes += [build(cls, {**usual.get(flag, {}), **own.get(cls.name, {})})] if given[flag] else []
    configured.remember(session, passes)
    return passes


def _with(made: Pass, given: Mapping[str, Any]) -> Pass:
    held = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return build(type(made), {**held, **given}) if given else made


def _target(session: Session, path: str | None, extensions: Sequence[str], flag: str) -> Path | None:
    return None if path is None else check_output(session, path, extensions, flag)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _write(trace: Path | None, page: Path | None, result: RunResult, given: Mapping[str, Any]) -> None:
    """The reports besides: a trace, and a page."""
    from commcc.report.perfetto import Track

    tracks = [Track("before", result.first), Track("after", result.last)] if trace or page else []
    if trace is not None:
        write_trace_file(trace, tracks)
    if page is not None:
        sources: dict[str, Json] = {"input": given["graph"], "after": None, "passes": PRESET}
        write_page(page, tracks, sources, given["cost"], given["hints"])


def _options() -> list[click.Option]:
    fields = {f.name: f for cls in (EpChunk, EpSchedule) for f in dataclasses.fields(cls)}
    fields["modules"] = EpChunk.__dataclass_fields__["modules"]
    flags = []
    for name in (*_CHUNK, *_SCHEDULE):
        field = fields[name]
        text = f"{option_help(field)} [default: {value_text(field.default)}]"
        flags.append(click.Option([f"--{name.replace('_', '-')}", name], metavar=option_metavar(field), help=text))
    return flags


def _path_option(names: list[str], text: str) -> click.Option:
    return click.Option(names, type=click.Path(path_type=str), metavar="OUT", help=text)


command = click.Command(
    PRESET,
    callback=_overlap,
    help=HELP,
    short_help="Hide the token exchanges of expert parallelism",
    params=[
        graph_argument(),
        output_option(default=f"STEM.{PRESET}.EXT beside GRAPH"),
        *_options(),
        click.Option(["--keep-chunks"], is_flag=True, help="Schedule the chunks that the graph has; cut nothing."),
        click.Option(
            ["--reorder"], is_flag=True, help="Then order all nodes anew, with no more peak memory (reorder)."
        ),
        click.Option(["--dense"], is_flag=True, help="Then launch FSDP collectives beside attention (ep-dense)."),
        click.Option(["--async-tp"], is_flag=True, help="Fuse the collectives of tensor parallelism last of all."),
        _path_option(["--trace"], "Write a trace of before and after for ui.perfetto.dev; .json or .json.gz."),
        _path_option(["--html", "page"], "Write before and after as one self-contained page; .html."),
        require_proof_option(),
        cost_option(),
        hint_option(),
        trust_option(),
        *common_options(),
    ],
)
