"""Copies to the host: what holds of their order in the index, in plans, when they are applied, and for the verifier."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from commcc.apply import apply_plan
from commcc.base.errors import InputError, InternalError
from commcc.graph.index import build_index
from commcc.graph.index.host import early_reads
from commcc.passes.ep_schedule import EpSchedule
from commcc.plan import HostCopy, Plan, Reordering
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.timing.cost.model import load_model
from commcc.timing.predict import milliseconds
from commcc.verify import verify
from tests.ep_graphs import Chunked, parse

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.graph.program import Program

TEXT = """def forward(self, a: "i64[2][1]cuda:0", b: "i64[2][1]cuda:0"):
    ha: "i64[2][1]cpu" = torch.ops.aten._to_copy.default(a, device = device(type='cpu'), non_blocking = True)
    hb: "i64[2][1]cpu" = torch.ops.aten._to_copy.default(b, device = device(type='cpu'))
    one: "i64[][]cpu" = torch.ops.aten.select.int(ha, 0, 0)
    two: "i64[][]cpu" = torch.ops.aten.select.int(hb, 0, 0)
    n: "Sym(u1)" = torch.ops.aten._local_scalar_dense.default(one)
    m: "Sym(u2)" = torch.ops.aten._local_scalar_dense.default(two)
    return (n, m)
"""


def reordered(program: Program, names: list[str], **flags: bool) -> Program:
    index = build_index(program)
    return apply_plan(program, index, plan_of(program, names, **flags))


def plan_of(program: Program, names: list[str], **flags: bool) -> Plan:
    index = build_index(program)
    copies = tuple(HostCopy(index.position[name], flag, "test") for name, flag in flags.items())
    return Plan("test", index.fingerprint, Reordering(tuple(index.position[n] for n in names)), copies)


def test_the_index_tells_copies_and_their_order_apart():
    index = build_index(parse(TEXT))
    at = index.position
    assert index.host_copies == {at["ha"]: True, at["hb"]: False}
    assert index.host_order == {at["hb"]: (at["ha"],), at["n"]: (at["hb"],), at["m"]: (at["n"],)}
    assert at["ha"] in index.preds(at["hb"]) and at["ha"] not in index.needs(at["hb"])
    assert index.needs(at["n"]) == (at["one"],)


def test_what_reads_a_copy_itself_needs_it():
    """Not only for the order of host syncs."""
    text = """def forward(self, a: "i64[][]cuda:0"):
    h: "i64[][]cpu" = torch.ops.aten._to_copy.default(a, device = device(type='cpu'))
    n: "Sym(u1)" = torch.ops.aten._local_scalar_dense.default(h)
    return (n,)
