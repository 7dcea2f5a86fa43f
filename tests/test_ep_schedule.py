"""Orders of hand-made chunked regions: what each order is, that it is legal, and that values stay."""

from __future__ import annotations

import pytest

from commcc.base.errors import InputError, OptionError
from commcc.ep.regions import regions_of
from commcc.ep.schedule import Local, in_waves, strip_of
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.ep_schedule import EpSchedule
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.ep_graphs import ATEN, BACKWARD, C10D, FORWARD, Chunked, parse

COUNTS = {"one", "two", "out", "back", "tokens"}


def local_of(text: str) -> Local:
    program = parse(text)
    index = build_index(program)
    return Local.of(index, regions_of(index, annotations_of(program, index))[0])


def ordered(made: Chunked, depth: int) -> list[str]:
    local = local_of(made.text())
    return [local.index.names[node] for node in in_waves(local, depth).order]


def strip(made: Chunked, depth: int) -> str:
    local = local_of(made.text())
    found = in_waves(local, depth)
    return strip_of(local.index, local.region, found.order, found.host_copies)


def scheduled(made: Chunked, **options: object):
    return run(parse(made.text()), [EpSchedule(**options)], model=load_model("h100"))


def names(result) -> list[str]:
    return [node.name for node in result.program.graph.nodes]


def test_two_chunks_forward_by_phases():
    """The routers and counts, copies, what dispatches need, dispatches, shared experts, experts, combines, rest."""
    assert ordered(Chunked(2).forward(), 2) == [
        *("router_0", "count_0", "exchanged_0", "counted_0", "router_1", "count_1", "exchanged_1", "counted_1"),
        *("sent_0", "received_0", "sent_1", "received_1"),
        *("one_0", "two_0", "out_0", "back_0", "tokens_0", "one_1", "two_1", "out_1", "back_1", "tokens_1"),
        *("dispatch_0", "dispatch_1", "shared_0", "shared_1"),
        *("arrived_0", "expert_0", "combine_0", "arrived_1", "expert_1", "combine_1"),
        *("combined_0", "y_0", "combined_1", "y_1"),
    ]


def test_two_chunks_backward_by_phases():
    assert ordered(Chunked(2).backward(), 2) == [
        *("combine_1", "combine_0", "again_1", "shared_1", "again_0", "shared_0"),
        *("combined_1", "dgrad_1", "dispatch_1", "combined_0", "dgrad_0", "dispatch_0"),
        *("wgrad_1", "wgrad_0", "arrived_1", "y_1", "arrived_0", "y_0"),
    ]


@pytest.mark.parametrize(
    ("chunks", "depth", "forward", "backward"),
    [
        (3, 3, "D0 D1 D2 [3 mm] wD0 [1 mm] C0 wD1 [1 mm] C1 wD2 [1 mm] C2 wC0 wC1 wC2", "C2 C1 C0 [3 mm] wC2"),
        (3, 1, "D0 [1 mm] wD0 [1 mm] C0 D1 [1 mm] wD1 [1 mm] C1 D2 [1 mm] wD2", "C2 [1 mm] wC2 [1 mm] D2 C1 [2 mm]"),
        (3, 2, "D0 D1 [2 mm] wD0 [1 mm] C0 D2 wD1 [1 mm] C1 [1 mm] wD2 [1 mm] C2", "C2 C1 [2 mm] wC2 [1 mm] D2 C0 wC1"),
        (5, 2, "D0 D1 [2 mm] wD0 [1 mm] C0 D2 wD1 [1 mm] C1 D3 [2 mm] wD2 [1 mm] C2 D4 wD3", "C4 C3 [2 mm] wC4"),
    ],
)
def test_waves(chunks: int, depth: int, forward: str, backward: str):
    first = strip(Chunked(chunks).forward(), depth)
    copies = " ".join(f"h{k} h{k}" for k in range(chunks))
    assert first.startswith(f"[{chunks} mm] {copies}! {forward}")
    assert strip(Chunked(chunks).backward(), depth).startswith(backward)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_more_chunks_hold_received_tokens_than_depth(depth: int):
    """From the launch of a dispatch until the experts have read what it received."""
    holding = most = 0
    for name in ordered(Chunked(5).forward(), depth):
        holding += name.startswith("dispatch_")
        most = max(most, holding)
        holding -= name.startswith("expert_")
    assert most == depth


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("options", [{"order": "phase"}, {"order": "wavefront", "in_flight": 1}, {"order": "auto"}])
def test_results_are_proved_to_be_the_same_program(chunks: int, direction: str, options: dict[str, object]):
    result = scheduled(getattr(Chunked(chunks), direction)(), **options)
    assert result.verified == "proved"
    assert result.changed
    again = run(result.program, [EpSchedule(**options)], model=load_model("h100"))
    assert names(again) == names(result), "a second run changes nothing"


