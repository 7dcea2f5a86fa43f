"""Wrong verdicts: graphs that were damaged, that the verifier calls proved, and that compute something else.

told = verdicts(seed=1, count=200)
told.figures()

Both graphs run on virtual ranks, on the same small whole numbers. A damaged graph that cannot be read, or cannot
run, and one that takes other inputs, say nothing.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import CommccError
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text, write_text
from commcc.verify import verify
from tests.virtual_ranks import VirtualRanks, random_inputs, same

if TYPE_CHECKING:
    from commcc.graph.program import Program

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4, 6]", b: "f32[6, 4]", c: "f32[4, 4]"):
        ag: "f32[8, 6]" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0')
        w: "f32[8, 6]" = torch.ops._c10d_functional.wait_tensor.default(ag)
        mm: "f32[8, 4]" = torch.ops.aten.mm.default(w, b)
        t: "f32[4, 8]" = torch.ops.aten.t.default(mm)
        view: "f32[8, 4]" = torch.ops.aten.reshape.default(t, [8, 4])
        add: "f32[8, 4]" = torch.ops.aten.add.Tensor(mm, view)
        split = torch.ops.aten.split.Tensor(add, 4)
        g: "f32[4, 4]" = split[0]
        g_1: "f32[4, 4]" = split[1]
        sub: "f32[4, 4]" = torch.ops.aten.sub.Tensor(g, g_1)
        cat: "f32[8, 4]" = torch.ops.aten.cat.default([sub, g_1], 0)
        rs: "f32[4, 4]" = torch.ops._c10d_functional.reduce_scatter_tensor.default(cat, 'sum', 2, '0')
        rw: "f32[4, 4]" = torch.ops._c10d_functional.wait_tensor.default(rs)
        mul: "f32[4, 4]" = torch.ops.aten.mul.Tensor(rw, 2)
        ar: "f32[4, 4]" = torch.ops._c10d_functional.all_reduce.default(mul, 'max', '0')
        aw: "f32[4, 4]" = torch.ops._c10d_functional.wait_tensor.default(ar)
        slice_1: "f32[2, 4]" = torch.ops.aten.slice.Tensor(aw, 0, 1, 3)
        neg: "f32[2, 4]" = torch.ops.aten.neg.default(slice_1)
        add_: "f32[4, 4]" = torch.ops.aten.add_.Tensor(c, rw)
        last: "f32[4, 4]" = torch.ops.aten.mul.Tensor(add_, g)
        return (neg, last, mul, view)
"""
MERGING = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4, 6]", b: "f32[3, 8]", c: "f32[2, 4]", x: "f32[8, 8]"):
        ag: "f32[8, 6]" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0')
        w: "f32[8, 6]" = torch.ops._c10d_functional.wait_tensor.default(ag)
        ag_1: "f32[6, 8]" = torch.ops._c10d_functional.all_gather_into_tensor.default(b, 2, '0')
        w_1: "f32[6, 8]" = torch.ops._c10d_functional.wait_tensor.default(ag_1)
        ag_2: "f32[4, 4]" = torch.ops._c10d_functional.all_gather_into_tensor.default(c, 2, '0')
        w_2: "f32[4, 4]" = torch.ops._c10d_functional.wait_tensor.default(ag_2)
        mm: "f32[8, 8]" = torch.ops.aten.mm.default(w, w_1)
        mm_1: "f32[8, 8]" = torch.ops.aten.mm.default(x, mm)
        rs: "f32[4, 8]" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm, 'sum', 2, '0')
        rw: "f32[4, 8]" = torch.ops._c10d_functional.wait_tensor.default(rs)
        rs_1: "f32[4, 8]" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm_1, 'sum', 2, '0')
        rw_1: "f32[4, 8]" = torch.ops._c10d_functional.wait_tensor.default(rs_1)
        rs_2: "f32[2, 4]" = torch.ops._c10d_functional.reduce_scatter_tensor.default(w_2, 'sum', 2, '0')
        rw_2: "f32[2, 4]" = torch.ops._c10d_functional.wait_tensor.default(rs_2)
        return (rw, rw_1, rw_2)
