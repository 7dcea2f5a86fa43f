"""Parameters that commands share, and flags derived from the fields of a pass.

    --bucket-cap-mb NUMBER[:NUMBER...]   one flag for each option of the pass, its help and default from there

Flags hand the text that was typed to :mod:`commcc.base.options`, which knows what it may be, so that
the command line and a pipeline text accept the same words and all wrong ones are named at once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commcc.base.errors import InputError, OptionError, closest
from commcc.base.options import LARGEST, options_of, value_text
from commcc.base.text import sentence
from commcc.cli import completing
from commcc.cli.session import Session
from commcc.graph.hint_text import read_hints
from commcc.timing.cost import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.options import Option
    from commcc.passes.base import Pass
    from commcc.timing.cost import CostModel

GRAPH_HELP = "GRAPH is a file, or FILE::NAME for one graph of a file or folder that holds several."


class _File(click.Path):
    """A path; not the empty text, as of a variable that a script forgot to set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty.", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=str)


class FiniteRange(click.FloatRange):
    """A number within bounds. NaN, which is neither below nor above one, is outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not a number.", param, ctx)
        return number


#: What ``--cost`` takes in place of a cost text.
NO_COSTS = "none"
_METAVARS = {"int": "INTEGER", "float": "NUMBER", "floats": "NUMBER[:NUMBER...]", "names": "NAME[:NAME...]"}


def graph_argument(name: str = "graph", *, required: bool = True) -> click.Argument:
    """A graph to read. That there is such a file is checked at once: importing the reader takes seconds."""
    metavar = name.upper() if required else f"[{name.upper()}]"
    return click.Argument(
        [name], type=FILE, metavar=metavar, callback=_existing, required=required, shell_complete=completing.graphs
    )


def graphs_argument() -> click.Argument:
    """Any number of graphs to read, also none."""

    def existing(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            _existing(ctx, parameter, value)
        return values

    return click.Argument(
        ["graphs"],
        type=FILE,
        nargs=-1,
        required=False,
        metavar="[GRAPH]...",
        callback=existing,
        shell_complete=completing.graphs,
    )


def _existing(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    path = Path(value)
    file = path if path.exists() else Path(value.partition("::")[0])
    if not file.exists():
        folder = file.parent
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        if file.is_symlink():
            raise InputError("is a link to what does not exist", where=str(file), hint="name the file itself")
        raise InputError(f"no such file{closest(file.name, names)}", where=str(file))
    ctx.ensure_object(Session).inputs.append(file)
    return value


def output_option(
    *, required: bool = False, default: str = "", formats: str = ".fx.txt, .fx.txt.gz or .pt2"
) -> click.Option:
    """``-o``; the extension chooses the format."""
    note = f" [default: {default}]" if default else ""
    text = f"Where to write; {formats}. Never the input.{note}"
    return click.Option(["-o", "--output"], type=FILE, metavar="OUT", required=required, help=text)


PAGES = (".html",)


def page_option(text: str) -> click.Option:
    """``--html FILE``."""
    return click.Option(["--html", "page"], type=FILE, metavar="FILE", help=text)


def cost_option(*, required: bool = False) -> click.Option:
    """``--cost``: the value is the cost model that the text describes, already loaded.

    It is None for ``none``, which only commands take that are of use without costs (not ``required``).
    """
    none = "" if required else f" '{NO_COSTS}': no simulated times."
    text = (
        "Cost model: a device (h100, a100, ... or a YAML file), then tables, profiles and settings, as in "
        f"'h100,table=coll.yaml,profile=run.json,fused=no'.{none}"
    )

    def read(ctx: click.Context, _option: click.Parameter, value: str) -> CostModel | None:
        if ctx.resilient_parsing:
            return None
        if ctx.get_parameter_source("cost") is ParameterSource.DEFAULT:
            value = ctx.ensure_object(Session).cost(value, none_allowed=not required)
        if value == NO_COSTS and not required:
            return None
        if value == NO_COSTS:
            raise OptionError("this command simulates, and needs costs", hint="name a device, as in --cost h100")
        from commcc.timing.cost import load_model
        from commcc.timing.cost.settings import parse

        chosen = parse(value)
        device = (chosen.device,) if chosen.device.endswith((".yaml", ".yml")) else ()
        ctx.ensure_object(Session).inputs += map(Path, (*device, *chosen.tables, *chosen.profiles))
        return load_model(value)

    def words(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
        """Devices for the first part of a cost text, keys for the others."""
        from commcc.timing.cost import Settings
        from commcc.timing.cost.devices import device_names

        before, comma, _ = incomplete.rpartition(",")
        keys = ("table", "profile", *options_of(Settings))
        parts = [f"{before},{key}=" for key in keys] if comma else [*device_names(), NO_COSTS]
        return _starting(parts, ctx, option, incomplete)

    return click.Option(
        ["--cost"],
        default=DEFAULT_MODEL,
        show_default=True,
        metavar="TEXT",
        help=text,
        callback=read,
        shell_complete=words,
    )


def hint_option() -> click.Option:
    """``--hint``, repeatable: the value is a dictionary of numbers by symbol or pattern."""
    text = (
        "A number for a size that is known only at run time; SYMBOL may be a pattern, as in 'u*=512'. Can be given "
        "several times; the first that fits counts. The name of an input that is in flight at the start gets the "
        "microseconds until its collective has ended. Only estimates change."
    )

    def read(ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
        given = read_hints(texts)
        return given if ctx.resilient_parsing else ctx.ensure_object(Session).with_hints(given)

    return click.Option(["--hint", "hints"], multiple=True, metavar="SYMBOL=NUMBER", help=text, callback=read)


def common_options() -> list[click.Option]:
    """``--json``, ``--quiet``, ``--debug``, ``--no-config``: they set the session and are not given to the command."""
    return [
        _switch(["--json", "as_json"], "json", "Print one JSON document (schema 1) instead of tables."),
        _switch(["-q", "--quiet"], "quiet", "Print one line instead of tables; no notes and no progress."),
        _switch(["--debug"], "debug", "Show the traceback of an error."),
        _switch(["--no-config"], "no_config", "Ignore commcc.yaml and [tool.commcc] in pyproject.toml."),
    ]


def trust_option() -> click.Option:
    """``--trust``, for commands that read graphs."""
    text = "Let PyTorch load a .pt2 that commcc's own reader refuses. This runs code which the file chooses."
    return _switch(["--trust"], "trust", text)


def reading_options(*, imports: bool = True) -> list[click.Option]:
    """``--trust``, ``--ops`` and ``--import``, for commands that read graphs; imports: none else takes ``--import``."""
    described = (
        "Describe ops that are not PyTorch's, in a YAML file: which op of PyTorch each is like, or its shape, where "
        "its tokens are, and its FLOPs."
    )
    options = [trust_option(), _kept(["--ops"], "ops", metavar="FILE", help=described)]
    own = import_option("Import a Python module that registers ops before the graph is read.", given=False)
    return [*options, own] if imports else options


def import_option(text: str, *, given: bool) -> click.Option:
    """``--import``, kept in the session; given: the command gets the modules too."""
    return _kept(
        ["--import", "imports"],
        "imports",
        multiple=True,
        metavar="MODULE",
        help=f"{text} Can be given several times.",
        expose_value=given,
    )


def _kept(names: list[str], attribute: str, *, expose_value: bool = False, **more: Any) -> click.Option:
    """An option whose value the session remembers."""

    def remember(ctx: click.Context, _option: click.Parameter, value: Any) -> Any:
        if value:
            setattr(ctx.ensure_object(Session), attribute, value)
        return value

    return click.Option(names, expose_value=expose_value, callback=remember, **more)


def read_budget(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | float | None:
    """The value of ``--memory-budget auto|own|GIB``; None where it is not given."""
    if text is None or text in ("auto", "own"):
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST:
        raise click.BadParameter(f"'{text}' is neither auto nor own nor a number of GiB.")
    return value


def _switch(names: list[str], attribute: str, text: str) -> click.Option:
    def remember(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.ensure_object(Session), attribute, True)

    return click.Option(names, is_flag=True, expose_value=False, callback=remember, is_eager=True, help=text)


def pass_options(cls: type[Pass]) -> list[click.Option]:
    """One flag for each field of the pass; a flag that is not given is None."""
    flags = []
    for option in options_of(cls).values():
        name = option.name.replace("_", "-")
        if option.kind == "bool":
            flags.append(click.Option([f"--{name}/--no-{name}", option.name], default=None, help=option_help(option)))
            continue
        words = [*option.choices, *(["none"] if option.optional else [])]
        flags.append(
            click.Option(
                [f"--{name}", option.name],
                metavar=option_metavar(option),
                help=option_help(option),
                shell_complete=partial(_starting, words),
            )
        )
    return flags


def option_help(option: Option) -> str:
    """The option's help with the meaning of ``none``, as sentences, and its default."""
    none = f" 'none': {option.none.rstrip('.')}." if option.none else ""
    return f"{sentence(option.help)}{none} [default: {value_text(option.default)}]"


def option_metavar(option: Option) -> str:
    """What may be typed for an option: ``NUMBER``, ``greedy|module``, ``primary|all|NAME[:NAME...]``."""
    choices = "|".join(option.choices)
    if option.kind == "choice":
        return choices
    return "|".join(filter(None, (choices, _METAVARS.get(option.kind, "TEXT"))))


def _starting(words: Sequence[str], _ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may complete."""
    return [word for word in words if word.startswith(incomplete)]
