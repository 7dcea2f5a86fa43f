"""Live bytes: cases worked out by hand, a quadratic reference, and the storages of real runs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.program import ProcessGroup
from tests.effort import examples
from tests.index_maker import Shape, random_maker, random_order
from tests.memory_graphs import RESIZE, random_memory_program, real_live_bytes
from tests.random_graphs import GraphBuilder, aten, c10d, getitem, random_program
from tests.slow_memory import slow_live_bytes

RELAXED = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 1 << 30)


def memory(builder, outputs, order=None):
    return live_bytes(build_index(builder.program(outputs, {"0": 2})), order)


def test_a_value_lives_from_its_node_to_its_last_use():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)  # 40 bytes, always
    first = b.call(aten.neg.default, x)
    second = b.call(aten.neg.default, first)
    b.call(aten.neg.default, second)  # nobody uses it
    last = b.call(aten.add.Tensor, second, 1)
    found = memory(b, [last])
    assert found.live == (40, 80, 120, 120, 120, 80)
    assert (found.peak_bytes, found.input_bytes) == (120, 40)
    assert found.peak_at == 2


def test_an_empty_graph():
    found = memory(GraphBuilder(), [])
    assert (found.peak_bytes, found.peak_at, found.live) == (0, 0, (0,))


def test_a_view_keeps_its_base_alive_and_takes_nothing():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    base = b.call(aten.neg.default, x)
    view = b.call(aten.slice.Tensor, base, 0, 0, 2)
    b.call(aten.neg.default, x)
    b.call(aten.neg.default, view)
    assert memory(b, []).live == (40, 80, 80, 120, 88, 40)


def test_an_expanded_view_takes_nothing():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    base = b.call(aten.neg.default, x)
    wide = b.call(aten.expand.default, base, [1000, 10])
    assert memory(b, [wide]).live == (40, 80, 80, 80)


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda b, x: b.call(aten.reshape.default, x, [24]), 0),
        (lambda b, x: b.call(aten.reshape.default, b.call(aten.t.default, x), [24]), 96),
        (lambda b, x: b.call(aten.contiguous.default, x), 0),
        (lambda b, x: b.call(aten.contiguous.default, b.call(aten.t.default, x)), 96),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float32), 0),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float32, False, True), 96),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float64), 192),
        (lambda b, x: b.call(aten.flatten.using_ints, x), 0),
        (lambda b, x: b.call(aten.detach.default, x), 0),
    ],
)
def test_what_may_copy_takes_memory_where_it_does(make, extra):
    b = GraphBuilder()
    x = b.placeholder("x", (4, 6), torch.float32)
    assert memory(b, [make(b, x)]).peak_bytes == 96 + extra


def test_a_write_into_a_buffer_makes_none():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    base = b.call(aten.neg.default, x)
    done = b.call(aten.add_.Tensor, base, x)
    b.call(aten.neg.default, done)
    assert memory(b, []).live == (40, 80, 80, 120, 40)


def test_a_collective_holds_its_input_and_its_result_until_the_wait():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    sent = b.call(aten.neg.default, x)
    launch = b.call(c10d.all_gather_into_tensor.default, sent, 2, "0")
    b.call(aten.neg.default, x)
    wait = b.call(c10d.wait_tensor.default, launch)
    b.call(aten.neg.default, wait)
    assert memory(b, []).live == (40, 80, 160, 200, 160, 200, 40)


def test_what_nobody_waits_for_is_held_to_the_end():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    sent = b.call(aten.neg.default, x)
    b.call(c10d.all_gather_into_tensor.default, sent, 2, "0")
    b.call(aten.neg.default, x)
    assert memory(b, []).live == (40, 80, 160, 200, 160)


def test_several_waits_hold_until_the_last():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    sent = b.call(aten.neg.default, x)
    launch = b.call(c10d.all_reduce_coalesced.default, [sent, x], "sum", "0")
    b.call(c10d.wait_tensor.default, getitem(b, launch, 0))
    b.call(aten.neg.default, x)
    b.call(c10d.wait_tensor.default, getitem(b, launch, 1))
    assert memory(b, []).live == (40, 80, 160, 160, 160, 200, 160, 160, 40)


def test_elements_of_a_tuple_live_each_for_themselves():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 10), torch.float32)
    both = b.call(aten.max.dim, x, 0)  # 40 bytes of values, 80 of indices
    values = getitem(b, both, 0)
    b.call(aten.neg.default, getitem(b, both, 1))
    b.call(aten.neg.default, values)
    assert memory(b, []).live == (160, 280, 280, 280, 360, 240, 160)


def test_a_storage_that_is_emptied_and_filled_again():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    copy = b.call(aten.clone.default, x)
    b.call(RESIZE, copy, 0)
    b.call(aten.neg.default, x)
    b.call(RESIZE, copy, 40)
    b.call(aten.fill_.Scalar, copy, 1)
    assert memory(b, []).live == (40, 80, 80, 80, 80, 80, 40)


def test_an_input_that_is_first_filled_begins_empty():
    """As FSDP's unsharded parameters do: resized to their size before use and to nothing after it."""
    b = GraphBuilder()
    shard, full = b.placeholder("shard", (10,), torch.float32), b.placeholder("full", (20,), torch.float32)
    b.call(RESIZE, full, 80)
    b.call(aten.fill_.Scalar, full, 1)
    b.call(RESIZE, full, 0)
    found = memory(b, [shard])
    assert found.live == (40, 40, 120, 120, 120, 40)
    assert found.input_bytes == 40


