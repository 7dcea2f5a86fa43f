"""Regions as annotations tell them, in both conventions, and every contradiction between annotations."""

from __future__ import annotations

import pytest

from commcc.base.errors import GraphError, InputError, OptionError
from commcc.ep.regions import Region, regions_of
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.ep_schedule import EpSchedule
from commcc.run.pipeline import run
from tests.ep_graphs import ATEN, C10D, FORWARD, Chunked, parse


def regions(made: Chunked, modules: tuple[str, ...] = ()) -> tuple[Region, ...]:
    program = parse(made.text())
    index = build_index(program)
    return regions_of(index, annotations_of(program, index), modules)


def test_a_region_is_read():
    made = Chunked(3).forward()
    (region,) = regions(made)
    names = build_index(parse(made.text())).names
    assert (region.root, region.backward, region.chunks, region.narrow) == ("layers.0.moe", False, 3, True)
    assert region.labels == ("dispatch", "combine")
    assert [[names[n] for n in each] for each in region.exchanges] == [
        [f"dispatch_{k}", f"combine_{k}"] for k in range(3)
    ]
    assert [[names[n] for n in each] for each in region.waits] == [[f"arrived_{k}", f"combined_{k}"] for k in range(3)]
    assert [[names[n] for n in each] for each in region.count_copies] == [
        [f"sent_{k}", f"received_{k}"] for k in range(3)
    ]
    assert region.chunk_order == (0, 1, 2)


def test_backward_regions_run_from_the_last_chunk():
    (region,) = regions(Chunked(3).backward())
    assert region.backward and region.chunk_order == (2, 1, 0)
    assert region.labels == ("combine", "dispatch")
    assert region.name == "layers.0.moe backward"


def test_annotations_at_the_top_level_count_as_well():
    """What graph chunking writes at the top level, and no direction: the one of autograd."""
    program = parse(Chunked(2).backward().text())
    for node in program.graph.nodes:
        custom = dict(node.meta.get("custom") or {})
        if custom.pop("chunked_region_is_backward", False):
            node.meta["autograd_backward"] = True
        for key in ("chunked_region_fqn", "chunked_region_role", "chunk_id"):
            if key in custom:
                node.meta[key] = custom.pop(key)
        node.meta["custom"] = custom
    index = build_index(program)
    (region,) = regions_of(index, annotations_of(program, index))
    assert region.backward and region.chunks == 2


def test_patterns_choose_roots():
    made = Chunked(2)
    made.forward()
    assert len(regions(made, ("layers.*.moe",))) == 1
    assert len(regions(made, ("layers.0",))) == 1
    with pytest.raises(OptionError, match=r"no module 'layers.1' .*chunked are layers.0.moe"):
        regions(made, ("layers.1",))


def test_a_region_without_exchanges_is_left_out():
    steps = tuple(step for step in FORWARD if step[0] in ("router",))
    y = ("y", "f32[8, 8]", ATEN + ".relu.default(router_{k})", {})
    assert regions(Chunked(2).forward((*steps, y))) == ()


def test_other_names_of_the_wait_are_read():
    made = Chunked(2).forward()
    for k in (0, 1):
        made.change(f"arrived_{k}", EP_token_exchange=None, EP_token_exchange_wait="dispatch")
    assert len(regions(made)) == 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_modules_that_were_chunked_before_tracing(direction: str):
    """Wrapped forwards write region, role and chunk only; which pass a node is of says autograd."""
    made = getattr(Chunked(2), direction)()
    for name, *_, notes in made.lines:
        if notes.get("chunked_region_role") == "chunk_input":
            made.change(name, chunked_region_role="split_boundary")
        made.change(name, chunked_region_is_backward=None, chunked_region_producer="eager")
        made.change(name, autograd_backward=True if direction == "backward" else None)
    (region,) = regions(made)
    assert (region.backward, region.chunks) == (direction == "backward", 2)
    assert region == regions(getattr(Chunked(2), direction)())[0]
    result = run(parse(made.text()), [EpSchedule()])
    plain = run(parse(getattr(Chunked(2), direction)().text()), [EpSchedule()])
    assert result.verified == "proved" and result.last.index.names == plain.last.index.names


