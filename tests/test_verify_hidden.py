"""Values of which no shape is known: what is written to them counts, and nothing is taken for the same without it."""

from __future__ import annotations

import pytest

from commcc.verify import verify
from tests.verify_texts import pair

F = "f32[4][1]cpu"
#: Arguments, lines of BEFORE, numbers of its lines in AFTER, what is returned.
PLAIN = "x, y"
TYPED = f'x: "{F}", y: "{F}"'
LISTED = f'inputs, y: "{F}"'
WRONG = {
    "update lost": (PLAIN, ["n = aten.sub.Tensor(x, y)", "c = aten.copy_.default(x, n)"], [0], ""),
    "write lost": (PLAIN, ["w = aten.add_.Tensor(x, 1)"], [], "y,"),
    "write read": (PLAIN, ["w = aten.zero_.default(x)", "r = aten.relu.default(x)"], [1, 0], "r,"),
    "both read": (
        PLAIN,
        ["r = aten.relu.default(x)", "w = aten.zero_.default(x)", "s = aten.relu.default(x)"],
        ["s = aten.relu.default(x)", "w = aten.zero_.default(x)", "r = aten.relu.default(x)"],
        "r, s",
    ),
    "view read": (
        PLAIN,
        [f'v: "{F}" = aten.view.default(x, [4])', "w = aten.add_.Tensor(v, 1)", "r = aten.relu.default(x)"],
        [0, 2, 1],
        "r,",
    ),
    "in flight": (
        PLAIN,
        [
            "g = c10d.all_gather_into_tensor.default(x, 2, '0')",
            "v = c10d.wait_tensor.default(g)",
            "w = aten.add_.Tensor(x, y)",
        ],
        [0, 2, 1],
        "v,",
    ),
    "read in flight": (
        PLAIN,
        ["g = c10d.all_reduce_.default(x, 'sum', '0')", "v = c10d.wait_tensor.default(g)", "r = aten.relu.default(x)"],
        [0, 2, 1],
        "r,",
    ),
    "gathered into a value without a shape": (
        PLAIN,
        [
            "g = c10d.all_gather_into_tensor_out.default(x, 2, '0', out = y)",
            "v = c10d.wait_tensor.default(g)",
            "r = aten.relu.default(y)",
        ],
        [0, 2, 1],
        "r,",
    ),
    "gathered, and written before": (
        PLAIN,
        [
            "w = aten.zero_.default(y)",
            "g = c10d.all_gather_into_tensor_out.default(x, 2, '0', out = y)",
            "v = c10d.wait_tensor.default(g)",
        ],
        [1, 2, 0],
        "v,",
    ),
    "part of a foreign result": (
        TYPED,
        ["d = ops.foreign_library.make.default(x)", "w = aten.add_.Tensor(d, 1)", f'r: "{F}" = aten.relu.default(x)'],
        [0, 2, 1],
        "r,",
    ),
    "foreign result in flight": (
        TYPED,
        [
            "d = ops.foreign_library.make.default(x)",
            "g = c10d.all_reduce_.default(d, 'sum', '0')",
            "v = c10d.wait_tensor.default(g)",
            "r = aten.relu.default(d)",
        ],
        [0, 1, 3, 2],
        "r,",
    ),
    "element written": (LISTED, [f'e: "{F}" = inputs[0]', "w = aten.add_.Tensor(e, y)"], [0], "y,"),
    "element written with another one": (
        LISTED,
        [f'e: "{F}" = inputs[0]', f'f: "{F}" = inputs[1]', "w = aten.add_.Tensor(e, f)"],
        [0, 1, "w = aten.add_.Tensor(e, y)"],
        "y,",
    ),
    "element under two names": (
        LISTED,
        [
            f'e: "{F}" = inputs[1]',
            f'f: "{F}" = inputs[1]',
            "w = aten.add_.Tensor(e, 1)",
            f'r: "{F}" = aten.relu.default(f)',
        ],
        [0, 1, 3, 2],
        "r,",
    ),
    "element counted from the end": (
        LISTED,
        [
            f'e: "{F}" = inputs[1]',
            f'f: "{F}" = inputs[-1]',
            "w = aten.add_.Tensor(e, 1)",
            f'r: "{F}" = aten.relu.default(f)',
        ],
        [0, 1, 3, 2],
        "r,",
    ),
    "element returned": (LISTED, [f'e: "{F}" = inputs[0]'], [0, f'c: "{F}" = aten.clone.default(e)'], ("e,", "c,")),
    "list handed on": (
        LISTED,
        [f'e: "{F}" = inputs[0]', "w = aten.add_.Tensor(e, 1)", "s = aten.cat.default(inputs)"],
        [0, 2, 1],
        "s,",
    ),
    "list without shapes": (
        PLAIN,
        ["e = x[0]", "w = aten.add_.Tensor(e, y)", "f = x[0]", "r = aten.relu.default(f)"],
        [0, 2, 3, 1],
        "r,",
    ),
}
RIGHT = {
    "inputs apart": (PLAIN, ["w = aten.zero_.default(x)", "r = aten.relu.default(y)"], [1, 0], "r,"),
    "elements apart": (
        LISTED,
        [
            f'e: "{F}" = inputs[0]',
            f'f: "{F}" = inputs[1]',
            "w = aten.add_.Tensor(e, 1)",
            f'r: "{F}" = aten.relu.default(f)',
        ],
        [1, 3, 0, 2],
        "r,",
    ),
    "results of known ops apart": (
        PLAIN,
        [
            "a = aten.relu.default(x)",
            "b = aten.relu.default(y)",
            "w = aten.add_.Tensor(a, 1)",
            "r = aten.neg.default(b)",
        ],
        [1, 3, 0, 2],
        "r,",
    ),
    "gather ahead": (
        PLAIN,
        [
            "w = aten.add_.Tensor(y, 1)",
            "g = c10d.all_gather_into_tensor.default(x, 2, '0')",
            "v = c10d.wait_tensor.default(g)",
        ],
        [1, 0, 2],
        "v,",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_written_where_no_shape_is_known_counts(tmp_path, case):
    before, after = pair(tmp_path, *WRONG[case])
    assert verify(before, after).status != "proved"
    for same in (before, after):
        assert verify(same, same).status == "proved"


@pytest.mark.parametrize("case", RIGHT)
def test_inputs_without_a_shape_are_apart(tmp_path, case):
    assert verify(*pair(tmp_path, *RIGHT[case])).status == "proved"
