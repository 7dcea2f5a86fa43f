"""Writes, views and launches in flight: what the verifier makes of memory."""

from __future__ import annotations

import operator
import random
import textwrap

import pytest
import torch

from commcc.serialization.fx import parse_text
from commcc.verify import verify
from commcc.verify.memory import INITIAL, WRITE, Memory
from commcc.verify.sizes import Meta
from commcc.verify.terms import Terms
from tests.verify_graphs import WORLD, Graph, aten, c10d, differs, proved, rules, texts, undecided


def buffer(order):
    """A buffer: ``order`` is a string of r (read), w and v (writes), s (a write through a slice)."""
    g = Graph()
    x, y, z = g.input("x", 4), g.input("y", 4), g.input("z", 4)
    made = []
    for step in order:
        if step == "r":
            made.append(g(aten.mul.Tensor, x, len(made) + 2, name=f"read{len(made)}"))
        elif step == "s":
            g(
                aten.copy_.default,
                g(aten.slice.Tensor, x, 0, 0, 2),
                g(aten.slice.Tensor, y, 0, 2, 4),
                name="slice_write",
            )
        else:
            g(aten.copy_.default, x, y if step == "w" else z, name=f"write_{step}")
    return g.program(*made)


@pytest.mark.parametrize("order", ["r", "rw", "wr", "rwr", "wvr", "srs", "rsvrw"])
def test_the_same_order_is_proved(order):
    proved(buffer(order), buffer(order))


@pytest.mark.parametrize(("before", "after"), [("rw", "wr"), ("wr", "rw"), ("rs", "sr"), ("sr", "rs"), ("wrv", "wvr")])
def test_a_read_and_a_write_in_another_order(before, after):
    differs(buffer(before), buffer(after), "mutation")


@pytest.mark.parametrize(
    ("before", "after"), [("wv", "vw"), ("ws", "sw"), ("w", ""), ("", "w"), ("w", "v"), ("ws", "w"), ("s", "w")]
)
def test_writes_to_an_input_are_part_of_the_result(before, after):
    differs(buffer(before), buffer(after), "mutation", "input 'x' is left with other contents")


@pytest.mark.parametrize(("before", "after"), [("ww", "w"), ("vw", "w"), ("sw", "w"), ("svw", "vw")])
def test_what_is_overwritten_anyway_need_not_be_written(before, after):
    proved(buffer(before), buffer(after))
    proved(buffer(after), buffer(before))


def test_the_message_names_reader_and_writer():
    verdict = differs(
        buffer("rwr"), buffer("rrw"), "mutation", "read1: aten.mul.Tensor", "'y' after the write by 'write_w'"
    )
    assert rules(verdict) == {"mutation"}


def test_writing_the_twin_of_a_tensor_is_another_program():
    """Two buffers with equal contents: only which one is written differs."""

    def make(which):
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4)
        twins = [g(aten.clone.default, x) for _ in range(2)]
        g(aten.add_.Tensor, twins[which], y)
        return g.program(g(aten.sin.default, twins[0]), g(aten.cos.default, twins[1]))

    assert verify(make(0), make(1)).status == "different"


def test_writing_one_of_two_equal_slices_is_another_program():
    def make(which):
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4)
        both = g(aten.cat.default, [x, x])
        g(aten.add_.Tensor, g(aten.slice.Tensor, both, 0, 4 * which, 4 * which + 4), y)
        return g.program(g(aten.sin.default, both))

    proved(make(0), make(0))
    assert verify(make(0), make(1)).status == "different"


def test_an_op_that_writes_two_arguments_keeps_them_apart():
    def make(swapped):
        g = Graph()
        x = g.input("x", 4)
        grads = [g.input("a", 4), g.input("b", 4)]
        twins = [g(aten.zeros_like.default, x) for _ in range(2)]
        g(torch.ops.aten._foreach_add_.List, twins, grads, val=())
        first, second = reversed(twins) if swapped else twins
        return g.program(g(aten.sin.default, first), g(aten.cos.default, second))

    proved(make(False), make(False))
    assert verify(make(False), make(True)).status == "different"


