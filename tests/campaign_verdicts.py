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

import torch

from commcc.errors import CommccError
from commcc.serialization import propagate
from commcc.serialization.fx_text import parse_text
from commcc.verify import verify
from tests.virtual_ranks import VirtualRanks, random_inputs, same

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
_NAME = re.compile(
    r"(?<=[(\[ ])(?:ag|w|mm|t|view|add|g|g_1|sub|cat|rs|rw|mul|ar|aw|slice_1|neg|add_|last|a|b|c)(?=[,)\]])"
)
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
    """Damage, verify and run ``count`` times."""
    chance = random.Random(seed)
    torch.set_num_threads(1)
    told = Told()
    whole = propagate(parse_text(GRAPH, "whole"))
    inputs = random_inputs(whole.graph, 2, seed)
    expected = VirtualRanks(whole.graph, inputs).run()
    for _ in range(count):
        text = changed(chance, GRAPH)
        told.counts[_judged(text, whole, inputs, expected, told)] += 1
    return told


def _judged(text, whole, inputs, expected, told: Told) -> str:  # type: ignore[no-untyped-def]
    try:
        program = propagate(parse_text(text, "damaged"))
        verdict = verify(whole, program)
    except CommccError:
        return "not read"
    state = str(verdict.status)
    found = None
    with contextlib.suppress(Exception):
        found = VirtualRanks(program.graph, inputs).run()
    if found is None or len(found[0]) != len(expected[0]):
        ran = "does not run"
    else:
        ran = "equal" if _same(found, expected) else "differs"
    if state == "proved" and ran != "equal":
        told.wrong.append(text)
    return f"{state} and {ran}"


def _same(found, expected) -> bool:  # type: ignore[no-untyped-def]
    with contextlib.suppress(RuntimeError):
        return same(found, expected)
    return False


def changed(chance: random.Random, text: str) -> str:
    """One or two operands, numbers, words or lines changed."""
    for _ in range(chance.choice((1, 1, 2))):
        text = chance.choice((_operand, _operand, _number, _word, _line))(chance, text)
    return text


def _replaced(chance: random.Random, text: str, pattern: re.Pattern[str], words: list[str]) -> str:
    found = [match for match in pattern.finditer(text) if match.start() > text.index("\n", text.index("def "))]
    if not found:
        return text
    match = chance.choice(found)
    return text[: match.start()] + chance.choice(words) + text[match.end() :]


def _operand(chance: random.Random, text: str) -> str:
    return _replaced(chance, text, _NAME, [match[0] for match in _NAME.finditer(text)])


def _number(chance: random.Random, text: str) -> str:
    return _replaced(chance, text, _NUMBER, ["0", "1", "2", "3", "4", "6", "8", "-1"])


def _word(chance: random.Random, text: str) -> str:
    return _replaced(chance, text, re.compile("|".join(map(re.escape, _WORDS))), list(_WORDS))


def _line(chance: random.Random, text: str) -> str:
    """Two lines change places, or one goes."""
    lines = text.splitlines(keepends=True)
    one, other = sorted(chance.sample(range(2, len(lines) - 1), 2))
    if chance.random() < 0.3:
        del lines[one]
    else:
        lines.insert(one, lines.pop(other))
    return "".join(lines)
