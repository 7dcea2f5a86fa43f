"""Numbers for sizes known only at run time: where they come from, in which order, and what is said of them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.cli.session import Session
from commcc.graph.index import build_index
from commcc.graph.index.hints import Hint, SizeHints
from commcc.graph.memory import live_bytes
from commcc.graph.program import Note
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, lower_bound
from commcc.timing.snapshot import take
from tests.random_graphs import GraphBuilder, c10d


class Exchange(GraphBuilder):
    """Graphs with sizes that only run time tells."""

    def __init__(self) -> None:
        super().__init__()
        self.env = ShapeEnv()
        self.peers = 2
        self.mode = FakeTensorMode(shape_env=self.env)

    def size(self, name: str = "size"):
        """A node whose value is a fresh symbol: u0, u1, ..."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.env.create_unbacked_symint()
        return node

    def sizes(self, count: int):
        return [self.size(f"size_{i}") for i in range(count)]

    def tensor(self, *shape, dtype=torch.float32):
        node = self.graph.placeholder("x")
        with self.mode:
            node.meta["val"] = torch.empty(tuple(getattr(n, "meta", {}).get("val", n) for n in shape), dtype=dtype)
        return node

    def exchange(self, source, got, sent, width: int = 4):
        """An all-to-all; its result has as many rows as ``got`` sums up to."""
        launch = self.graph.call_function(c10d.all_to_all_single.default, (source, got, sent, "ep"))
        self.peers = len(got)
        total = sum(getattr(n, "meta", {}).get("val", n) for n in got)
        with self.mode:
            launch.meta["val"] = torch.empty((total, width), dtype=torch.float32)
        wait = self.graph.call_function(c10d.wait_tensor.default, (launch,))
        wait.meta["val"] = launch.meta["val"]
        return launch, wait

    def built(self, *outputs, header=None, hints=None):
        self.made = self.program(list(outputs), {"ep": self.peers}, header)
        return build_index(self.made, hints)


def declared(**symbols):
    """A file's header: [lower bound, upper bound, hint] of each symbol."""
    return {"symbols": symbols}


def numbers(index):
    return {hint.symbol: (hint.value, hint.source) for hint in index.estimates.hints}


def sizes_of(count):
    env = ShapeEnv()
    return [env.create_unbacked_symint() for _ in range(count)]


# Where a number comes from


def test_what_is_given_beats_the_file_and_the_file_beats_balance():
    b = Exchange()
    got, sent = b.sizes(2), b.sizes(2)
    _, wait = b.exchange(b.tensor(100, 4), got, sent)
    header = declared(u0=[0, None, 7], u1=[0, None, 9])
    index = b.built(wait, header=header, hints={"u0": 3})
    assert numbers(index) == {"u0": (3, "given"), "u1": (9, "file")}
    b = Exchange()
    got, sent = b.sizes(2), b.sizes(2)
    launch, wait = b.exchange(b.tensor(100, 4), got, sent)
    index = b.built(wait, header=declared(u1=[0, None, 9]))
    assert numbers(index) == {"u0": (50, "balanced"), "u1": (9, "file")}
    assert index.tensors[index.position[launch.name]].bytes == (50 + 9) * 4 * 4


def test_the_first_pattern_that_fits_decides():
    u = sizes_of(12)
    hints = SizeHints({"u1": 5, "u1*": 6, "u?": 7}, declared(u10=[0, None, 99]))
    assert [hints.value(u[i]) for i in (0, 1, 2, 10, 11)] == [7, 5, 7, 6, 6]
    assert hints.used["u10"] == Hint("u10", 6, "given")
    hints = SizeHints({"u*": 6, "u1": 5}, {})
    assert hints.value(u[1]) == 6


def test_patterns_heed_case_and_fit_the_whole_name():
    u = sizes_of(2)
    for pattern in ("U0", "u", "0", "s*", "u0 "):
        assert SizeHints({pattern: 5}, {}).value(u[0]) is None, pattern
    assert SizeHints({"[tu]0": 5}, {}).value(u[0]) == 5


def test_zero_is_a_number():
    u = sizes_of(1)
    assert SizeHints({"u0": 0}, declared(u0=[0, None, 8])).value(u[0]) == 0
    assert SizeHints({}, declared(u0=[0, None, 0])).value(u[0]) == 0


