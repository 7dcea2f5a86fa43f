"""The order of the whole graph around scheduled regions, and random regions."""

from __future__ import annotations

import random

import pytest

from commcc.apply import apply_plan
from commcc.base.errors import InputError
from commcc.ep.regions import regions_of
from commcc.ep.schedule import Local, arranged, in_waves
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.ep_schedule import EpSchedule
from commcc.plan import Plan, Reordering
from commcc.run.pipeline import run
from tests.ep_graphs import ATEN, BACKWARD, C10D, FORWARD, Chunked, parse


def names(made: Chunked, **options: object) -> list[str]:
    result = run(parse(made.text()), [EpSchedule(**options)])
    assert result.verified == "proved"
    return list(result.last.index.names)


def with_gather(made: Chunked) -> Chunked:
    """The shared experts' weight is gathered right before they run, outside of the bodies."""
    made.inputs["p"] = "f32[4, 8]"
    outside = {"module_fqn": "layers.0"}
    at = next(i for i, line in enumerate(made.lines) if line[0] == "shared_0")
    gather = ("gather", "f32[8, 8]", f"{C10D}.all_gather_into_tensor.default(p, 2, '0')", outside)
    made.lines[at:at] = [gather, ("gathered", "f32[8, 8]", f"{C10D}.wait_tensor.default(gather)", outside)]
    for k in range(made.chunks):
        made.swap(f"shared_{k}", f"{ATEN}.mm.default(x_{k}, gathered)")
    return made


def test_what_a_node_needs_from_outside_moves_along():
    order = names(with_gather(Chunked(2).forward()))
    at = {name: order.index(name) for name in order}
    assert at["dispatch_1"] < at["gathered"] < at["shared_0"] < at["arrived_0"]
    assert at["gather"] == at["gathered"] - 1


def test_what_no_region_needs_does_not_move_along():
    """A product that stands between the experts and the gather stays behind the shared experts that went ahead."""
    made = with_gather(Chunked(2).forward())
    at = next(i for i, line in enumerate(made.lines) if line[0] == "gather")
    made.lines.insert(at, ("other", "f32[8, 8]", f"{ATEN}.mm.default(wr, we)", {"module_fqn": "layers.0"}))
    made.returned.append("other")
    order = names(made)
    assert order.index("gathered") < order.index("shared_1") < order.index("arrived_0") < order.index("other")


def test_needs_by_way_of_nodes_outside_count():
    """``late`` reads what arrives through a node that is in no body: no filler, although nothing inside holds it."""
    made = Chunked(2).backward(
        (*BACKWARD, ("late", "f32[8, 8]", f"{ATEN}.mm.default(mid_{{k}}, ws)", {"EP": "compute"}))
    )
    at = next(i for i, line in enumerate(made.lines) if line[0] == "late_0")
    outside = {"module_fqn": "layers.0"}
    made.lines[at:at] = [(f"mid_{k}", "f32[8, 8]", f"{ATEN}.relu.default(arrived_{k})", outside) for k in (0, 1)]
    order = names(made)
    assert order.index("arrived_1") < order.index("mid_1") < order.index("late_1") < order.index("arrived_0")


def test_what_has_nothing_to_do_with_regions_keeps_its_place():
    """Before the first region stays before, behind the last stays behind."""
    made = Chunked(2).forward()
    made.lines.insert(0, ("first", "f32[8, 8]", f"{ATEN}.mm.default(wr, we)", {"module_fqn": "layers.0"}))
    made.lines.append(("last", "f32[8, 8]", f"{ATEN}.mm.default(wr, ws)", {"module_fqn": "layers.1"}))
    made.returned += ["first", "last"]
    order = names(made)
    assert order.index("first") < order.index("xs") and order[-2:] == ["last", "output"]


