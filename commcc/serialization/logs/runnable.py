"""``fx_graph_runnable`` repro files: the graph, its inputs and its process groups, read and never run.

    class Repro(torch.nn.Module):
        def forward(self, primals_1, ...):           -> the graph, without any shapes
    def load_args(reader):
        buf0 = reader.storage(None, 1024)
        reader.tensor(buf0, (8, 32), is_leaf=True)   -> f32[8, 32][32, 1]cpu of the first input
        reader.symint(17, expr='s77')                -> Sym(s77)
    setup_fake_process_groups({'0': {'size': 4, 'rank': 0}})    -> group '0' of 4 ranks

Only these parts are looked at; the rest of the file (imports, settings, kernels) is skipped.

Sizes for which the file gives a number stay symbols with that number as their hint, so that nothing
takes an example for a constant. Limits: bodies of sub-graphs and the data of large constants are not in
such files; shapes of all other nodes come from :func:`commcc.serialization.propagate.propagate`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.graph.program import Note, ProcessGroup
from commcc.serialization.fx.constants import unknown_note
from commcc.serialization.logs.runnable_args import NO_VALUE, read_args
from commcc.serialization.logs.runnable_constants import read_constants
from commcc.serialization.shapes import ShapeContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program
    from commcc.serialization.logs.runnable_constants import Constant

_CLASS = re.compile(r"^class Repro\((?:torch\.)?(?:nn\.)?Module\):", re.MULTILINE)
_LOAD_ARGS = re.compile(r"^def load_args\(reader\):", re.MULTILINE)
_NEXT_TOP_LEVEL = re.compile(r"^[^\s#]", re.MULTILINE)
_INIT = re.compile(r"^    def __init__\(self[^\n]*\n(?:(?:        [^\n]*|[ \t]*)\n)*", re.MULTILINE)
_GROUPS = re.compile(r"^[ \t]*setup_fake_process_groups\((\{.{0,1000000}\})\)[ \t]*$", re.MULTILINE)
_HINTS = re.compile(r"^((?:[su]\d{1,9} = )+)(-?\d{1,18})[ \t]*$", re.MULTILINE)


def parse_runnable(text: str, where: str) -> tuple[Program, ShapeContext]:
    """The program in a repro file, with values on its inputs only, and the context that they belong to."""
    from commcc.serialization.fx import parse_text

    body = _block(text, _CLASS, where, "class Repro")
    init = _INIT.search(body)
    if init is not None:
        body = body[: init.start()] + "\n" * init.group(0).count("\n") + body[init.end() :]
    ctx = ShapeContext()
    constants = read_constants(init.group(0), where, ctx) if init is not None else {}
    program = _with_constants(parse_text(body, where), constants)
    notes = _set_inputs(program, text, where, ctx)
    groups = _merge(program.groups, _groups(text, where), where)
    return replace(program, groups=groups, notes=(*program.notes, *notes)), ctx


def _block(text: str, start: re.Pattern[str], where: str, what: str) -> str:
    """A top-level definition, with the lines before it left empty so that line numbers stay right."""
    found = start.search(text)
    if found is None:
        raise InputError(f"{what} is missing", where=where, hint="dump the graph again")
    end = _NEXT_TOP_LEVEL.search(text, found.end())
    return "\n" * text.count("\n", 0, found.start()) + text[found.start() : end.start() if end else len(text)]


def _set_inputs(program: Program, text: str, where: str, ctx: ShapeContext) -> list[Note]:
    for names, value in _HINTS.findall(text):
        for name in names.split(" = ")[:-1]:
            ctx.declare(name, hint=int(value))
    args = read_args(_block(text, _LOAD_ARGS, where, "load_args"), where, ctx)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(args.values):
        raise InputError(
            f"load_args gives {len(args.values)} arguments to a graph of {len(inputs)} inputs",
            where=where,
            hint="the file is cut off or was edited; dump the graph again",
        )
    for node, value in zip(inputs, args.values, strict=True):
        if value is not NO_VALUE:
            node.meta["val"] = value
    return [Note(f"inputs {inputs[a].name} and {inputs[b].name} share storage", inputs[b].name) for a, b in args.shared]


def _with_constants(program: Program, constants: Mapping[str, Constant]) -> Program:
    """``program`` with the constants in place of what stands for them after reading the body alone."""
    known: list[Note] = []
    notes: list[Note] = []
    for node in program.graph.nodes:
        name = str(node.target)
        constant = constants.get(name) if node.op == "get_attr" else None
        if constant is None:
            continue
        node.meta["val"] = constant.val
        known.append(unknown_note(name, None))
        if constant.data is None:
            notes.append(unknown_note(name, constant.val))
        if program.root._modules.pop(name, None) is not None:
            data = constant.val if constant.data is None else constant.data
            program.root.register_buffer(name, data, persistent=False)
    return replace(program, notes=(*(note for note in program.notes if note not in known), *notes))


def _groups(text: str, where: str) -> dict[str, ProcessGroup]:
    found = _GROUPS.search(text)
    if found is None:
        return {}
    line = text.count("\n", 0, found.start(1)) + 1
    try:
        table = ast.literal_eval(found.group(1))
        sizes = {name: info["size"] for name, info in table.items()}
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, MemoryError, RecursionError):
        raise InputError("setup_fake_process_groups is not a table of groups", where=f"{where}:{line}") from None
    for name, size in sizes.items():
        if not isinstance(name, str) or type(size) is not int or size < 1:
            raise InputError(f"process group {name!r} has size {size!r}", where=f"{where}:{line}")
    return {name: ProcessGroup(name, size) for name, size in sizes.items()}


def _merge(
    named: Mapping[str, ProcessGroup], listed: Mapping[str, ProcessGroup], where: str
) -> dict[str, ProcessGroup]:
    """Groups that collectives name, completed by those that the file lists."""
    out = dict(named)
    for name, group in listed.items():
        known = out.get(name)
        if known is not None and known.size not in (None, group.size):
            raise InputError(
                f"group {name!r} has {known.size} ranks in a collective and {group.size} in the file's table",
                where=where,
            )
        out[name] = group if known is None else replace(known, size=group.size)
    return out
