"""Ranks that have not been given the same plans refuse, all of them and at once: who fails tells those that wait."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from commcc.base.errors import InputError
from commcc.capture.request import Request, capture
from commcc.live import agreement, graph_pass
from commcc.live.agreement import AgreementError, compare, digest_of
from commcc.live.backends import backend
from commcc.live.plans import MismatchError
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests import live_models
from tests.test_live import PIPELINE, sample, train
from tests.torch_passes import groups_of


def test_who_waits_is_told_that_a_rank_does_not_come(store, monkeypatch):
    """As is one for which the store is gone; what concerns nobody else is not told."""
    digest = digest_of(sample(), sample(), "s")
    agreement.refuse("of no\n other rank", (1,))
    with pytest.raises(InputError, match="nowhere"):
        backend(plan="nowhere")
    told = json.loads(store.get("commcc/agreement/0/1"))
    assert told[0] == "1" and "nowhere" in told[1]
    with pytest.raises(InputError, match="nowhere"):
        backend(plan="nowhere", agree=False)
    agreement.refuse("a\n reason", (0, 1))
    store.set("commcc/agreement/0/0", json.dumps(["2", "another reason"]))  # neither of the two came
    store.set("commcc/agreement/1/0", json.dumps(["4", "for others"]))
    store.set("commcc/agreement/2/0", json.dumps(["2", "of the second"]))
    store.set("commcc/agreement/3/0", json.dumps(["6", "a reason"]))
    with pytest.raises(AgreementError, match=r"rank 1: rank 0 does not come to graph 2: a reason"):
        compare(digest, (0, 1), 5.0, "graph 2")

    def gone(*_):
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(type(store), "wait", gone)
    with pytest.raises(AgreementError, match=r"the store of torch\.distributed is gone while rank 0 was waited for"):
        compare(digest, (0, 1), 5.0)


def test_stages_of_a_pipeline_have_other_graphs(store):
    """Rank 0 has two graphs with rank 2, before and between those that both have; this rank has one with rank 3."""
    common, last, other = (digest_of(sample(), sample(), words) for words in ("common", "last", "other"))
    for number, (to, digest) in enumerate([("4", other), ("2", common), ("4", other), ("6", last)]):
        store.set(f"commcc/agreement/{number}/0", json.dumps([to, digest.to_json()]))
    compare(common, (0, 1), 5.0)
    store.set("commcc/agreement/0/3", json.dumps(["2", other.to_json()]))
    compare(other, (1, 3), 5.0)
    store.set("commcc/agreement/0/2", json.dumps(["3", last.to_json()]))
    compare(last, (0, 1, 2), 5.0)


def test_a_job_that_ends_its_groups_and_begins_again(store, monkeypatch):
    """What rank 0 told another one before is in the old store, and was never read here; its log goes on in the new."""
    common, last = (digest_of(sample(), sample(), words) for words in ("common", "last"))
    for number, (to, digest) in enumerate([("2", common), ("4", common), ("4", last)]):
        store.set(f"commcc/agreement/{number}/0", json.dumps([to, digest.to_json()]))
    compare(common, (0, 1), 5.0)
    again = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: again)
    again.set("commcc/agreement/begin/0", "3")
    again.set("commcc/agreement/3/0", json.dumps(["2", last.to_json()]))
    compare(last, (0, 1), 5.0)
    assert again.get("commcc/agreement/begin/1") == b"1"
    assert json.loads(again.get("commcc/agreement/1/1"))[1] == last.to_json()


def test_a_graph_that_is_refused_is_told(request, tmp_path):
    """By a backend whose ranks compare. The store comes last: PyTorch asks for more where a job seems to run."""
    (tmp_path / "plan.yaml").write_text(plan_text(run(sample(), parse_pipeline("bucket{groups=all}"))))
    the_pass = graph_pass(plan=tmp_path)
    other = sample("tiny_llama_ddp_bw")
    with groups_of(other):
        store = request.getfixturevalue("store")
        for agrees in (False, True):
            the_pass.agrees = agrees
            with pytest.raises(MismatchError):
                the_pass.rewrite(other.graph_module())
            assert store.check(["commcc/agreement/0/1"]) is agrees
    assert "no plan was made for this graph" in json.loads(store.get("commcc/agreement/0/1"))[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Plans of a captured model: for 2 ranks by two pipelines, for 4 ranks, by another version, and cut off."""
    folder = tmp_path_factory.mktemp("folders")
    for name, ranks, passes in (("two", 2, PIPELINE), ("other", 2, "bucket{groups=all}"), ("four", 4, PIPELINE)):
        graphs = folder / f"graphs{ranks}"
        if not graphs.exists():
            kinds = ("forward", "backward")
            capture(Request(f"{live_models.__file__}:build", (("dp", ranks),), str(graphs), "aot", kinds))
        (folder / name).mkdir()
        for number, file in enumerate(sorted(graphs.iterdir())):
            plan = plan_text(run(load(file), parse_pipeline(passes), model=load_model("h100")))
            (folder / name / f"{number}.yaml").write_text(plan)
    for name in ("newer", "damaged"):
        shutil.copytree(folder / "two", folder / name)
    for path in (folder / "newer").iterdir():
        path.write_text(path.read_text().replace("commcc: 0.2.0", "commcc: 9.9.9"))
    (folder / "damaged" / "1.yaml").write_bytes((folder / "two" / "1.yaml").read_bytes()[:900] + b"\xff\x00")
    return folder


#: Plans of rank 0 and rank 1, and what each of them says.
DIFFERENT = (
    (
        "two",
        "other",
        "rank 0: rank 1 has not made the same of graph 1: it runs",
        "rank 1: rank 0 has not made the same",
    ),
    (
        "other",
        "newer",
        "rank 0: rank 1 has not made the same of graph 1: it runs",
        "rank 1: rank 0 has not made the s",
    ),
    ("two", "absent", "rank 0: rank 1 does not come to graph 1: .*absent: no such file", "absent: no such file"),
    ("damaged", "two", r"damaged.1.yaml", r"rank 1: rank 0 does not come to graph 1: .*damaged.1.yaml"),
    ("two", "four", "rank 0: rank 1 does not come to graph 1: .*no plan was made", "have 4 ranks, those of the job 2"),
    ("four", "four", *2 * ("no plan was made for this graph .*; its groups have 4 ranks, those of the job 2; ",)),
)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_ranks_with_different_plans_refuse_at_once(folders, tmp_path):
    """One line each, no rank waits, and what all have counted stays the same: plans that fit train at the end."""
    pairs = [("two", "two"), *((first, second) for first, second, *_ in DIFFERENT), ("newer", "newer")]
    jobs = [
        {
            "model": "fsdp", "inner": "aot_eager", "refused": True, "options": {"plan": str(folders / first)},
            "rank1": {"options": {"plan": str(folders / second)}},
        }
        for first, second in pairs
    ]  # fmt: skip
    found = [*zip(*train(jobs, tmp_path), strict=True)]
    assert [[rank["error"] for rank in job] for job in (found[0], found[-1])] == 2 * [["", ""]]
    for job, (*_, first, second) in zip(found[1:-1], DIFFERENT, strict=True):
        for rank, words in zip(job, (first, second), strict=True):
            assert re.search(words, rank["error"]) and "\n" not in rank["error"], (rank, words)
            assert rank["seconds"] < 60, rank  # of 100 s in which a rank may come
