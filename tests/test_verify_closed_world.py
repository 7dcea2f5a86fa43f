"""What is not known to be harmless is not taken as such: hidden draws and writes, lazy bits, objects, wrong shapes."""

from __future__ import annotations

import pytest
import torch

from commcc.graph.ops import facts
from commcc.serialization import load
from commcc.verify import verify
from tests.verify_texts import pair

F = "f32[4][1]cpu"
C = "c64[4][1]cpu"
ONE = f'x: "{F}"'
TWO = f'x: "{F}", y: "{F}"'
COMPLEX = f'x: "{C}"'
FOREIGN = f'a: "{F}" = ops.foreign_library.make.default(x)'
FUNCTORCH = "torch._functorch.predispatch"
#: Arguments, lines of BEFORE, numbers of its lines in AFTER (or other lines), what is returned.
WRONG = {
    "a random op behind what may draw": (
        ONE,
        [FOREIGN, f'b: "{F}" = aten.rand.default([4])'],
        [1, 0],
        "a, b",
    ),
    "a draw that only TorchScript knows": (
        TWO,
        ["a = aten._no_grad_normal_.default(x, 0.0, 1.0)", "b = aten._no_grad_normal_.default(y, 0.0, 1.0)"],
        [1, 0],
        "a, b",
    ),
    "a write that only TorchScript knows": (
        f'w: "f32[4, 4][4, 1]cpu", i: "i64[4][1]cpu", {ONE}',
        [
            "a = aten._no_grad_embedding_renorm_.default(w, i, 1.0, 2.0)",
            'b: "f32[4, 4][4, 1]cpu" = aten.mul.Tensor(w, 2)',
        ],
        [1, 0],
        "b,",
    ),
    "a draw inside a level of vmap": (
        ONE,
        [
            f"l = {FUNCTORCH}._vmap_increment_nesting(4, 'different')",
            f'b: "{F}" = aten.rand.default([4])',
            f"m = {FUNCTORCH}._vmap_decrement_nesting()",
        ],
        [1, 0, 2],
        "b,",
    ),
    "operand handed back": (
        ONE,
        ["a = +x", "w = aten.add_.Tensor(x, 1)", f'r: "{F}" = aten.neg.default(a)'],
        [0, 2, 1],
        "r,",
    ),
    "lists joined": (
        TWO,
        [
            "a = aten.split.Tensor(x, 2)",
            "s = operator.add(a, a)",
            'e: "f32[2][1]cpu" = s[0]',
            "w = aten.add_.Tensor(x, 1)",
            'r: "f32[2][1]cpu" = aten.neg.default(e)',
        ],
        [0, 1, 2, 4, 3],
        "r,",
    ),
    "the larger one is one of both": (
        TWO,
        ["m = max(x, y)", "w = aten.add_.Tensor(x, 1)", f'r: "{F}" = aten.neg.default(m)'],
        [0, 2, 1],
        "r,",
    ),
    "wait for a conjugated view": (
        COMPLEX,
        [
            f'g: "{C}" = c10d.all_reduce.default(x, "sum", "0")',
            f'c: "{C}" = aten._conj.default(g)',
            f'v: "{C}" = c10d.wait_tensor.default(c)',
            f'r: "{C}" = aten.exp.default(v)',
            f'u: "{C}" = c10d.wait_tensor.default(g)',
        ],
        [
            0,
            f'u: "{C}" = c10d.wait_tensor.default(g)',
            f'c: "{C}" = aten._conj.default(u)',
            f'r: "{C}" = aten.exp.default(c)',
        ],
        "r,",
    ),
    "reduced in place where a view is conjugated": (
        COMPLEX,
        [
            f'k: "{C}" = aten.clone.default(x)',
            f'c: "{C}" = aten._conj.default(k)',
            f'g: "{C}" = c10d.all_reduce_.default(c, "sum", "0")',
            f'v: "{C}" = c10d.wait_tensor.default(g)',
            f'r: "{C}" = aten.exp.default(v)',
        ],
        [
            f'c: "{C}" = aten._conj.default(x)',
            f'p: "{C}" = aten.clone.default(c)',
            f'g: "{C}" = c10d.all_reduce.default(p, "sum", "0")',
            3,
            4,
        ],
        "r,",
    ),
    "what is the same object": (
        ONE,
        [f'a: "{F}" = aten.clone.default(x)', "r = operator.is_(x, a)"],
        [0, "r = operator.is_(x, x)"],
        "r,",
    ),
    "what is the same memory": (
        ONE,
        [f'a: "{F}" = aten.clone.default(x)', "r = aten.is_set_to.default(x, a)"],
        [0, "r = aten.is_set_to.default(x, x)"],
        "r,",
    ),
    "what is conjugated lazily": (
        COMPLEX,
        [f'a: "{C}" = aten._conj.default(x)', "r = aten.is_conj.default(a)"],
        [0, f'b: "{C}" = aten.clone.default(a)', "r = aten.is_conj.default(b)"],
        "r,",
    ),
    "where a view begins, before its wait": (
        f'x: "{F}", i: "i64[][]cpu"',
        [
            'g: "i64[][]cpu" = c10d.all_reduce.default(i, "sum", "0")',
            'v: "i64[][]cpu" = c10d.wait_tensor.default(g)',
            'r: "f32[1][1]cpu" = aten.narrow.Tensor(x, 0, g, 1)',
            's: "f32[1][1]cpu" = aten.neg.default(r)',
        ],
        [0, 2, 1, 3],
        "s,",
    ),
    "a copy across a stream's event": (
        TWO,
        ["c = aten.copy_.default(x, y)", "e = torch.ops.streams.record_event.default(0, 1)"],
        [1, 0],
        "y,",
    ),
    "a wait across a stream's event": (
        ONE,
        [
            f'g: "{F}" = c10d.all_reduce.default(x, "sum", "0")',
            f'v: "{F}" = c10d.wait_tensor.default(g)',
            "e = torch.ops.streams.record_event.default(0, 1)",
            f'r: "{F}" = aten.neg.default(v)',
        ],
        [0, 2, 1, 3],
        "r,",
    ),
    "a list is no tuple": (ONE, [], [], ("(x,),", "[x],")),
    "a key is no text": (ONE, [], [], ("{1: x},", "{'1': x},")),
    "another default": ((f'x: "{F}", n = 1', f'x: "{F}", n = 2'), [], [], "x, n"),
}
RIGHT = {
    "what draws and what does not": (
        ONE,
        [f'a: "{F}" = aten.rand.default([4])', f'b: "{F}" = aten.neg.default(x)'],
        [1, 0],
        "a, b",
    ),
    "dtypes are asked for": (
        ONE,
        ["a = aten.is_floating_point.default(x)", f'b: "{F}" = aten.neg.default(x)'],
        [1, 0],
        "a, b",
    ),
    "numbers are added": (
        'x: "f32[s0][1]cpu", s0: "Sym(s0)"',
        ['a: "Sym(s0 + 1)" = s0 + 1', 'b: "f32[s0][1]cpu" = aten.neg.default(x)'],
        [1, 0],
        "a, b",
    ),
    "wait for what is no view": (
        COMPLEX,
        [
            f'c: "{C}" = aten._conj.default(x)',
            f'g: "{C}" = c10d.all_reduce.default(c, "sum", "0")',
            f'v: "{C}" = c10d.wait_tensor.default(g)',
            f'r: "{C}" = aten.exp.default(x)',
        ],
        [0, 1, 3, 2],
        "v, r",
    ),
}