def test_an_input_that_is_emptied_had_something():
    b = GraphBuilder()
    b.call(RESIZE, b.placeholder("full", (20,), torch.float32), 0)
    assert memory(b, []).live == (80, 80, 0)


def test_memory_of_the_host_does_not_count_beside_a_device():
    b = GraphBuilder()
    x = b.graph.placeholder("x")
    with b.mode:
        x.meta["val"] = torch.empty(10, dtype=torch.float32, device="cuda")
    host = b.call(aten._to_copy.default, x, device=torch.device("cpu"))
    b.call(RESIZE, host, 0)
    b.call(RESIZE, host, 400)
    assert memory(b, []).live == (40, 40, 40, 40, 40)


def test_another_order_has_another_peak():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    big = [b.call(aten.expand.default, x, [3, 10]) for _ in range(2)]
    wide = [b.call(aten.clone.default, node) for node in big]
    small = [b.call(aten.sum.default, node) for node in wide]
    index = build_index(b.program(small, {}))
    at = index.position
    both = live_bytes(index)
    order = [at[n.name] for n in (x, big[0], wide[0], small[0], big[1], wide[1], small[1])] + [len(index) - 1]
    one = live_bytes(index, order)
    assert (both.peak_bytes, one.peak_bytes) == (40 + 120 + 120 + 4, 40 + 120 + 4 + 4)
    assert index.names[one.peak_at] == small[1].name


@RELAXED
@given(SEEDS, SEEDS)
def test_agrees_with_real_storages_in_any_order(seed, order_seed):
    program, waits = random_memory_program(seed)
    index = build_index(program)
    for order in (list(range(len(index))), random_order(index, random.Random(order_seed))):
        found = live_bytes(index, order)
        assert list(found.live) == real_live_bytes(program, waits, order)
        assert found.peak_bytes == max(found.live)
        assert found.peak_at == order[found.live.index(found.peak_bytes)]


@RELAXED
@given(SEEDS, SEEDS)
def test_agrees_with_the_quadratic_reference_on_programs(seed, order_seed):
    program, _ = random_memory_program(seed, steps=20)
    index = build_index(program)
    order = random_order(index, random.Random(order_seed))
    assert list(live_bytes(index, order).live) == slow_live_bytes(index, order)


@RELAXED
@given(SEEDS, SEEDS)
def test_agrees_with_the_quadratic_reference_on_anything(seed, order_seed):
    """Buffers, resizes and outputs drawn at random, whether or not a program could have them."""
    rng = random.Random(seed)
    index = random_maker(seed, Shape(nodes=22, depth=8)).index()
    order = random_order(index, random.Random(order_seed))
    index = _with_random_buffers(index, rng)
    assert list(live_bytes(index, order).live) == slow_live_bytes(index, order)


def _with_random_buffers(index, rng):
    buffers, sizes = [], []
    for node in range(len(index)):
        held = [b for p in index.data_preds[node] for b in buffers[p] if rng.random() < 0.4]
        for _ in range(rng.choice((0, 1, 1, 2)) if index.ops[node] != "placeholder" else 1):
            held.append(len(sizes))
            sizes.append(rng.randrange(100))
        buffers.append(tuple(dict.fromkeys(held)))
    resizes, writes = {}, {}
    for node in range(1, len(index)):
        if index.data_preds[node] and rng.random() < 0.2:
            writes[node] = index.data_preds[node][:1]
            resizes[node] = rng.choice((0, 50, 200))
    # What is resized twice keeps its order, as the index's edges see to.
    first = next(iter(resizes), None)
    resizes = {first: resizes[first]} if first is not None else {}
    estimates = replace(index.estimates, buffers=tuple(buffers), buffer_bytes=tuple(sizes), resizes=resizes)
    outputs = tuple(rng.choices(range(len(index)), k=2))
    return replace(index, estimates=estimates, writes=writes, outputs=outputs)


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_the_quadratic_reference_on_training_graphs(seed):
    index = build_index(random_program(seed, 6, 2))
    order = random_order(index, random.Random(seed))
    assert list(live_bytes(index, order).live) == slow_live_bytes(index, order)


def test_constants_are_never_freed():
    b = GraphBuilder()
    node = b.graph.get_attr("table")
    with b.mode:
        node.meta["val"] = torch.empty(25, dtype=torch.float32)
    b.call(aten.neg.default, b.call(aten.neg.default, node))
    program = replace(b.program([], {}), groups={"0": ProcessGroup("0", 2)})
    assert live_bytes(build_index(program)).live == (100, 200, 300, 100)
