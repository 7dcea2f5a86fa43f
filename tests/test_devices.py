"""Device files: the bundled ones, and what is said about a wrong one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base import yaml_file
from commcc.base.errors import InputError, OptionError
from commcc.base.yaml_file import parse_yaml, read_yaml
from commcc.timing.cost import devices
from commcc.timing.cost.devices import device_names, load_device
from tests.effort import examples

FILES = Path(devices.__file__).parent
H100 = (FILES / "h100-sxm.yaml").read_text()


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def refused(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        load_device(str(path))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_the_bundled_devices():
    assert device_names() == ("a100-sxm", "b200", "h100-sxm", "h200-sxm", "laptop-cpu", "mi300x")


@pytest.mark.parametrize("name", device_names())
def test_every_figure_has_a_source(name: str):
    device = load_device(name)
    assert device.name == name
    figures = device.figures()
    assert len(figures) > 25
    assert [key for key in figures if not (device.source_of(key) or "").strip()] == []
    vague = [key for key, text in device.sources.items() if len(text) < 10 and text != "assumption"]
    assert vague == []


@pytest.mark.parametrize("name", device_names())
def test_figures_are_plausible(name: str):
    device = load_device(name)
    peaks = device.compute.peak_tflops
    floats = [peaks[dtype] for dtype in ("float64", "float32", "tfloat32", "bfloat16", "float8") if dtype in peaks]
    assert floats == sorted(floats)
    assert device.network.intra.gb_per_s > device.network.inter.gb_per_s
    assert device.network.intra.latency_us < device.network.inter.latency_us
    assert {"ring", "pairwise"} <= {each.name for each in device.network.algorithms}
    kinds = {kind for each in device.network.algorithms for kind in each.kinds}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}


def test_switches_that_reduce_are_where_they_exist():
    with_nvls = {n for n in device_names() if any(a.name == "nvls" for a in load_device(n).network.algorithms)}
    assert with_nvls == {"h100-sxm", "h200-sxm", "b200"}


def test_dense_peaks():
    """Vendors print figures for sparse matrices, which are twice as high."""
    bf16 = {name: load_device(name).compute.peak_tflops.get("bfloat16") for name in device_names()}
    assert bf16 == {
        "a100-sxm": 312,
        "b200": 2250,
        "h100-sxm": 989.4,
        "h200-sxm": 989.4,
        "laptop-cpu": None,
        "mi300x": 1307.4,
    }


@pytest.mark.parametrize(
    ("word", "name"),
    [("h100", "h100-sxm"), ("H100_SXM", "h100-sxm"), ("a100", "a100-sxm"), ("h200", "h200-sxm"), ("cpu", "laptop-cpu")],
)
def test_short_names(word: str, name: str):
    assert load_device(word).name == name


def test_an_unknown_device():
    with pytest.raises(OptionError) as caught:
        load_device("h1000")
    assert str(caught.value).startswith("unknown device 'h1000' (did you mean 'h100'?); use a100-sxm, b200, ")
    with pytest.raises(OptionError):
        load_device("../devices/h100-sxm")


def test_a_file_of_the_user(tmp_path: Path):
    path = tmp_path / "mine.yml"
    path.write_text(H100.replace("name: h100-sxm", "name: mine").split("sources:")[0])
    device = load_device(str(path))
    assert device.name == "mine"
    assert device.sources == {}
    assert device.figures() == load_device("h100").figures()


def test_the_example_in_the_manual(tmp_path: Path):
    page = (Path(__file__).parents[1] / "docs" / "cost-devices.md").read_text()
    path = tmp_path / "example.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    assert load_device(str(path)).source_of("memory.achievable") == "measured here with a copy of 4 GiB"
    assert all(name in page for name in device_names())


MISTAKES = [
    ("launch_us: 2.0", "lunch_us: 2.0", "lunch_us: 2.0", "unknown key 'lunch_us' (did you mean 'launch_us'?)"),
    ("launch_us: 2.0\n", "", "name: h100", "the file has no 'launch_us'"),
    ("launch_us: 2.0", "launch_us: -2", "launch_us: -2", "'launch_us' must be at least 0, not -2"),
    ("launch_us: 2.0", "launch_us: two", "launch_us: two", "'launch_us' must be a finite number, not 'two'"),
    ("launch_us: 2.0", "launch_us: [2]", "launch_us: [2]", "'launch_us' must be a finite number, not a list"),
    ("launch_us: 2.0", "launch_us:", "launch_us:", "'launch_us' must be a finite number, not empty"),
    ("launch_us: 2.0", "launch_us: '2'", "launch_us: '2'", "must be a finite number, not the text '2'"),
    ("bfloat16: 989.4", "bfloat16: 0", "peak_tflops:", "'bfloat16' must be at least 1e-06, not 0"),
    ("bfloat16: 989.4", "bfloat16: .inf", "peak_tflops:", "'bfloat16' must be a finite number, not '.inf'"),
    ("bfloat16: 989.4", "bfloat16: nan", "peak_tflops:", "'bfloat16' must be a finite number, not 'nan'"),
    ("bfloat16: 989.4", "bfloat16: 1e999", "peak_tflops:", "'bfloat16' must be a finite number, not '1e999'"),
    ("bfloat16: 989.4", "bloat16: 989.4", "peak_tflops:", "unknown key 'bloat16' (did you mean 'bfloat16'?)"),
    ("float32: 67, ", "", "peak_tflops:", "'peak_tflops' has no 'float32'"),
    ("matmul: 0.80", "matmul: 80", "  achievable:", "'matmul' must be at most 1, not 80"),
    ("attention: 0.35, ", "", "  achievable:", "'achievable' has no 'attention'"),
    ("ranks_per_node: 8", "ranks_per_node: 8.5", "ranks_per_node: 8.5", "must be a whole number, not '8.5'"),
    ("ranks_per_node: 8", "ranks_per_node: 0", "ranks_per_node: 0", "must be at least 1, not 0"),
    ("ranks_per_node: 8", "ranks_per_node: true", "ranks_per_node: true", "must be a whole number, not 'true'"),
    ("name: ring", "name: rings", "name: rings", "'name' 'rings' is not known (did you mean 'ring'?)"),
    ("name: tree", "name: ring", "- name: ring\n      kinds: [all_reduce]", "algorithm 'ring' is given twice"),
    ("kinds: [all_to_all]", "kinds: [alltoall]", "kinds: [alltoall]", "'alltoall' is not known (did you mean"),
    ("kinds: [all_to_all]", "kinds: []", "kinds: []", "'kinds' is empty"),
    ("kinds: [all_to_all]", "kinds: all_to_all", "kinds: all_to_all", "'kinds' must be a list, not 'all_to_all'"),
    ("memory: {", "memory: 3 #{", "memory: 3", "'memory' must be a mapping (key: value), not '3'"),
    ("name: h100-sxm", "name: ''", "name: ''", "'name' must be a text, not the text ''"),
    ("  memory.gib:", "  memory.gigs:", "  memory.gigs:", "a source for 'memory.gigs', which is not in the file"),
    ("float32_matmul: float32", "float32_matmul: tf32", "float32_matmul: tf32", "'tf32' is not known"),
    (" tfloat32: 494.7,", "", "float32_convolution: tfloat32", "'float32_convolution' is tfloat32, which has no peak"),
    ("base_us: 6.6", "bas_us: 6.6", "- {name: LL, bas_us", "unknown key 'bas_us' (did you mean 'base_us'?)"),
    ("share_inter: 0.10", "share_inter: 10", "- {name: LL, base_us: 6.6", "'share_inter' must be at most 1, not 10"),
    ("share_intra: 0.38", "share_intra: 0", "- {name: LL, base_us: 6.6", "'share_intra' must be at least 1e-06, not 0"),
    ("name: LL128", "name: LL", "- {name: LL, base_us: 14.0", "protocol 'LL' is given twice"),
    ("launch_us: 2.0", "launch_us: 1e308", "launch_us: 1e308", "'launch_us' must be at most 1e+06, not 1e308"),
    ("kernel_us: 2.0", "kernel_us: 1e9", "kernel_us: 1e9", "'kernel_us' must be at most 1e+06, not 1e9"),
    ("bfloat16: 989.4", "bfloat16: 1e-310", "peak_tflops:", "'bfloat16' must be at least 1e-06, not 1e-310"),
    ("gb_per_s: 3350", "gb_per_s: 1e300", "memory: {", "'gb_per_s' must be at most 1e+09, not 1e300"),
    ("ranks_per_node: 8", "ranks_per_node: 1e12", "ranks_per_node: 1e12", "must be at most 1e+06, not 1e12"),
    ("post_us: 2.0", "post_us: -2", "inter: {", "'post_us' must be at least 0, not -2"),
    ("- name: nvls\n", "- name: nvls\n      base_us: 9\n", "- name: nvls", "needs either 'base_us' or 'protocols'"),
    ("base_us: 14.0\n", "\n", "- name: pairwise", "an algorithm needs either 'base_us' or 'protocols'"),
]


@pytest.mark.parametrize(("find", "put", "at", "reason"), MISTAKES, ids=[f"{m[0]}->{m[1]}" for m in MISTAKES])
def test_a_mistake_gives_line_and_reason(tmp_path: Path, find: str, put: str, at: str, reason: str):
    assert find in H100
    text = H100.replace(find, put, 1)
    message = refused(tmp_path, text)
    assert reason in message
    assert message.startswith(f":{line_of(text, at)}: ")


def test_protocols_must_be_some(tmp_path: Path):
    head, tail = H100.split("      protocols:\n", 1)
    rest = tail.split("    - name: tree", 1)[1]
    assert "'protocols' is empty" in refused(tmp_path, f"{head}      protocols: []\n    - name: tree{rest}")


def test_protocols_of_nccl():
    """Each protocol has longer hops than the one before, and more of the bandwidth."""
    for name in ("a100", "h100", "h200", "b200"):
        for algorithm in load_device(name).network.algorithms:
            listed = algorithm.protocols
            assert [each.name for each in listed] in (["LL", "LL128", "Simple"], ["Simple"], [])
            for less, more in itertools.pairwise(listed):
                assert (less.intra_us, less.inter_us) < (more.intra_us, more.inter_us)
                assert less.share_intra < more.share_intra
                assert less.share_inter < more.share_inter


def test_a_peak_may_be_left_out(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(H100.replace("float64: 67, ", ""))
    assert "float64" not in load_device(str(tmp_path / "mine.yaml")).compute.peak_tflops


def test_tfloat32_needs_a_peak(tmp_path: Path):
    text = H100.replace(" tfloat32: 494.7,", "").replace("float32_matmul: float32", "float32_matmul: tfloat32")
    assert "has no peak in 'peak_tflops'" in refused(tmp_path, text)


def test_all_mistakes_at_once(tmp_path: Path):
    text = H100.replace("launch_us: 2.0", "launch_us: x").replace("gib: 80", "gib: -80").replace("name: ring", "nam: r")
    message = refused(tmp_path, text)
    lines = [line_of(text, part) for part in ("launch_us: x", "gib: -80", "- nam: r")]
    assert message.startswith(f":{lines[0]}: 'launch_us' must be")
    assert f"line {lines[1]}: 'gib' must be at least 1e-06, not -80" in message
    assert f"line {lines[2]}: unknown key 'nam' (did you mean 'name'?)" in message
    assert "and " not in message


def test_many_mistakes_are_counted(tmp_path: Path):
    message = refused(tmp_path, "\n".join(f"key{i}: 1" for i in range(100)))
    assert message.endswith("; and 81 more")


NOT_OURS = [
    (b"a: &x 1\nb: *x\n", ":1: anchors and aliases"),
    (b"a: 1\nb: *x\n", ":2: anchors and aliases"),
    (b"a: 1\nb: !!python/object/apply:os.system ['false']\n", ":2: tags are not allowed"),
    (b"a: 1\nb: 2\na: 3\n", ":3: key 'a' is given twice"),
    (b"a: 1\n---\nb: 1\n", ":2: a second document"),
    (b"a: [1\n", ":2: not YAML: "),
    (b"a: 1\n\tb: 2\n", ":2: not YAML: "),
    (b"? [a]\n: 1\n", ":1: a key must be a word"),
    (b"a: 1\nb: \xff\n", ":2: is not UTF-8"),
    (b"a: 1\nb: \x01\n", ":2: not YAML: control characters"),
    (b"[" * 100_000, ":1: nested deeper than 40 levels"),
    (b"a:\n  " + b"[" * 41 + b"]" * 41, ":2: nested deeper than 40 levels"),
    (b"", ":1: the file must be a mapping (key: value), not empty"),
    (b"- 1\n", ":1: the file must be a mapping (key: value), not a list"),
    (b"<<: {a: 1}\n", ":1: unknown key '<<'"),
]


@pytest.mark.parametrize(("content", "said"), NOT_OURS, ids=[said for _, said in NOT_OURS])
def test_files_that_are_no_plain_yaml(tmp_path: Path, content: bytes, said: str):
    message = refused(tmp_path, content)
    assert message.startswith(said) or f"line {said[1]}: {said[4:]}" in message


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="no such file"):
        load_device(str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_device(str(tmp_path / "folder.yaml"))
    with pytest.raises(InputError, match="cannot be read"):
        load_device("nul\0.yaml")
    monkeypatch.setattr(yaml_file, "MAX_BYTES", 100)
    assert "is larger than" in refused(tmp_path, H100)
    monkeypatch.setattr(yaml_file, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(yaml_file, "MAX_VALUES", 10)
    assert "more than 10 values" in refused(tmp_path, H100)


def test_scalars_are_what_the_caller_asks_for():
    file = parse_yaml("a: 1e-3\nb: 1_024\nc: no\nd: 4e6\ne: 007\nf: true\n", "x.yaml")
    fields = file.root.mapping("abcdef")
    assert fields["a"].number() == 0.001
    assert fields["b"].integer() == 1024
    assert fields["c"].text() == "no"
    assert fields["d"].integer() == 4_000_000
    assert fields["e"].text() == "007"
    assert fields["f"].flag() is True
    file.check()


def test_large_whole_numbers_stay_exact():
    file = parse_yaml(f"a: {2**63 - 1}", "x.yaml")
    assert file.root.mapping("a")["a"].integer() == 2**63 - 1


def test_what_is_missing_is_said_once():
    file = parse_yaml("a: 1", "x.yaml")
    missing = file.root.mapping({"a", "b"})["b"]
    assert (missing.number(), missing.text(), missing.items(), missing.mapping({"c"})["c"].integer()) == (0, "", [], 0)
    with pytest.raises(InputError, match=r"^x.yaml:1: the file has no 'b'$"):
        file.check()


def test_the_slow_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch):
    import yaml

    fast = load_device("h100")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert load_device("h100") == fast


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_broken_files_give_one_line(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    start = data.draw(st.integers(0, len(H100)))
    end = data.draw(st.integers(start, min(len(H100), start + 40)))
    put = data.draw(st.text(alphabet="abc01.-:[]{}&*!#'\"\n\t ,|>?%@\x00é", max_size=8))
    path = tmp_path_factory.mktemp("fuzz") / "mine.yaml"
    path.write_text(H100[:start] + put + H100[end:], encoding="utf-8")
    try:
        assert load_device(str(path)).figures()
    except InputError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)


def test_reading_is_by_path_only(tmp_path: Path):
    path = tmp_path / "plain.yaml"
    path.write_text("a: 1\n")
    assert read_yaml(path).root.entries()["a"].line == 1
