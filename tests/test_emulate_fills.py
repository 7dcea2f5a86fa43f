"""What a rank receives whose peers send what it sends: the same as real ranks exchange that all send that."""

from __future__ import annotations

import pytest
import torch

from commcc.base.terms import Kind
from commcc.graph.ops.collective_table import COLLECTIVES
from commcc.replay.emulate.fills import REDUCTIONS, Peers, receive
from commcc.replay.virtual import DisagreementError, received

WHOLE = ("band", "bor", "bxor")


def fact_of(name):
    return COLLECTIVES[f"_c10d_functional.{name}" if "." not in name else name]


def landed(name, call, peers):
    received = receive(fact_of(name), call, peers)
    received.fill()
    return received.results


def same(one, other):
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert torch.equal(one, other)
    assert one.is_contiguous()


def agrees(name, call, peers):
    """As :func:`received` has it for ranks that all make this call."""
    wanted = received(fact_of(name), [call] * peers.size)[peers.place]
    found = landed(name, call, peers)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def numbers(*shape, dtype=torch.float32):
    """Small whole numbers, which no order of sums rounds."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("peers", [Peers(1, 0), Peers(2, 1), Peers(4, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_gathers(peers, dtype):
    for shape in ((3, 2), (5,), (), (0, 4)):
        agrees("all_gather_into_tensor", {"input": numbers(*shape, dtype=dtype), "group_size": peers.size}, peers)


def test_a_gather_of_what_is_not_contiguous():
    agrees("all_gather_into_tensor", {"input": numbers(3, 4).t()}, Peers(3, 1))


@pytest.mark.parametrize("operation", sorted(REDUCTIONS))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reductions(operation, size):
    peers = Peers(size, size - 1)
    dtype = torch.int32 if operation in WHOLE else torch.float32
    whole = numbers(4 * size, 3, dtype=dtype)
    for tensor in (whole, whole.t().reshape(4 * size, 3), numbers(3, 4 * size, dtype=dtype).t()):
        agrees("all_reduce", {"input": tensor, "reduce_op": operation}, peers)
        agrees("reduce_scatter_tensor", {"input": tensor, "reduce_op": operation, "group_size": size}, peers)


@pytest.mark.parametrize("operation", ["sum", "product", "max", "bor", "band"])
def test_reductions_of_truths(operation):
    agrees("all_reduce", {"input": torch.tensor([True, False]), "reduce_op": operation}, Peers(4, 1))


def test_a_reduction_of_half_precision_is_one_product():
    """8 times 3.003 in bfloat16: rounded once, where a running sum is rounded seven times."""
    x = torch.tensor([3.003], dtype=torch.bfloat16)
    assert landed("all_reduce", {"input": x, "reduce_op": "sum"}, Peers(8, 0))[0] == 8 * x


def test_each_element_depends_on_itself_alone():
    """So that merged launches give the same bits as each alone."""
    x, y = torch.randn(4, 3), torch.randn(8, 2)
    for operation in ("sum", "avg", "product"):
        apart = [landed("all_reduce", {"input": t, "reduce_op": operation}, Peers(4, 0))[0] for t in (x, y)]
        flat = torch.cat([x.flatten(), y.flatten()])
        merged = landed("all_reduce", {"input": flat, "reduce_op": operation}, Peers(4, 0))[0]
        assert torch.equal(merged, torch.cat([t.flatten() for t in apart]))


@pytest.mark.parametrize("peers", [Peers(1, 0), Peers(2, 1), Peers(4, 3)], ids=str)
def test_exchanges_of_equal_shares(peers):
    x = numbers(8, 3)
    equal = [8 // peers.size] * peers.size
    for splits in ([], equal):
        agrees("all_to_all_single", {"input": x, "output_split_sizes": splits, "input_split_sizes": splits}, peers)


def test_counts_and_then_tokens():
    """Number 1 of 3 sends 1, 4 and 2 tokens. Its peers are like it, so each sends it 4; and 4 come."""
    peers = Peers(3, 1)
    counts = torch.tensor([1, 4, 2])
    told = landed("all_to_all_single", {"input": counts, "output_split_sizes": [], "input_split_sizes": []}, peers)[0]
    assert told.tolist() == [4, 4, 4]
    tokens = numbers(7, 2)
    call = {"input": tokens, "output_split_sizes": told.tolist(), "input_split_sizes": counts.tolist()}
    calls = [{**call, "output_split_sizes": [counts[rank].item()] * 3} for rank in range(3)]
    same(landed("all_to_all_single", call, peers)[0], received(fact_of("all_to_all_single"), calls)[1][0])


def test_the_way_back_takes_as_many_rows_as_are_asked_for():
    """4 rows are its own of each 12; where 1 is wanted it is the first, where 6 are the first two come again."""
    x = numbers(12, 2)
    call = {"input": x, "output_split_sizes": [1, 4, 6], "input_split_sizes": [4, 4, 4]}
    (found,) = landed("all_to_all_single", call, Peers(3, 1))
    mine = x[4:8]
    same(found, torch.cat([mine[:1], mine, mine, mine[:2]]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool, torch.bfloat16])
def test_exchanges_of_odd_types(dtype):
    x = numbers(6, 2).to(dtype)
    call = {"input": x, "output_split_sizes": [3, 4], "input_split_sizes": [2, 4]}
    (found,) = landed("all_to_all_single", call, Peers(2, 0))
    assert found.dtype == dtype
    same(found.view(torch.uint8), x.view(torch.uint8)[[0, 1, 0, 0, 1, 0, 1]])


def test_nothing_stands_for_rows_of_which_there_are_none():
    call = {"input": numbers(2, 3), "output_split_sizes": [1, 2], "input_split_sizes": [0, 2]}
    (found,) = landed("all_to_all_single", call, Peers(2, 0))
    same(found, torch.zeros(3, 3))
    call = {"input": numbers(2, 3), "output_split_sizes": [0, 0], "input_split_sizes": [2, 0]}
    assert landed("all_to_all_single", call, Peers(2, 0))[0].shape == (0, 3)


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (-1, 0), (2, 1), (1, 1)])
def test_redistributed_shards(dims):
    call = {"input": numbers(4, 8, 2), "gather_dim": dims[0], "shard_dim": dims[1]}
    agrees("_dtensor.shard_dim_alltoall", call, Peers(4, 1))


def test_broadcasts():
    agrees("broadcast", {"input": numbers(3, 2), "src": 1}, Peers(4, 2))
    x = numbers(3)
    assert landed("broadcast_", {"input": x, "src": 1}, Peers(4, 2))[0] is x


def test_several_at_once():
    agrees("all_gather_into_tensor_coalesced", {"inputs": [numbers(2), numbers(3, 2)], "group_size": 2}, Peers(2, 1))
    call = {"inputs": [numbers(2), numbers(4, 2)], "reduce_op": "sum", "group_size": 2}
    agrees("reduce_scatter_tensor_coalesced", call, Peers(2, 1))
    tensors = [numbers(2), numbers(3)]
    wanted = [3 * each for each in tensors]
    found = landed("all_reduce_coalesced_", {"inputs": tensors, "reduce_op": "sum"}, Peers(3, 1))
    assert all(one is other for one, other in zip(found, tensors, strict=True))
    assert all(map(torch.equal, found, wanted))


def test_results_that_are_given():
    x, out = numbers(3, 2), torch.full((6, 2), 99.0)
    assert landed("all_gather_into_tensor_out", {"input": x, "group_size": 2, "out": out}, Peers(2, 0))[0] is out
    assert torch.equal(out, torch.cat([x, x]))
    y, out = numbers(6, 2), torch.full((3, 2), 99.0)
    call = {"input": y, "reduce_op": "sum", "group_size": 2, "out": out}
    assert landed("reduce_scatter_tensor_out", call, Peers(2, 1))[0] is out
    assert torch.equal(out, 2 * y[3:])
    z = numbers(4)
    wanted = z * 5
    assert landed("all_reduce_", {"input": z, "reduce_op": "sum"}, Peers(5, 2))[0] is z
    assert torch.equal(z, wanted)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gather_from_its_own_result(place):
    """FSDP copies its shard into the buffer and gathers from there."""
    buffer = torch.full((6, 2), 99.0)
    mine = buffer.narrow(0, 2 * place, 2)
    mine.copy_(x := numbers(2, 2))
    landed("all_gather_into_tensor_out", {"input": mine, "group_size": 3, "out": buffer}, Peers(3, place))
    assert torch.equal(buffer, torch.cat([x, x, x]))


def test_a_scatter_into_its_own_input():
    whole = numbers(6, 2)
    wanted = whole[2:4] * 3
    call = {"input": whole, "reduce_op": "sum", "group_size": 3, "out": whole[2:4]}
    same(landed("reduce_scatter_tensor_out", call, Peers(3, 1))[0], wanted)


def test_nothing_is_written_before_the_fill():
    out = torch.full((4,), 99.0)
    received = receive(fact_of("all_gather_into_tensor_out"), {"input": torch.zeros(2), "out": out}, Peers(2, 0))
    assert torch.equal(out, torch.full((4,), 99.0))
    assert received.nbytes == (8, 16)


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("all_gather_into_tensor", {"input": numbers(2), "group_size": 3}, "for 3 ranks, its group has 2"),
        ("reduce_scatter_tensor", {"input": numbers(3), "reduce_op": "sum"}, "3 rows cannot be scattered to 2"),
        ("all_reduce", {"input": numbers(3), "reduce_op": "premul_sum"}, "'premul_sum' cannot be replayed"),
        ("all_to_all_single", {"input": numbers(3), "output_split_sizes": [], "input_split_sizes": []}, "3 rows"),
        ("all_to_all_single", {"input": numbers(3), "output_split_sizes": [], "input_split_sizes": [1, 1]}, "3 rows"),
        ("all_to_all_single", {"input": numbers(2), "output_split_sizes": [1], "input_split_sizes": []}, r"\[1\]"),
    ],
)
def test_what_does_not_fit_is_said_at_the_launch(name, call, words):
    with pytest.raises(DisagreementError, match=words):
        receive(fact_of(name), call, Peers(2, 0))


def test_every_collective_of_the_table_is_known():
    """A new row of it needs a case here."""
    assert {fact.kind for fact in COLLECTIVES.values()} == {
        *(Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL, Kind.BROADCAST)
    }