"""
_ASSIGNED = re.compile(r"^        (\w+)(?=[ :])", re.MULTILINE)
_NUMBER = re.compile(r"(?<=[ (\[])\d+(?=[,)\]])")
_WORDS = ("sum", "avg", "max", "add.Tensor", "sub.Tensor", "mul.Tensor")


@dataclass
class Told:
    """counts: damaged graphs by what became of them. wrong: those called proved that compute something else."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> str:
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"verdicts on {self.counts.total():,} damaged graphs: {told}; wrong: {len(self.wrong)}"


def verdicts(seed: int, count: int) -> Told:
    """Damage, verify and run ``count`` times: a graph against itself, and one against what bucket makes of it."""
    chance = random.Random(seed)
    torch.set_num_threads(1)
    told = Told()
    bases = [_base(GRAPH, "", seed), _base(MERGING, "bucket{groups=all}", seed)]
    for _ in range(count):
        base = chance.choice(bases)
        told.counts[_judged(changed(chance, base.text), base, told)] += 1
    return told


@dataclass(frozen=True)
class _Base:
    """A graph to compare with, what it computes from some inputs, and the text to damage."""

    program: Program
    text: str
    inputs: list[list[torch.Tensor]]
    expected: list[list[Any]]


def _base(text: str, passes: str, seed: int) -> _Base:
    program = propagate(parse_text(text, "whole"))
    inputs = random_inputs(program.graph, 2, seed)
    after = run(program, parse_pipeline(passes)).program if passes else program
    written = text if after is program else write_text(after)[0]
    return _Base(program, written, inputs, VirtualRanks(program.graph, inputs).run())


def _judged(text: str, base: _Base, told: Told) -> str:
    try:
        program = propagate(parse_text(text, "damaged"))
        state = verify(base.program, program).status
    except CommccError:
        return "not read"
    found = None
    with contextlib.suppress(Exception):
        found = VirtualRanks(program.graph, base.inputs).run()
    if found is None or len(found[0]) != len(base.expected[0]):
        ran = "does not run"
    else:
        ran = "equal" if _same(found, base.expected) else "differs"
    if state == "proved" and ran != "equal":
        told.wrong.append(text)
    return f"{state} and {ran}"


def _same(found: list[list[Any]], expected: list[list[Any]]) -> bool:
    with contextlib.suppress(RuntimeError, AttributeError):  # other shapes, or no tensors
        return same(found, expected)
    return False


def changed(chance: random.Random, text: str) -> str:
    """One or two operands, numbers, words or lines changed."""
    for _ in range(chance.choice((1, 1, 2))):
        text = chance.choice((_operand, _operand, _number, _word, _line))(chance, text)
    return text


def _replaced(chance: random.Random, text: str, pattern: re.Pattern[str], words: list[str]) -> str:
    body = text.index(":\n", text.index("def ")) + 1
    found = [match for match in pattern.finditer(text) if match.start() > body]
    if not found:
        return text
    match = chance.choice(found)
    return text[: match.start()] + chance.choice(words) + text[match.end() :]


def _operand(chance: random.Random, text: str) -> str:
    names = sorted(set(_ASSIGNED.findall(text)) - {"return"})
    name = re.compile(rf"(?<=[(\[ ])(?:{'|'.join(names)})(?=[,)\]])")
    return _replaced(chance, text, name, names)


def _number(chance: random.Random, text: str) -> str:
    return _replaced(chance, text, _NUMBER, ["0", "1", "2", "3", "4", "6", "8", "-1"])


def _word(chance: random.Random, text: str) -> str:
    return _replaced(chance, text, re.compile("|".join(map(re.escape, _WORDS))), list(_WORDS))


def _line(chance: random.Random, text: str) -> str:
    """Two lines change places, or one goes."""
    lines = text.splitlines(keepends=True)
    body = [i for i, line in enumerate(lines) if _ASSIGNED.match(line) and "return" not in line]
    one, other = sorted(chance.sample(body, 2))
    if chance.random() < 0.3:
        del lines[one]
    else:
        lines.insert(one, lines.pop(other))
    return "".join(lines)