def test_the_way_a_view_is_spelled_does_not_matter_for_writes():
    def make(how):
        g = Graph()
        x, y = g.input("x", 4, 4), g.input("y", 8)
        if how == "view":
            part = g(aten.view.default, g(aten.slice.Tensor, x, 0, 1, 3), [8])
        else:
            part = g(operator.getitem, g(aten.split_with_sizes.default, g(aten.reshape.default, x, [16]), [4, 8, 4]), 1)
        g(aten.copy_.default, part, y)
        return g.program(g(aten.sin.default, x))

    proved(make("view"), make("split"))


def test_views_taken_before_a_write_see_it():
    def make(early):
        g = Graph()
        x, y = g.input("x", 4, 4), g.input("y", 4)
        row = g(aten.select.int, x, 0, 1) if early else None
        g(aten.copy_.default, g(aten.select.int, x, 0, 1), y)
        row = row or g(aten.select.int, x, 0, 1)
        return g.program(g(aten.sin.default, row))

    # The same values either way; that both are proved equal is more than is promised, that they
    # equal themselves is not.
    for early in (True, False):
        proved(make(early), make(early))


def test_results_of_in_place_ops_are_their_argument():
    def make(reader):
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4)
        z = g(aten.clone.default, x)
        done = g(aten.add_.Tensor, z, y)
        g(aten.mul_.Tensor, z, 2)
        return g.program(g(aten.sin.default, {"result": done, "argument": z}[reader]))

    proved(make("result"), make("result"))
    proved(make("argument"), make("argument"))


def test_a_transposed_view_is_written_through():
    def make(first):
        g = Graph()
        x, y = g.input("x", 4, 4), g.input("y", 4, 4)
        t = g(aten.t.default, x)
        if first:
            g(aten.copy_.default, t, y)
        r = g(aten.sin.default, x)
        if not first:
            g(aten.copy_.default, t, y)
        return g.program(r)

    proved(make(True), make(True))
    differs(make(True), make(False), "mutation")


def test_as_strided_looks_at_storage():
    def make(sliced):
        g = Graph()
        x = g.input("x", 8)
        a = g(aten.sin.default, x)
        base = g(aten.slice.Tensor, a, 0, 0, 4) if sliced else g(aten.clone.default, g(aten.slice.Tensor, a, 0, 0, 4))
        return g.program(g(aten.cos.default, g(aten.as_strided.default, base, [4], [2], 0)))

    proved(make(True), make(True))
    assert verify(make(False), make(True)).status == "different"


# Launches in flight


def flight(where, what):
    """A launch whose input or output buffer is written before or after the wait."""
    g = Graph()
    x, y = g.input("x", 4, 3), g.input("y", 4, 3)
    big = g.input("big", 16, 3)
    sent = g(aten.sin.default, x)
    out = g(aten.empty.memory_format, [16, 3], device="cpu")
    launch = g(c10d.all_gather_into_tensor_out.default, sent, WORLD, "0", out=out, name="launch")
    target, source = (sent, y) if what == "input" else (out, big)
    if where == "early":
        g(aten.copy_.default, target, source, name="write")
    w = g.wait(launch)
    read = g(aten.cos.default, w)
    if where == "late":
        g(aten.copy_.default, target, source, name="write")
    return g.program(read)


@pytest.mark.parametrize("what", ["input", "output"])
def test_memory_of_a_launch_in_flight_is_not_written(what):
    proved(flight("late", what), flight("late", what))
    verdict = differs(flight("late", what), flight("early", what), "mutation", "launch 'launch' still uses")
    assert any(finding.node == "write" for finding in verdict.findings)


def test_what_was_already_wrong_is_not_held_against_the_rewrite():
    verdict = verify(flight("early", "input"), flight("early", "input"))
    assert verdict.status == "proved", texts(verdict)
    assert any("so it is in BEFORE" in note.text for note in verdict.notes)


def test_the_output_buffer_is_not_read_before_the_wait():
    def make(early):
        g = Graph()
        x = g.input("x", 4, 3)
        out = g(aten.empty.memory_format, [16, 3], device="cpu")
        launch = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=out)
        if early:
            y = g(aten.sin.default, out)
            w = g.wait(launch)
        else:
            w = g.wait(launch)
            y = g(aten.sin.default, out)
        return g.program(w, y)

    proved(make(False), make(False))
    differs(make(False), make(True), "wait")


