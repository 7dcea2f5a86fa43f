"""Options: text, values and objects are one and the same; all mistakes in one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import OptionError
from commcc.base.options import option, options_of, value_text
from commcc.passes import registry
from commcc.passes.bucket import Bucket
from commcc.passes.options import build, parse_pipeline, to_text
from commcc.timing.cost.types import Settings
from tests.effort import examples

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = st.text("abcdef0123456789_", min_size=1, max_size=6)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.one_of(st.none(), st.floats(0, 1e6), st.lists(st.floats(0, 1e6), min_size=2, max_size=4).map(tuple)),
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.sampled_from(["primary", "all"]), st.lists(NAMES, min_size=2, max_size=3).map(tuple)),
    st.booleans(),
)
def test_text_and_object_are_the_same(cap, span, groups, mixed):
    made = Bucket(bucket_cap_mb=cap, max_topo_span=span, groups=groups, multi_dtype=mixed)
    again = parse_pipeline(f"tag,{to_text(made)}")[1]
    assert to_text(again) == to_text(made)


def test_defaults_print_as_the_bare_name():
    assert to_text(Bucket()) == "bucket"
    assert to_text(build(Bucket, {"bucket_cap_mb": "25", "max-topo-span": "none"})) == (
        "bucket{bucket_cap_mb=25,max_topo_span=none}"
    )


def test_all_wrong_options_in_one_error():
    with pytest.raises(OptionError) as caught:
        build(Bucket, {"bucket_cap": "1", "max_topo_span": "-3", "multi_dtype": "maybe", "strategy": "greddy"})
    text = str(caught.value)
    for piece in ("did you mean 'bucket_cap_mb'", "at least 0", "true or false", "did you mean 'greedy'"):
        assert piece in text


@pytest.mark.parametrize("text", ["", "bucket{", "bucket{x}", "bucket{groups=a,groups=b}", "bukcet", "a b"])
def test_bad_pipelines(text):
    with pytest.raises(OptionError):
        parse_pipeline(text)


def test_unknown_pass_has_a_suggestion():
    with pytest.raises(OptionError, match="did you mean 'bucket'"):
        registry.get("bukcet")


def test_none_where_it_means_nothing():
    with pytest.raises(OptionError, match="cannot be none"):
        build(Bucket, {"groups": "none"})


@pytest.mark.parametrize(
    "text", ["ep-chunk{modules=layers.*.moe}", "ep-chunk{modules=layers.1.moe:layers.2.moe,chunks=3}"]
)
def test_names_without_choices(text):
    made = parse_pipeline(text)[0]
    assert parse_pipeline(to_text(made)) == [made]


@pytest.mark.parametrize("cls", [*map(registry.get, registry.names()), Settings])
def test_what_none_means_is_said_where_the_annotation_allows_it(cls):
    for each in options_of(cls).values():
        assert each.optional == (each.none is not None), each.name
        assert each.read(value_text(each.default)) == each.default or each.default is None, each.name


@dataclass(frozen=True)
class Kinds:
    """One option of every kind."""

    number: float = option(0.0, "")
    whole: int | None = option(None, "", none="any")
    numbers: float | tuple[float, ...] = option(0.0, "")
    switch: bool = option(False, "")
    word: str = option("a", "", choices=("a", "b"))
    text: str = option("", "")
    names: tuple[str, ...] = option((), "")
    either: str | tuple[str, ...] = option("all", "", choices=("all",))
    limit: str | float | None = option("auto", "", choices=("auto",), none="no limit")
    figures: Mapping[str, float] | None = option(None, "", keys=("x",))


def test_annotations_say_what_an_option_may_be():
    options = options_of(Kinds)
    assert [each.kind for each in options.values()] == [
        *("float", "int", "floats", "bool", "choice", "text", "names", "names", "float", "by key")
    ]
    assert [name for name, each in options.items() if each.optional] == ["whole", "limit", "figures"]
    assert [options["either"].read(text) for text in ("all", "all:b", "b")] == ["all", ("all", "b"), ("b",)]
    assert [options["limit"].read(text) for text in ("auto", "2", "none")] == ["auto", 2.0, None]
    assert [options["numbers"].read(text) for text in ("1", "1:2", "[1;2]")] == [1.0, (1.0, 2.0), (1.0, 2.0)]