def shuffled(index, rng: random.Random) -> tuple[int, ...]:
    """A random legal order."""
    order: list[int] = []
    left = list(range(len(index) - 1))
    while left:
        ready = [n for n in left if not set(index.preds(n)) & set(left)]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return (*order, len(index) - 1)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_before_does_not_matter(direction: str, seed: int):
    """Chunk by chunk, or in any other legal order: what is launched and waited for follows in the same order."""
    text = getattr(Chunked(3), direction)().text()
    program = parse(text)
    index = build_index(program)
    other = apply_plan(
        program, index, Plan("test", index.fingerprint, Reordering(shuffled(index, random.Random(seed))))
    )
    seen = []
    for each in (program, other):
        region = run(each, [EpSchedule()]).steps[0].report["regions"][0]
        seen.append((region["strip"], region["soft_order"]))
    assert build_index(other).names != index.names and seen[0] == seen[1]


def test_sums_come_when_their_parts_are_there():
    order = names(Chunked(3).backward())
    at = {name: place for place, name in enumerate(order)}
    assert max(at["wgrad_0"], at["wgrad_1"]) < at["wgrad_sum_1"] < at["wgrad_sum_2"]


def test_chains_that_contradict_each_other_are_refused():
    """Each chain alone has an order, both together have none."""
    text = """def forward(self, x: "f32[8, 8][8, 1]cpu"):
    s: "f32[8, 8][8, 1]cpu" = torch.ops.aten.relu.default(x)
    p: "f32[8, 8][8, 1]cpu" = torch.ops.aten.relu.default(s)
    q: "f32[8, 8][8, 1]cpu" = torch.ops.aten.neg.default(x)
    r: "f32[8, 8][8, 1]cpu" = torch.ops.aten.relu.default(q)
    return (p, r)
"""
    index = build_index(parse(text))
    at = index.position
    one, other = [at["p"], at["q"]], [at["r"], at["s"]]
    assert [index.names[n] for n in arranged(index, [one])] == ["x", "s", "p", "q", "r", "output"]
    assert [index.names[n] for n in arranged(index, [other])] == ["x", "q", "r", "s", "p", "output"]
    with pytest.raises(InputError, match="regions wait for each other at"):
        arranged(index, [one, other])


def grown(seed: int) -> Chunked:
    """A region with more nodes at random places, that read what stands before them in their own chunk."""
    rng = random.Random(seed)
    backward = rng.random() < 0.5
    steps = list(BACKWARD if backward else FORWARD)
    for number in range(rng.randrange(1, 8)):
        at = rng.randrange(1, len(steps))
        readable = [s[0] for s in steps[:at] if s[1] == "f32[8, 8]" and s[0] not in ("dispatch", "combine")]
        readable += ["g" if backward else "x"]
        one, other = rng.choice(readable), rng.choice(readable)
        call = f"{ATEN}.mm.default({one}_{{k}}, {other}_{{k}})"
        steps.insert(at, (f"more{number}", "f32[8, 8]", call, {"EP": "compute"}))
    made = Chunked(rng.randrange(2, 6))
    return made.backward(tuple(steps)) if backward else made.forward(tuple(steps))


@pytest.mark.parametrize("seed", range(30))
def test_random_regions(seed: int):
    """Every node once, every need met, exchanges in the order of waves, and proved to be the same program."""
    made = grown(seed)
    depth = 1 + seed % 4
    program = parse(made.text())
    index = build_index(program)
    local = Local.of(index, regions_of(index, annotations_of(program, index))[0])
    order = in_waves(local, depth).order
    assert sorted(order) == sorted(local.chunk_of)
    place = {node: at for at, node in enumerate(order)}
    assert all(place[need] < place[node] for node in order for need in local.needs[node])
    region = local.region
    launches = [n for n in order if any(n in each for each in region.exchanges)]
    waves = [wave_of(region, node, min(depth, region.chunks)) for node in launches]
    assert waves == sorted(waves)
    result = run(program, [EpSchedule(order="wavefront", in_flight=depth)])
    assert result.verified == "proved"


def wave_of(region, launch: int, depth: int) -> int:
    for chunk, launches in enumerate(region.exchanges):
        if launch in launches:
            return launches.index(launch) + region.chunk_order.index(chunk) // depth
    raise AssertionError