def test_expressions_take_the_numbers_of_their_symbols():
    a, b = sizes_of(2)
    hints = SizeHints({"u0": 10, "u1": 3}, {})
    assert [hints.value(e) for e in (a + b, 2 * a + 1, a // b, a % b, a * b)] == [13, 21, 3, 1, 30]
    assert hints.value(12) == 12
    assert hints.value(torch.sym_max(a, b)) == 10
    assert hints.value(None) is None
    assert hints.value("u0") is None


def test_an_expression_needs_all_its_symbols():
    a, b = sizes_of(2)
    hints = SizeHints({"u0": 10}, {})
    assert hints.value(a + b) is None
    assert hints.value(a + 1) == 11


def test_numbers_out_of_reach_are_none():
    a, b = sizes_of(2)
    hints = SizeHints({"u*": 2**31}, {})
    assert hints.value(a * b) == 2**62
    assert hints.value(a * b + 1) is None
    assert SizeHints({"u*": 10**18}, {}).value(a * b) is None


def test_what_is_no_number():
    a, b = sizes_of(2)
    assert SizeHints({"u*": 2}, {}).value(a**9) is None
    assert SizeHints({"u*": 0}, {}).value(a // b) is None, "division by nothing"


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"symbols": None},
        {"symbols": [1, 2]},
        {"symbols": {"u0": None}},
        {"symbols": {"u0": 5}},
        {"symbols": {"u0": [0, 5]}},
        {"symbols": {"u0": [0, None, None]}},
        {"symbols": {"u0": [0, None, "5"]}},
        {"symbols": {"u0": [0, None, True]}},
        {"symbols": {"u0": [0, None, 5.0]}},
        {"symbols": {"u1": [0, None, 5]}},
    ],
)
def test_a_header_that_tells_nothing(header):
    hints = SizeHints({}, header)
    assert hints.value(sizes_of(1)[0]) is None
    assert hints.used == {}


def test_a_backed_size_knows_its_example():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.empty(6, 5), static_shapes=False).shape[0]
    assert not isinstance(size, int)
    hints = SizeHints({}, {})
    assert (hints.value(size), hints.used) == (6, {})
    name = str(size.node.expr)
    assert SizeHints({name: 8}, {}).value(size) == 8
    assert SizeHints({}, declared(**{name: [2, None, 9]})).value(size) == 9


# Every number that is used is reported, and no other


def test_only_what_was_asked_for_is_reported():
    u = sizes_of(3)
    hints = SizeHints({"u*": 4}, {})
    hints.value(u[2])
    hints.value(u[2] + 1)
    hints.value(u[0])
    assert hints.used == {"u2": Hint("u2", 4, "given"), "u0": Hint("u0", 4, "given")}


def test_reports_are_in_order_of_the_numbers_in_names():
    b = Exchange()
    got = b.sizes(12)
    _, wait = b.exchange(b.tensor(24, 4), got, [2] * 12)
    index = b.built(wait)
    assert [hint.symbol for hint in index.estimates.hints] == [f"u{i}" for i in range(12)]
    assert {(hint.value, hint.source) for hint in index.estimates.hints} == {(2, "balanced")}


def test_a_graph_with_known_sizes_uses_none():
    b = Exchange()
    _, wait = b.exchange(b.tensor(8, 4), [4, 4], [4, 4])
    assert b.built(wait, header=declared(u0=[0, None, 7]), hints={"u*": 3}).estimates.hints == ()


# Even shares of a token exchange


def test_rows_are_spread_evenly_and_the_rest_goes_to_the_first():
    b = Exchange()
    got, sent = b.sizes(4), b.sizes(4)
    launch, wait = b.exchange(b.tensor(10, 4), got, sent)
    index = b.built(wait)
    assert [numbers(index)[f"u{i}"] for i in range(4)] == [(n, "balanced") for n in (3, 3, 2, 2)]
    assert index.tensors[index.position[launch.name]].bytes == 10 * 4 * 4


def test_the_way_back_gets_what_was_sent():
    """Rows that the first exchange brings are those that the second sends."""
    b = Exchange()
    got, sent = b.sizes(2), [6, 6]
    _, there = b.exchange(b.tensor(12, 4), got, sent)
    back, wait = b.exchange(there, sent, got)
    index = b.built(wait)
    assert numbers(index) == {"u0": (6, "balanced"), "u1": (6, "balanced")}
    assert index.tensors[index.position[back.name]].bytes == 12 * 4 * 4


def test_one_rank_keeps_all():
    b = Exchange()
    _, wait = b.exchange(b.tensor(12, 4), [b.size()], [12])
    assert numbers(b.built(wait)) == {"u0": (12, "balanced")}