def test_merging_a_launch_whose_result_is_mutated_is_not_proved_wrongly():
    def make(merged, which):
        g = Graph()
        xs = [g.input("a", 4, 3), g.input("b", 4, 3)]
        full = g.merged_gather(xs) if merged else [g.gather(x) for x in xs]
        g(aten.mul_.Tensor, full[which], 2)
        return g.program(*[g(aten.sin.default, w) for w in full])

    proved(make(False, 0), make(True, 0))
    assert verify(make(False, 0), make(True, 1)).status == "different"


def test_constants_that_are_written():
    def make(write, twice=False):
        g = Graph()
        x = g.input("x", 4)
        value = torch.arange(4.0)
        state = g.attribute("state", value)
        if write:
            g(aten.add_.Tensor, state, x)
        read = g.attribute("state", value) if twice else state
        return g.program(g(aten.sin.default, read) if twice else g(aten.sin.default, x))

    proved(make(True), make(True))
    proved(make(True, True), make(True, True))
    differs(make(True), make(False), "mutation", "state")
    differs(make(True, True), make(False, True), "mutation", "state")


def test_a_written_constant_that_one_graph_never_reads():
    def make(write):
        g = Graph()
        x = g.input("x", 4)
        if write:
            g(aten.add_.Tensor, g.attribute("state", torch.arange(4.0)), x)
        return g.program(g(aten.sin.default, x))

    differs(make(True), make(False), "mutation", "written in one of the graphs only")
    differs(make(False), make(True), "mutation", "written in one of the graphs only")


def test_constants_of_other_values():
    def make(value):
        g = Graph()
        return g.program(g(aten.add.Tensor, g.input("x", 2), g.attribute("c", value)))

    proved(make(torch.tensor([1.0, float("nan")])), make(torch.tensor([1.0, float("nan")])))
    differs(make(torch.tensor([1.0, 0.0])), make(torch.tensor([1.0, -0.0])), "value", "constant has other values")
    differs(make(torch.ones(2)), make(torch.ones(2, dtype=torch.float64)), "value")


# What may be a view or a copy


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("reads", [True, False])
def test_a_copy_that_may_be_a_view_is_not_taken_for_one(memory_format, reads):
    """Read after a write to what it was made of, or written to: a copy holds what was there, and keeps what comes."""

    def make(copy):
        g = Graph()
        x = g.input("x", 2, 3, 4, 5)
        part = g(aten.slice.Tensor, x, 3, 1, 3)
        y = g(aten.contiguous.default, part, memory_format=memory_format) if copy else g(aten.alias.default, part)
        g(aten.neg_.default, part if reads else y)
        return g.program(g(aten.sin.default, y) if reads else g(aten.sin.default, part))

    assert verify(make(False), make(True)).status != "proved"
    assert verify(make(True), make(False)).status != "proved"
    proved(make(False), make(False))
    proved(make(True), make(True))


def test_a_copy_by_default_of_what_is_not_contiguous():
    def make(copy):
        g = Graph()
        column = g(aten.select.int, g.input("x", 2, 8), 1, 3)
        g(aten.neg_.default, g(aten.contiguous.default, column) if copy else column)
        return g.program()

    differs(make(False), make(True), "mutation", "input 'x' is left with other contents")
    differs(make(True), make(False), "mutation", "input 'x' is left with other contents")


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (aten.empty.memory_format, ([15, 3],)),
        (aten.empty.memory_format, ([16, 4],)),
        (aten.empty.memory_format, ([16, 3], {"dtype": torch.bfloat16})),
        (aten.empty_strided.default, ([16, 3], [1, 16])),
        (aten.new_empty.default, ("x", [12, 3])),
        (aten.empty_like.default, ("x",)),
    ],
)
def test_memory_that_is_allocated_has_the_size_that_is_asked_for(target, arguments):
    """All of a buffer is overwritten, so that its operands count nowhere else; its ``val`` may be an old one."""

    def make(target, *args, **kwargs):
        g = Graph()
        x = g.input("x", 4, 3)
        with g.mode:
            val = torch.empty(16, 3)
        buffer = g(target, *[x if each == "x" else each for each in args], name="buffer", val=val, **kwargs)
        return g.program(g.wait(g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=buffer)))

    options = arguments[-1] if isinstance(arguments[-1], dict) else {}
    positional = [each for each in arguments if each is not options]
    before = make(aten.empty.memory_format, [16, 3])
    differs(before, make(target, *positional, **options), "value", "its val says")
    proved(before, make(aten.empty_strided.default, [16, 3], [3, 1]))
    proved(before, make(aten.new_empty.default, "x", [16, 3]))


