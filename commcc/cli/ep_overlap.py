"""``commcc ep-overlap``: the whole pipeline for expert parallelism, and what became of the token exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import OptionError
from commcc.base.options import options_of
from commcc.cli.config.types import Named
from commcc.cli.parameters import (
    GRAPH_HELP,
    PAGES,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    option_help,
    option_metavar,
    output_option,
    reading_options,
)
from commcc.cli.rewriting import Extras, Request, proof_options, rewrite
from commcc.cli.run import said
from commcc.cli.simulate import TRACES, picture_options, text_of, write_page, write_trace_file
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.ep_schedule import EpSchedule
from commcc.passes.options import build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.passes.base import Pass
    from commcc.run.pipeline import RunResult

PRESET = "ep-overlap"
HELP = f"""Cut the tokens of expert-parallel modules in chunks, and run exchanges while other chunks compute.

{GRAPH_HELP} Runs the preset '{PRESET}' ('commcc passes {PRESET}' shows its passes; 'commcc run' takes any other
pipeline). A graph that is chunked already is only scheduled. Where the graph does not show that tokens
do not depend on each other, the result is not proved, and the node that may mix them is named.
"""
#: Options of the command, and which pass each belongs to.
_CHUNK = ("modules", "chunks", "dim")
_SCHEDULE = ("order", "in_flight", "memory_budget")


@click.pass_obj
def overlap_exchanges(session: Session, /, **given: Any) -> int:
    trace = session.report_file(given.pop("trace"), TRACES, "--trace")
    page = session.report_file(given.pop("page"), PAGES, "--html")
    if (trace or page) and given["cost"] is None:
        raise OptionError("--trace and --html show simulated times, and need costs", hint="leave out --cost none")
    passes = _passes(session, given)
    shared = {key: given[key] for key in ("graph", "output", "require_proof", "repro", "cost", "hints")}

    def report(result: RunResult) -> dict[str, Json]:
        from commcc.report.overlapping import overlap
        from commcc.report.perfetto import Track

        tracks = [Track("before", result.first), Track("after", result.last)] if trace or page else []
        if trace is not None:
            write_trace_file(trace, tracks)
        if page is not None:
            sources: dict[str, Json] = {"input": given["graph"], "after": None, "passes": PRESET}
            write_page(page, tracks, sources, given["cost"], given["hints"])
        _warn_if_longer(session, given, result)
        return {"trace": text_of(trace), "html": text_of(page), "overlap": overlap(result)}

    extras = Extras(said=said(Named("preset", PRESET), passes), report=report)
    return rewrite(session, Request(PRESET, passes, **shared, extras=extras))


def _warn_if_longer(session: Session, given: Mapping[str, Any], result: RunResult) -> None:
    """Chunks cost kernels of their own: where these are small, more than what they hide."""
    from commcc.report.overlapping import longer

    text = longer(result)
    ways = [] if given["keep_chunks"] or given["chunks"] == "auto" else ["--chunks auto cuts only where that pays"]
    ways += [] if given["reorder"] else ["--reorder also hides what is no exchange of tokens"]
    if text:
        session.warn("; ".join([text, *ways]))


def _passes(session: Session, given: Mapping[str, Any]) -> Sequence[Pass]:
    """The preset with the options that were given."""
    from commcc.passes.async_tp import AsyncTp
    from commcc.passes.ep_dense import EpDense
    from commcc.passes.reorder import Reorder
    from commcc.run import forms as pipelines

    own = session.defaults
    from_preset = pipelines.from_preset(PRESET, own)
    memory = {"memory_budget": given["memory_budget"]} if given["memory_budget"] is not None else {}
    wanted = {
        "ep-chunk": {name: given[name] for name in _CHUNK if given[name] is not None},
        "ep-schedule": {name: given[name] for name in _SCHEDULE if given[name] is not None},
        # Gathers that the graph repeats to save memory stay, and none is launched ahead of its time, unless more memory
        # is allowed.
        "dedup": memory,
        "bucket": memory,
    }
    passes = []
    for instance in from_preset:
        chosen = wanted.get(instance.name, {})
        present = {name: getattr(instance, name) for name in options_of(type(instance))}
        passes.append(build(type(instance), {**present, **chosen}) if chosen else instance)
    if any(isinstance(instance, EpChunk) and instance.chunks in (0, 1) for instance in passes):
        raise OptionError(
            "one chunk leaves nothing that could overlap with an exchange", hint="--chunks takes 2 or more"
        )
    if given["keep_chunks"]:
        if wanted["ep-chunk"]:
            raise OptionError(f"--keep-chunks leaves no use for --{next(iter(wanted['ep-chunk']))}")
        passes = [instance for instance in passes if instance.name != "ep-chunk"]
    behind: dict[str, type[Pass]] = {"reorder": Reorder, "dense": EpDense, "async_tp": AsyncTp}
    for flag, cls in behind.items():
        # --reorder promises no more peak memory.
        usual = {"memory_budget": "own"} if flag == "reorder" else {}
        passes += [build(cls, {**usual, **own.get(cls.name, {})})] if given[flag] else []
    session.remember(passes)
    return passes


def _options() -> list[click.Option]:
    options = {**options_of(EpSchedule), **options_of(EpChunk)}
    flags = []
    for name in (*_CHUNK, *_SCHEDULE):
        option = options[name]
        flag = f"--{name.replace('_', '-')}"
        flags.append(click.Option([flag, name], metavar=option_metavar(option), help=option_help(option)))
    return flags


command = click.Command(
    PRESET,
    callback=overlap_exchanges,
    help=HELP,
    short_help="Hide the token exchanges of expert parallelism",
    params=[
        graph_argument(),
        output_option(default=f"STEM.{PRESET}.EXT next to GRAPH"),
        *_options(),
        click.Option(["--keep-chunks"], is_flag=True, help="Schedule the chunks that the graph has; cut nothing."),
        click.Option(
            ["--reorder"], is_flag=True, help="Then order all nodes anew, with no more peak memory (reorder)."
        ),
        click.Option(["--dense"], is_flag=True, help="Then launch FSDP collectives during attention (ep-dense)."),
        click.Option(["--async-tp"], is_flag=True, help="Fuse the collectives of tensor parallelism last of all."),
        *picture_options(" of before and after"),
        *proof_options(),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