def both(folder, inputs, *rest):
    inputs = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    return [pair(folder, given, *rest)[at] for at, given in enumerate(inputs)]


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_known_counts(tmp_path, case):
    before, after = both(tmp_path, *WRONG[case])
    assert verify(before, after).status != "proved"
    for same in (before, after):
        assert verify(same, same).status == "proved"


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_known_may_move(tmp_path, case):
    assert verify(*both(tmp_path, *RIGHT[case])).status == "proved"


def test_ops_of_the_interpreter_are_effects():
    """They have a schema in ``torch.ops.aten``, and no kernel that a dispatcher could call."""
    for name in ("_no_grad_uniform_", "manual_seed", "save"):
        assert facts(getattr(torch.ops.aten, name).default).effect
    for op in (torch.ops.aten.sym_size.default, torch.ops.aten.split.default, torch.ops.aten.add.int):
        assert facts(op).pure


def body(folder, name, lines, again=()):
    """A graph that calls one with these lines, on what it launches itself."""
    inner = "\n".join(f"            {line}" for line in (*lines, "return (r,)"))
    text = f'''class GraphModule(torch.nn.Module):
    def forward(self, x: "{F}"):
        g: "{F}" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')
        body = self.body
        c = torch.ops.higher_order.invoke_subgraph(body, 'body', g)
        r: "{F}" = c[0]
        return (r,)

    class body(torch.nn.Module):
        def forward(self, a: "{F}"):
{inner}
'''
    file = folder / f"{name}.fx.txt"
    file.write_text(text)
    return load(file)


def test_what_a_sub_graph_waits_for_may_be_from_outside(tmp_path):
    wait = f'w: "{F}" = torch.ops._c10d_functional.wait_tensor.default(a)'
    read = f'r: "{F}" = torch.ops.aten.neg.default(a)'
    before, after = (body(tmp_path, name, lines) for name, lines in (("before", [wait, read]), ("after", [read, wait])))
    assert verify(before, after).status != "proved"
    assert verify(before, before).status == "proved"


def test_barriers_stand_where_they_are_in_sub_graphs(tmp_path):
    lines = [
        f'r: "{F}" = torch.ops.aten.neg.default(a)',
        "e = torch.ops.streams.record_event.default(0, 1)",
    ]
    before, after = body(tmp_path, "before", lines), body(tmp_path, "after", lines[::-1])
    assert verify(before, after).status != "proved"
    assert verify(after, after).status == "proved"


