"""Settings of the gate: what files and flags may say, which layer wins, and mistakes, all at once with their lines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from commcc.base.errors import CommccError, InputError, OptionError
from commcc.cli.config import find_config
from commcc.cli.config.reading import read_lint_settings
from commcc.lint.quantities import BYTES, COUNT, SHARE, TIME
from commcc.lint.reading import check_ids, layers_of
from commcc.lint.registry import BY_ID, RULES
from commcc.lint.settings import Chosen, Layer, Settings
from commcc.lint.tolerance import Tolerance
from commcc.lint.types import Severity
from tests.effort import examples

GIB = 1 << 30
FILE = """\
baseline: baselines/lint.yaml
graphs: [dumps, extra/bw.fx.txt.gz]
rules:
  wait-after-launch: off
  small-collective: {severity: error, below: 64 KiB, least: 4}
  peak-memory: {max: 60 GiB}
  exposed-communication: {max: 12.5 ms, max_share: 20 %}
  collective-count: {max: {all_gather: 100, fsdp: 1_000, all_gather/fsdp: 90}}
  collective-bytes: {max: 30 GB}
  max-consecutive-compute: {max: 12}
  module-plan: {modules: ["layers.*", norm+output]}
  baseline-regression: {tolerance: {default: 2 %, collectives: 5, step_ms: 250 us, hidden_share: 1 %, nodes: 3}}
overrides:
- paths: "*_moe_*"
  rules:
    peak-memory: {max: 70 GiB}
    collective-count: {max: {all_gather: none, total: 2000}}
- paths: [dumps/special.*, other.pt2]
  rules: {peak-memory: {severity: warning, max: none}, wait-after-launch: info}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str, name: str = "lint.yaml") -> Settings:
    (folder / name).write_text(text)
    return read_lint_settings(str(folder / name))


def test_a_file_says_severities_limits_and_paths(folder):
    settings = written(folder, FILE)
    assert (settings.graphs, settings.baseline) == (("dumps", "extra/bw.fx.txt.gz"), "baselines/lint.yaml")
    chosen = settings.of("dumps/bw.fx.txt.gz")
    assert chosen.severity["wait-after-launch"] is Severity.OFF
    assert chosen.severity["small-collective"] is Severity.ERROR
    assert chosen.severity["use-before-wait"] is Severity.ERROR
    assert (chosen.options["small-collective"].below, chosen.options["small-collective"].least) == (65536, 4)
    assert chosen.options["peak-memory"].max == 60 * GIB
    exposed = chosen.options["exposed-communication"]
    assert (exposed.max, exposed.max_share, exposed.max_of_step) == (12_500_000, 0.2, None)
    assert chosen.options["collective-count"].max == {"all_gather": 100, "fsdp": 1000, "all_gather/fsdp": 90}
    assert chosen.options["collective-bytes"].max == {"total": 30 * 10**9}
    assert chosen.options["max-consecutive-compute"].max == {"reduce_scatter": 12}
    assert chosen.options["module-plan"].modules == ("layers.*", "norm+output")
    assert chosen.options["baseline-regression"].tolerance == {
        "default": Tolerance(relative=0.02),
        "collectives": Tolerance(absolute=5),
        "step_ms": Tolerance(absolute=0.25),
        "hidden_share": Tolerance(absolute=0.01),
        "nodes": Tolerance(absolute=3),
    }


def test_overrides_by_path_win_key_by_key(folder):
    settings = written(folder, FILE)
    moe = settings.of("dumps/a_moe_b.fx.txt")
    assert moe.options["peak-memory"].max == 70 * GIB
    assert moe.options["collective-count"].max == {"fsdp": 1000, "all_gather/fsdp": 90, "total": 2000}
    both = settings.of("dumps/special.a_moe_b.pt2")
    assert both.options["peak-memory"].max is None and both.severity["peak-memory"] is Severity.WARNING
    assert BY_ID["peak-memory"].idle(both.options["peak-memory"])
    assert both.severity["wait-after-launch"] is Severity.INFO


@pytest.mark.parametrize(
    ("pattern", "graph", "fits"),
    [
        ("*.pt2", "a/b/c.pt2", True),
        ("c.pt2", "a/b/c.pt2", True),
        ("b/c.pt2", "a/b/c.pt2", False),
        ("*/c.pt2", "a/b/c.pt2", True),
        ("a/b/*", "a/b/c.pt2", True),
        ("run.log::*aot_backward*", "logs/run.log::0_0/aot_backward_graph", False),
        ("*run.log::*aot_backward*", "logs/run.log::0_0/aot_backward_graph", True),
    ],
)
def test_patterns(pattern, graph, fits, folder):
    layer = Layer({"step-time": Chosen(Severity.OFF)}, (pattern,))
    chosen = Settings((layer,), file=str(folder / "lint.yaml")).of(graph)
    assert (chosen.severity["step-time"] is Severity.OFF) == fits