@pytest.mark.parametrize("asked", ["8*n", "n"])
def test_memory_of_a_symbolic_size_has_the_size_that_is_asked_for(asked):
    """Its operands are compared as they are counted in the graph, without numbers."""

    def make(allocated):
        alloc = f"{allocated}, device = device(type='cpu'), pin_memory = False)"
        out = "all_gather_into_tensor_out.default"
        text = textwrap.dedent(f"""\
        class GraphModule(torch.nn.Module):
            def forward(self, n: "Sym(u0)", x: "f32[u0, 3][3, 1]cpu"):
                mul: "Sym(8*u0)" = n * 8
                buffer: "f32[8*u0, 3][3, 1]cpu" = torch.ops.aten.{alloc}
                g: "f32[8*u0, 3][3, 1]cpu" = torch.ops._c10d_functional.{out}(x, 8, '0', out = buffer)
                w: "f32[8*u0, 3][3, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(g)
                return (w,)
        """)
        return parse_text(text, "made")

    size = {"8*n": "mul", "n": "n"}[asked]
    before = make("empty.memory_format([mul, 3], dtype = torch.float32")
    others = [f"new_empty.default(x, [{size}, 3]", f"empty_strided.default([{size}, 3], [3, 1], dtype = torch.float32"]
    for other in others:
        if asked == "8*n":
            proved(before, make(other))
        else:
            assert "allocates memory of an unknown size" in texts(undecided(before, make(other)))


@pytest.mark.parametrize(("argument", "fenced"), [("'0'", True), ("['0']", True), ("'mode'", False)])
def test_nothing_moves_across_an_op_of_a_library_that_is_not_loaded_and_is_handed_a_process_group(argument, fenced):
    lines = [
        f'        s: "f32[4, 8]" = torch.ops.not_loaded.shuffle_rows.default(x, {argument})',
        "        g: \"f32[32, 8]\" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 8, '0')",
    ]

    def make(order):
        head = 'class GraphModule(torch.nn.Module):\n    def forward(self, a: "f32[4, 8]", x: "f32[4, 8]"):\n'
        tail = '        w: "f32[32, 8]" = torch.ops._c10d_functional.wait_tensor.default(g)\n        return (s, w)\n'
        return parse_text(head + "".join(lines[at] + "\n" for at in order) + tail, "made")

    proved(make((0, 1)), make((0, 1)))
    if fenced:
        assert "stands on the other side of 's'" in texts(undecided(make((0, 1)), make((1, 0))))
    else:
        proved(make((0, 1)), make((1, 0)))


@pytest.mark.parametrize("op", ["set_.source_Tensor", "shallow_copy_data_.default"])
def test_a_tensor_that_gets_the_memory_of_another(op):
    """As PyTorch 2.15 traces ``x.data = y``: what is written to one later shows in the other."""
    name, _, overload = op.partition(".")
    if not hasattr(aten, name):
        pytest.skip(f"this PyTorch has no {name}")

    def make(early):
        g = Graph()
        x, y = g(aten.mul.Tensor, g.input("x", 4), 2), g(aten.mul.Tensor, g.input("y", 4), 3)
        g(getattr(getattr(aten, name), overload), x, y)
        if early:
            product = g(aten.mul.Tensor, y, 5)
            g(aten.add_.Tensor, x, 1)
            return g.program(product)
        g(aten.add_.Tensor, x, 1)
        return g.program(g(aten.mul.Tensor, y, 5))

    assert verify(make(False), make(True)).status != "proved"
    assert verify(make(False), make(False)).status != "different"


SHARED = {
    "one after the other": lambda g, x, y: (aten._foreach_add_.List, [x, y], [y, x]),
    "into what is read": lambda g, x, y: (aten.mm.out, x, y),
    "through a view": lambda g, x, y: (aten._foreach_mul_.List, [x], [g(aten.permute.default, x, [1, 0])]),
}


