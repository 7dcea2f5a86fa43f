"""``commcc lint``: rules over graphs, as a gate for CI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE, OptionError
from commcc.base.files import replace_text
from commcc.base.text import json_text
from commcc.cli import completing
from commcc.cli.parameters import FILE, PAGES, common_options, cost_option, hint_option, page_option, reading_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.lint import Report, Settings, Task
    from commcc.lint.running import Run

HELP = """Check graphs against rules and limits: a gate for CI.

GRAPH is a file, FILE::NAME for one graph of a file that holds several, a folder, or a pattern such as
'dumps/**/*.gz'. Without any, the graphs that the configuration names. Settings come from --config FILE,
else from lint in commcc.yaml or [tool.commcc.lint] in pyproject.toml; --rule and the like win. The exit
code is 1 if an error was found, 2 if a graph could not be read: the others are checked all the same.
"""
FORMATS = ("text", "json", "github", "sarif", "junit")
_EXTENSIONS = {
    "text": (".txt", ".log"),
    "json": (".json",),
    "github": (".txt", ".log"),
    "sarif": (".sarif", ".json"),
    "junit": (".xml",),
}


@click.pass_obj
def lint(session: Session, /, graphs: tuple[str, ...], **given: Any) -> int:
    if given["list_rules"]:
        from commcc.report import linting

        session.emit(linting.rules_document(), brief=linting.rules_brief(), view=linting.rules_view)
        return EXIT_OK
    form = _form(session, given["form"], in_file=given["output"] is not None)
    settings = _settings(session, given)
    from commcc.cli.fixing import Fixing, fixing_folder, mended

    page = session.report_file(given["page"], PAGES, "--html")
    wanted = graphs or settings.graphs
    if not wanted:
        raise OptionError("no graph is named", hint="name files or folders, or set lint.graphs in the configuration")
    folder = fixing_folder(given["fix"], given["fix_in_place"])
    fixes = None
    with session.working("loading PyTorch") as say:
        run = _run(session, settings, given, wanted, say)
        report, task = run.report(), run.task
        if folder is not None or given["fix_in_place"]:
            run, fixes = mended(run, report, Fixing(session, settings, folder, task.model, task.hints, say))
            report = run.report()
    if given["update_baseline"]:
        from commcc.lint.baseline import key_of, write_baseline

        assert task.baseline is not None
        write_baseline(task.baseline, {key_of(graph, task.baseline): known for graph, known in run.measured.items()})
    symbols = [symbol for known in run.measured.values() for symbol in known.hints]
    session.warn_of_costs(task.hints, symbols, () if session.quiet else run.assumed)
    code = EXIT_USAGE if report.unread else EXIT_FINDINGS if report.failed else EXIT_OK
    _emit(session, report, task, (form, code), {**given, "fixes": fixes, "page": page})
    return code


def _form(session: Session, form: str | None, *, in_file: bool) -> str:
    """The form of the report; what is printed in addition to a file is text unless ``--json`` asks for more."""
    if session.json and form not in (None, "json"):
        raise OptionError(f"--json and --format {form} ask for two forms", hint="give one of them")
    if form == "json" and not in_file:
        session.json = True
    return form or ("json" if session.json else "text")


def _settings(session: Session, given: dict[str, Any]) -> Settings:
    """The settings of a file, with what the command line says on top."""
    from commcc.cli.config.reading import read_lint_settings
    from commcc.lint import Settings
    from commcc.lint.reading import check_ids, layers_of

    if given["config"] is not None:
        settings = read_lint_settings(given["config"])
        session.inputs.append(Path(given["config"]))
    else:
        settings = (session.config.lint if session.config is not None else None) or Settings()
        if settings.file is not None:
            session.used["lint"] = "settings"
    # --ranks and --no-ranks are short for options of one rule.
    ranks = given["ranks"]
    only = check_ids(given["only"], "--only")
    ignore = check_ids((*given["ignore"], *(("rank-agreement",) if ranks is False else ())), "--ignore")
    if only and only <= ignore:
        raise OptionError("--only and --ignore together leave no rule to run", hint="leave one of them out")
    return dataclasses.replace(
        settings,
        layers=(*settings.layers, *layers_of((*given["rule"], *(("rank-agreement.ranks=all",) if ranks else ())))),
        only=only,
        ignore=ignore,
    )


def _run(
    session: Session, settings: Settings, given: dict[str, Any], graphs: Iterable[str], say: Callable[[str], None]
) -> Run:
    """Every graph checked. Mistakes in what was asked for are said before the first one is read."""
    from commcc.lint.baseline import check_path, read_baseline
    from commcc.lint.expand import expand
    from commcc.lint.running import Run, Task

    updating, baseline, known = given["update_baseline"], given["baseline"] or settings.baseline, None
    if updating and (given["fix"] is not None or given["fix_in_place"]):
        raise OptionError("--update-baseline and --fix cannot go together", hint="fix first, then store what is there")
    if baseline is not None:
        check_path(baseline)
        # A file that is yet to be written holds nothing.
        known = {} if updating and not Path(baseline).exists() else read_baseline(baseline)
    elif updating:
        raise OptionError("--update-baseline has no file to write", hint="name one with --baseline FILE")

    def tell(text: str) -> None:
        say(f"{len(run.results) + 1}/{len(items)} {text}")

    task = Task(given["cost"], given["hints"], known, baseline, updating=updating, load=session.load, progress=tell)
    items = expand(graphs)
    session.inputs += [Path(item.graph.partition("::")[0]) for item in items]
    if given["output"] is not None:
        session.output(given["output"], _EXTENSIONS[given["form"] or ("json" if session.json else "text")])
    if baseline is not None and updating:
        session.output(baseline, (".yaml", ".yml", ".json"), "--baseline")
    run = Run(settings, task)
    for item in items:
        run.add(item)
    return run


def _emit(session: Session, report: Report, task: Task, how: tuple[str, int], given: dict[str, Any]) -> None:
    """The report on standard output or in a file, and then text on standard output. how: form, exit code."""
    from commcc.report import linting
    from commcc.report.linting_forms import github, junit, sarif

    form, code = how
    baseline: Json = None if task.baseline is None else {"file": task.baseline, "written": task.updating}
    more = {} if given["fixes"] is None else {"fixes": given["fixes"]}
    document = linting.document(report, baseline=baseline, hints=dict(task.hints), **more)
    top, output = given["top"], given["output"]
    forms: dict[str, Callable[[], str]] = {
        "text": lambda: linting.plain(document, top),
        "json": lambda: json_text(document),
        "github": lambda: github(document, top),
        "sarif": lambda: sarif(document, code),
        "junit": lambda: junit(document, top),
    }
    if given["page"] is not None:
        from commcc.report.lint_page import write_html

        replace_text(given["page"], write_html(document))
        document["html"] = str(given["page"])
    if output is not None:
        replace_text(Path(output), forms[form]())
        document["output"] = output
    elif form not in ("text", "json"):
        session.write(forms[form]())
        return
    session.emit(document, brief=linting.summary(document), view=lambda shown: linting.view(shown, top))


def _ids(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from commcc.lint.registry import rule_ids

    return [rule for rule in rule_ids() if rule.startswith(incomplete)]


command = click.Command(
    "lint",
    callback=lint,
    help=HELP,
    short_help="Check graphs against rules and limits: a gate for CI",
    params=[
        click.Argument(
            ["graphs"], nargs=-1, required=False, metavar="[GRAPH]...", type=FILE, shell_complete=completing.graphs
        ),
        click.Option(["--config"], type=FILE, metavar="FILE", help="Settings of the rules; YAML."),
        click.Option(["--baseline"], type=FILE, metavar="FILE", help="Compare with what this file has stored."),
        click.Option(["--update-baseline"], is_flag=True, help="Store what is measured now in the baseline file."),
        click.Option(["--format", "form"], type=click.Choice(FORMATS), help="Form of the report. [default: text]"),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="Write the report in that form to a file, and print text.",
        ),
        click.Option(
            ["--rule"],
            multiple=True,
            metavar="ID=SEVERITY",
            help="Severity of a rule (error, warning, info, off), or a limit: peak-memory.max=60GiB, "
            "collective-count.max.all_gather=100. Can be given several times.",
            shell_complete=_ids,
        ),
        click.Option(["--only"], multiple=True, metavar="IDS", help="Run these rules alone.", shell_complete=_ids),
        click.Option(["--ignore"], multiple=True, metavar="IDS", help="Do not run these rules.", shell_complete=_ids),
        click.Option(
            ["--top"],
            metavar="N",
            type=click.IntRange(min=1),
            default=5,
            show_default=True,
            help="Findings of one rule and graph to show; JSON and SARIF hold all.",
        ),
        click.Option(
            ["--ranks/--no-ranks"],
            default=None,
            help="Compare all graphs as the ranks of one program, or none. [default: those named after their rank, "
            "as rank0.fx.txt]",
        ),
        click.Option(
            ["--fix"],
            type=FILE,
            metavar="DIR",
            help="Mend what a pass can mend (dedup, cleanup, inline), and write the graphs that are proved to be the "
            "same program to DIR; the report is of the result.",
        ),
        click.Option(["--fix-in-place"], is_flag=True, help="The same; the graphs take the place of what was read."),
        page_option("Write the findings, graphs and rules as one self-contained page; .html."),
        click.Option(["--rules", "list_rules"], is_flag=True, help="List the rules with their options."),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