def test_patterns_are_also_relative_to_the_file(folder, monkeypatch):
    settings = written(folder, "overrides:\n- {paths: sub/x.pt2, rules: {step-time: off}}\n")
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    assert settings.of("x.pt2").severity["step-time"] is Severity.OFF
    assert settings.of(str(folder / "sub" / "x.pt2")).severity["step-time"] is Severity.OFF
    assert settings.of("y.pt2").severity["step-time"] is Severity.ERROR


def test_all_mistakes_of_a_file_at_once(folder):
    with pytest.raises(InputError) as caught:
        written(
            folder,
            "baselin: x.yaml\n"
            "rules:\n"
            "  peak-memroy: {max: 1 GiB}\n"
            "  peak-memory: {mx: 1 GiB}\n"
            "  step-time: {max: 12}\n"
            "  small-collective: {below: 3 kg, least: 1.5, severity: fatal}\n"
            "  collective-count: {max: {all_gathr: 3, total: -1}}\n"
            "  wait-after-launch: warn\n"
            '  module-plan: {modules: "layers.[5-1]"}\n'
            "  baseline-regression: {tolerance: {step: 1 %, default: 3, peak_bytes: 1 ms}}\n"
            "overrides:\n"
            "- {rules: {}}\n"
            "- paths: []\n"
            "  rules: [step-time]\n",
        )
    said = str(caught.value)
    assert said.startswith(str(folder / "lint.yaml:1: unknown key 'baselin' (did you mean 'baseline'?)"))
    for part in (
        "line 3: no rule 'peak-memroy' (did you mean 'peak-memory'?)",
        "line 4: unknown key 'mx' (did you mean 'max'?)",
        "line 5: 'max' must be a time such as 12.5 ms, not '12': no unit (use ns, us",
        "line 6: 'below' must be a size such as 25 MiB, not '3 kg': unknown unit 'kg'",
        "line 6: 'least' must be a whole number, not '1.5'",
        "line 6: 'severity' 'fatal' is not known (use error, warning, info, off)",
        "line 7: 'max' has no 'all_gathr' (did you mean 'all_gather'?)",
        "line 7: 'total' must be a whole number, not '-1'",
        "line 8: 'wait-after-launch' 'warn' is not known (did you mean 'warning'?)",
        "line 9: 'modules': 'layers.[5-1]' has a range that ends before it begins",
        "line 10: 'tolerance' has no 'step' (did you mean 'step_ms'?)",
        "line 10: 'default' must be a percentage such as 2 %, not '3'",
        "line 10: 'peak_bytes' must be a size such as 25 MiB, not '1 ms'",
        "line 12: 'overrides' has no 'paths'",
        "line 13: 'paths' names nothing",
        "line 14: 'rules' must be a mapping (key: value), not a list",
    ):
        assert part in said, (part, said)


@pytest.mark.parametrize("text", ["", "rules:", "rules: {}\noverrides: []\n", "# nothing\n"])
def test_an_empty_file_is_no_mistake(text, folder):
    assert written(folder, text).of("x").severity == {rule.id: rule.severity for rule in RULES}


def test_the_projects_configuration(folder, monkeypatch):
    body = "cost: a100\nlint:\n  baseline: sub/b.yaml\n  rules: {step-time: {max: 3 ms}}\n"
    (folder / "commcc.yaml").write_text(body)
    inner = folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    config = find_config(inner)
    assert config is not None and config.lint is not None
    assert config.lint.of("x").options["step-time"].max == 3_000_000
    assert Path(config.lint.baseline or "") == folder / "sub" / "b.yaml"
    assert read_lint_settings("../commcc.yaml").of("x").options["step-time"].max == 3_000_000


def test_toml_says_the_same(folder):
    (folder / "pyproject.toml").write_text(
        '[tool.commcc.lint]\nbaseline = "b.json"\n[tool.commcc.lint.rules]\nwait-after-launch = "off"\n'
        'collective-count = {max = {all_gather = 5}}\n[[tool.commcc.lint.overrides]]\npaths = "*"\n'
        '[tool.commcc.lint.overrides.rules]\npeak-memory = {max = "1 GiB"}\n'
    )
    config = find_config(folder)
    assert config is not None and config.lint is not None
    chosen = config.lint.of("x")
    assert chosen.severity["wait-after-launch"] is Severity.OFF
    assert chosen.options["collective-count"].max == {"all_gather": 5}
    assert chosen.options["peak-memory"].max == GIB