@pytest.mark.parametrize("how", SHARED)
def test_operands_that_share_what_is_written_are_not_copies_of_it(how):
    """All operands hold the same: what is written first shows in what is read next only where memory is shared."""

    def written(copied):
        g = Graph()
        x, y = g.input("x", 3, 3), g.input("y", 3, 3)
        target, first, second = SHARED[how](g, x, y)
        if copied:
            copies = [g(aten.clone.default, part) for part in (second if isinstance(second, list) else [first])]
            first, second = (first, copies) if isinstance(second, list) else (copies[0], second)
        g(target, first, second, **({"out": x} if "out" in str(target) else {}), val=x.meta["val"])
        return g.program(g(aten.sin.default, x), g(aten.sin.default, y))

    proved(written(False), written(False))
    proved(written(True), written(True))
    assert verify(written(False), written(True)).status != "proved"
    assert verify(written(True), written(False)).status != "proved"


def test_element_by_element_it_does_not_matter():
    def squared(copied):
        g = Graph()
        x = g.input("x", 4)
        g(aten.mul_.Tensor, x, g(aten.clone.default, x) if copied else x)
        return g.program(g(aten.sin.default, x))

    proved(squared(False), squared(True))


def test_a_launch_that_fills_one_buffer_twice():
    def reduced(copied):
        g = Graph()
        x = g.input("x", 4)
        launch = g(c10d.all_reduce_coalesced_.default, [x, g(aten.clone.default, x) if copied else x], "sum", "0")
        for place in range(2):
            g(c10d.wait_tensor.default, g(operator.getitem, launch, place))
        return g.program(g(aten.sin.default, x))

    proved(reduced(False), reduced(False))
    assert verify(reduced(False), reduced(True)).status != "proved"
    assert verify(reduced(True), reduced(False)).status != "proved"


@pytest.mark.parametrize("times", [50, 20_000])
def test_an_op_with_very_many_operands_in_one_memory(times):
    """Of some hundred million pairs not all are looked at; what is not told apart is not proved."""

    def make(cloned):
        g = Graph()
        x = g.input("x", 4)
        last = g(aten.clone.default, x) if cloned else x
        g(torch.ops.aten._foreach_add_.Scalar, [x] * (times - 1) + [last], 1, val=())
        return g.program(g(aten.sin.default, x))

    proved(make(False), make(False))
    undecided(make(False), make(True))
    undecided(make(True), make(False))


def test_a_lifted_tensor_has_the_sizes_of_its_operand_also_once_they_change_in_place():
    def make(op):
        g = Graph()
        doubled = g(aten.mul.Tensor, g.input("x", 4, 4), 2)
        g(aten.unsqueeze_.default, g(op, doubled), 0)
        return g.program(doubled)

    assert verify(make(aten.lift.default), make(aten.alias.default)).status == "unproved"
    proved(make(aten.alias.default), make(aten.detach.default))


@pytest.mark.parametrize("seed", range(40))
def test_storages_that_may_be_one_hold_what_was_written_to_each(seed):
    """Whenever one is looked at, it is as if each write had been noted in all of them at once."""
    draw, table = random.Random(seed), Terms()
    memory = Memory(table)
    tensors, linked, writes, versions = [], [], [], []
    for step in range(120):
        what = draw.choice(("allocate", "link", "write", "write", "look"))
        if what == "allocate" or len(tensors) < 2:
            content = table.intern(("input", f"a{step}"))
            tensors.append(memory.allocate(content, Meta((4,), (1,), torch.float32, "cpu")))
            linked.append({len(tensors) - 1})
            versions.append(table.intern((INITIAL, content)))
            writes.append(0)
        elif what == "link":
            roots = draw.sample(range(len(tensors)), draw.randint(1, min(4, len(tensors))))
            memory.link(roots)
            every = set().union(*(linked[root] for root in roots))
            for root in every:
                linked[root] = every
        elif what == "write":
            root = draw.randrange(len(tensors))
            versions[root] = memory.write(tensors[root], table.intern(("op", step)), 0)
            for other in linked[root] - {root}:
                versions[other] = table.intern((WRITE, versions[other], "linked", versions[root]))
            writes = [each + (at in linked[root]) for at, each in enumerate(writes)]
        for root in draw.sample(range(len(tensors)), 1) if what == "look" else ():
            assert memory.version(root) == versions[root]
            assert memory.at(root).writes == writes[root]
    for one in range(len(tensors)):
        assert memory.version(one) == versions[one]
        assert memory.at(one).writes == writes[one]
        for other in range(len(tensors)):
            assert memory.together(one, other) == (other in linked[one])
            assert (memory.first_together(one) == memory.first_together(other)) == (other in linked[one])
    assert sum(len(each) > 2 for each in linked) > 2
