"""Tables of measured collectives: YAML, times by size, and which row prices which collective."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.timing.cost.tables import Row, TableSource, load_table
from commcc.timing.cost.tables.sizes import read_kind, read_size
from commcc.timing.cost.types import Operation, Price, Transfer
from tests.effort import examples

MIB = 1 << 20

YAML = """\
table: 1
note: our cluster, July
collectives:
- kind: all_gather
  group_size: 8
  us: {1 MiB: 50, 4MiB: 110.5, 16777216: 350}
- kind: all_gather
  group_size: 16
  nodes: 2
  us: {1024: 60, 1 MB: 90}
"""

GRID = """\
Measured with our script.

| Group    | Group Size | Collective     | 1MB (ms) | 4MB (ms) | 16MB (ms) |
|:---------|-----------:|----------------|---------:|---------:|----------:|
| dp_shard | 64         | all_gather     | 0.45     | 1.61     | 6.2       |
| dp_shard | 64         | reduce_scatter | 0.48     | 1.70     | n/a       |
| **tp**   | 8          | `All-Reduce`   | 0.05     | 0.11     | 0.3       |

And some more text.
"""


def load(folder: Path, text: str, name: str = "coll.yaml", **more: float) -> TableSource:
    (folder / name).write_text(text)
    return load_table(str(folder / name), **more)  # type: ignore[arg-type]


def refused(folder: Path, text: str, name: str = "coll.yaml") -> str:
    with pytest.raises(InputError) as found:
        load(folder, text, name)
    return str(found.value).replace(f"{folder}/", "")


def ask(source: TableSource, kind: Kind, size: int, sent: int, **more: object) -> Price | None:
    got = sent * size if kind is Kind.ALL_GATHER else sent
    return source.transfer(Transfer(kind, "0", size, sent, got, "bfloat16", **more))  # type: ignore[arg-type]


def test_yaml(tmp_path: Path):
    source = load(tmp_path, YAML)
    assert source.name == "table coll.yaml"
    assert ask(source, Kind.ALL_GATHER, 8, 4 * MIB) == Price(110_500, "table, 4 MiB", 29_833)
    assert ask(source, Kind.ALL_GATHER, 8, 5 * MIB // 2) == Price(80_250, "table, 1 MiB to 4 MiB", 29_833)
    assert ask(source, Kind.ALL_GATHER, 8, 7) == Price(50_000, "table, 1 MiB", 50_000)
    assert ask(source, Kind.ALL_GATHER, 4, MIB) is None
    assert ask(source, Kind.REDUCE_SCATTER, 8, MIB) is None
    assert source.operation(Operation("aten.mm", (), ())) is None


def test_beyond_the_largest_size_the_line_goes_on_with_a_note(tmp_path: Path):
    price = ask(load(tmp_path, YAML), Kind.ALL_GATHER, 8, 28 * MIB)
    assert price is not None
    assert price.ns == 589_500
    assert price.how == "table, beyond 16 MiB"
    assert price.note == "table coll.yaml: all_gather over 8 ranks is extrapolated beyond 16 MiB"


def test_bytes_of_the_whole_tensor(tmp_path: Path):
    source = load(tmp_path, YAML.replace("note: our cluster, July", "bytes: total"))
    price = ask(source, Kind.ALL_GATHER, 8, MIB // 8)
    assert price is not None
    assert (price.ns, price.how) == (50_000, "table, 128 KiB")
    said = refused(tmp_path, "table: 1\nbytes: total\ncollectives:\n- {kind: all_gather, group_size: 3, us: {64: 1}}\n")
    assert said == "coll.yaml:4: 64 in all cannot be gathered from 3 ranks alike"
    reduced = load(tmp_path, "table: 1\nbytes: total\ncollectives:\n- {kind: all_reduce, group_size: 3, us: {64: 1}}\n")
    assert reduced.rows[0].points == ((64, 1000),)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("table: 1", "table: 2", 1, "'table' must be at most 1"),
        ("note:", "nots:", 2, "unknown key 'nots' (did you mean 'note'?)"),
        ("kind: all_gather\n  group_size: 8", "kind: all_gater\n  group_size: 8", 4, "(did you mean 'all_gather'?)"),
        ("group_size: 8", "group_size: 0", 5, "'group_size' must be at least 1"),
        ("group_size: 8", "group_size: eight", 5, "must be a whole number"),
        ("  group_size: 8\n", "", 4, "has no 'group_size'"),
        ("1 MiB: 50", "1 MiB: -50", 6, "must be more than 0"),
        ("1 MiB: 50", "1 MiB: 0", 6, "must be more than 0"),
        ("1 MiB: 50", "1 MiB: .nan", 6, "must be a finite number"),
        ("1 MiB: 50", "1 MiB: .inf", 6, "must be a finite number"),
        ("1 MiB: 50", "1 MiB: 1e999", 6, "must be a finite number"),
        ("1 MiB: 50", "1 MiB: 1e13", 6, "must be at most 1e+12"),
        ("1 MiB: 50", "1 MiB: [1]", 6, "must be a finite number, not a list"),
        ("1 MiB: 50", "1.0000001 MiB: 50", 6, "'1.0000001 MiB' is no size"),
        ("1 MiB: 50", "-4: 50", 6, "'-4' is no size"),
        ("1 MiB: 50", "9e99 MiB: 50", 6, "is no size"),
        ("1 MiB: 50", "4194304: 50", 6, "'4MiB' is not larger than the one before it"),
        ("1 MiB: 50", "8 MiB: 50", 6, "'4MiB' is not larger than the one before it"),
        ("{1 MiB: 50, 4MiB: 110.5, 16777216: 350}", "{}", 6, "'us' is empty"),
        ("{1 MiB: 50, 4MiB: 110.5, 16777216: 350}", "[50]", 6, "'us' must be a mapping"),
        ("nodes: 2", "nodes: 17", 9, "16 ranks cannot be on 17 nodes"),
        ("nodes: 2", "dtype: bfloat61", 9, "(did you mean 'bfloat16'?)"),
        ("group_size: 16\n  nodes: 2", "group_size: 8", 7, "all_gather over 8 ranks is in line 4 already"),
    ],
)
def test_wrong_yaml_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, what: str):
    said = refused(tmp_path, YAML.replace(old, new, 1))
    assert said.startswith(f"coll.yaml:{line}: ")
    assert what in said


def test_all_mistakes_of_a_yaml_are_said_at_once(tmp_path: Path):
    said = refused(tmp_path, YAML.replace("1 MiB: 50", "1 Mib: x").replace("nodes: 2", "notes: 2"))
    assert "coll.yaml:6:" in said
    assert "line 9: unknown key 'notes'" in said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "coll.yaml: is no table of collectives that commcc knows"),
        ("hello\n", "is no table of collectives"),
        ("table: 1\ncollectives: []\n", "coll.yaml:2: 'collectives' is empty"),
        ("table: 1\ncollectives: [\n", "coll.yaml:3: not YAML"),
        ("profile: 1\nops: []\n", "is a profile, not a table; give it as profile="),
        ("table: !!python/object/apply:os.system [ls]\n", "tags are not allowed"),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str, what: str):
    assert what in refused(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        load_table(str(tmp_path / "none.yaml"))
    (tmp_path / "binary").write_bytes(b"table: 1\n\xff\xfe")
    with pytest.raises(InputError, match="binary:2: is not UTF-8"):
        load_table(str(tmp_path / "binary"))


def test_times_by_size(tmp_path: Path):
    source = load(tmp_path, GRID, "nccl.md")
    gather = ask(source, Kind.ALL_GATHER, 64, 4 * MIB, description="dp_shard")
    assert gather is not None
    assert (gather.ns, gather.how, gather.note) == (1_610_000, "table, 4 MiB", None)
    scatter = ask(source, Kind.REDUCE_SCATTER, 64, 16 * MIB, description="dp_shard")
    assert scatter is not None
    assert scatter.how == "table, beyond 4 MiB"
    assert [row.kind for row in source.rows] == [Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE]
    assert source.rows[2].group == "tp"


def test_plain_columns_without_outer_bars_or_group(tmp_path: Path):
    plain = "Group Size | Collective | 512 KiB (us) | 1 MiB (us)\n-----------+---|---|---\n8 | allgather | 30 | 44.5\n"
    assert load(tmp_path, plain).rows == (Row(Kind.ALL_GATHER, 8, ((MIB // 2, 30_000), (MIB, 44_500)), line=3),)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("4MB (ms)", "4MB", 3, "column '4MB' is no size and unit"),
        ("4MB (ms)", "4MB (min)", 3, "column '4MB (min)' is no size and unit"),
        ("4MB (ms)", "1MB (ms)", 3, "column '1MB (ms)' is not larger"),
        ("4MB (ms)", "Groups", 3, "(did you mean 'group'?)"),
        ("4MB (ms)", "group", 3, "column 'group' is there twice"),
        ("all_gather ", "all_gater ", 5, "collective 'all_gater' is not known (did you mean 'all_gather'?)"),
        ("all_gather ", "barrier ", 5, "collective 'barrier' is not known"),
        ("| 64         | all_gather", "| 0 | all_gather", 5, "group size '0' is not a whole number above 0"),
        ("1.61", "fast", 5, "time 'fast' is not a number"),
        ("1.61", "-1.61", 5, "time '-1.61' is not a number above 0"),
        ("1.61", "0", 5, "time '0' is not a number above 0"),
        ("1.61", "nan", 5, "time 'nan' is not a number"),
        ("1.61", "inf", 5, "time 'inf' is not a number"),
        ("| 6.2 ", "", 5, "5 cells in a table of 6 columns"),
        ("0.48     | 1.70  ", "- | -", 6, "the row holds no times"),
        ("reduce_scatter", "all_gather", 6, "all_gather over 64 ranks is in line 5 already"),
    ],
)
def test_wrong_tables_are_named_with_their_line(tmp_path: Path, old: str, new: str, line: int, what: str):
    said = refused(tmp_path, GRID.replace(old, new, 1), "nccl.md")
    assert said.startswith(f"nccl.md:{line}: ")
    assert what in said


def test_a_table_of_columns_only(tmp_path: Path):
    assert refused(tmp_path, "Group Size | Collective | 1MB (ms)\n") == "coll.yaml: holds no times"


NODE, TWO = tuple(range(8)), tuple(range(4, 12))


def row(group: str | None = None, nodes: int | None = None, dtype: str | None = None, us: int = 1) -> Row:
    return Row(Kind.ALL_REDUCE, 8, ((MIB, 1000 * us),), group, nodes, dtype)


@pytest.mark.parametrize(
    ("rows", "more", "ns", "note"),
    [
        ([row(us=1), row("dp", us=2)], {"description": "dp"}, 2000, None),
        ([row(us=1), row("0", us=2)], {"description": "dp"}, 2000, None),
        ([row(us=1), row("dp", us=2)], {"description": "tp"}, 1000, None),
        ([row(us=1), row("dp", nodes=1, us=2)], {"description": "tp"}, 1000, None),
        ([row("dp", us=2)], {"description": "tp"}, 2000, "was measured on 'dp' and is used for group '0'"),
        ([row("dp", us=2), row("tp", us=3)], {"description": "ep"}, None, None),
        ([row(nodes=1, us=1), row(nodes=2, us=2)], {"ranks": NODE}, 1000, None),
        ([row(nodes=1, us=1), row(nodes=2, us=2)], {"ranks": TWO}, 2000, None),
        ([row(nodes=1, us=1), row(nodes=2, us=2)], {}, 1000, None),
        ([row(nodes=1, us=1)], {"ranks": TWO}, None, None),
        ([row(nodes=4, us=1)], {"ranks": TWO}, 1000, "was measured on 4 nodes and is used for 2"),
        ([row(nodes=4, us=1), row(nodes=3, us=2), row(us=3)], {"ranks": TWO}, 2000, "on 3 nodes and is used for 2"),
        ([row("dp", nodes=1, us=1)], {"description": "dp", "ranks": TWO}, None, None),
        ([row(us=1), row(dtype="bfloat16", us=2)], {}, 2000, None),
        ([row(dtype="float32", us=1)], {}, None, None),
    ],
)
def test_which_row_is_taken(rows: list[Row], more: dict[str, object], ns: int | None, note: str | None):
    price = ask(TableSource("table t", tuple(rows)), Kind.ALL_REDUCE, 8, MIB, **more)
    assert (None if price is None else price.ns) == ns
    assert price is None or (price.note is None if note is None else note in (price.note or ""))


def test_ranks_per_node_is_that_of_the_device(tmp_path: Path):
    source = load(tmp_path, YAML, ranks_per_node=16)
    assert ask(source, Kind.ALL_GATHER, 16, MIB) is None
    assert ask(load(tmp_path, YAML), Kind.ALL_GATHER, 16, MIB) is not None


def test_times_that_fall_are_noted():
    source = TableSource("table t", (Row(Kind.ALL_REDUCE, 8, ((MIB, 9000), (4 * MIB, 5000), (8 * MIB, 6000))),))
    falling = ask(source, Kind.ALL_REDUCE, 8, 2 * MIB)
    assert falling is not None
    assert falling.note == "table t: all_reduce over 8 ranks took less time for 4 MiB than for 1 MiB"
    rising = ask(source, Kind.ALL_REDUCE, 8, 6 * MIB)
    assert rising is not None
    assert rising.note is None


def test_skew_stretches_the_bytes_of_uneven_exchanges():
    rows = (Row(Kind.ALL_TO_ALL, 8, ((MIB, 20_000), (2 * MIB, 30_000))),)
    uneven, even = ({"uneven": flag} for flag in (True, False))
    assert ask(TableSource("t", rows, skew=2.0), Kind.ALL_TO_ALL, 8, 2 * MIB, **even).ns == 30_000  # type: ignore[union-attr]
    assert ask(TableSource("t", rows, skew=2.0), Kind.ALL_TO_ALL, 8, 2 * MIB, **uneven).ns == 50_000  # type: ignore[union-attr]


def test_facts_are_of_the_times_only(tmp_path: Path):
    (tmp_path / "other").mkdir()
    here, there = (
        load(tmp_path, YAML),
        load(tmp_path / "other", "# a comment\n" + YAML.replace("July", "May"), "b.yaml"),
    )
    assert here.facts() == there.facts()
    assert TableSource("x", tuple(reversed(here.rows))).facts() == here.facts()
    assert load(tmp_path, YAML.replace("110.5", "110.6")).facts() != here.facts()
    assert load(tmp_path, YAML.replace("nodes: 2", "nodes: 4")).facts() != here.facts()


POINTS = st.dictionaries(st.integers(0, 1 << 40), st.integers(1, 10**12), min_size=1, max_size=8)


@given(POINTS, st.integers(0, 1 << 42), st.integers(0, 1 << 40))
def test_rising_times_make_rising_prices(points: dict[int, int], size: int, more: int):
    rising = tuple(zip(sorted(points), sorted(points.values()), strict=True))
    source = TableSource("t", (Row(Kind.ALL_REDUCE, 8, rising),))
    small, large = (ask(source, Kind.ALL_REDUCE, 8, sent) for sent in (size, size + more))
    assert small is not None
    assert large is not None
    assert 0 <= small.latency_ns <= small.ns <= large.ns


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1MB", MIB),
        ("1 MiB", MIB),
        ("1m", MIB),
        ("0.5 GB", 1 << 29),
        ("2KiB", 2048),
        ("16 B", 16),
        ("1_000", 1000),
        ("1.5", None),
        ("1 XB", None),
        ("", None),
        ("MB", None),
        ("-1MB", None),
        ("9999999 TB", None),
    ],
)
def test_sizes(text: str, size: int | None):
    assert read_size(text) == size


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AllGather", Kind.ALL_GATHER),
        ("all gather", Kind.ALL_GATHER),
        ("_c10d_functional.all_gather_into_tensor", Kind.ALL_GATHER),
        ("Reduce-Scatter", Kind.REDUCE_SCATTER),
        ("all2all", Kind.ALL_TO_ALL),
        ("all_to_all_single", Kind.ALL_TO_ALL),
        ("bcast", Kind.BROADCAST),
        ("reduce", None),
        ("", None),
    ],
)
def test_kinds(text: str, kind: Kind | None):
    assert read_kind(text) == kind


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """One of the good files with a piece replaced by other text."""
    text = draw(st.sampled_from([YAML, GRID]))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    other = draw(st.text(alphabet=string.printable + "é\u2028\N{MICRO SIGN}", max_size=20))
    return text[:start] + other + text[end:]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(300))
@given(damaged())
def test_damaged_files_give_a_table_or_an_input_error(tmp_path: Path, text: str):
    path = tmp_path / "damaged"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        source = load_table(str(path))
    except InputError as error:
        assert "damaged" in str(error)
        assert "\n" not in str(error)
    else:
        assert source.rows
        source.facts()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.binary(max_size=300) | st.text(alphabet="|-:()0123456789MBms GroupSizeColletiv\n", max_size=300).map(str.encode)
)
def test_garbage_gives_an_input_error(tmp_path: Path, data: bytes):
    (tmp_path / "garbage").write_bytes(data)
    with pytest.raises(InputError):
        load_table(str(tmp_path / "garbage"))


def test_examples_of_the_documentation_can_be_read(tmp_path: Path):
    text = (Path(__file__).parents[1] / "docs" / "cost-collectives.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:yaml)?\n(.*?)```", text, re.DOTALL)
    assert [len(load(tmp_path, block).rows) for block in blocks] == [2, 2]