def test_mistakes_in_the_projects_configuration_are_among_its_others(folder):
    (folder / "commcc.yaml").write_text("preset: nonsense\nlint:\n  rules: {step-tim: off}\n")
    with pytest.raises(InputError) as caught:
        find_config(folder)
    assert "nonsense" in str(caught.value) and "line 3: no rule 'step-tim' (did you mean" in str(caught.value)


def test_flags_are_layers(folder):
    texts = ["step-time=warning", "peak-memory.max=2GiB", "collective-count.max.all_gather=7", "collective-count.max=9"]
    tolerance = "baseline-regression.tolerance.collectives.all_gather=5 %"
    chosen = Settings(layers_of([*texts, tolerance, "module-plan.modules=layers.*,norm"])).of("x")
    assert chosen.severity["step-time"] is Severity.WARNING
    assert chosen.options["peak-memory"].max == 2 * GIB
    assert chosen.options["collective-count"].max == {"all_gather": 7, "total": 9}
    assert chosen.options["baseline-regression"].tolerance == {"collectives.all_gather": Tolerance(relative=0.05)}
    assert chosen.options["module-plan"].modules == ("layers.*", "norm")


def test_all_wrong_flags_at_once():
    with pytest.raises(OptionError) as caught:
        layers_of(["step-tim=off", "step-time", "step-time=loud", "step-time.max=5", "step-time.mix=5ms"])
    said = str(caught.value)
    for part in ("no rule 'step-tim'", "'step-time' is not ID=", "'loud' is not known", "no unit", "unknown key 'mix'"):
        assert part in said, said
    with pytest.raises(OptionError, match=r"no rule 'a'.*no rule 'step-tme' \(did you mean 'step-time'"):
        check_ids(["a,step-tme", "step-time"], "--only")


def test_only_and_ignore():
    off = Layer({"step-time": Chosen(Severity.OFF), "peak-memory": Chosen(Severity.INFO)})
    chosen = Settings((off,), only=frozenset({"step-time", "peak-memory"})).of("x")
    running = {rule for rule, severity in chosen.severity.items() if severity is not Severity.OFF}
    assert running == {"step-time", "peak-memory"}
    assert chosen.severity["peak-memory"] is Severity.INFO  # and what is asked for by name runs although it is off
    ignoring = Settings((), ignore=frozenset({"step-time"})).of("x").severity
    assert [rule for rule, severity in ignoring.items() if severity is Severity.OFF] == ["step-time"]


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (BYTES, "25 MiB", 25 << 20),
        (BYTES, "1.5GiB", 3 << 29),
        (BYTES, "1_000 B", 1000),
        (BYTES, "0", 0),
        (TIME, "0", 0),
        (BYTES, "2 kb", 2000),
        (TIME, "1.5 ms", 1_500_000),
        (TIME, "3us", 3_000),
        (TIME, "3 \u00b5s", 3_000),
        (TIME, "2 s", 2_000_000_000),
        (SHARE, "20 %", 0.2),
        (SHARE, "0.25", 0.25),
        (COUNT, "1e3", 1000),
    ],
)
def test_figures(quantity, text, value):
    assert quantity.parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        *((BYTES, text) for text in ("-1", "GiB", "1 ms", "1..2", "", "5", "1_000")),
        *((TIME, text) for text in ("1", "1e999 s", "1 MiB")),
        *((COUNT, text) for text in ("1.5", "1 %", "1 B")),
        *((SHARE, text) for text in ("x", "20", "1.5")),
    ],
)
def test_no_figures(quantity, text):
    with pytest.raises(ValueError, match="must be"):
        quantity.parse(text)


@given(st.sampled_from([BYTES, TIME, SHARE, COUNT]), st.integers(0, 1 << 50))
def test_what_is_shown_can_be_read_again(quantity, value):
    """To the digits that are shown: one behind the point of a size, microseconds of a time."""
    assert abs(quantity.parse(quantity.show(value).replace(",", "")) - value) <= max(0.05 * value, 500)


@hypothesis_settings(max_examples=examples(150), deadline=None)
@given(st.text(alphabet="rules:-{}[]max \n\"'%GiB0123456789off&*!severitypathstep.", max_size=200))
def test_no_text_makes_anything_but_settings_or_an_input_error(text):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "l.yaml"
        path.write_text(text)
        with suppress(CommccError):
            read_lint_settings(str(path)).of("x")