def test_only_the_last_copy_of_counts_blocks():
    result = scheduled(Chunked(2).forward())
    flags = {n.name: n.kwargs.get("non_blocking", False) for n in result.program.graph.nodes if "device" in n.kwargs}
    assert flags == {"sent_0": True, "received_0": True, "sent_1": True, "received_1": False}


@pytest.mark.parametrize("top", [False, True])
def test_waits_are_annotated_as_such(top: bool):
    """Only launches keep the key of the exchange; the schedule is the same when it is read again."""
    program = parse(Chunked(2).forward().text())
    for node in program.graph.nodes:
        custom = dict(node.meta.get("custom", {}))
        if top and "EP_token_exchange" in custom:
            node.meta |= {"EP_token_exchange": custom.pop("EP_token_exchange"), "custom": custom}
    before = {n.name: dict(n.meta) for n in program.graph.nodes}
    after = run(program, [EpSchedule()]).program
    assert {n.name: dict(n.meta) for n in program.graph.nodes} == before, "the graph before is not touched"
    found: dict[str, list[str]] = {"EP_token_exchange": [], "EP_token_exchange_wait": []}
    for node in after.graph.nodes:
        place = node.meta if top else node.meta.get("custom", {})
        for key in found.keys() & place.keys():
            found[key].append(f"{node.name} {place[key]}")
    labels = ("dispatch", "combine")
    assert sorted(found["EP_token_exchange"]) == sorted(f"{n}_{k} {n}" for n in labels for k in (0, 1))
    waits = {"arrived": "dispatch", "combined": "combine"}
    assert sorted(found["EP_token_exchange_wait"]) == sorted(f"{n}_{k} {waits[n]}" for n in waits for k in (0, 1))
    assert not run(after, [EpSchedule()]).changed


def wide(chunks: int = 2) -> Chunked:
    """A root around the module: products of attention, which no annotation of expert parallelism has."""
    attention = ("attention", "f32[8, 8]", ATEN + ".mm.default(x_{k}, wr)", {})
    router = ("router", "f32[8, 8]", ATEN + ".mm.default(attention_{k}, wr)", {"EP": "compute"})
    return Chunked(chunks, "layers.0").forward((attention, router, *FORWARD[1:]))


def test_a_wider_root_goes_chunk_by_chunk():
    order = [n for n in ordered(wide(), 2) if n.rpartition("_")[0] not in COUNTS]
    assert order[:15] == [
        *("attention_0", "router_0", "count_0", "exchanged_0", "counted_0", "sent_0", "received_0", "dispatch_0"),
        *("attention_1", "router_1", "count_1", "exchanged_1", "counted_1", "sent_1", "received_1"),
    ]
    assert order[15:18] == ["dispatch_1", "shared_0", "shared_1"]


def test_in_a_wider_root_the_last_copy_of_each_chunk_blocks():
    result = scheduled(wide())
    assert result.verified == "proved"
    flags = {n.name: n.kwargs.get("non_blocking", False) for n in result.program.graph.nodes if "device" in n.kwargs}
    assert flags == {"sent_0": True, "received_0": False, "sent_1": True, "received_1": False}


def test_collectives_that_move_no_tokens_do_not_fill():
    """A gather inside the body is no filler: it comes where it is needed, here at the end."""
    more = (
        ("gather", "f32[16, 8]", C10D + ".all_gather_into_tensor.default(x_{k}, 2, '0')", {"EP": "compute"}),
        ("gathered", "f32[16, 8]", C10D + ".wait_tensor.default(gather_{k})", {"EP": "compute"}),
    )
    order = ordered(Chunked(2).forward((*FORWARD, *more)), 2)
    assert min(order.index(f"gather_{k}") for k in (0, 1)) > order.index("combine_1")


