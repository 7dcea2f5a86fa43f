"""A short, seeded piece of the campaign against the command line; ``tools/campaign.py`` runs as long as it is told."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter

import pytest

from commcc.base.errors import CommccError, GraphError
from commcc.cli.main import run as command_line
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.lint.ranks import agree
from commcc.lint.ranks.show import text
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.campaign import Campaign, make_seeds
from tests.campaign_damage import damaged
from tests.campaign_files import FSDP, TOKENS
from tests.campaign_verdicts import GRAPH, verdicts


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("seed", [11, 12])
def test_no_command_line_crashes(seed, seeds, tmp_path):
    campaign = Campaign(tmp_path, seed, seeds, limit=120)
    for _ in range(80):
        campaign.once()
    assert not campaign.crashes, campaign.figures()
    assert not campaign.hangs, campaign.figures()
    codes = [code for counts in campaign.codes.values() for code in counts.elements()]
    assert codes.count("0") >= 10 and codes.count("2") >= 20, campaign.figures()


def test_a_crash_is_seen(seeds, tmp_path, monkeypatch):
    """Or the campaign would prove nothing."""
    from commcc.cli.session import Session

    def broken(_session, _path):
        raise IndexError("no such thing")

    monkeypatch.setattr(Session, "load", broken)
    campaign = Campaign(tmp_path / "work", 1, seeds, keep=tmp_path / "kept")
    for _ in range(40):
        campaign.once()
    assert any("IndexError: no such thing" in problem for problem in campaign.crashes)
    assert sorted((tmp_path / "kept").iterdir())


def test_damage_comes_from_the_seed(seeds):
    for name, content in seeds.items():
        made = [damaged(random.Random(seed), name, content) for seed in (1, 1, *range(2, 8))]
        assert made[0] == made[1]
        assert len(set(made)) > 3, name
        assert any(each != content for each in made)


def test_no_wrong_verdict():
    told = verdicts(seed=3, count=120)
    assert told.wrong == []
    assert told.counts["different and differs"] >= 10 and told.counts["proved and equal"] >= 3, told.figures()


def test_a_wrong_verdict_is_seen(monkeypatch):
    from commcc.verify.verdict import Verdict

    monkeypatch.setattr("tests.campaign_verdicts.verify", lambda *_: Verdict("proved"))
    assert verdicts(seed=3, count=30).wrong


def test_ranks_of_damaged_graphs():
    """Rank agreement takes whatever can be read, and finds that a damaged rank launches something else."""
    chance = random.Random(5)
    whole = {rank: propagate(parse_text(TOKENS, "whole")) for rank in (0, 1)}
    found = Counter()
    for _ in range(300):
        text = damaged(chance, "graph.fx.txt", TOKENS.encode()).decode("utf-8", "replace")
        try:
            found[str(agree({0: whole[0], 1: propagate(parse_text(text, "damaged"))}).status)] += 1
        except CommccError:
            found["not read"] += 1
    assert found["disagree"] >= 3 and found["not decidable"] >= 10, found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("default(rows, [n, n_1]", "default(torch.ops.aten.add_.Tensor, [n, n_1]"),  # an exchange of no tensor
        ("select.int(host, 0, 1)", "select.int(u0, 0, 1)"),  # a size where a tensor belongs
    ],
)
def test_graphs_that_once_crashed(old, new):
    assert old in TOKENS
    program = propagate(parse_text(TOKENS.replace(old, new), "damaged"))
    assert text(agree({0: propagate(parse_text(TOKENS, "whole")), 1: program}))


@pytest.mark.parametrize("size", ["u0 + ~u1", "u0 + (u0 & u1)", "-(u0 < u1)", "u0 + Not(u1)"])
def test_sizes_that_are_truth_values(size):
    with contextlib.suppress(CommccError):
        parse_text(TOKENS.replace("bf16[u0 + u1, 8]", f"bf16[{size}, 8]"), "damaged")


def test_shapes_that_contradict_one_another():
    """A gather of two rows by two ranks that has eight: merging it cannot be written down."""
    graph = propagate(parse_text(FSDP.replace('primals_1: "f32[4, 8]', 'primals_1: "f32[2, 8]'), "damaged"))
    with pytest.raises(GraphError, match="shapes in the graph contradict one another"):
        run(graph, parse_pipeline("bucket{groups=all}"))


def test_merging_an_op_that_nobody_has():
    damaged_text = FSDP.replace("reduce_scatter_tensor.default(mm,", "reduce_scatter_tensor.defa5lt(mm,")
    program = propagate(parse_text(damaged_text, "damaged"))
    result = run(program, parse_pipeline("bucket{groups=all}"))
    assert result.verified == "proved" and any("communicates in an unknown way" in each for each in result.warnings)
    assert any(isinstance(node.target, OpaqueOp) for node in result.program.graph.nodes)


def test_a_reshape_to_no_elements():
    text = GRAPH.replace('view: "f32[8, 4]"', 'view: "f32[0, 4]"')
    assert text != GRAPH
    build_index(propagate(parse_text(text, "damaged")))


def test_splits_in_parts_of_nothing():
    text = GRAPH.replace("split.Tensor(add, 4)", "split.Tensor(add, 0)")
    verdict = verify(propagate(parse_text(GRAPH, "whole")), propagate(parse_text(text, "damaged")))
    assert verdict.status != "proved"


def test_limits_larger_than_any_memory(tmp_path, capsys):
    source = tmp_path / "in.fx.txt"
    source.write_text(FSDP)
    huge = "9" * 15  # GiB are 64 bits and more
    for flag in ("--max-in-flight-gb", "--memory-budget", "--max-compute-prefetch"):
        assert command_line(["reorder", str(source), flag, huge, "-o", str(tmp_path / "out.fx.txt"), "-q"]) == 0
    assert "error" not in capsys.readouterr().err


def test_reports_of_stored_plans_may_be_anything(seeds, tmp_path, capsys):
    source, plan = tmp_path / "in.fx.txt", tmp_path / "plan.yaml"
    source.write_bytes(seeds["graph_fsdp.fx.txt"])
    text = seeds["plan.yaml"].decode()
    assert re.search(r"^ *largest_span: ", text, re.MULTILINE)
    for key in ("largest_span", "closed", "knobs"):
        plan.write_text(re.sub(rf"^( *){key}: .*(\n\1 +.*)*", rf"\1{key}: nobody", text, count=1, flags=re.MULTILINE))
        code = command_line(["run", str(source), "--plan", str(plan), "-o", str(tmp_path / "out.fx.txt")])
        assert code == 0, (key, capsys.readouterr().err)


def test_a_graph_that_contradicts_itself_is_an_error_of_the_file(tmp_path, capsys):
    """No result of a pass can be right then, which is not for commcc to report as its own mistake."""
    path = tmp_path / "wrong.fx.txt"
    right = 'w: "f32[8, 8][8, 1]cuda:0"'
    assert right in FSDP
    path.write_text(FSDP.replace(right, 'w: "f32[16, 4][4, 1]cuda:0"'))
    assert command_line(["bucket", str(path), "-o", str(tmp_path / "out.fx.txt"), "--cost", "none"]) == 2
    assert "the graph contradicts itself: 'w': its val says shape [16, 4]" in capsys.readouterr().err
    assert not (tmp_path / "out.fx.txt").exists()
