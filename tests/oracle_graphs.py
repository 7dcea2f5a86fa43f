"""Small graphs that look like training steps, for the exact optimum: 15 to 40 nodes, times and bytes as small numbers.

    index, costs = training_graph(seed)     # seed % 4: see FORMS

Values that a wait or a view hands on live in the buffer of what they stand for, as in real graphs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from commcc.graph.ops.kernels import Work
from tests.index_maker import IndexMaker

DP, TP, EP = "dp", "tp", "ep"


@dataclass
class StepMaker(IndexMaker):
    """Views and waits share buffers; ``light`` nodes are casts; ``heavy`` ones count as compute nodes."""

    same: dict[int, int] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    light: set[int] = field(default_factory=set)
    heavy: set[int] = field(default_factory=set)

    def view(self, source):
        node = super().view(source)
        self.same[node] = source
        self.light.add(node)
        return node

    def wait(self, source, after=()):
        node = super().wait(source, after)
        self.same[node] = source
        return node

    def cast(self, source, size):
        node = self.op(1, source, size=size)
        self.light.add(node)
        return node

    def product(self, ns, *preds, size):
        node = self.op(ns, *preds, size=size)
        self.heavy.add(node)
        return node

    def collective(self, ns, group, source, size):
        return self.wait(self.launch(ns, group, source, size=size))

    def output(self):
        node = self._add("output", 0, self.results)
        self.light.add(node)

    def inputs_first(self):
        """Renumber the nodes as graphs have them."""
        ops = self.ops
        old = sorted(range(len(ops)), key=lambda i: ops[i] != "placeholder")
        new = {node: at for at, node in enumerate(old)}
        self.ops, self.ns, self.sizes = ([table[i] for i in old] for table in (ops, self.ns, self.sizes))
        self.data, self.order = ([tuple(new[p] for p in table[i]) for i in old] for table in (self.data, self.order))
        self.made = {new[i]: self.made[i] for i in old if i in self.made}
        self.wait_of = {new[wait]: new[launch] for wait, launch in self.wait_of.items()}
        self.same = {new[i]: new[source] for i, source in self.same.items()}
        self.results = [new[i] for i in self.results]
        self.light, self.heavy = {new[i] for i in self.light}, {new[i] for i in self.heavy}

    def index(self):
        index, count = super().index(), len(self.ops)
        buffers = list(range(count))
        for node in range(count):
            buffers[node] = buffers[self.same.get(node, node)]
        work = tuple(Work.FREE if i in self.same else Work.FUSABLE if i in self.light else Work.KERNEL for i in buffers)
        return replace(
            index,
            compute=tuple(i in self.heavy for i in range(count)),
            outputs=tuple(self.results),
            estimates=replace(index.estimates, buffers=tuple((b,) for b in buffers), work=work),
        )


class _Step:
    """One training step. ``shadow``: how long transfers are beside compute."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.make = StepMaker()
        self.shadow = self.rng.choice((0.4, 0.8, 1.2))

    def compute(self):
        return self.rng.randrange(10, 60)

    def transfer(self):
        return max(1, int(self.rng.randrange(10, 60) * self.shadow))

    def weight(self):
        """A parameter's shard, a cast perhaps, gathered."""
        shard = self.make.input(self.rng.randrange(2, 6))
        source = self.make.cast(shard, self.rng.randrange(1, 3)) if self.rng.random() < 0.4 else shard
        return self.make.collective(self.transfer(), DP, source, self.rng.randrange(8, 20))

    def reduced(self, gradient):
        self.make.results.append(self.make.collective(self.transfer(), DP, gradient, self.rng.randrange(2, 6)))

    def activation(self, source, group):
        return self.make.collective(self.transfer(), group, source, self.make.sizes[source] or 8)

    def product(self, *preds, size=None):
        return self.make.product(self.compute(), *preds, size=size or self.rng.randrange(6, 14))

    def finished(self, x):
        self.make.results.append(x)
        self.make.output()
        self.make.inputs_first()
        return self.make.index(), self.make.costs(launch_ns=self.rng.choice((0, 1, 2)))


def _forward(step):
    """Gathered weights, activation collectives between the layers; some activations are kept."""
    x = step.make.input(8)
    for _ in range(step.rng.randint(3, 4)):
        x = step.product(x, step.weight())
        if step.rng.random() < 0.4:
            x = step.make.op(step.rng.randrange(2, 9), x, size=10)
        if step.rng.random() < 0.6:
            x = step.activation(x, TP)
        if step.rng.random() < 0.4:
            step.make.results.append(x)
    return step.finished(x)


def _backward(step):
    """Per layer: gather the weight, gradient of the input through a collective, gradient of the weight reduced."""
    x = step.make.input(8)
    for _ in range(step.rng.randint(2, 3)):
        kept = step.make.input(6)
        weight = step.weight()
        before = step.activation(x, TP) if step.rng.random() < 0.5 else x
        x = step.product(before, weight)
        if step.rng.random() < 0.7:
            x = step.activation(x, TP)
        step.reduced(step.product(before, kept))
    return step.finished(x)


def _experts(step):
    """Two all-to-alls around the experts, a shared expert beside them, gradients of both reduced."""
    x = step.make.input(8)
    for _ in range(2):
        sent = step.activation(x, EP)
        routed = step.product(sent, step.weight())
        back = step.activation(routed, EP)
        shared = step.product(x, step.make.input(6))
        if step.rng.random() < 0.6:
            step.reduced(step.product(routed, sent))
        x = step.make.op(step.rng.randrange(2, 9), back, shared, size=8)
    return step.finished(x)


def _both(step):
    """Forward and backward of few layers; gradients reduced in one or two groups."""
    x, kept = step.make.input(8), []
    for _ in range(2):
        weight = step.weight()
        kept.append((x, weight))
        x = step.product(x, weight)
        if step.rng.random() < 0.5:
            x = step.activation(x, TP)
    for before, weight in reversed(kept):
        gradient = step.product(x, before)
        if step.rng.random() < 0.5:
            gradient = step.make.collective(step.transfer(), TP, gradient, step.make.sizes[gradient])
        step.reduced(gradient)
        x = step.product(x, weight)
        if step.rng.random() < 0.5:
            x = step.activation(x, TP)
    return step.finished(x)


FORMS = (_forward, _backward, _experts, _both)


def training_graph(seed):
    """(index, costs); ``seed % 4`` chooses the form."""
    return FORMS[seed % 4](_Step(seed))