LIES = {
    "dtype": ('a: "bf16[4][1]cpu" = aten.add.Tensor(x, y)', "unproved", ()),
    "shape": ('a: "f32[8][1]cpu" = aten.add.Tensor(x, y)', "unproved", ()),
    "number of dimensions": ('a: "f32[2, 2][2, 1]cpu" = aten.add.Tensor(x, y)', "unproved", ()),
    "strides": ('a: "f32[4][2]cpu" = aten.add.Tensor(x, y)', "proved", ("strides",)),
    "nothing": ('a: "f32[4][1]cpu" = aten.add.Tensor(x, y)', "proved", ()),
    "an op that another one calls": (
        'a: "bf16[4][1]cpu" = torch.ops.higher_order.out_dtype(aten.add.Tensor, torch.float32, x, y)',
        "unproved",
        (),
    ),
    "its dtype": (
        'a: "bf16[4][1]cpu" = torch.ops.higher_order.out_dtype(aten.add.Tensor, torch.bfloat16, x, y)',
        "proved",
        (),
    ),
    "its shape": (
        'a: "f32[8][1]cpu" = torch.ops.higher_order.run_with_rng_state(y, aten.add.Tensor, x, x)',
        "unproved",
        (),
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_what_both_graphs_say_wrongly(tmp_path, case):
    line, status, remarks = LIES[case]
    verdict = verify(*pair(tmp_path, TWO, [line], [line], "a,"))
    assert verdict.status == status
    said = [note.text for note in (*verdict.notes, *verdict.unproved) if "its val in BEFORE says" in note.text]
    assert len(said) == (status == "unproved" or len(remarks))
    assert all(word in said[0] for word in remarks)


def test_a_symbol_is_believed(tmp_path):
    args = 'x: "f32[s0][1]cpu", s0: "Sym(s0)"'
    line = 'a: "f32[s0][1]cpu" = aten.exp.default(x)'
    verdict = verify(*pair(tmp_path, args, [line], [line], "a,"))
    assert (verdict.status, verdict.notes) == ("proved", ())


SYMBOLS = 'x: "f32[s0, 4][4, 1]cpu", y: "f32[s1, 4][4, 1]cpu", s0: "Sym(s0)", s1: "Sym(s1)", u0: "Sym(u0)"'
SYMBOLIC = {
    "dtype": ('a: "bf16[s0, 4][4, 1]cpu" = aten.exp.default(x)', "unproved"),
    "another symbol": ('a: "f32[s1, 4][4, 1]cpu" = aten.exp.default(x)', "unproved"),
    "a number beside a symbol": ('a: "f32[s0, 8][8, 1]cpu" = aten.exp.default(x)', "unproved"),
    "dimensions": ('a: "f32[s0][1]cpu" = aten.exp.default(x)', "unproved"),
    "a sum": ('a: "f32[s0 + 2, 4][4, 1]cpu" = aten.constant_pad_nd.default(x, [0, 0, 0, 1])', "unproved"),
    "the right sum": ('a: "f32[s0 + 1, 4][4, 1]cpu" = aten.constant_pad_nd.default(x, [0, 0, 0, 1])', "proved"),
    # What a guard may say of them: that s0 is even, at least s1, or no more than 128.
    "even": ('a: "f32[(s0//2), 8][8, 1]cpu" = aten.reshape.default(x, [-1, 8])', "proved"),
    "the smaller one": ('a: "f32[s1, 4][4, 1]cpu" = aten.slice.Tensor(x, 0, 0, s1)', "proved"),
    "the larger one": ('a: "f32[s0, 4][4, 1]cpu" = aten.slice.Tensor(y, 0, 0, s0)', "proved"),
    "small": ('a: "f32[s0, 4][4, 1]cpu" = aten.slice.Tensor(x, 0, 0, 128)', "proved"),
    "equal": ('a: "f32[s0, 4][4, 1]cpu" = aten.add.Tensor(x, y)', "proved"),
    "a number that only a run tells": ('a: "f32[64, 4][4, 1]cpu" = aten.expand.default(x, [u0, 4])', "proved"),
}


@pytest.mark.parametrize("case", SYMBOLIC)
def test_what_both_graphs_say_wrongly_of_symbols(tmp_path, case):
    line, status = SYMBOLIC[case]
    verdict = verify(*pair(tmp_path, SYMBOLS, [line], [line], "a,"))
    assert verdict.status == status
    said = [note.text for note in (*verdict.notes, *verdict.unproved) if "its val in BEFORE says" in note.text]
    assert len(said) == (status == "unproved")


def test_a_region_of_autocast_casts(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, y):
            with torch.autocast("cpu", torch.bfloat16):
                z = x @ y
            return z.float() + 1

    with torch.no_grad():
        exported = torch.export.export(Model(), (torch.randn(4, 4), torch.randn(4, 4)))
    torch.export.save(exported, tmp_path / "autocast.pt2")
    program = load(tmp_path / "autocast.pt2")
    assert any("autocast" in str(node.target) for node in program.graph.nodes)
    assert verify(program, program).status == "proved"
