"""The verifier on what must be proved; merged forms are written by hand."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.verify_graphs import (
    WORLD,
    Graph,
    aten,
    c10d,
    differs,
    gathers,
    gradients,
    proved,
    reductions,
    undecided,
)


@pytest.mark.parametrize("make", [gathers, gradients, reductions])
def test_a_graph_is_itself(make):
    proved(make(), make())


def test_a_verdict_has_counts():
    verdict = proved(gathers(), gathers(lambda g, xs: g.merged_gather(xs)))
    assert verdict.checked["launches_before"] == 4
    assert verdict.checked["launches_after"] == 1
    assert verdict.checked["copies_after"] > verdict.checked["copies_before"] == 0
    assert verdict.to_json()["status"] == "proved"


def test_a_merged_all_gather_is_its_members():
    before, after = gathers(), gathers(lambda g, xs: g.merged_gather(xs))
    proved(before, after)
    proved(after, before)


def test_merging_in_another_order_and_in_two_buckets():
    def merge(g, xs):
        d, b = g.merged_gather([xs[3], xs[1]])
        a, c = g.merged_gather([xs[0], xs[2]])
        return [a, b, c, d]

    proved(gathers(), gathers(merge))
    proved(gathers(lambda g, xs: g.merged_gather(xs)), gathers(merge))


def test_a_merged_cast():
    merged = gathers(lambda g, xs: g.merged_gather(xs, cast=torch.bfloat16))
    proved(gathers(cast=torch.bfloat16), merged)


def test_a_merged_reduce_scatter_is_its_members():
    proved(gradients(), gradients(lambda g, xs: g.merged_scatter(xs)))


def test_a_merged_all_reduce_is_its_members():
    proved(reductions(), reductions(lambda g, xs: g.merged_reduce(xs)))


def test_buckets_of_buckets():
    def nested(g, xs):
        """Gathers over a group of 2, then over a group of 4, each merged."""
        return g.merged_gather(g.merged_gather(xs, "1", 2), "0", WORLD)

    before = gathers(lambda g, xs: [g.gather(g.gather(x, "1", 2)) for x in xs])
    proved(before, gathers(nested))


def test_hsdp_chains_merge():
    before = gradients(lambda g, xs: [g.scatter(g.reduce(x, group="1")) for x in xs])
    proved(before, gradients(lambda g, xs: g.merged_scatter(g.merged_reduce(xs, group="1"))))
    before = gradients(lambda g, xs: [g.reduce(g.scatter(x), group="1") for x in xs])
    proved(before, gradients(lambda g, xs: g.merged_reduce(g.merged_scatter(xs), group="1")))


def test_gather_along_dimension_1_merges():
    def unshard(g, full):
        """What DTensor does to a gather along dimension 1."""
        return g(aten.cat.default, list(g.parts(full, [4] * WORLD, 0)), 1)

    def make(merge):
        g = Graph()
        xs = [g.input("a", 4, 3), g.input("b", 4, 5)]
        full = g.merged_gather(xs) if merge else [g.gather(x) for x in xs]
        return g.program(*[g(aten.sin.default, unshard(g, w)) for w in full])

    proved(make(False), make(True))


def test_scatter_along_dimension_1_merges():
    def shard(g, x):
        chunks = g(aten.split.Tensor, x, 2, 1)
        return g(aten.cat.default, [g(operator.getitem, chunks, i) for i in range(WORLD)])

    def make(merge):
        g = Graph()
        xs = [shard(g, g.input("a", 6, 8)), shard(g, g.input("b", 3, 8))]
        return g.program(*(g.merged_scatter(xs) if merge else [g.scatter(x) for x in xs]))

    proved(make(False), make(True))


def test_buckets_of_several_dtypes_as_bytes():
    dtypes = (torch.float32, torch.bfloat16, torch.float32)

    def make(merge):
        g = Graph()
        xs = [g.input(f"p{i}", 4, 6, dtype=dtype) for i, dtype in enumerate(dtypes)]
        if not merge:
            return g.program(*[g(aten.sin.default, g.gather(x)) for x in xs])
        raw = [g(aten.view.dtype, g.flat(x), torch.uint8) for x in xs]
        sizes = [r.meta["val"].numel() for r in raw]
        waited = g.gather(g(aten.cat.default, raw))
        parts = g.parts(g(aten.view.default, waited, [WORLD, sum(sizes)]), sizes, 1)
        typed = [g(aten.view.dtype, g(aten.clone.default, p), d) for p, d in zip(parts, dtypes, strict=True)]
        return g.program(*[g(aten.sin.default, g.shaped(t, (4 * WORLD, 6))) for t in typed])

    proved(make(False), make(True))


@pytest.mark.parametrize("form", ["coalesced", "out", "inplace", "broadcast"])
def test_other_forms_of_launches(form):
    def make():
        g = Graph()
        a, b = g.input("a", 4, 3), g.input("b", 4, 3)
        if form == "coalesced":
            launch = g(c10d.all_gather_into_tensor_coalesced.default, [a, b], WORLD, "0")
            full = [g.wait(g(operator.getitem, launch, i)) for i in range(2)]
        elif form == "out":
            buffers = [g(aten.empty.memory_format, [16, 3], device="cpu") for _ in range(2)]
            out = c10d.all_gather_into_tensor_out.default
            full = [g.wait(g(out, x, WORLD, "0", out=o)) for x, o in zip((a, b), buffers, strict=True)]
        elif form == "inplace":
            full = [g.wait(g(c10d.all_reduce_.default, g(aten.clone.default, x), "sum", "0")) for x in (a, b)]
        else:
            full = [g.wait(g(c10d.broadcast.default, x, 0, "0")) for x in (a, b)]
        return g.program(*[g(aten.sin.default, w) for w in full])

    proved(make(), make())


def test_a_coalesced_launch_is_the_same_as_single_ones():
    def make(coalesced):
        g = Graph()
        xs = [g.input("a", 4, 3), g.input("b", 4, 5)]
        if coalesced:
            launch = g(c10d.reduce_scatter_tensor_coalesced.default, xs, "sum", WORLD, "0")
            return g.program(*[g.wait(g(operator.getitem, launch, i)) for i in range(2)])
        return g.program(*[g.scatter(x) for x in xs])

    proved(make(False), make(True))


def test_shard_dim_alltoall_and_all_to_all_stay_as_they_are():
    def make(dim):
        g = Graph()
        x = g.input("x", 8, 8)
        moved = g(torch.ops._dtensor.shard_dim_alltoall.default, x, 0, dim, "0", val=x.meta["val"])
        sent = g(c10d.all_to_all_single.default, moved, [2] * WORLD, [2] * WORLD, "0")
        return g.program(g.wait(sent))

    pytest.importorskip("torch.distributed.tensor")
    proved(make(1), make(1))
    differs(make(1), make(0), "value", "shard_dim")


def test_names_do_not_matter_but_those_of_inputs_do():
    def make(name):
        g = Graph()
        return g.program(g(aten.sin.default, g.input("x", 4), name=name))

    proved(make("sin"), make("anything_else"))


def test_a_legal_reorder_is_proved():
    def make(late):
        g = Graph()
        x, p, q = g.input("x", 16, 3), g.input("p", 4, 3), g.input("q", 4, 3)
        first = g(c10d.all_gather_into_tensor.default, p, WORLD, "0")
        if late:
            y = g(aten.sin.default, x)
            w = g.wait(first)
            v = g.gather(q)
        else:
            second = g(c10d.all_gather_into_tensor.default, q, WORLD, "0")
            v = g.wait(second)
            w = g.wait(first)
            y = g(aten.sin.default, x)
        return g.program(g(aten.add.Tensor, y, w), v)

    proved(make(False), make(True))


def test_spelling_of_arguments_does_not_matter():
    def make(keywords):
        g = Graph()
        x = g.input("x", 4, 3)
        y = g(aten.sum.dim_IntList, x, [0])
        y.args, y.kwargs = ((), {"self": x, "dim": [0], "keepdim": False}) if keywords else (y.args, {})
        return g.program(y)

    proved(make(False), make(True))


def test_dead_code_may_go_and_is_mentioned():
    def make(dead):
        g = Graph()
        x = g.input("x", 4, 3)
        if dead:
            g(aten.cos.default, x, name="dead")
        return g.program(g(aten.sin.default, x))

    verdict = proved(make(True), make(False))
    assert {note.rule for note in verdict.notes} == {"dropped"}
    assert "dead: aten.cos.default was dead code and is gone" in [f"{n.node}: {n.text}" for n in verdict.notes]


def test_work_that_is_shared_now_is_mentioned():
    def make(times):
        g = Graph()
        x = g.input("x", 4, 3)
        made = [g(aten.sin.default, g.gather(x)) for _ in range(times)]
        return g.program(g(aten.add.Tensor, made[0], made[-1]))

    notes = [note.text for note in proved(make(2), make(1)).notes]
    assert "aten.sin.default is computed 1 times, not 2" in notes
    assert any(note.startswith("48 elements of all_gather of 'x'") for note in notes)


def test_compute_that_is_done_twice_is_mentioned_and_communication_is_not_proved():
    def make(times, launches):
        g = Graph()
        x = g.input("x", 4, 3)
        full = [g.gather(x) for _ in range(launches)]
        made = [g(aten.sin.default, full[min(i, launches - 1)]) for i in range(times)]
        return g.program(g(aten.add.Tensor, made[0], made[-1]))

    (note,) = proved(make(1, 1), make(2, 1)).notes
    assert (note.rule, note.text) == ("duplicated", "computes aten.sin.default again: 2 times, in BEFORE 1")
    (gap,) = undecided(make(2, 1), make(2, 2)).unproved
    assert (gap.rule, gap.text.startswith("moves 96 elements")) == ("duplicated", True)
