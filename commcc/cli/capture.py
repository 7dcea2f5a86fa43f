"""``commcc capture``: the graphs of a model, from the function that builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, OptionError
from commcc.base.files import GRAPH_FILES
from commcc.capture.request import GRAPHS, KERNELS, LEVELS, Request, capture, read_mesh
from commcc.cli.parameters import FILE, common_options

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """Write the graphs of a training step, from the function that builds the model. No GPU and no cluster is needed.

TARGET is FILE.py:FUNCTION or module:FUNCTION. FUNCTION gets the device mesh and returns (model, inputs), the model
alone, or a step function in place of the model. It runs in a process of its own, as rank 0 of all ranks of the mesh,
with tensors that take no memory. Models of DTensor, parallelize_module, commcc.shard, fully_shard and
DistributedDataParallel are captured as they are. This runs the code of TARGET.
"""


@click.pass_obj
def capturing(session: Session, /, **given: Any) -> int:
    from commcc.report import capturing as report

    request = request_of(session, given, graphs=_graphs(given["graphs"]), output=given["output"])
    with session.working(f"capturing {request.target}"):
        answer = capture(request)
    say_notes(session, answer)
    document = report.capturing(request, answer)
    session.emit(document, brief=[file["file"] for file in answer["files"]], view=report.view)
    return EXIT_OK


def request_of(session: Session, given: dict[str, Any], *, graphs: tuple[str, ...], output: str) -> Request:
    """What the options of :func:`capture_options` ask for. Raises :class:`OptionError`."""
    return Request(
        target=given["target"],
        mesh=read_mesh(given["mesh"]),
        output=output,
        level=given["level"],
        graphs=graphs,
        inputs=given["inputs"],
        device=given["device"],
        extension="." + given["extension"],
        attention=given["attention"],
        debug=session.debug,
    )


def say_notes(session: Session, answer: dict[str, Any]) -> None:
    """What could not be captured exactly, and what files cannot hold."""
    texts = [*answer["notes"], *(text for file in answer["files"] for text in file["notes"])]
    for text in dict.fromkeys(texts):
        session.note(text)


def _graphs(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    wrong = [name for name in names if name not in GRAPHS]
    if wrong:
        raise OptionError(f"--graphs: there is no '{wrong[0]}'", hint=f"name some of {', '.join(GRAPHS)}")
    return names


def capture_options() -> list[click.Parameter]:
    """What says which model is captured, and how."""
    formats = [extension.removeprefix(".") for extension in GRAPH_FILES]
    return [
        click.Argument(["target"], metavar="TARGET"),
        click.Option(
            ["--mesh"],
            required=True,
            metavar="NAME=SIZE,...",
            help="Axes of the device mesh that FUNCTION gets, outermost first, as in dp=8,tp=8.",
        ),
        click.Option(
            ["--level"],
            type=click.Choice(LEVELS),
            default="aot-inductor",
            show_default=True,
            help="Whose graphs: what commcc.backend gets over aot_eager, what it gets over Inductor, or what is left "
            "after Inductor's own passes.",
        ),
        click.Option(
            ["--input", "inputs"],
            multiple=True,
            metavar="TEXT",
            help="An example input, as in 'i64[1,8192]', where FUNCTION returns none. Can be given several times.",
        ),
        click.Option(
            ["--device"], default="cuda:0", show_default=True, metavar="NAME", help="Device that the graphs name."
        ),
        click.Option(
            ["--attention"],
            type=click.Choice(KERNELS),
            default=KERNELS[0],
            show_default=True,
            help="Kernel that PyTorch's own attention becomes on the GPU of the job.",
        ),
        click.Option(
            ["--format", "extension"],
            type=click.Choice(formats),
            default=formats[0],
            show_default=True,
            help="Format of the files.",
        ),
    ]


command = click.Command(
    "capture",
    callback=capturing,
    help=HELP,
    short_help="The graphs of a model, on a laptop",
    params=[
        *capture_options(),
        click.Option(["-o", "--output"], type=FILE, required=True, metavar="DIR", help="Folder to write to."),
        click.Option(
            ["--graphs"],
            default=",".join(GRAPHS[:3]),
            show_default=True,
            metavar="NAME,...",
            help="Which graphs to write. step: forward, loss and gradients as one graph, traced without Dynamo.",
        ),
        *common_options(),
    ],
)
