"""Repro files of PyTorch 2.15 hold their sub-graphs, each as a class before ``Repro``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import commcc
from commcc.base.errors import InputError
from commcc.graph.index import build_index
from commcc.schedule import Problem
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator
from commcc.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

INNER = """\
class step_0(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('_tensor_constant0', tensor([1., 2., 3., 4.]))

    def forward(self, arg0_1):
        _tensor_constant0 = self._tensor_constant0
        mul = torch.ops.aten.mul.Tensor(arg0_1, _tensor_constant0);  arg0_1 = _tensor_constant0 = None
        return (mul,)

"""
TEXT = (
    INNER
    + """\
class body_1(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = step_0()

    def forward(self, arg0_1):
        step = self.step
        called = torch.ops.higher_order.invoke_subgraph(step, 'step', arg0_1);  step = arg0_1 = None
        getitem = called[0];  called = None
        all_reduce = torch.ops._c10d_functional.all_reduce.default(getitem, 'sum', '0');  getitem = None
        wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_reduce);  all_reduce = None
        return (wait_tensor,)

class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body_1()
        self.again = body_1()

    def forward(self, arg0_1, arg1_1):
        body = self.body
        called = torch.ops.higher_order.invoke_subgraph(body, 'body', arg0_1);  body = arg0_1 = None
        getitem = called[0];  called = None
        again = self.again
        called_1 = torch.ops.higher_order.invoke_subgraph(again, 'again', getitem);  again = getitem = None
        getitem_1 = called_1[0];  called_1 = None
        mul = torch.ops.aten.mul.Tensor(arg1_1, 2);  arg1_1 = None
        all_gather = torch.ops._c10d_functional.all_gather_into_tensor.default(mul, 8, '0');  mul = None
        wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_gather);  all_gather = None
        return (getitem_1, wait_tensor)

def load_args(reader):
    buf0 = reader.storage(None, 16)
    reader.tensor(buf0, (4,), is_leaf=True)  # arg0_1
    buf1 = reader.storage(None, 16)
    reader.tensor(buf1, (4,), is_leaf=True)  # arg1_1
load_args._version = 0
"""
)


def program(folder: Path, text: str, name: str = "repro.py"):
    (folder / name).write_text(text)
    return load(folder / name)


def test_sub_graphs_of_repros_are_read_with_their_constants(tmp_path):
    read = program(tmp_path, TEXT)
    assert not read.notes
    (first, again) = (read.root.get_submodule(f"{name}.step") for name in ("body", "again"))
    assert first._tensor_constant0.tolist() == again._tensor_constant0.tolist() == [1, 2, 3, 4]
    assert first._tensor_constant0.data_ptr() != again._tensor_constant0.data_ptr()
    shapes = {node.name: node.meta["val"].shape for node in read.graph.nodes if node.name.startswith("getitem")}
    assert shapes == {"getitem": (4,), "getitem_1": (4,)}
    assert len(build_index(read).inside) == 2
    save(read, tmp_path / "again.fx.txt")
    assert verify(read, load(tmp_path / "again.fx.txt")).status == "proved"


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("tensor([1., 2., 3., 4.])", "tensor([1., 2., 3., 5.])", "different"),
        ("mul = torch.ops.aten.mul.Tensor(arg0_1,", "mul = torch.ops.aten.add.Tensor(arg0_1,", "different"),
        ("step_0", "another_name", "proved"),
        ("self.again = body_1()", "self.again = nothing()", "unproved"),
    ],
)
def test_sub_graphs_of_repros_are_compared(tmp_path, old, new, status):
    after = program(tmp_path, TEXT.replace(old, new), "after.py")
    assert verify(program(tmp_path, TEXT), after).status == status


def test_classes_that_multiply_are_refused(tmp_path):
    levels, name = INNER, "step_0"
    for depth in range(20):
        levels += INNER.replace("step_0", f"level_{depth}").replace(
            "super().__init__()", f"super().__init__()\n        self.a = {name}()\n        self.b = {name}()"
        )
        name = f"level_{depth}"
    with pytest.raises(InputError, match="too many sub-graphs"):
        program(tmp_path, TEXT.replace(INNER, levels + INNER))


def test_errors_in_classes_name_their_line(tmp_path):
    with pytest.raises(InputError, match=r"repro\.py:8"):
        program(tmp_path, TEXT.replace("torch.ops.aten.mul.Tensor(arg0_1,", "torch.ops.aten.mul.Tensor(nobody,"))


def test_nothing_moves_across_a_call_of_a_sub_graph_that_is_not_in_the_file(tmp_path):
    """What it does is not known: it may communicate, and the verifier takes it to do so."""
    read = program(tmp_path, TEXT.replace("self.again = body_1()", "self.again = nothing()"))
    index = build_index(read)
    names = [node.name for node in read.graph.nodes]
    assert names.index("called_1") in index.barriers
    after = commcc.run(read, pipeline="cleanup{metadata=keep},bucket{strategy=auto},reorder").program
    assert [node.name for node in after.graph.nodes] == [node.name for node in read.graph.nodes]


def test_what_stays_as_it_is_in_a_loop_has_a_shape(tmp_path):
    text = """\
class more_0(torch.nn.Module):
    def forward(self, arg0_1, arg1_1):
        sum_1 = torch.ops.aten.sum.default(arg0_1);  arg0_1 = arg1_1 = None
        lt = torch.ops.aten.lt.Scalar(sum_1, 3);  sum_1 = None
        return lt

class turn_1(torch.nn.Module):
    def forward(self, arg0_1, arg1_1):
        add = torch.ops.aten.add.Tensor(arg0_1, arg1_1);  arg0_1 = arg1_1 = None
        return (add,)

class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.more = more_0()
        self.turn = turn_1()

    def forward(self, arg0_1, arg1_1):
        more = self.more
        turn = self.turn
        loop = torch.ops.higher_order.while_loop(more, turn, (arg0_1,), (arg1_1,));  more = turn = arg1_1 = None
        getitem = loop[0];  loop = None
        return (getitem,)
""" + TEXT[TEXT.index("\ndef load_args") :]
    read = program(tmp_path, text)
    assert not read.notes
    inner = [module.graph for module in read.root.children() if hasattr(module, "graph")]
    assert all("val" in node.meta for graph in inner for node in graph.nodes if node.op != "output")
    save(read, tmp_path / "loop.pt2")
    assert verify(read, load(tmp_path / "loop.pt2")).status == "proved"
    (item,) = (node for node in read.graph.nodes if node.name == "getitem")
    assert item.meta["val"].shape == torch.Size([4])


def test_what_sub_graphs_wait_for_is_exposed_in_every_order(tmp_path):
    before = program(tmp_path, TEXT)
    index = build_index(before)
    costs = load_model("h100").price(index)
    problem, order = Problem(index, costs), np.arange(len(index))
    timeline = Simulator(index, costs).run()
    assert timeline.exposed_ns > sum(costs.ns[launch] for launch in index.launches)
    assert problem.figures(order) == (timeline.step_ns, timeline.exposed_ns, timeline.in_flight_bytes)
