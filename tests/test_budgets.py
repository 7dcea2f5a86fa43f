"""What a small file can make commcc do: random input for each budget, and the work counted in calls.

The verifier gets chains of views, cuts and gathers of tensors of up to 1e15 elements; the readers get small graphs
with numbers, brackets and repetitions put in; the patterns for modules get stars, ranges and lists.
"""

from __future__ import annotations

import contextlib
import logging
import random
import string

import pytest
import torch

from commcc.base.errors import CommccError
from commcc.graph.modules import entries_of
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.counting import at_most
from tests.effort import FULL, examples
from tests.verify_graphs import Graph, aten

#: Calls for each node that is verified, and for each character that is read or matched.
EACH_NODE, EACH_CHARACTER = 300_000, 2_000
#: What is imported, or set up, the first time.
ONCE = 500_000


def factors(rng: random.Random, number: int) -> list[int]:
    """Some numbers whose product is a number."""
    found = []
    while number > 1 and len(found) < 6:
        divisors = [d for d in (2, 3, 5, 7, 64, 1000, 4096, 2**20) if number % d == 0]
        found.append(rng.choice(divisors) if divisors and rng.random() < 0.8 else number)
        number //= found[-1]
    rng.shuffle(found)
    return [*found, number] if number > 1 else found


def rearranged(seed: int):
    """A graph that moves elements about: every op is one that the verifier works out."""
    rng, g = random.Random(seed), Graph()
    shapes = [[rng.choice((1, 2, 3, 64, 1000)) for _ in range(rng.randint(0, 3))] for _ in range(2)]
    pool = [g.input(f"x{i}", *shape, rng.choice((2, 4096, 2**20))) for i, shape in enumerate(shapes)]

    def step(x):
        shape = list(x.meta["val"].shape)
        dim = rng.randrange(len(shape)) if shape else 0
        size = shape[dim] if shape else 1
        start = rng.randrange(size)
        makers = [
            lambda: g(aten.reshape.default, x, factors(rng, x.meta["val"].numel()) or [1]),
            lambda: g(aten.permute.default, x, rng.sample(range(len(shape)), len(shape))),
            lambda: g(aten.clone.default, x, memory_format=torch.contiguous_format),
            lambda: g(aten.slice.Tensor, x, dim, start, rng.randint(start, size), rng.choice((1, 1, 2, 3))),
            lambda: g(aten.cat.default, [rng.choice((x, twin)) for _ in range(rng.choice((2, 3, 20)))], dim),
            lambda: g(aten.expand.default, g(aten.unsqueeze.default, x, dim), [*shape[:dim], 4096, *shape[dim:]]),
            lambda: g.parts(x, [size // 2, size - size // 2], dim)[1],
            lambda: g(aten.constant_pad_nd.default, x, [1, rng.randint(0, 9)]),
            lambda: g.gather(x, size=rng.choice((2, 64, 4096))),
            lambda: g.scatter(x, size=rng.choice((2, 64, 4096))),
            lambda: g(aten.copy_.default, g.parts(x, [size // 2, size - size // 2], dim)[0], half),
        ]
        half = g(aten.slice.Tensor, x, dim, size - size // 2, size)
        twin = g(aten.alias.default, x)
        return rng.choice(makers)()

    for _ in range(rng.randint(5, 40)):
        x = rng.choice(pool[-4:])
        if 0 < x.meta["val"].numel() < 1e14:
            with contextlib.suppress(RuntimeError, ValueError):  # sizes that do not fit
                pool.append(step(x))
    for node in reversed(g.graph.nodes):
        if "val" not in node.meta:
            g.graph.erase_node(node)
    return g.program(*pool[-3:])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_verifier_is_bounded_by_the_number_of_nodes():
    logging.disable(logging.CRITICAL)
    # 16 copies within a view of 4096 times 4096 pieces, 27 cuts 20 joined tensors whose rows no loop tells.
    for seed in (16, 27, *range(examples(20) if not FULL else 60)):
        before, after = rearranged(seed), rearranged(seed)
        with at_most(ONCE + EACH_NODE * len(before.graph.nodes)):
            assert verify(before, after).status in ("proved", "unproved"), seed
    logging.disable(logging.NOTSET)


TEXT = """class GraphModule(torch.nn.Module):
    def forward(self, p: "f32[4, 8][8, 1]cuda:0", n: "Sym(s0)", t: "f32[s0, 8][8, 1]cuda:0"):
        a: "bf16[4, 8][8, 1]cuda:0" = torch.ops.aten._to_copy.default(p, dtype = torch.bfloat16)
        g = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 8, '0')
        w: "bf16[32, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(g)
        s = torch.ops.aten.split_with_sizes.default(w, [16, 16], 0)
        b = s[0]
        v = torch.ops.aten.view.default(b, [2, 8, 8])
        return (v, t)
"""


def damaged(rng: random.Random) -> str:
    """A text with numbers that are huge, and pieces that are there again and again."""
    text = TEXT
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        end = min(len(text), at + rng.choice((1, 1, 8, 60)))
        how = rng.randrange(4)
        if how == 0:
            digits = [i for i, c in enumerate(text) if c.isdigit()]
            at = rng.choice(digits)
            text = text[:at] + rng.choice(("999999999999", "1" + "0" * 30, "-1", "0", "2**9**9")) + text[at + 1 :]
        elif how == 1:
            text = text[:at] + text[at:end] * rng.choice((2, 50, 3000)) + text[end:]
        elif how == 2:
            text = text[:at] + rng.choice("()[]{}'\"\\\n#*+,:") * rng.choice((1, 5000)) + text[at:]
        else:
            text = text[:at] + text[end:]
    return text


@pytest.mark.filterwarnings("ignore")
def test_the_reader_is_bounded_by_the_length_of_the_text():
    rng, read = random.Random(1), 0
    for _ in range(examples(500)):
        text = damaged(rng)
        with at_most(ONCE + EACH_CHARACTER * len(text)):
            try:
                parse_text(text, "some.txt")
                read += 1
            except CommccError:
                pass
    assert read


def test_patterns_are_bounded_by_their_length_and_the_modules():
    rng = random.Random(1)
    known = [f"{'a' * 30}.layers.{i}.{name}" for i in range(64) for name in ("attention.wq", "ffn", "a" * 60)]
    pieces = ["*", "*a", "a*", "a" * 30, "layers", ".", "+", "0-63", "0..63", "0:63", "{a,b}", "[0-9]", "**", "(a|a)*"]
    pieces += string.digits
    for _ in range(examples(1000)):
        text = "".join(rng.choice(pieces) * rng.choice((1, 1, 2, 60)) for _ in range(rng.randint(1, 30)))
        with at_most(ONCE + EACH_CHARACTER * (len(text) + len(known))):
            entries_of([text], known)
