"""What the verifier proves about memory, against real execution of random programs."""

from __future__ import annotations

import random

import pytest
import torch
from torch import fx

from commcc.graph.program import Program
from commcc.verify import verify
from tests.verify_graphs import Graph, aten


def run(program, inputs):
    """Outputs and inputs after the run."""
    env, given = {}, [x.clone() for x in inputs]
    feed = iter(given)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(feed)
        elif node.op == "output":
            return [x.clone() for x in fx.node.map_arg(node.args[0], env.__getitem__)] + given
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)
    raise AssertionError


def writes_at_random(seed):
    rng = random.Random(seed)
    g = Graph()
    pool = [g.input(name, 4, 4) for name in "xyz"]
    results = []
    for _ in range(rng.randint(4, 12)):
        a = rng.choice(pool)
        kind = rng.randrange(7)
        if kind == 0:
            pool.append(g(aten.t.default, a))
        elif kind == 1:
            pool.append(g(aten.clone.default, a))
        elif kind == 2:
            pool.append(g(aten.view.default, g(aten.clone.default, a, memory_format=torch.contiguous_format), [4, 4]))
        elif kind == 3:
            target, source = (g(aten.select.int, v, rng.randrange(2), rng.randrange(4)) for v in (a, rng.choice(pool)))
            g(aten.copy_.default, target, source)
        elif kind == 4:
            g(aten.add_.Tensor, a, g(aten.clone.default, rng.choice(pool)))
        elif kind == 5:
            g(aten.mul_.Tensor, g(aten.slice.Tensor, a, rng.randrange(2), 1, 3), 2)
        else:
            results.append(g(aten.mul.Tensor, a, rng.randint(2, 9)))
    return g.program(*results)


def disturbed(program, rng):
    """The same ops in another topological order, sometimes with one operand exchanged."""
    old = list(program.graph.nodes)
    inputs = [n for n in old if n.op == "placeholder"]
    rest = [n for n in old if n.op == "call_function"]
    at = {n: i for i, n in enumerate(rest)}
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(rest))
        j = max(0, min(len(rest) - 1, i + rng.choice([-2, -1, 1, 2])))
        rest.insert(j, rest.pop(i))
    made, env = fx.Graph(), {}
    exchange = rng.choice(rest) if rng.random() < 0.3 else None
    for node in (*inputs, *rest):
        if any(used not in env for used in node.all_input_nodes):
            return None
        env[node] = made.node_copy(node, env.__getitem__)
        if node is exchange:
            old_input = rng.choice(env[node].all_input_nodes)
            shape = old_input.meta["val"].shape
            others = [n for n in made.nodes if n.meta["val"].shape == shape and n is not env[node]]
            env[node].replace_input_with(old_input, rng.choice(others))
    made.output(fx.node.map_arg(old[-1].args[0], env.__getitem__))
    assert at
    return Program(made, program.root)


@pytest.mark.full
def test_whatever_is_proved_computes_the_same():
    """Reordered programs with writes through views: a proof that real execution contradicts is a failure."""
    seen = {"proved": 0, "different": 0, "unproved": 0}
    for seed in range(400):
        before = writes_at_random(seed)
        after = disturbed(before, random.Random(seed))
        if after is None:
            continue
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randint(-50, 50, (4, 4), generator=generator).float() for _ in range(3)]
        verdict = verify(before, after)
        seen[verdict.status] += 1
        same = all(map(torch.equal, run(before, inputs), run(after, inputs)))
        assert same or verdict.status != "proved", f"seed {seed}: proved, but the results differ"
    assert seen["proved"] > 30, seen
    assert seen["different"] > 30, seen