def test_what_is_sent_may_be_unknown():
    b = Exchange()
    source = b.graph.placeholder("x")
    _, wait = b.exchange(source, b.sizes(2), [6, 6])
    assert numbers(b.built(wait)) == {}


def test_splits_known_in_part_are_left_as_they_are():
    b = Exchange()
    got = [b.size(), 5]
    _, wait = b.exchange(b.tensor(12, 4), got, [6, 6])
    assert numbers(b.built(wait)) == {"u0": (6, "balanced")}


@pytest.mark.parametrize("known", [(0, 1, 2, 3), (0, 1), (2, 3)])
def test_a_bound_of_the_file_stands_for_rows_that_nobody_knows(known):
    """Whichever side of the exchange has one."""
    b = Exchange()
    got, sent, rows = b.sizes(2), b.sizes(2), b.size("rows")
    _, wait = b.exchange(b.tensor(rows, 4), got, sent)
    bounds = {f"u{i}": [0, 64, None] for i in known}
    assert numbers(b.built(wait, header=declared(**bounds))) == {
        "u0": (32, "balanced"),
        "u1": (32, "balanced"),
        "u4": (64, "balanced"),  # and so the rows that are sent have a number
    }


@pytest.mark.parametrize("bounds", [(64, 32, 64, 32), (None, None, None, None), (64, None, 64, None)])
def test_bounds_that_differ_tell_nothing(bounds):
    b = Exchange()
    got, sent, rows = b.sizes(2), b.sizes(2), b.size("rows")
    launch, wait = b.exchange(b.tensor(rows, 4), got, sent)
    index = b.built(wait, header=declared(**{f"u{i}": [0, bound, None] for i, bound in enumerate(bounds)}))
    assert numbers(index) == {}
    tensor = index.tensors[index.position[launch.name]]
    assert (tensor.numel, tensor.bytes) == (None, 0)


def test_a_hint_for_the_rows_tells_the_shares():
    b = Exchange()
    got, sent, rows = b.sizes(2), b.sizes(2), b.size("rows")
    _, wait = b.exchange(b.tensor(rows, 4), got, sent)
    found = numbers(b.built(wait, hints={"u4": 20}))
    assert found == {"u0": (10, "balanced"), "u1": (10, "balanced"), "u4": (20, "given")}


def test_hints_change_costs_and_nothing_else():
    def built(hints):
        b = Exchange()
        got, sent = b.sizes(2), b.sizes(2)
        _, wait = b.exchange(b.tensor(1024, 4096), got, sent, width=4096)
        return b.built(wait, hints=hints)

    small, large = built({"u*": 16}), built({"u*": 4096})
    assert small.fingerprint == large.fingerprint
    model = load_model("h100")
    node = next(iter(small.launches))
    assert model.price(small).ns[node] < model.price(large).ns[node]
    assert live_bytes(small).peak_bytes < live_bytes(large).peak_bytes


@pytest.mark.parametrize(("first", "second"), [(10, 5000), (0, 2**40)])
def test_sizes_are_never_negative(first, second):
    """u0 - u1 rows with a smaller u0: no negative bytes, no negative time."""
    index = b_of_shape(lambda u, v: (u - v, u - v), {"u0": first, "u1": second})
    assert index.tensors[2].numel == 0
    assert index.estimates.flops == {3: 0}
    assert set(index.estimates.buffer_bytes) == {0}
    costs = load_model("h100").price(index)
    assert min(costs.ns) >= 0
    assert lower_bound(index, costs).ns <= Simulator(index, costs).run().step_ns


@pytest.mark.parametrize("header", [declared(u0=[0, None, -5], u1=[0, None, 3]), declared(u1=[0, None, 3])])
def test_a_negative_number_of_a_file_is_none(header):
    index = b_of_shape(lambda u, v: (u, v), {}, header)
    assert "u0" not in numbers(index)
    assert (index.tensors[2].numel, index.tensors[2].bytes) == (None, 0)


def test_huge_tensors_have_a_price():
    """2**40 in each of thirty dimensions: more bytes than a float can hold."""
    index = b_of_shape(lambda u, _: (u,) * 30 + (4, 4), {"u0": 2**40})
    costs = load_model("h100").price(index)
    assert min(costs.ns) >= 0
    assert index.estimates.flops == {}
    assert b_of_shape(lambda u, _: (u,) * 2, {"u0": 2**31}).tensors[2].numel == 2**62
    assert b_of_shape(lambda u, _: (u,) * 2, {"u0": 2**31 + 1}).tensors[2].numel is None


