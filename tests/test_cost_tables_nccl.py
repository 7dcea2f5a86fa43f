"""Output of nccl-tests, old and new, as a table of measured collectives."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.timing.cost.tables import Row, TableSource, load_table
from commcc.timing.cost.tables.nccl_tests import Line
from tests.effort import examples

if TYPE_CHECKING:
    from pathlib import Path

#: As nccl-tests 2.17 prints it, under mpirun on two nodes of two.
NEW = """\
Warning: Permanently added 'node-02' (ED25519) to the list of known hosts.
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  41262 on    node-01 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  41263 on    node-01 device  1 [0000:3b:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  38633 on    node-02 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  38634 on    node-02 device  1 [0000:3b:00] NVIDIA H100 80GB HBM3
NCCL version 2.28.7+cuda13.0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
[node-01:41262] 3 more processes have sent help message help-mca-var.txt / mutually-exclusive-vars
           0             0     float    none      -1     0.06    0.00    0.00       0     0.04    0.00    0.00       0
     1048576         65536     float    none      -1    36.16   29.00   21.75       0    35.10   29.87   22.41       0
    16777216       1048576     float    none      -1   230.30   72.85   54.64       0   228.04   73.57   55.18       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 38.4948
#
# Collective test concluded: all_gather_perf
"""

#: As nccl-tests of 2022 print it; they do not name the collective.
OLD = """\
# nThread 1 nGpus 4 minBytes 1048576 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid    313 on worker-0 device  0 [0x18] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid    313 on worker-0 device  1 [0x2a] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid    313 on worker-0 device  2 [0x3a] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid    313 on worker-0 device  3 [0x5d] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    40.10   26.15   39.22      0    39.90   26.28   39.42      0
     4194304       1048576     float     sum      -1    71.60   58.58   87.87      0    71.33   58.80   88.20      0
    16777216       4194304     float     sum      -1    182.4   91.98  137.97      0    181.9   92.23  138.35      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 88.5
#
"""

#: As nccl-tests of 2020 print it, copied without the '#': no root, 'error', no Group.
OLDEST = """\
 nThread 4 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 validation: 1

 Using devices
   Rank  0 Pid   920 on      node2 device  0 [0x0e] Tesla V100-SXM2-32GB
   Rank  1 Pid   920 on      node2 device  1 [0x13] Tesla V100-SXM2-32GB

                                             out-of-place                       in-place
       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072   float    30.01   17.47   17.47  0e+00    30.09   17.42   17.42  0e+00
     2097152        262144   float    41.20   25.45   25.45  0e+00    41.16   25.48   25.48  0e+00
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 21.4
"""


def load(folder: Path, text: str, name: str = "log.txt") -> TableSource:
    (folder / name).write_text(text)
    return load_table(str(folder / name))


def refused(folder: Path, text: str, name: str = "log.txt") -> str:
    with pytest.raises(InputError) as found:
        load(folder, text, name)
    return str(found.value).replace(f"{folder}/", "")


def shapes(source: TableSource) -> list[tuple[Kind, int, int | None, str | None, tuple[int, ...]]]:
    return [(row.kind, row.size, row.nodes, row.dtype, tuple(size for size, _ in row.points)) for row in source.rows]


def test_new_output_names_its_collective(tmp_path: Path):
    """Sizes are of all ranks together; one of the four ranks sends a quarter. Empty messages are left out."""
    expected = Row(Kind.ALL_GATHER, 4, ((262_144, 36_160), (4_194_304, 230_300)), nodes=2, line=18)
    assert load(tmp_path, NEW).rows == (expected,)


def test_old_output_is_named_by_its_file(tmp_path: Path):
    points = ((1 << 20, 40_100), (1 << 22, 71_600), (1 << 24, 182_400))
    expected = (Row(Kind.ALL_REDUCE, 4, points, nodes=1, line=12),)
    assert load(tmp_path, OLD, "all_reduce_perf_4.txt").rows == expected
    assert load(tmp_path, OLD, "2024-07-01-AllReduce.log").rows == expected
    command = "$ mpirun -np 4 /opt/nccl-tests/build/all_reduce_perf_mpi -b 1M -e 16M -f 4\n"
    assert [row.points for row in load(tmp_path, command + OLD).rows] == [points]


def test_oldest_output(tmp_path: Path):
    expected = Row(Kind.ALL_GATHER, 2, ((524_288, 30_010), (1_048_576, 41_200)), nodes=1, line=10)
    assert load(tmp_path, OLDEST, "all_gather.txt").rows == (expected,)


def test_output_without_a_name(tmp_path: Path):
    said = refused(tmp_path, OLD)
    assert said.startswith("log.txt:12: the output does not say which collective it is of")
    assert "all_gather_perf_8.txt" in said
    assert "does not say which" in refused(tmp_path, OLD, "all_reduce_and_all_gather.txt")


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "[0] ", "0: ", "[1,0]<stdout>: "])
def test_labels_of_launchers(tmp_path: Path, label: str):
    text = "".join(f"{label}{line}\n" for line in NEW.splitlines())
    assert load(tmp_path, text).rows == load(tmp_path, NEW).rows


def test_windows_line_ends(tmp_path: Path):
    (tmp_path / "w.txt").write_bytes(NEW.replace("\n", "\r\n").encode())
    assert load_table(str(tmp_path / "w.txt")).rows == load(tmp_path, NEW).rows


def without_ranks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "Rank " not in line)


def test_ranks_that_are_not_listed(tmp_path: Path):
    """Count and size of a gather tell them; for a reduction, the name of the file has to."""
    (row,) = load(tmp_path, without_ranks(NEW)).rows
    assert (row.size, row.nodes, row.points) == (4, None, load(tmp_path, NEW).rows[0].points)
    assert load(tmp_path, without_ranks(OLD), "all_reduce_perf_4.txt").rows[0].size == 4
    assert load(tmp_path, without_ranks(OLD), "all_reduce_4gpus.txt").rows[0].size == 4
    said = refused(tmp_path, without_ranks(OLD), "all_reduce.txt")
    assert said.startswith("log.txt:".replace("log", "all_reduce"))
    assert "does not say how many ranks" in said


def test_a_shortened_list_of_ranks(tmp_path: Path):
    lines = OLD.splitlines()
    text = "\n".join([*lines[:4], "...", *lines[6:]])
    (row,) = load(tmp_path, text, "all_reduce_perf.txt").rows
    assert (row.size, row.nodes) == (4, None)


def test_several_programs_in_one_file(tmp_path: Path):
    scatter = NEW.replace("all_gather_perf", "reduce_scatter_perf").replace("none", "sum")
    text = NEW + scatter + NEW.replace("all_gather_perf", "sendrecv_perf")
    assert shapes(load(tmp_path, text)) == [
        (Kind.ALL_GATHER, 4, 2, None, (262_144, 4_194_304)),
        (Kind.REDUCE_SCATTER, 4, 2, None, (1_048_576, 16_777_216)),
    ]
    alone = refused(tmp_path, NEW.replace("all_gather_perf", "sendrecv_perf"))
    assert alone == "log.txt: holds only sendrecv_perf, which measures no collective of a graph"


def test_the_name_of_one_run_is_not_that_of_the_next(tmp_path: Path):
    """The second run is of an old version, which does not say what it is."""
    assert "log.txt:35: the output does not say which collective" in refused(tmp_path, NEW + OLD)


def test_repeated_runs_take_the_median(tmp_path: Path):
    text = NEW + NEW.replace("36.16   29.00   21.75", "90.00   11.65    8.74") + NEW.replace("36.16", "36.20")
    assert load(tmp_path, text).rows[0].points[0] == (262_144, 36_200)


def test_several_types_and_reductions(tmp_path: Path):
    """The first reduction counts; the first type stands for all that were not measured."""
    row = "     1048576        524288      half     sum      -1    38.10   27.52   41.28      0"
    other = "     1048576        262144     float     max      -1    30.10   34.84   52.25      0"
    lines = OLD.splitlines()
    text = "\n".join([*lines[:14], other, row, *lines[14:]])
    source = load(tmp_path, text, "all_reduce.txt")
    assert shapes(source) == [
        (Kind.ALL_REDUCE, 4, 1, None, (1 << 20, 1 << 22, 1 << 24)),
        (Kind.ALL_REDUCE, 4, 1, "float16", (1 << 20,)),
    ]
    assert source.rows[0].points[0] == (1 << 20, 40_100)


def test_groups_of_a_split_run(tmp_path: Path):
    """NCCL_TESTS_SPLIT: two groups of two ranks each ran at once."""
    text = NEW.replace("Rank  2 Group  0", "Rank  2 Group  1").replace("Rank  3 Group  0", "Rank  3 Group  1")
    text = text.replace(" 65536 ", "131072 ").replace("1048576     float", "2097152     float")
    text = text.replace("21.75 ", "14.50 ").replace("54.64 ", "36.43 ")
    assert shapes(load(tmp_path, text)) == [(Kind.ALL_GATHER, 2, 1, None, (524_288, 8_388_608))]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("Rank  1 Group", "Rank  0 Group", ":8: rank 0 is listed twice"),
        ("#  Rank  3 Group  0 Pid  38634 on    node-02 device  1", "#", ":18: 65536 elements in 1048576 bytes make 4"),
        ("all_gather_perf", "all_reduce_perf", ":18: busbw over algbw is not that of all_reduce over 4 ranks"),
        ("36.16", "nan", ":18: 'nan' is no time in microseconds"),
        ("36.16", "-36.16", ":18: '-36.16' is no time"),
        ("36.16", "inf", ":18: 'inf' is no time"),
        ("36.16", "node-01:41262:41262", "run it without NCCL_DEBUG=INFO"),
        ("-1    36.16   29.00   21.75       0    35.10   29.87   22.41       0", "", ":18: 'nothing' is no time"),
        ("     time", "  cputime", ":17: has no times of the device; run nccl-tests without -C"),
        ("1048576         65536", "9" * 40 + "  1", ":18: size '9999"),
        ("1048576         65536", "9" * 4000 + "  1", ":18: size '9999"),
    ],
)
def test_wrong_output_is_named_with_its_line(tmp_path: Path, old: str, new: str, what: str):
    said = refused(tmp_path, NEW.replace(old, new))
    assert said.startswith("log.txt")
    assert what in said


def test_output_without_rows(tmp_path: Path):
    assert refused(tmp_path, "\n".join(NEW.splitlines()[:15])) == "log.txt: holds no times"


def test_all_to_all_and_broadcast(tmp_path: Path):
    """Both sizes are of one rank; an all-to-all has no time in place to compare."""
    exchange = NEW.replace("all_gather_perf", "alltoall_perf").replace("0    35.10", "N/A    35.10")
    assert shapes(load(tmp_path, exchange)) == [(Kind.ALL_TO_ALL, 4, 2, None, (1 << 20, 1 << 24))]
    text = OLD.replace("39.22", "26.15").replace("87.87", "58.58").replace("137.97", "91.98")
    assert shapes(load(tmp_path, text, "broadcast_perf_4.txt"))[0][:2] == (Kind.BROADCAST, 4)


def test_times_in_place_stand_in_where_there_are_no_others(tmp_path: Path):
    lines = OLD.splitlines()
    head = "     1048576        262144     float     sum      -1"
    text = "\n".join([*lines[:11], f"{head}                                    39.90   26.28   39.42      0"])
    assert load(tmp_path, text, "all_reduce.txt").rows[0].points == ((1 << 20, 39_900),)


@pytest.mark.parametrize(
    ("kind", "ranks", "algbw", "busbw", "fits"),
    [
        (Kind.ALL_REDUCE, 1024, 182.46, 364.57, True),
        (Kind.ALL_REDUCE, 100, 182.46, 364.57, False),
        (Kind.ALL_GATHER, 16, 367.43, 344.46, True),
        (Kind.ALL_GATHER, 8, 367.43, 344.46, False),
        (Kind.ALL_GATHER, 8, 129.05, 129.05, True),
        (Kind.BROADCAST, 2, 20.0, 20.0, True),
        (Kind.BROADCAST, 2, 20.0, 10.0, False),
        (Kind.ALL_TO_ALL, 16, 0.02, 0.02, True),
        (Kind.ALL_TO_ALL, 16, None, None, True),
    ],
)
def test_bandwidths_tell_ranks_and_collective(kind: Kind, ranks: int, algbw: float, busbw: float, fits: bool):
    assert Line(1, 1, "float", "sum", 1, algbw, busbw).fits(kind, ranks) is fits


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([NEW, OLD, OLDEST]))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 60)))
    other = draw(st.text(alphabet=string.printable + "é\u2028", max_size=20))
    return text[:start] + other + text[end:]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(300))
@given(damaged())
def test_damaged_files_give_a_table_or_an_input_error(tmp_path: Path, text: str):
    path = tmp_path / "all_reduce_perf_4.txt"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        source = load_table(str(path))
    except InputError as error:
        assert "all_reduce_perf_4.txt" in str(error)
    else:
        assert source.rows
        source.facts()
