"""Random arguments come back exactly; damaged texts raise nothing but errors of commcc."""

from __future__ import annotations

import contextlib
import random
import warnings
from functools import lru_cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import CommccError, InputError
from commcc.graph.program import NodeRecord
from commcc.serialization.fx import parse_text, write_text
from commcc.serialization.fx.source import expression_tree
from commcc.serialization.fx.torch_comments import read_comment
from commcc.serialization.fx.values import Values, argument_text
from commcc.serialization.metadata import decode_json, encode_json
from tests.effort import examples
from tests.fx_text_corpus import CORPUS, PRINTABLE, Builder, T, aten, described, plain

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.sampled_from([..., torch.float32, torch.bfloat16, torch.strided, torch.preserve_format, aten.mm.default]),
    st.sampled_from([torch.device("cuda:0"), torch.device("cuda"), torch.device("cpu"), torch.ops.higher_order.cond]),
    st.sampled_from(["%x", "%y"]),  # stand for nodes
)
ARGUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
        st.builds(slice, st.one_of(st.none(), st.integers()), st.none(), st.one_of(st.none(), st.integers())),
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.complex_numbers()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.sampled_from(["$tuple", "$x"])), inner, max_size=3),
    ),
    max_leaves=10,
)
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def with_nodes(value, nodes):
    if isinstance(value, str) and value in ("%x", "%y"):
        return nodes[value[1:]]
    if isinstance(value, (list, tuple)):
        return type(value)(with_nodes(item, nodes) for item in value)
    return {k: with_nodes(v, nodes) for k, v in value.items()} if isinstance(value, dict) else value


@given(st.lists(ARGUMENTS, max_size=3), st.dictionaries(st.sampled_from(["dtype", "out", "x"]), ARGUMENTS, max_size=2))
@settings(max_examples=examples(150), **QUIET)
def test_any_arguments_come_back(args, kwargs):
    b = Builder()
    nodes = {"x": b.input("x", T), "y": b.input("y")}
    call = b.call("call", aten.neg.default, *with_nodes(args, nodes), **with_nodes(kwargs, nodes))
    text, _ = write_text(b.program([call, with_nodes(args, nodes)]))
    again = parse_text(text, "x")
    assert described(again.graph) == described(b.graph)
    assert write_text(again)[0] == text


@given(ARGUMENTS)
@settings(max_examples=examples(150), **QUIET)
def test_argument_text_is_one_line_that_reads_back(value):
    text = argument_text(value)
    assert "\n" not in text
    assert plain(Values({}, None).value(expression_tree(text))) == plain(value)


@given(JSON, st.text(), st.lists(st.text(), max_size=2))
@settings(max_examples=examples(150), **QUIET)
def test_any_metadata_comes_back(value, role, merged):
    b = Builder()
    node = b.call("call", aten.neg.default, b.input("x", T), val=T)
    node.meta.update({"custom": {"a": value}, "mine": value, "stack_trace": role, "seq_nr": 3})
    node.meta["commcc"] = NodeRecord(role, None, tuple(merged))
    text, notes = write_text(b.program((node,)))
    again = parse_text(text, "x")
    assert described(again.graph, full=True) == described(b.graph, full=True)
    assert write_text(again)[0] == text
    assert notes == ()


@given(JSON)
@settings(max_examples=examples(150), **QUIET)
def test_json_with_tags(value):
    assert plain(decode_json(encode_json(value))) == plain(value)


@lru_cache(maxsize=1)
def texts() -> tuple[str, ...]:
    forms = ({}, {"include_stride": True, "include_device": True, "expanded_def": True})
    printed = [make().print_readable(print_output=False, **form) for make in PRINTABLE.values() for form in forms]
    return (*printed, *(write_text(make())[0] for make in CORPUS.values()))


TOKENS = [
    *("(", ")", "[", "]", "{", "}", ",", ":", "=", ";", "'", '"', "#", "\\", "\n", " ", "    ", ".", "*", "-", "\t"),
    *("None", "self", "return", "class ", "def forward(self):", "lambda: 0", "inf", "x", "y", "u0", "1e999", "\x00"),
    *("torch.ops.aten.mm.default(", "__class__", "# commcc:", '# {"$at": 0}', '{"val": null}', "Sym(u0)", "\ud800"),
    *("f32[u0][1]cpu", '"', "'''", '"""', "\u2028", "é", "0", "9" * 30, "-1", "getattr(self, ", "\x1b[31m", "\r"),
]


def damaged(source: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        lines = source.split("\n")
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        action = rng.randrange(8)
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(other, lines[at])
        elif action == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif action == 3:
            lines = lines[:at]
        elif action == 4:
            start = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:start] + rng.choice(TOKENS) + lines[at][start + rng.randrange(3) :]
        elif action == 5:
            lines[at] = lines[at].replace(rng.choice((" ", ",", "1", "torch", '"', "(")), rng.choice(TOKENS))
        elif action == 6:
            lines[at] = " " * rng.randrange(12) + lines[at].strip()
        else:
            start = rng.randrange(len(source) + 1)
            lines = (source[:start] + source[start + rng.randrange(200) :]).split("\n")
        source = "\n".join(lines)
        if not source:
            return source
    return source


def survives(source: str) -> None:
    """The text is refused, or it is a graph that can be written and read again."""
    try:
        program = parse_text(source, "fuzz")
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("fuzz")
        return
    text = None
    with contextlib.suppress(CommccError):
        text, _ = write_text(program)
    if text is not None:
        again = parse_text(text, "fuzz")
        assert described(again.graph, full=True) == described(program.graph, full=True)
        assert write_text(again)[0] == text


@pytest.mark.parametrize("seed", range(8))
def test_damaged_texts_are_refused_or_read(seed):
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(60):
            survives(damaged(rng.choice(texts()), rng))


@given(st.text(max_size=200))
@settings(max_examples=examples(150), **QUIET)
def test_any_text_is_refused_or_read(text):
    head = 'class A(torch.nn.Module):\n    def forward(self, x: "f32[4][1]cpu"):\n'
    for source in (
        text,
        head + "        " + text,
        f"{head}        a = {text}\n        return a\n",
        f"# commcc: {text}",
    ):
        survives(source)


@given(st.text(alphabet="# Anotti:{}'\"a,.File1 in code seq_nr[]()recomp\\", max_size=120))
@settings(max_examples=examples(200), **QUIET)
def test_any_comment_is_read_or_skipped(text):
    for comment in (f"# {text}", f"# Annotation: {{{text}}} File: a:1 in f, code: x", f"# seq_nr: {text}"):
        read_comment(comment)