def b_of_shape(shape, hints, header=None):
    """An index of two sizes, x of a shape made of them, and x @ x."""
    b = Exchange()
    sizes = [node.meta["val"] for node in b.sizes(2)]
    x = b.graph.placeholder("x")
    with b.mode:
        x.meta["val"] = torch.empty(shape(*sizes), dtype=torch.float32)
    product = b.graph.call_function(torch.ops.aten.mm.default, (x, x))
    product.meta["val"] = x.meta["val"]
    return b.built(product, header=header, hints=hints)


# What the command line says


class Notes(Session):
    """A session that keeps what it is told to say."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def said(hints, header=None):
    b = Exchange()
    got, sent = b.sizes(2), b.sizes(2)
    _, wait = b.exchange(b.tensor(12, 4), got, sent)
    b.built(wait, header=header)
    notes = Notes()
    notes.report_costs(hints, take(b.made, load_model("h100"), hints))
    return notes


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("u00", " (did you mean 'u0'?)"),
        ("u10", " (did you mean 'u1'?)"),
        *((pattern, "; there are u0 and u1") for pattern in ("tokens", "s*", "u2")),
    ],
)
def test_a_pattern_that_fits_nothing_is_said_with_the_nearest_name(pattern, near):
    """u2 and u3 are split sizes of what is sent: no size of a tensor, so nobody asks for them."""
    warned = [text for text in said({pattern: 5}).warnings if text.startswith("hint")]
    assert warned == [f"hint '{pattern}' fits no size that is known only at run time{near}"]


def test_notes_and_warnings_name_the_sizes(tmp_path):
    """Those that numbers stand for, with the numbers, and those that have none."""
    assert said({}).notes[-1] == (
        "2 sizes known only at run time: u0=6 and u1=6 (balanced over ranks); --hint SYMBOL=NUMBER sets them"
    )
    made = [f'    x{i}: "f32[u{i}, 4][4, 1]cpu" = torch.ops.aten.mm.default(p{i}, w)' for i in range(5)]
    inputs = ", ".join(f'p{i}: "f32[u{i}, 4][4, 1]cpu"' for i in range(5))
    text = [f'def forward(self, w: "f32[4, 4][4, 1]cpu", {inputs}):', *made, "    return (x0, x1, x2, x3, x4)\n"]
    file = tmp_path / "g.fx.txt"
    file.write_text("class GraphModule(torch.nn.Module):\n" + "\n".join(f"    {line}" for line in text))
    notes = Notes()
    notes.report_costs({}, take(load(file), load_model("h100")))
    assert notes.warnings == [
        "cost model: a size of aten.mm is known only at run time: priced by the bytes that are known; "
        "give --hint SYMBOL=NUMBER for u0, u1, u2 and 2 more (5 times)"
    ]
    notes.report_costs({"u*": 4}, take(load(file), load_model("h100"), {"u*": 4}))
    assert (
        len(notes.warnings) == 1
        and "5 sizes known only at run time: u0=4, u1=4, u2=4 and 2 more (given); " in (notes.notes[-1])
    )


def test_a_note_names_its_node_once():
    notes = Notes()
    notes.report_notes([Note("mul_2 has no shape", "mul_2"), Note("mul_21 is odd", "mul_2"), Note("of all")])
    assert notes.notes == ["mul_2 has no shape", "mul_2: mul_21 is odd", "of all"]


def test_patterns_that_fit_are_not_warned_of():
    notes = said({"u0": 5, "u[1]": 6})
    assert [text for text in notes.warnings if text.startswith("hint")] == []


def test_every_hint_that_was_used_is_noted_by_source():
    assert said({}).notes == said({}, declared(u3=[0, None, 4])).notes
    notes = {
        text: said(hints, header).notes
        for text, hints, header in (
            ("balanced", {}, None),
            ("given", {"u*": 5}, None),
            ("file", {}, declared(u0=[0, None, 7], u1=[0, None, 7])),
            ("mixed", {"u0": 5}, None),
        )
    }
    assert all(len(found) == 1 for found in notes.values())
    assert len({found[0] for found in notes.values()}) == 4


def test_powers_have_numbers_as_long_as_they_cannot_explode():
    size, hints = ShapeEnv().create_unbacked_symint(), SizeHints({"u0": 8}, {})
    square = size * size
    assert (hints.value(square), hints.value(square * size + 1)) == (64, 513)
    large = square * square * square * square * size
    assert (str(large.node.expr), hints.value(large)) == ("u0**9", None)
    assert hints.value((square + 1) * (square + 1)) is None
