"""Pipelines as YAML, as text and by name are the same; every mistake of a file is named with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import CommccError, InputError, OptionError
from commcc.base.options import options_of
from commcc.passes import registry
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline
from commcc.passes.reorder import Reorder
from commcc.passes.tag import Tag
from commcc.run.forms import PRESETS, from_preset, pipeline_text, pipeline_yaml, preset_names, read_pipeline
from tests.effort import examples

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.text("abcdef0123456789_", min_size=1, max_size=6)
BUCKETS = st.builds(
    Bucket,
    bucket_cap_mb=st.one_of(
        st.none(), st.floats(0, 1e6), st.lists(st.floats(0, 1e6), min_size=2, max_size=4).map(tuple)
    ),
    max_topo_span=st.one_of(st.none(), st.integers(0, 10**9)),
    groups=st.one_of(st.sampled_from(["primary", "all"]), st.lists(NAMES, min_size=2, max_size=3).map(tuple)),
    multi_dtype=st.booleans(),
)
REORDERS = st.builds(Reorder, effort=st.integers(1, 99), memory_budget=st.one_of(st.just("auto"), st.floats(0, 1e4)))


def written(folder: Path, text: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(text)
    return path


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(st.just(Tag()), BUCKETS, REORDERS), min_size=1, max_size=4))
def test_all_forms_are_the_same(tmp_path_factory, passes):
    text = pipeline_text(passes)
    path = written(tmp_path_factory.mktemp("p"), pipeline_yaml(passes))
    assert pipeline_text(read_pipeline(path)) == text
    assert pipeline_text(parse_pipeline(text)) == text
    assert pipeline_yaml(parse_pipeline(text)) == pipeline_yaml(read_pipeline(path))


@pytest.mark.parametrize(
    "body",
    [
        "passes: [tag, bucket: {bucket_cap_mb: 25}]",
        "- tag\n- bucket:\n    bucket-cap-mb: 25.0\n",
        'passes:\n- "tag"\n- bucket: {bucket_cap_mb: "25"}\n',
        "passes:\n- tag:\n- bucket: {bucket_cap_mb: [25]}\n",
    ],
)
def test_ways_to_write_one_pipeline(body, tmp_path):
    assert pipeline_text(read_pipeline(written(tmp_path, body))) == "tag,bucket{bucket_cap_mb=25}"


def test_none_and_lists(tmp_path):
    body = "- bucket: {bucket_cap_mb: [10, 25], max_topo_span: none, groups: [dp, tp]}\n- reorder: {memory_budget: ~}"
    text = "bucket{bucket_cap_mb=10:25,max_topo_span=none,groups=dp:tp},reorder{memory_budget=none}"
    assert pipeline_text(read_pipeline(written(tmp_path, body))) == text


BAD = """\
passes:
- tagg
- bucket:
    bucket_cap: [10, 25]
    max_topo_span: [1, 2]
    strategy: greddy
    groups:
