"""What fused chains read and write: by hand on small graphs, by brute force on random ones."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from commcc.apply import apply_plan
from commcc.graph.index import build_index
from commcc.graph.ops.kernels import Work
from commcc.passes.options import parse_pipeline
from commcc.plan import Plan, Reordering
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.fusion import Chains
from commcc.timing.cost.operations import operations
from commcc.timing.cost.traffic import Traffic
from tests.cost_graphs import Graph, N, T
from tests.random_graphs import aten, getitem, random_program


def test_a_chain_pays_for_its_ends():
    g = Graph()
    a, b, c, d = g.input(), g.input(), g.input(), g.input()
    x = g.call(aten.mm.default, a, b)
    y = g.call(aten.silu.default, x)
    z = g.call(aten.mul.Tensor, y, c)
    w = g.call(aten.mm.default, z, d)
    index = g.index(w)
    found = {index.names[i]: o for i, o in operations(index, fused=True).items()}
    assert [(o.read_bytes, o.written_bytes, o.kernels) for o in found.values()] == [
        (2 * T, T, 1),
        (T, 0, 1),
        (T, T, 0),
        (2 * T, T, 1),
    ]
    assert found["mm"].compute
    assert found["mm"].flops == 2 * N**3
    assert [tensor.shape for tensor in found["mul"].inputs] == [(N, N), (N, N)]
    plain = {index.names[i]: (o.read_bytes, o.written_bytes) for i, o in operations(index, fused=False).items()}
    assert plain == {"mm": (2 * T, T), "silu": (T, T), "mul": (2 * T, T), "mm_1": (2 * T, T)}


JOINED = {
    "": (0, 0, 0),
    "view": (0, 0, 0),
    "constant": (0, 0, 0),
    "kernel": (T, T, 1),
    "input": (T, T, 1),
    "returned": (T, T, 1),
    "read": (T, T, 1),
    "slice": (T // 2, T // 2, 1),
}


@pytest.mark.parametrize("part", JOINED)
def test_what_is_computed_for_a_concatenation_alone_is_written_in_its_place(part):
    """As Inductor's ConcatKernel has it; the other part is always one of these."""
    g = Graph()
    x, y = g.input(), g.input()
    ours = made = g.call(aten.mm.default, x, y) if part == "kernel" else g.call(aten.sin.default, x)
    if part == "view":
        ours = g.call(aten.view.default, g.call(aten.unsqueeze.default, made, 0), [N, N])
    elif part == "constant":
        ours = g.call(aten.full.default, [N, N], 1.0, dtype=torch.float64)
    elif part == "input":
        ours = y
    elif part == "slice":
        ours = g.call(aten.slice.Tensor, made, 0, 0, N // 2)
    joined = g.call(aten.cat.default, [ours, g.call(aten.cos.default, y)])
    others = [made] if part == "returned" else [g.call(aten.mm.default, made, y)] if part == "read" else []
    costs = g.costs(g.call(aten.mm.default, joined, x), *others)
    assert costs["cat"] == JOINED[part]
    assert costs["cos"][1] == T
    index = g.built
    assert operations(index, fused=False)[index.position["cat"]].kernels == 1


def test_two_adds_joined_through_a_matmul_are_two_chains():
    """The residual stream: the second add needs a kernel that needs the first."""
    g = Graph()
    x, y, w = g.input(), g.input(), g.input()
    first = g.call(aten.add.Tensor, x, y)
    product = g.call(aten.mm.default, first, w)
    second = g.call(aten.add.Tensor, first, product)
    norm = g.call(aten.mul.Tensor, second, second)
    costs = g.costs(norm)
    assert costs["add"] == (2 * T, T, 1)
    assert costs["add_1"] == (2 * T, 0, 1)
    assert costs["mul"] == (0, T, 0)
    chains = Chains(g.built, Traffic(g.built))
    position = g.built.position
    assert chains.of[position["add"]] != chains.of[position["add_1"]] == chains.of[position["mul"]]
    assert chains.of[position["mm"]] == -1


def test_a_collective_cuts_like_a_kernel():
    g = Graph()
    x = g.input()
    first = g.call(aten.neg.default, x)
    reduced = g.reduce(first, "0")
    second = g.call(aten.add.Tensor, first, reduced)
    costs = g.costs(second)
    assert costs == {"neg": (T, T, 1), "add": (2 * T, T, 1)}


def test_what_is_cheap_is_made_where_it_is_used():
    """As in a backward graph: an activation is computed again, long before the gradient it meets is there."""
    g = Graph()
    saved, grad, w = g.input(), g.input(), g.input()
    again = g.call(aten.sigmoid.default, saved)
    incoming = g.call(aten.mm.default, grad, w)
    product = g.call(aten.mul.Tensor, incoming, again)
    assert g.costs(product) == {"sigmoid": (T, 0, 1), "mm": (2 * T, T, 1), "mul": (T, T, 0)}


def test_the_first_of_several_readers_decides():
    g = Graph()
    saved, grad, w = g.input(), g.input(), g.input()
    again = g.call(aten.sigmoid.default, saved)
    early = g.call(aten.mm.default, grad, again)
    late = g.call(aten.mul.Tensor, g.call(aten.mm.default, early, w), again)
    assert g.costs(late) == {"sigmoid": (T, T, 1), "mm": (2 * T, T, 1), "mm_1": (2 * T, T, 1), "mul": (2 * T, T, 1)}


def late_gradient(g: Graph, *, grown: bool = False):
    """A norm's gradient, summed over the batch, and another one, which a kernel takes together, two matmuls later."""
    x, incoming, w = g.input(), g.input(), g.input()
    product = g.call(aten.mul.Tensor, x, incoming)
    first = g.call(aten.add.Tensor, product, x)
    total = g.call(aten.sum.dim_IntList, product, [0])
    small = g.call(aten.mul.Tensor, total, incoming) if grown else g.call(aten.neg.default, total)
    second = g.call(aten.mm.default, g.call(aten.mm.default, first, w), w)
    return first, g.call(aten.cat.default, [small, second] if grown else [small, g.call(aten.select.int, second, 0, 0)])


def test_a_sum_stays_with_its_operands():
    g = Graph()
    costs = g.costs(*late_gradient(g))
    assert costs["mul"][2] == 1, "one kernel reads x and the incoming gradient"
    assert costs["mul"][0] + costs["add"][0] + costs["sum_1"][0] == 2 * T
    assert [costs[name][1] for name in ("mul", "add", "sum_1", "neg")] == [0, T, 0, T // N]
    chains = Chains(g.built, Traffic(g.built))
    assert len({chains.of[g.built.position[name]] for name in ("mul", "add", "sum_1", "neg")}) == 1


def test_a_sum_that_something_large_is_computed_from_goes_along_with_it():
    g = Graph()
    costs = g.costs(*late_gradient(g, grown=True))
    chains = Chains(g.built, Traffic(g.built))
    at = {name: chains.of[g.built.position[name]] for name in ("mul", "sum_1", "mul_1")}
    assert at["sum_1"] == at["mul_1"]
    assert costs["mul_1"][1] == T


def test_a_read_stays_before_the_write_that_must_follow_it():
    g = Graph()
    buffer, x, w = g.input(), g.input(), g.input()
    old = g.call(aten.neg.default, buffer)
    g.call(aten.copy_.default, buffer, x)
    late = g.call(aten.add.Tensor, g.call(aten.mm.default, buffer, w), old)
    costs = g.costs(late)
    assert costs["neg"] == (T, T, 1)
    assert costs["add"] == (2 * T, T, 1)


def test_random_numbers_keep_their_order():
    """The second dropout is between the first and the third, which could be one kernel but for that."""
    g = Graph()
    x, y = g.input(), g.input()
    first = dropout(g, x)
    second = dropout(g, y)
    third = dropout(g, first)
    assert g.costs(second, third) == dict.fromkeys(
        ("native_dropout", "native_dropout_1", "native_dropout_2"), (T, T, 1)
    )


def test_random_numbers_keep_their_order_when_they_are_needed_late():
    g = Graph()
    x, y = g.input(), g.input()
    first = dropout(g, x)
    second = dropout(g, y)
    third = dropout(g, first)
    late = g.call(aten.mm.default, g.call(aten.mm.default, x, x), x)
    index = g.index(g.call(aten.mm.default, second, late), third)
    chains = Chains(index, Traffic(index))
    assert chains.of[index.position["native_dropout"]] != chains.of[index.position["native_dropout_2"]]
    assert_no_cycle(index, [chain if chain >= 0 else -2 - i for i, chain in enumerate(chains.of)])


def test_an_input_enters_once():
    g = Graph()
    x = g.input()
    first = g.call(aten.neg.default, x)
    second = g.call(aten.mul.Tensor, first, x)
    third = g.call(aten.add.Tensor, second, g.call(aten.t.default, x))
    assert g.costs(third) == {"neg": (T, 0, 1), "mul": (0, 0, 0), "add": (0, T, 0)}


def test_who_pays_is_told():
    """The first of a chain for its kernel, the first reader of a tensor for its bytes."""
    g = Graph()
    x, y = g.input(), g.input()
    a = g.call(aten.neg.default, x)
    b = g.call(aten.mul.Tensor, y, y)
    c = g.call(aten.add.Tensor, x, y)
    index = g.index(g.call(aten.add.Tensor, g.call(aten.add.Tensor, a, b), c))
    names = index.names
    chains = Chains(index, Traffic(index))
    chains.traffic()
    after = {names[i]: [names[p] for p in payers] for i, payers in chains.after.items()}
    assert after == {"mul": ["neg"], "add": ["neg", "mul"], "add_1": ["neg"], "add_2": ["neg"]}


def test_chains_of_other_sizes_cost_something_else_where_their_members_change_places():
    g = Graph()
    inputs = [(g.input(width, width), g.input(width, width)) for width in (512, 4096)]
    pairs = [(g.call(aten.neg.default, x), g.call(aten.mul.Tensor, y, y)) for x, y in inputs]
    sums = [g.call(aten.add.Tensor, *pair) for pair in pairs]
    program, model = g.program([g.call(aten.mm.default, each, each) for each in sums], {"0": 2}), load_model("h100")
    index = build_index(program)
    payers, order = model.price(index).payers, list(range(len(index)))
    for pair in pairs:
        one, other = (index.position[node.name] for node in pair)
        order[one], order[other] = other, one
    plan = Plan("t", index.fingerprint, Reordering(tuple(order)))
    anew = build_index(apply_plan(program, index, plan))
    known = dict(zip(anew.names, model.price(anew).ns, strict=True))
    prices = {index.names[node]: ns for node, ns in payers.prices(np.array(order)).items()}
    assert prices and prices == {name: known[name] for name in prices}
    assert len(set(prices.values())) == 3


def test_slices_of_one_input_add_up_to_it_at_most():
    g = Graph()
    x = g.input()
    parts = [g.call(aten.slice.Tensor, x, 0, start, start + 4) for start in (0, 2, 4)]
    total = g.call(aten.add.Tensor, g.call(aten.add.Tensor, parts[0], parts[1]), parts[2])
    assert g.costs(total) == {"add": (T, 0, 1), "add_1": (0, T // 2, 0)}
    assert g.costs(total, fused=False)["add"] == (T, T // 2, 1)


def test_views_belong_to_the_chain():
    g = Graph()
    x, w = g.input(), g.input()
    first = g.call(aten.neg.default, x)
    flat = g.call(aten.view.default, first, [N * N])
    second = g.call(aten.exp.default, flat)
    square = g.call(aten.view.default, second, [N, N])
    costs = g.costs(g.call(aten.mm.default, square, w))
    assert costs == {"neg": (T, 0, 1), "exp": (0, T, 0), "mm": (2 * T, T, 1)}


def test_results_used_inside_and_outside_leave_once():
    g = Graph()
    x, w = g.input(), g.input()
    first = g.call(aten.neg.default, x)
    second = g.call(aten.exp.default, first)
    costs = g.costs(second, g.call(aten.mm.default, first, w), g.call(aten.t.default, first))
    assert costs["neg"] == (T, T, 1)
    assert costs["exp"] == (0, T, 0)


def test_reductions_and_tuples():
    g = Graph()
    x, weight = g.input(), g.input(N)
    norm = g.call(aten.native_layer_norm.default, x, [N], weight, weight, 1e-5)
    out = g.call(aten.mul.Tensor, getitem(g, norm, 0), x)
    costs = g.costs(out, getitem(g, norm, 1))
    # what leaves is the product and the mean, not the norm itself nor its deviation
    assert costs == {"native_layer_norm": (T + N * 8, N * 8, 1), "mul": (0, T, 0)}
    plain = operations(g.built, fused=False)
    assert plain[g.built.position["native_layer_norm"]].written_bytes == T + 2 * N * 8


def test_outputs_do_not_join_chains():
    g = Graph()
    x, y = g.input(), g.input()
    costs = g.costs(g.call(aten.neg.default, x), g.call(aten.neg.default, y))
    assert costs == {"neg": (T, T, 1), "neg_1": (T, T, 1)}


def test_constants():
    g = Graph()
    x = g.input()
    inside = g.call(aten.full_like.default, x, 2.0)
    product = g.call(aten.mul.Tensor, x, inside)
    shown = g.call(aten.full.default, [N, N], 1.0, dtype=torch.float64)
    costs = g.costs(product, g.call(aten.mm.default, x, shown))
    assert costs == {"full_like": (0, 0, 0), "mul": (T, T, 1), "full": (0, T, 1), "mm": (2 * T, T, 1)}
    plain = operations(g.built, fused=False)[g.built.position["full_like"]]
    assert (plain.read_bytes, plain.written_bytes, plain.kernels) == (0, T, 1)


def test_a_constant_between_members_joins_their_chain():
    g = Graph()
    x = g.input()
    first = g.call(aten.neg.default, x)
    ones = g.call(aten.ones_like.default, first)
    assert g.costs(g.call(aten.add.Tensor, first, ones)) == {"neg": (T, 0, 1), "ones_like": (0, 0, 0), "add": (0, T, 0)}
    assert len({chain for chain in Chains(g.built, Traffic(g.built)).of if chain >= 0}) == 1


def dropout(g: Graph, x):
    return getitem(g, g.call(aten.native_dropout.default, x, 0.5, True), 0)


def layer_norm(g: Graph, x):
    return getitem(g, g.call(aten.native_layer_norm.default, x, [N], None, None, 1e-5), 0)


def row_times(g: Graph, a, b):
    return g.call(aten.mul.Tensor, a, g.call(aten.sum.dim_IntList, b, [0], True))


def overwritten(g: Graph, buffer, x):
    g.call(aten.copy_.default, buffer, x)
    return g.call(aten.neg.default, buffer)


def random_graph(seed: int, size: int = 40):
    """Pointwise ops, views, matmuls, collectives, constants and writes in any order, and some outputs."""
    rng, g = random.Random(seed), Graph()
    buffer = g.input()
    values = [g.input() for _ in range(3)]
    makers = (
        *[lambda a, b: g.call(aten.add.Tensor, a, b)] * 2,
        lambda a, b: g.call(aten.mul.Tensor, a, b),
        lambda a, _: g.call(aten.neg.default, a),
        lambda a, _: g.call(aten.rand_like.default, a),
        lambda *_: g.call(aten.rand.default, [N, N], dtype=torch.float64),
        lambda a, _: g.call(aten.t.default, a),
        lambda a, b: row_times(g, a, b),
        lambda a, _: g.call(aten.ones_like.default, a),
        lambda a, _: g.reduce(a, "0"),
        lambda a, _: overwritten(g, buffer, a),
        lambda a, _: layer_norm(g, a),
        lambda a, _: dropout(g, a),
        lambda a, b: g.call(aten.mm.default, a, b),
    )
    for _ in range(size):
        values.append(rng.choice(makers)(rng.choice(values[-8:]), rng.choice(values)))
    return g.index(*rng.sample(values[-10:], 4))


def assert_no_cycle(index, thing_of):
    """Kahn's algorithm over the graph with every chain as one thing."""
    edges = defaultdict(set)
    for i in range(len(index)):
        for p in index.preds(i):
            if thing_of[p] != thing_of[i]:
                edges[thing_of[p]].add(thing_of[i])
    waiting = dict.fromkeys(thing_of, 0)
    for targets in edges.values():
        for target in targets:
            waiting[target] += 1
    ready = [thing for thing, count in waiting.items() if not count]
    done = 0
    while ready:
        done += 1
        for target in edges[ready.pop()]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    assert done == len(waiting), "chains wait for each other"


def brute_force(index, chains, traffic):
    """Bytes that enter and leave every chain, worked out anew from the graph alone."""
    members = defaultdict(set)
    for i, chain in enumerate(chains.of):
        if chains.member[i]:
            members[chain].add(i)

    def read_by(node):
        for user in index.users[node]:
            free = index.estimates.work[user] is Work.FREE and index.ops[user] != "output"
            yield from (*([user] if user in index.outputs else []), *read_by(user)) if free else [user]

    def leaves(element, inside):
        return element in index.outputs or set(read_by(element)) - inside - chains.constants

    found = {}
    for chain, inside in members.items():
        sources: dict[int, int] = {}
        results: list[int] = []
        for node in inside:
            outside = [p for p in index.data_preds[node] if traffic.producer[p] not in inside | chains.constants]
            sources.update((index.estimates.buffers[p][0], traffic.bytes[p]) for p in outside)
            results += [user for user in index.users[node] if "getitem" in index.ops[user]] or [node]
        left = [traffic.bytes[result] for result in results if leaves(result, inside)]
        found[chain] = (sum(sources.values()), sum(left))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_chains_of_random_graphs(seed: int):
    index = random_graph(seed)
    traffic = Traffic(index)
    chains = Chains(index, traffic)
    assert_no_cycle(index, [chain if chain >= 0 else -2 - i for i, chain in enumerate(chains.of)])
    costs, kernels = defaultdict(lambda: (0, 0)), defaultdict(int)
    for i, operation in operations(index, fused=True).items():
        if chains.member[i]:
            before = costs[chains.of[i]]
            costs[chains.of[i]] = (before[0] + operation.read_bytes, before[1] + operation.written_bytes)
            kernels[chains.of[i]] += operation.kernels
    assert dict(costs) == brute_force(index, chains, traffic)
    assert set(kernels.values()) <= {1}
    kinds = {index.estimates.work[i] for i, chain in enumerate(chains.of) if chain >= 0}
    assert kinds <= {Work.FUSABLE, Work.FREE}


@pytest.mark.parametrize("seed", range(12))
def test_fusing_never_costs_more(seed: int):
    for index in (random_graph(seed), build_index(random_program(seed))):
        fused, plain = operations(index, fused=True), operations(index, fused=False)
        assert fused.keys() == plain.keys()
        for i, operation in fused.items():
            assert operation.read_bytes <= plain[i].read_bytes
            assert operation.written_bytes <= plain[i].written_bytes
            assert operation.kernels <= plain[i].kernels


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw"])
def test_merging_changes_no_other_kernel(name: str):
    """Gradients wait for each other, then for one launch; what they are computed with is read where it was."""
    program = load(Path(__file__).parents[1] / "sample_graphs" / f"{name}.fx.txt.gz")
    result = run(program, parse_pipeline("bucket{strategy=greedy,bucket_cap_mb=1000}")).program
    before, after = build_index(program), build_index(result)
    assert len(after.launches) < len(before.launches)
    old = {before.names[i]: o for i, o in operations(before, fused=True).items()}
    new = {after.names[i]: o for i, o in operations(after, fused=True).items()}
    kept = [name for name in old.keys() & new.keys() if name not in {before.names[i] for i in before.launches}]
    assert len(kept) > 200
    for name in kept:
        assert (new[name].read_bytes, new[name].kernels) == (old[name].read_bytes, old[name].kernels), name


def test_the_same_graph_gives_the_same_operations():
    assert operations(random_graph(5), fused=True) == operations(random_graph(5), fused=True)


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_joint"])
def test_samples(name: str):
    index = build_index(load(Path(__file__).parents[1] / "sample_graphs" / f"{name}.fx.txt.gz"))
    chains = Chains(index, Traffic(index))
    assert_no_cycle(index, [chain if chain >= 0 else -2 - i for i, chain in enumerate(chains.of)])
    fused, plain = operations(index, fused=True), operations(index, fused=False)
    assert set(fused) == {i for i, w in enumerate(index.estimates.work) if w is not Work.FREE} - set(index.launches)
    assert sum(o.kernels for o in fused.values()) < 0.7 * sum(o.kernels for o in plain.values())
