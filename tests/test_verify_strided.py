"""Permutations, expansions and writes to parts of a storage, against real tensors element by element."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from torch import fx

from commcc.verify import verify
from commcc.verify.contents import Over, cast, gather, runs_of, same_elements, spliced, unrolled
from commcc.verify.layout import intern, items_of
from commcc.verify.regroup import regroup
from commcc.verify.sizes import Impossible, Meta, Undecidable, contiguous_strides, relevant
from commcc.verify.terms import Tensor, Terms
from commcc.verify.tracer import Tracer
from tests.effort import examples
from tests.test_verify_layout import GROUP, RANKS, STEPS, Machine, regrouped
from tests.verify_graphs import Graph, aten, c10d, differs, proved


def permuted(machine, x, real, _pool):
    order = list(range(real[0].ndim))
    machine.rng.shuffle(order)
    return regrouped(machine, x, real, "aten.permute.default", lambda t: t.permute(order), dims=tuple(order))


def transposed(machine, x, real, _pool):
    first, second = (machine.rng.randrange(-real[0].ndim, real[0].ndim) for _ in range(2))
    run = lambda t: t.transpose(first, second)  # noqa: E731
    return regrouped(machine, x, real, "aten.transpose.int", run, dim0=first, dim1=second)


def swapped(machine, x, real, _pool):
    if real[0].ndim > 2:
        return []
    return regrouped(machine, x, real, "aten.t.default", lambda t: t.t())


def expanded(machine, x, real, _pool):
    if real[0].numel() > 100:
        return []
    rng = machine.rng
    inner = [rng.choice([2, 3, -1]) if size == 1 else rng.choice([size, -1]) for size in real[0].shape]
    size = [*(rng.choice([1, 2]) for _ in range(rng.randint(0, 2))), *inner]
    return regrouped(machine, x, real, "aten.expand.default", lambda t: t.expand(size), size=tuple(size))


def copied(machine, x, real, _pool):
    return regrouped(
        machine, x, real, "aten.clone.default", lambda t: t.clone(memory_format=torch.contiguous_format),
        memory_format=torch.contiguous_format,
    )  # fmt: skip


WALKS = (permuted, transposed, swapped, expanded)


@pytest.mark.parametrize("block", range(4))
def test_contents_stand_for_real_elements(block):
    decided = refused = 0
    for seed in range(block * 60, block * 60 + 60):
        machine = Machine(seed)
        pool = [machine.fresh(shape) for shape in ((6,), (3, 4), (6, 2), (2, 3, 3), (1, 4))]
        for _ in range(14):
            x, real = machine.rng.choice([entry for entry in pool if entry[0].shape and entry[1][0].numel()])
            kind = machine.rng.choice((*WALKS, *WALKS, copied, *STEPS))
            try:
                results = kind(machine, x, real, pool)
            except Undecidable:
                refused += 1
                continue
            decided += kind in WALKS
            pool.extend((machine.wrap(content, values[0]), values) for content, values in results)
        for tensor, real in pool:
            for rank in range(RANKS):
                assert machine.expand(tensor.content, rank) == real[rank].flatten().tolist(), f"seed {seed}"
    assert decided > 3 * refused


def tensor(table, name, *shape, dtype=torch.float32):
    numel = int(torch.Size(shape).numel())
    source = table.source(("input", name), numel, dtype)
    return Tensor(source, Meta(shape, contiguous_strides(shape), dtype, "cpu"), 0)


def again(formed):
    return Tensor(formed.content, Meta(formed.shape, formed.strides, formed.dtype, "cpu"), 0)


def test_the_way_to_a_permutation_does_not_matter():
    table = Terms()
    x = tensor(table, "x", 3, 4, 5)
    direct = regroup(table, "aten.permute.default", {"self": x, "dims": (2, 0, 1)})
    first = again(regroup(table, "aten.transpose.int", {"self": x, "dim0": 1, "dim1": 2}))
    steps = regroup(table, "aten.transpose.int", {"self": first, "dim0": 0, "dim1": 1})
    assert (direct.content, direct.shape, direct.strides) == (steps.content, steps.shape, steps.strides)
    back = regroup(table, "aten.permute.default", {"self": again(direct), "dims": (1, 2, 0)})
    assert back.content == x.content
    dense = regroup(table, "aten.clone.default", {"self": again(direct), "memory_format": torch.contiguous_format})
    assert dense.content == direct.content
    assert dense.strides == (12, 4, 1)


def test_a_gather_along_the_second_dimension():
    """Chunks of a gather joined along another dimension, or a permutation of it: the same elements."""
    table = Terms()
    x = tensor(table, "x", 3, 4)
    full = Tensor(gather(table, x.content, 2, Over(GROUP)), Meta((6, 4), (4, 1), x.dtype, "cpu"), 0)
    halves = regroup(table, "aten.split.Tensor", {"self": full, "split_size": 3, "dim": 0})
    joined = regroup(table, "aten.cat.default", {"tensors": tuple(map(again, halves)), "dim": 1})
    rows = again(regroup(table, "aten.view.default", {"self": full, "size": (2, 3, 4)}))
    turned = again(regroup(table, "aten.permute.default", {"self": rows, "dims": (1, 0, 2)}))
    flat = regroup(table, "aten.reshape.default", {"self": turned, "shape": (3, 8)})
    assert same_elements(table, flat.content, joined.content)
    assert not same_elements(table, full.content, joined.content)


def gathered_columns(how, chain=1):
    """A gather over four ranks along the second dimension, as chunks joined or as a permutation, and arithmetic."""
    g = Graph()
    x = g.input("x", 3, 4)
    for _ in range(chain):
        full = g.gather(x, "0", 4)
        if how == "joined":
            x = g(aten.cat.default, g.parts(full, [3] * 4, 0), 1)
        else:
            order = [1, 0, 2] if how == "permuted" else [2, 1, 0]
            turned = g(aten.permute.default, g(aten.view.default, full, [4, 3, 4]), order)
            x = g(aten.reshape.default, turned, [3, 16])
        x = g(aten.slice.Tensor, g(aten.sin.default, x), 1, 0, 4)
    return g.program(x)


@pytest.mark.parametrize("chain", [1, 3])
def test_the_same_elements_in_another_normal_form(chain):
    """What is written down in two ways is compared element by element, layer after layer."""
    proved(gathered_columns("joined", chain), gathered_columns("permuted", chain))
    proved(gathered_columns("permuted", chain), gathered_columns("joined", chain))
    assert verify(gathered_columns("joined", chain), gathered_columns("turned", chain)).status == "different"


def test_more_layers_than_are_looked_at_are_not_proved():
    verdict = verify(gathered_columns("joined", 12), gathered_columns("permuted", 12))
    assert verdict.status == "unproved"
    assert "8 deep" in verdict.unproved[0].text


def test_conversions_and_permutations_may_change_places():
    table = Terms()
    x = tensor(table, "x", 3, 4)
    turned = again(regroup(table, "aten.t.default", {"self": x}))
    narrow = Tensor(cast(table, x.content, torch.bfloat16, ()), x.meta._replace(dtype=torch.bfloat16), 0)
    after = regroup(table, "aten.t.default", {"self": narrow})
    assert cast(table, turned.content, torch.bfloat16, ()) == after.content


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("aten.permute.default", {"dims": (0, 0, 1)}),
        ("aten.permute.default", {"dims": (0, 1)}),
        ("aten.t.default", {}),
        ("aten.expand.default", {"size": (2, 4)}),
        ("aten.expand.default", {"size": (3, 4, 10)}),
    ],
)
def test_calls_that_cannot_run(path, arguments):
    table = Terms()
    with pytest.raises(Impossible):
        regroup(table, path, {"self": tensor(table, "x", 3, 4, 5), **arguments})


# Writes


@pytest.mark.parametrize("seed", range(60))
def test_writes_to_views_of_a_storage(seed):
    """A storage written through random views holds what a real one holds."""
    rng, table = random.Random(seed), Terms()
    numel = 24
    slot = table.source(("slot",), numel, torch.float64)
    numbered = torch.arange(numel)
    held = tensor(table, "held", numel).content
    real = torch.arange(numel, dtype=torch.float64)
    values = {held: real.clone()}
    content = held
    for number in range(4):
        shape = rng.choice([(4, 6), (2, 3, 4), (24,), (3, 8)])
        place, part = Tensor(slot, Meta(shape, contiguous_strides(shape), None, None), 0), numbered.view(shape)
        for dim in range(len(shape)):
            start = rng.randrange(shape[dim])
            length = rng.randint(1, shape[dim] - start)
            formed = regroup(
                table, "aten.narrow.default", {"self": place, "dim": dim, "start": start, "length": length}
            )
            place, part = again(formed), part.narrow(dim, start, length)
        new = tensor(table, f"new{number}", part.numel()).content
        values[new] = torch.arange(part.numel(), dtype=torch.float64) + 100 * (number + 1)
        assert sum(run.length for run in runs_of(table, slot, place.content)) == part.numel()
        content = spliced(table, slot, content, place.content, new)
        real[part.flatten()] = values[new]
    found = [values[leaf.source][leaf.start : leaf.start + leaf.length] for leaf in unrolled(items_of(table, content))]
    assert torch.cat(found).tolist() == real.tolist()


def test_a_view_that_holds_an_element_twice_is_not_written():
    table = Terms()
    slot = table.source(("slot",), 4, torch.float32)
    row = Tensor(slot, Meta((1, 4), (4, 1), torch.float32, None), 0)
    twice = regroup(table, "aten.expand.default", {"self": row, "size": (2, 4)})
    with pytest.raises(Undecidable, match="holds an element twice"):
        spliced(table, slot, tensor(table, "old", 4).content, twice.content, tensor(table, "new", 8).content)


def test_a_part_of_what_is_not_known():
    table = Terms()
    slot = table.source(("slot",), 4, torch.float32)
    half = intern(table, [items_of(table, slot)[0]._replace(length=2)])
    new = tensor(table, "new", 2).content
    with pytest.raises(Undecidable, match="not known"):
        spliced(table, slot, None, half, new)
    assert spliced(table, slot, None, slot, new) == new


# How copies lie in memory


def laid_out(rng, g, x):
    """A view of a tensor: turned, cut, with holes, or repeated."""
    shape = list(x.meta["val"].shape)
    dim = rng.randrange(len(shape))
    start = rng.randrange(shape[dim])
    return rng.choice((
        lambda: g(aten.permute.default, x, rng.sample(range(len(shape)), len(shape))),
        lambda: g(aten.slice.Tensor, x, dim, start, rng.randint(start + 1, shape[dim])),
        lambda: g(aten.slice.Tensor, x, dim, 0, shape[dim], 2),
        lambda: g(aten.expand.default, g(aten.unsqueeze.default, x, dim), [*shape[:dim], 3, *shape[dim:]]),
    ))()  # fmt: skip


def copied_as(rng, g, x):
    dim = rng.randrange(x.meta["val"].dim())
    return rng.choice((
        lambda: g(aten.clone.default, x),
        lambda: g(aten.clone.default, x, memory_format=rng.choice((torch.preserve_format, torch.contiguous_format))),
        lambda: g(aten._to_copy.default, x, dtype=rng.choice((torch.float64, torch.float32, torch.bfloat16))),
        lambda: g(aten.cat.default, [x, x], dim),
        lambda: g(aten.stack.default, [x, x], dim),
        lambda: g(aten.reshape.default, x, [-1]),
    ))()  # fmt: skip


def test_copies_lie_as_pytorch_lays_them_out():
    """Whatever their val says: against real tensors."""
    for seed in range(examples(300)):
        rng, g = random.Random(seed), Graph()
        x = g.input("x", *(rng.randint(1, 5) for _ in range(rng.randint(1, 4))))
        for _ in range(rng.randint(1, 4)):
            x = laid_out(rng, g, x)
        program = g.program(copied_as(rng, g, x))
        real = {}
        for node in list(program.graph.nodes)[:-1]:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), real.get)
            real[node] = (
                torch.rand(node.meta["val"].shape) if node.op == "placeholder" else node.target(*args, **kwargs)
            )
        with g.mode:
            node.meta["val"] = torch.empty_strided(real[node].shape, [7 * s for s in real[node].stride()])
        walk = Tracer(Terms(), program.root, first=True)
        walk.walk(program.graph)
        shape, strides = tuple(real[node].shape), walk.env[node].meta.strides
        assert relevant(shape, strides) == relevant(shape, real[node].stride()), seed


def test_how_a_result_lies_that_only_its_val_says():
    """A reduction of what has holes: the device knows how it lays out its result."""

    def make(steps, more=False):
        g = Graph()
        x = g(aten.slice.Tensor, g.input("x", 4, 6), 1, 0, 3)
        turned = g(aten.permute.default, x, [1, 0])
        launch = g(
            c10d.all_reduce_coalesced.default, [turned, g(aten.neg.default, x)] if more else [turned], "sum", "0"
        )
        first = g(operator.getitem, launch, 0)
        with g.mode:
            first.meta["val"] = torch.empty_strided((3, 4), steps)
        launch.meta["val"] = [first.meta["val"], *launch.meta["val"][1:]]
        made = g(aten.reshape.default, g(c10d.wait_tensor.default, first, val=first.meta["val"]), [12])
        return g.program(made)

    proved(make((4, 1)), make((4, 1)))
    differs(make((4, 1)), make((1, 3)), "value", "its val says strides (1, 3), they are (4, 1) in BEFORE")
    assert "only its val says" in str(verify(make((4, 1)), make((4, 1), more=True)).unproved)
