"""A program's steps as one function: the same values as node by node, and the node that fails."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

from commcc.replay.codegen import GeneratedCode
from commcc.replay.prepare import prepare
from commcc.replay.values import leaves
from commcc.replay.virtual import StepError
from tests.test_replay_numeric import sample
from tests.verify_graphs import Graph

aten = torch.ops.aten


def test_nested_operands_and_constants():
    g = Graph()
    x, y = g.input("x", 4, 6), g.input("y", 4, 6)
    joined = g(aten.cat.default, [x, y], 1)
    part = g(aten.slice.Tensor, joined, 1, 2, 9, 2)
    cast = g(aten._to_copy.default, part, dtype=torch.float64)
    grown = g(aten.add.Tensor, cast, 1.5, alpha=2)
    run = GeneratedCode(prepare(g.program(grown, x)))
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    made, same = run({"x": a, "y": b})
    assert torch.equal(made, torch.cat([a, b], 1)[:, 2:9:2].double() + 3.0)
    assert same is a


def test_an_argument_named_as_a_word_of_python():
    g = Graph()
    x = g.input("x", 64)
    drawn = g(aten.random.__getattr__("from"), x, **{"from": 3, "to": 5})
    (made,) = GeneratedCode(prepare(g.program(drawn)))({"x": torch.zeros(64)})
    assert set(made.tolist()) == {3.0, 4.0}


def test_the_node_that_fails_is_named():
    prepared = prepare(sample("tiny_llama_fsdp2_bw"))
    broken = prepared.steps[40]

    def fails(*_args, **_kwargs):
        raise ValueError("no room\nand more")

    steps = tuple(
        dataclasses.replace(step, call=fails if step is broken else lambda *_a, **_k: None) for step in prepared.steps
    )
    with pytest.raises(StepError, match=f"node '{broken.name}' .* fails: no room") as caught:
        GeneratedCode(dataclasses.replace(prepared, steps=steps))({node.name: None for node in prepared.inputs})
    assert caught.value.node == broken.name


@pytest.mark.full
def test_values_go_with_their_last_use():
    """What is freed in the graph is free in the run, before the next step."""
    g = Graph()
    x = g.input("x", 8)
    first = g(aten.neg.default, x)
    second = g(aten.exp.default, first)
    third = g(aten.sin.default, second)
    prepared = prepare(g.program(third))
    seen, alive = [], []

    def watched(step):
        def call(*args, **kwargs):
            gc.collect()
            alive.append([ref() is not None for ref in seen])
            result = step.call(*args, **kwargs)
            seen.append(weakref.ref(result))
            return result

        return dataclasses.replace(step, call=call)

    prepared = dataclasses.replace(prepared, steps=tuple(map(watched, prepared.steps)))
    GeneratedCode(prepared)({"x": torch.zeros(8)})
    assert alive == [[], [True], [False, True]]


def test_nothing_of_a_file_is_in_the_text(monkeypatch):
    """Names and strings of a graph are handed in, never written into the function."""
    texts = []
    prepared = prepare(sample("tiny_moe_fsdp4_ep2_fw"))
    monkeypatch.setattr("builtins.compile", lambda text, *a, **k: texts.append(text) or compile_(text, *a, **k))
    GeneratedCode(prepared)
    words = {word for text in texts for line in text.split("\n") for word in line.replace("(", " ").split()}
    names = {node.name for node in prepared.nodes} | {
        str(leaf) for s in prepared.steps for leaf in leaves(s.args) if isinstance(leaf, str)
    }
    assert len(texts) == 1
    assert not [word for word in words if any(len(name) > 3 and name in word for name in names)]


compile_ = compile
