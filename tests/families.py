"""Backward passes as trainers make them, in the sizes of real ones, for tests of what schedules and buckets gain."""

from __future__ import annotations

import torch

from tests.random_graphs import GraphBuilder, aten, c10d

#: What is added to sharded layers; sizes of groups.
FAMILIES = {
    "layers": {},
    "many": {"layers": 24},
    "embedding": {"vocabulary": 128_000},
    "tensor": {"tensor": 4},
    "replicas": {"replicas": 4},
    "replicas and tensor": {"replicas": 2, "tensor": 4},
    "experts": {"experts": 8},
    "experts, embedding": {"experts": 8, "vocabulary": 64_000},
}


def backward(layers=8, width=2048, tokens=4096, *, shards=8, vocabulary=0, tensor=0, replicas=0, experts=0):
    """A backward pass of linear layers with a norm each, whose weights are sharded; its last gradient may be that of a
    large embedding. tensor: all-reduces of activations. replicas: all-reduces of gradients. experts: all-to-alls.
    """
    b = GraphBuilder()
    half = {"dtype": torch.bfloat16}
    weights = [b.placeholder(f"primals_{n}", (width // shards, width), **half) for n in range(layers)]
    norms = [b.placeholder(f"norm_{n}", (width // shards,), **half) for n in range(layers)]
    saved = [b.placeholder(f"mm_{n}", (tokens, width), **half) for n in range(layers)]
    words = b.placeholder("words", (tokens, vocabulary // shards), **half) if vocabulary else None
    grad = b.placeholder("tangents_1", (tokens, width), **half)
    outputs = []

    def reduced(gradient):
        gradient = b.call(aten._to_copy.default, gradient, dtype=torch.float32)
        gradient = b.scatter(gradient, shards, "fsdp", "avg")
        outputs.append(b.reduce(gradient, "dp", "avg") if replicas else gradient)

    def exchanged(rows):
        sizes = [tokens // experts] * experts
        launch = b.call(c10d.all_to_all_single.default, rows, sizes, sizes, "ep")
        return b.call(c10d.wait_tensor.default, launch)

    for weight, norm, activation in zip(weights[::-1], norms[::-1], saved[::-1], strict=True):
        full, scale = b.gather(weight, shards, "fsdp"), b.gather(norm, shards, "fsdp")
        rows = exchanged(grad) if experts else grad
        reduced(b.call(aten.mm.default, b.call(aten.t.default, activation), rows))
        reduced(b.call(aten.sum.dim_IntList, b.call(aten.mul.Tensor, rows, activation), [0]))
        rows = b.call(aten.mm.default, rows, b.call(aten.t.default, full))
        rows = b.reduce(rows, "tp") if tensor else rows
        rows = exchanged(rows) if experts else rows
        grad = b.call(aten.mul.Tensor, rows, scale)
    if words is not None:
        reduced(b.call(aten.mm.default, b.call(aten.t.default, words), grad))
    groups = {"fsdp": shards, "dp": replicas, "tp": tensor, "ep": experts}
    return b.program([grad, *outputs], {name: size for name, size in groups.items() if size})