"""
    index = build_index(parse(text))
    assert index.host_order == {}
    assert index.needs(index.position["n"]) == (index.position["h"],)


def test_reads_before_the_host_has_waited():
    index = build_index(parse(TEXT))
    at = index.position
    order = [at[n] for n in ("a", "b", "ha", "one", "n", "hb", "two", "m", "output")]
    assert early_reads(index, range(len(index))) == set()
    assert early_reads(index, order) == {(at["n"], at["ha"])}, "looking at a part of it is no read"
    assert early_reads(index, order, {at["ha"]: False}) == set()


def test_a_copy_from_one_device_is_not_there_when_the_host_has_waited_for_another():
    index = build_index(parse(TEXT.replace('b: "i64[2][1]cuda:0"', 'b: "i64[2][1]cuda:1"')))
    at = index.position
    assert early_reads(index, range(len(index))) == {(at["n"], at["ha"])}
    assert early_reads(index, range(len(index)), {at["ha"]: False}) == set()


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (["a", "b", "hb", "two", "m", "ha", "one", "n"], {"ha": False}),
        (["a", "b", "hb", "ha", "one", "n", "two", "m"], {"hb": True, "ha": False}),
        (["a", "b", "ha", "hb", "two", "m", "one", "n"], {}),
    ],
)
def test_orders_in_which_everything_has_arrived(names: list[str], flags: dict[str, bool]):
    program = parse(TEXT)
    after = reordered(program, [*names, "output"], **flags)
    assert verify(program, after).status == "proved"
    made = {n.name: n.kwargs.get("non_blocking", False) for n in after.graph.nodes if "device" in n.kwargs}
    assert made == {"ha": True, "hb": False, **flags}


@pytest.mark.parametrize(
    ("names", "flags", "read", "copy"),
    [
        (["a", "b", "ha", "one", "n", "hb", "two", "m"], {}, "n", "ha"),
        (["a", "b", "ha", "hb", "one", "n", "two", "m"], {"hb": True}, "n", "ha"),
    ],
)
def test_orders_in_which_something_has_not(names: list[str], flags: dict[str, bool], read: str, copy: str):
    """Refused by apply, and by the verifier, which shares nothing with it."""
    program = parse(TEXT)
    with pytest.raises(InternalError, match=f"'{read}', which reads '{copy}', before the host has waited"):
        reordered(program, [*names, "output"], **flags)
    wrong = unchecked(program, [*names, "output"], **flags)
    verdict = verify(program, wrong)
    assert verdict.status == "different"
    assert (verdict.findings[0].rule, verdict.findings[0].node) == ("wait", read)
    assert f"reads '{copy}' before the host has waited" in verdict.findings[0].text


def unchecked(program: Program, names: list[str], **flags: bool) -> Program:
    """The same edits, without apply."""
    from torch import fx

    from commcc.graph.copying import copy_node

    nodes = {node.name: node for node in program.graph.nodes}
    graph, env = fx.Graph(), {}
    for name in names:
        made = env[nodes[name]] = copy_node(graph, nodes[name], env)
        if name in flags:
            made.kwargs = {**made.kwargs, "non_blocking": flags[name]}
    return replace(program, graph=graph)


def test_a_host_sync_that_is_gone_or_doubled_is_found():
    program = parse(TEXT)
    text = TEXT.replace("default(two)", "default(one)")
    assert verify(program, parse(text)).status == "different"
    unused = parse(TEXT.replace("return (n, m)", "return (n,)"))
    without = unchecked(unused, ["a", "b", "ha", "hb", "one", "n", "output"])
    verdict = verify(unused, without)
    assert verdict.status == "proved"
    assert [(f.rule, f.node, f.text) for f in verdict.notes] == [("effect", "m", "is not read by the host in AFTER")]


def test_only_copies_to_the_host_have_the_flag():
    program = parse(TEXT)
    index = build_index(program)
    plan = Plan("test", index.fingerprint, edits=(HostCopy(index.position["one"], False, "test"),))
    with pytest.raises(InternalError, match="'one' is no copy from a device to the host"):
        apply_plan(program, index, plan)


def test_copies_may_change_where_the_order_stays():
    program = parse(TEXT)
    index = build_index(program)
    blocking = Plan("test", index.fingerprint, edits=(HostCopy(index.position["ha"], False, "test"),))
    assert verify(program, apply_plan(program, index, blocking)).status == "proved"
    early = Plan("test", index.fingerprint, edits=(HostCopy(index.position["hb"], True, "test"),))
    with pytest.raises(InternalError, match="before the host has waited"):
        apply_plan(program, index, early)


def test_the_host_waits_once_in_the_figures_too():
    """Three chunks bring counts to the host in six copies, of which three block as they come and one in the end."""
    result = run(parse(Chunked(3).forward().text()), [EpSchedule()], model=load_model("h100"))
    report = result.steps[0].report
    step = result.last.prediction.timeline.step_ns
    assert report["step_ms"] == [milliseconds(result.first.prediction.timeline.step_ns), milliseconds(step)]
    before, after = (seen.prediction.timeline.compute_ns for seen in (result.first, result.last))
    assert before - after == 2 * 20_000


def test_a_stored_plan_is_applied_again(tmp_path: Path):
    program = parse(Chunked(3).forward().text())
    made = run(program, [EpSchedule()])
    assert made.steps[0].plan.of(HostCopy)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(made))
    again = run(program, read_plans(path))
    assert again.last.index.fingerprint == made.last.index.fingerprint
    assert "host_copies:" in path.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("node: received_0", "node: received_2", "reads 'sent_1' before the host has waited for that copy"),
        ("node: received_0", "node: one_0", "'one_0' is no copy from a device to the host"),
        ("non_blocking: true", "non_blocking: maybe", "maybe"),
        ("exchange: dispatch", "exchange: despatch", "'arrived_0' is no wait for a 'despatch'"),
        ("wait: arrived_0", "wait: expert_0", "'expert_0' is no wait for a 'dispatch'"),
    ],
)
def test_what_is_wrong_with_a_stored_plan_is_named(tmp_path: Path, old: str, new: str, message: str):
    program = parse(Chunked(3).forward().text())
    path = tmp_path / "plan.yaml"
    text = plan_text(run(program, [EpSchedule()]))
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=re.escape(message)):
        run(program, read_plans(path))
