"""``commcc run``: a pipeline of passes on a graph, or a plan that was made before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import OptionError
from commcc.cli import completing
from commcc.cli.config.types import Named
from commcc.cli.folder import graphs_in, rewrite_folder
from commcc.cli.parameters import (
    FILE,
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    output_option,
    reading_options,
)
from commcc.cli.rewriting import Extras, Request, proof_options, rewrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.passes.base import Pass
    from commcc.run.pipeline import Job

HELP = f"""Run passes on a graph, one after the other; each result is verified before the next.

{GRAPH_HELP} One of --passes, --pipeline, --preset and --plan says what to run, or else the project's
configuration. A plan is what passes decided in an earlier run (--plan-out): it is applied without
planning, to the graph that it was made for and to no other.

With BACKWARD the two graphs are one step: passes run on both, each is verified and written, and what the step takes
and needs is shown of both together. What the forward launches and the backward waits for carries over.

GRAPH may be a folder, as 'commcc capture' writes it: all of its graphs are rewritten, a forward with its backward as
one step, and -o and --plan-out name folders. So are the graphs of a log, and those of PyTorch's in texts and
logs below a folder (TORCH_COMPILE_DEBUG), if -o names a folder; a graph that is in them several times is
rewritten once.
"""
#: How a pipeline is named on the command line, and an example of each.
KINDS = {
    "passes": "--passes 'tag,bucket'",
    "pipeline": "--pipeline FILE.yaml",
    "preset": "--preset NAME",
    "plan": "--plan FILE.yaml",
}


@click.pass_obj
def run_passes(session: Session, /, **given: Any) -> int:
    named = choose(session, {kind: given.pop(kind) for kind in KINDS})
    passes = passes_of(session, named)
    extras = Extras(
        given["plan_out"], given["dump"], given["expect_change"], given["keep_if_better"], said(named, passes)
    )
    shared = {key: given[key] for key in ("graph", "output", "require_proof", "repro", "cost", "hints")}
    if extras.keep_if_better and shared["cost"] is None:
        raise OptionError("--keep-if-better compares simulated steps, and needs costs", hint="leave out --cost none")
    request = Request("run", passes, **shared, extras=extras)
    graphs = graphs_in(request.graph, request.output)
    if graphs and given["backward"] is not None:
        raise OptionError("a folder of graphs has its backwards in it", hint="leave out BACKWARD")
    if graphs:
        return rewrite_folder(session, request, graphs)
    if given["backward"] is not None:
        from commcc.cli.stepping import rewrite_step

        return rewrite_step(session, request, given["backward"])
    return rewrite(session, request)


def choose(session: Session, given: Mapping[str, str | None]) -> Named:
    """What to run: the one thing that was given, or what the configuration names."""
    named = [Named(kind, value) for kind, value in given.items() if value is not None]
    if len(named) > 1:
        flags = " and ".join(f"--{choice.kind}" for choice in named)
        raise OptionError(f"{flags} {'both' if len(named) == 2 else 'all'} say what to run", hint="give one of them")
    if named:
        return named[0]
    pipeline = None if session.config is None else session.config.pipeline
    if pipeline is None:
        ways = [KINDS[kind] for kind in given]
        hint = f"give {', '.join(ways[:-1])} or {ways[-1]}"
        raise OptionError("nothing says what to run", hint=hint)
    session.used[pipeline.kind] = pipeline.value
    return pipeline


def passes_of(session: Session, named: Named) -> Sequence[Pass | Job]:
    """The passes, or for a plan its jobs; files count as inputs, which are never overwritten."""
    if named.kind in ("pipeline", "plan"):
        session.inputs.append(Path(named.value))
    if named.kind == "plan":
        from commcc.run.planfile import read_plans

        return read_plans(named.value)
    from commcc.passes.options import parse_pipeline
    from commcc.run import forms

    read = {"passes": parse_pipeline, "pipeline": forms.read_pipeline, "preset": forms.from_preset}[named.kind]
    passes = read(named.value, session.defaults)
    session.remember(passes)
    return passes


def said(named: Named, passes: Sequence[Pass | Job]) -> dict[str, Json]:
    """Keys of the document: the pipeline as text, and how it was named."""
    from commcc.passes.options import to_text
    from commcc.run.pipeline import Job

    text = ",".join(instance.text if isinstance(instance, Job) else to_text(instance) for instance in passes)
    return {"pipeline": text, "from": {named.kind: named.value}}


def pipeline_options(*, plan: bool = True) -> list[click.Option]:
    """``--passes``, ``--pipeline``, ``--preset``, and ``--plan`` for commands that can apply one."""
    from commcc.run.forms import preset_names

    def presets(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in preset_names() if name.startswith(incomplete)]

    options = [
        click.Option(
            ["--passes"],
            metavar="TEXT",
            shell_complete=completing.passes,
            help="Passes with options, as in 'tag,bucket{bucket_cap_mb=25}'.",
        ),
        click.Option(["--pipeline"], type=FILE, metavar="FILE", help="The same from a YAML file."),
        click.Option(["--preset"], metavar="NAME", shell_complete=presets, help=f"One of {', '.join(preset_names())}."),
    ]
    if plan:
        text = "Apply a plan that --plan-out wrote; refused for any other graph."
        options.append(click.Option(["--plan"], type=FILE, metavar="FILE", help=text))
    return options


command = click.Command(
    "run",
    callback=run_passes,
    help=HELP,
    short_help="Run a pipeline of passes, or apply a plan",
    params=[
        graph_argument(),
        graph_argument("backward", required=False),
        output_option(default="STEM.run.EXT next to GRAPH; with BACKWARD or a folder a folder"),
        *pipeline_options(),
        click.Option(
            ["--plan-out"],
            type=FILE,
            metavar="FILE",
            help="Write what the passes decided as YAML, to be reviewed and applied again with --plan or in a "
            "training job; of a folder of graphs a folder.",
        ),
        click.Option(
            ["--dump-after-each", "dump"],
            type=FILE,
            metavar="DIR",
            help="Keep the graph after each pass in DIR, numbered.",
        ),
        click.Option(
            ["--expect-change"], is_flag=True, help="Write nothing, and exit with 1, when a pass changed nothing."
        ),
        click.Option(["--keep-if-better"], is_flag=True, help="Drop a pass that makes the simulated step longer."),
        *proof_options(),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