def test_copies_whose_destination_is_not_the_host_are_refused():
    made = Chunked(2).forward()
    for k in (0, 1):
        made.swap(f"received_{k}", f"{ATEN}._to_copy.default(counted_{k}, device = device(type='cuda', index=1))")
    made.lines = [(n, k.replace("cpu", "cuda:1") if "received" in n else k, c, a) for n, k, c, a in made.lines]
    made.lines = [(n, k.replace("cpu", "cuda:1") if "two_" in n else k, c, a) for n, k, c, a in made.lines]
    with pytest.raises(InputError, match=r"'received_0' copies token counts, and not to the host"):
        regions(made)


@pytest.mark.parametrize(
    ("name", "notes", "message"),
    [
        ("router_1", {"chunked_region_fqn": None}, "node 'router_1': is in the body of a chunk, but no region"),
        ("router_1", {"chunk_id": None}, "node 'router_1': is in a body of 'layers.0.moe', but of no chunk"),
        ("router_1", {"chunk_id": 3}, "has chunk 0, 1, 3, chunk 2 is missing"),
        ("dispatch_1", {"EP_token_exchange": None}, "'dispatch_1' is an all-to-all that no annotation calls"),
        ("expert_0", {"EP_token_exchange": "combine"}, "'expert_0' is annotated as a combine and is no all-to-all"),
        (
            "arrived_1",
            {"EP_token_exchange": "combine"},
            "'arrived_1' waits for 'dispatch_1', a dispatch, and says comb",
        ),
        ("arrived_1", {"chunk_id": 0}, "'dispatch_1' is waited for by 'arrived_1', which is not in its chunk"),
        ("received_1", {"EP_token_count_sync": None}, "in different numbers of copies: 2, 1"),
        ("dispatch_1", {"EP_token_count_exchange": "dispatch"}, "chunk 0 has dispatch, combine, chunk 1 has combine"),
    ],
)
def test_contradictions_are_refused(name: str, notes: dict[str, object], message: str):
    made = Chunked(2).forward().change(name, **notes)
    if "chunk 0 has" in message:
        made.change("arrived_1", EP_token_exchange=None)
    with pytest.raises(InputError) as raised:
        regions(made)
    assert message in str(raised.value)


def test_exchanges_in_one_chunk_only_are_refused():
    made = Chunked(2).forward()
    for name in ("dispatch", "combine"):
        made.swap(f"{name}_1", ATEN + ".relu.default(x_1)").change(f"{name}_1", EP_token_exchange=None)
    for name in ("arrived_1", "combined_1"):
        made.swap(name, ATEN + ".relu.default(x_1)").change(name, EP_token_exchange=None)
    with pytest.raises(InputError, match="chunk 0 has dispatch, combine, chunk 1 has nothing"):
        regions(made)


def test_labels_in_another_order_are_refused():
    made = Chunked(2).forward()
    for name, label in (
        ("dispatch", "combine"),
        ("arrived", "combine"),
        ("combine", "dispatch"),
        ("combined", "dispatch"),
    ):
        made.change(f"{name}_1", EP_token_exchange=label)
    with pytest.raises(InputError, match="chunk 0 has dispatch, combine, chunk 1 has combine, dispatch"):
        regions(made)


def test_an_exchange_has_one_wait():
    made = Chunked(2).forward()
    made.swap("combined_0", ATEN + ".relu.default(combine_0)").change("combined_0", EP_token_exchange=None)
    with pytest.raises(InputError, match="'combine_0' has 0 waits, a token exchange has one"):
        regions(made)


def test_one_chunk_is_none():
    with pytest.raises(InputError, match=r"layers.0.moe forward.*has chunk 0, there is no other"):
        regions(Chunked(1).forward())


def test_a_wait_before_its_launch_is_no_graph():
    made = Chunked(2).forward()
    at = next(i for i, line in enumerate(made.lines) if line[0] == "dispatch_0")
    made.lines[at], made.lines[at + 2] = made.lines[at + 2], made.lines[at]
    with pytest.raises((InputError, GraphError), match="dispatch_0"):
        regions(made)


def test_any_sequence_of_exchanges_is_read():
    """Combine, dispatch, combine: as many and in such an order as all chunks have them."""
    more = (
        (
            "third",
            "f32[8, 8]",
            C10D + ".all_to_all_single.default(shared_{k}, [4, 4], [4, 4], '0')",
            {"EP_token_exchange": "dispatch"},
        ),
        ("there", "f32[8, 8]", C10D + ".wait_tensor.default(third_{k})", {"EP_token_exchange": "dispatch"}),
    )
    (region,) = regions(Chunked(2).forward((*FORWARD, *more)))
    assert region.labels == ("dispatch", "combine", "dispatch")