def test_prefixes_of_later_closures_fill():
    """What the combine needs besides the experts' result is ready before the wait."""
    scores = ("scores", "f32[8, 8]", ATEN + ".mm.default(x_{k}, ws)", {"EP": "compute"})
    scaled = ("scaled", "f32[8, 8]", ATEN + ".mul.Tensor(expert_{k}, scores_{k})", {"EP": "combine"})
    at = [step[0] for step in FORWARD].index("combine")
    steps = (*FORWARD[:at], scores, scaled, *FORWARD[at:])
    made = Chunked(2).forward(steps)
    for k in (0, 1):
        made.swap(f"combine_{k}", C10D + f".all_to_all_single.default(scaled_{k}, [4, 4], [4, 4], '0')")
    order = ordered(made, 2)
    assert order.index("dispatch_1") < order.index("scores_0") < order.index("arrived_0")
    assert order.index("scores_1") < order.index("arrived_0") < order.index("scaled_0")


def test_a_chain_of_writes_through_the_chunks_is_kept():
    """Chunk 1 adds to what chunk 0 made; the backward order of chunks does not turn that around."""
    chain = ("total", "f32[8, 8]", ATEN + ".add.Tensor(again_{k}, again_{k})", {"EP": "compute"})
    made = Chunked(2).backward((*BACKWARD, chain)).swap("total_1", ATEN + ".add.Tensor(total_0, again_1)")
    order = ordered(made, 2)
    assert order.index("total_0") < order.index("total_1")
    assert scheduled(made).verified == "proved"


def test_exchanges_that_need_each_other_across_chunks_are_refused():
    """The dispatch of chunk 1 needs what chunk 0's combine brings; no order by phases has that."""
    made = Chunked(2).forward().swap("tokens_1", ATEN + ".add.Tensor(x_1, combined_0)")
    late = ("tokens_1", "dispatch_1", "arrived_1", "expert_1", "combine_1", "combined_1", "y_0", "y_1", "y")
    lines = {line[0]: line for line in made.lines}
    made.lines = [*(line for name, line in lines.items() if name not in late), *(lines[name] for name in late)]
    with pytest.raises(InputError, match="'dispatch_1' needs 'combine_0', whose turn comes later") as raised:
        ordered(made, 2)
    assert "layers.0.moe forward" in str(raised.value)
    assert ordered(made, 1).index("combine_0") < ordered(made, 1).index("dispatch_1")


def test_auto_needs_a_cost_model():
    with pytest.raises(OptionError, match="order=auto needs a cost model"):
        run(parse(Chunked(2).forward().text()), [EpSchedule(order="auto")])


def test_auto_is_no_slower_than_any_order_and_keeps_to_the_budget():
    made = Chunked(4).forward()
    free = scheduled(made, order="auto", memory_budget=None).steps[0].report
    steps = [scheduled(made, order="wavefront", in_flight=d).steps[0].report["step_ms"][1] for d in (1, 2, 3, 4)]
    assert free["step_ms"][1] <= min(steps) * 1.001
    assert len(free["tried"]) >= 4
    tight = scheduled(Chunked(4).backward(), order="auto", memory_budget=0.0).steps[0].report
    peaks = [each["peak_bytes"] for each in tight["tried"]]
    assert tight["peak_bytes"][1] == min(peaks) < max(peaks)


def test_a_graph_without_chunks_is_refused():
    text = Chunked(2).forward().text().replace("'body'", "'split_boundary'")
    with pytest.raises(InputError, match=r"no chunked region exchanges tokens.*run ep-chunk first"):
        run(parse(text), [EpSchedule()])


def test_the_report_names_the_soft_order():
    report = scheduled(Chunked(2).backward()).steps[0].report
    region = report["regions"][0]
    assert region["strip"] == "C1 C0 [2 mm] wC1 [1 mm] D1 wC0 [1 mm] D0 [2 mm] wD1 wD0"
    assert region["soft_order"][:4] == ["combine_1", "combine_0", "combined_1", "dispatch_1"]
    assert report["hidden_share_of_exchanges"][1] > report["hidden_share_of_exchanges"][0]