- reorder: {max_in_flight_gb: 0}
- reorder: {effort: {a: 1}}
- bucket{groups=all}
- [tag]
- bucket: {groups: ["a,b"]}
- {tag: {}, bucket: {}}
- ~
"""
SAID = {
    2: "no pass 'tagg' (did you mean 'tag'?)",
    4: "pass 'bucket' has no option 'bucket_cap' (did you mean 'bucket_cap_mb'?)",
    5: "max_topo_span: expected a number",
    6: "(did you mean 'greedy'?)",
    7: "groups: has no value",
    8: "reorder: max_in_flight_gb=0 leaves room for no collective",
    9: "effort: expected a value",
    10: "'bucket{groups=all}' is the text form",
    11: "a pass must be a name",
    12: "the text form uses itself",
    13: "a pass must be a name",
    14: "a pass must be a name",
}


def test_all_mistakes_in_one_error(tmp_path):
    path = written(tmp_path, BAD)
    with pytest.raises(InputError) as caught:
        read_pipeline(path)
    said = str(caught.value).replace(f"{path}:2:", "line 2:")
    parts = said.split("line ")
    for line, words in SAID.items():
        assert any(part.startswith(f"{line}: ") and words in part for part in parts), (line, words, said)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "has no 'passes'|must be a mapping"),
        ("passes: []", "no pass given"),
        ("passes: tag", "must be a list"),
        ("passes: [tag", "not YAML"),
        ("pases: [tag]", "did you mean 'passes'"),
        ("passes: [&a tag, *a]", "anchors"),
        ("passes: [!!python/object/apply:os.system [ls]]", "tags are not allowed"),
        ("[" * 50 + "]" * 50, "nested deeper"),
        ("passes: [bucket: {groups: a, groups: b}]", "given twice"),
        ("passes: [bucket: {max-topo-span: 1, max_topo_span: 2}]", "given twice"),
        ("passes: [tag]\n---\npasses: [tag]", "second document"),
        ("passes: [" + "x" * 5000 + "]", "no pass"),
        ("passes: [bucket: {bucket_cap_mb: " + "9" * 5000 + "}]", "bucket_cap_mb: expected a finite number"),
        ("passes: [\x00]", "control characters|not YAML"),
    ],
)
def test_files_that_are_no_pipeline(body, words, tmp_path):
    path = written(tmp_path, body)
    with pytest.raises(InputError, match=words) as caught:
        read_pipeline(path)
    assert str(caught.value).startswith(str(path)) and len(str(caught.value)) < 1000


WORDS = st.sampled_from(
    [
        "passes",
        "tag",
        "bucket",
        "groups",
        "reorder",
        ":",
        ": ",
        "-",
        "- ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "25",
        "none",
        "'",
        '"',
        "&a",
        "*a",
        "!!int",
        "max_topo_span",
        "\t",
        "é",
        "\u2028",
        "#",
        "? ",
        "<<: ",
    ]
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_text_is_a_pipeline_or_an_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        passes = read_pipeline(path)
    except CommccError as error:
        assert "fuzz.yaml" in str(error)
    else:
        assert pipeline_text(parse_pipeline(pipeline_text(passes))) == pipeline_text(passes)


def test_texts_name_all_mistakes_too():
    with pytest.raises(OptionError) as caught:
        parse_pipeline("tagg,bucket{bucket_cap=1,groups},bucket{max_topo_span=-1}")
    for words in ("did you mean 'tag'", "'groups' has no value", "must be at least 0"):
        assert words in str(caught.value)


def test_presets():
    for preset in PRESETS:
        passes = from_preset(preset.name)
        assert passes and preset.summary
        assert pipeline_text(parse_pipeline(pipeline_text(passes))) == pipeline_text(passes)
    assert len(set(preset_names())) == len(PRESETS)
    assert pipeline_text(from_preset("pre-overlap")) == "tag,bucket,reorder"
    with pytest.raises(OptionError, match="did you mean 'pre-overlap'"):
        from_preset("pre-overlp")


def test_defaults_are_for_what_is_not_said(tmp_path):
    defaults = {"bucket": {"bucket_cap_mb": "25", "groups": ["a", "b"]}, "reorder": {"effort": "3"}}
    text = "bucket{bucket_cap_mb=25,groups=a:b},reorder{effort=3}"
    assert pipeline_text(parse_pipeline("bucket,reorder", defaults)) == text
    assert pipeline_text(read_pipeline(written(tmp_path, "[bucket, reorder]"), defaults)) == text
    assert pipeline_text(parse_pipeline("bucket{bucket-cap-mb=1,groups=all}", defaults)) == (
        "bucket{bucket_cap_mb=1,groups=all}"
    )


def test_defaults_of_another_strategy_do_not_count():
    options = options_of(registry.get("bucket"))
    having = options["max_consecutive"].strategies
    for strategy in options["strategy"].choices:
        (made,) = parse_pipeline(f"bucket{{strategy={strategy}}}", {"bucket": {"max_consecutive": "7"}})
        assert ("max_consecutive=7" in pipeline_text([made])) == (strategy in having)
