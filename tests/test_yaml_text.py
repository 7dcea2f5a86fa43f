"""YAML as commcc writes it: read back equal by PyYAML and by commcc's own reader, and never cut in odd places."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.yaml_file import parse_yaml
from commcc.base.yaml_text import dump
from commcc.run.planfile.fields import to_json
from tests.effort import examples

TEXTS = st.one_of(
    st.text(max_size=30),
    st.text("abc_ -:#,[]{}'\"\n\t%@&*!|>?=0123456789.eE", max_size=20),
    st.sampled_from(["", "null", "~", "true", "No", "yes", "on", "1e3", "0x10", "1_000", "1:30", "2001-01-01", ".inf"]),
)
NUMBERS = st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False, width=32))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=25,
)


@settings(max_examples=examples(400), deadline=None)
@given(st.dictionaries(TEXTS, TREES, max_size=5))
def test_reads_back_equal(data):
    text = dump(data)
    assert text.isascii()
    assert yaml.safe_load(text) == (data or None)
    if data:
        assert to_json(parse_yaml(text, "x.yaml").root) == data
    assert dump(data) == text


@pytest.mark.parametrize("number", [1e22, 1e-7, 5e-324, 25.0, -0.0, 1.7976931348623157e308])
def test_floats_stay_floats(number):
    read = yaml.safe_load(dump({"a": number}))["a"], to_json(parse_yaml(dump({"a": number}), "x").root.entries()["a"])
    assert [type(each) for each in read] == [float, float] and set(read) == {number}


def test_half_characters_are_replaced():
    assert yaml.safe_load(dump({"a": "x\ud800y"})) == {"a": "x?y"}


def test_layout():
    data = {
        "pass": "bucket",
        "members": [f"all_gather_into_tensor_{i}" for i in range(6)],
        "small": [{"launch": "rs", "reason": "alone in its bucket (closed for bytes)"}, {"a": [1], "b": {}}],
        "empty": [],
        "none": None,
    }
    assert dump(data) == (
        "pass: bucket\n"
        "members: [all_gather_into_tensor_0, all_gather_into_tensor_1, all_gather_into_tensor_2, "
        "all_gather_into_tensor_3,\n"
        "  all_gather_into_tensor_4, all_gather_into_tensor_5]\n"
        "small:\n"
        "- {launch: rs, reason: alone in its bucket (closed for bytes)}\n"
        "- a: [1]\n"
        "  b: {}\n"
        "empty: []\n"
        "none: null\n"
    )
    assert max(map(len, dump(data).splitlines())) <= 120


@pytest.mark.parametrize(
    "text", ["true", "No", "off", "null", "Y", "3", "-1", "1e5", "a: b", "a #b", "- a", "", " a", "a "]
)
def test_what_could_be_taken_for_something_else_is_quoted(text):
    assert dump({"a": text}).startswith('a: "')
