"""Damaged logs, traces and repro files: each is read or refused, and never anything else."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.serialization import list_graphs, load
from commcc.serialization.sources import read_text
from tests.effort import examples

DATA = Path(__file__).parent / "data" / "containers"
SOURCES = {
    "log": DATA / "torch_logs_two_ranks.txt.gz",
    "trace": next((DATA / "torch_trace").glob("*rank_0*")),
    "repro": DATA / "dumps" / "moe_bw.repro.txt",
    "symbolic repro": DATA / "dumps" / "symint.repro.txt",
    "constants": DATA / "dumps" / "consts.repro.txt",
    "dump": DATA / "dumps" / "controldeps.txt",
}
TEXTS = {name: read_text(path) for name, path in SOURCES.items()}
FUZZ = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
SNIPPETS = [
    *(
        "",
        "\n",
        "\t",
        " ",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        ",",
        "=",
        "#",
        ":",
        "\\",
        "\x00",
        "\x1b[31m",
        "\ud7ff",
    ),
    *("0", "-1", "None", "nan", "u0", "s15", "self", "**999999999", "10**10**10", "4294967296" * 3, "lambda: 0"),
    *("torch.ops.aten.save.default", "__import__('os')", "reader.tensor(buf0, (2,))", "reader.symint(1, expr='u0//0')"),
    *("class GraphModule(torch.nn.Module):\n", "    def forward(self):\n", "def load_args(reader):\n"),
    *("[rank7]:", "[0/0]", "===== Forward graph 0 =====", '"has_payload"'),
]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """``text`` after one to four cuts, copies and insertions."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 3, 30, 300, 3000, 10**6])))
        kind = draw(st.sampled_from(["cut", "copy", "insert", "insert"]))
        if kind == "cut":
            text = text[:start] + text[end:]
        elif kind == "copy" and end - start < 10_000:
            where = draw(st.integers(0, len(text)))
            text = text[:where] + text[start:end] + text[where:]
        else:
            text = text[:start] + draw(st.sampled_from(SNIPPETS)) + text[start:]
    return text


def read_everything(file: Path) -> None:
    """List the file and load what it lists; only :class:`InputError` may come out, on one line."""
    try:
        entries = list_graphs(file)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries[:6]:
        load_or_refuse(file, entry.name)


def load_or_refuse(file: Path, name: str) -> None:
    try:
        load(file, name=name)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_damaged_text(name):
    @FUZZ
    @given(damaged(TEXTS[name]))
    def check(text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "x.txt"
            file.write_text(text, encoding="utf-8", errors="surrogatepass")
            read_everything(file)

    check()


@FUZZ
@given(st.data())
def test_damaged_gzip(data):
    packed = bytearray(gzip.compress(TEXTS["dump"].encode(), mtime=0))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.gz"
        file.write_bytes(packed)
        read_everything(file)


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes(content):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        file.write_bytes(content)
        read_everything(file)
