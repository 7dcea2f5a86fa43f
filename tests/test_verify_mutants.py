"""Every kind of damage to results of passes is found, and no correct result is refused.

``benchmarks/verify_mutations.py`` does the same over all samples, and prints the table.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost.model import load_model
from commcc.verify import verify
from tests.corruptions import copied
from tests.step_graphs import sample
from tests.verify_graphs import texts
from tests.verify_mutants import KINDS

RESULTS = [
    ("tiny_llama_fsdp2_bw", "bucket"),
    ("tiny_llama_fsdp2_tp2_fw", "bucket{groups=all},reorder"),
    ("tiny_llama_ddp_bw", "bucket{groups=all}"),
    ("tiny_llama_hsdp_fw", "bucket{strategy=module,modules=layers.*}"),
    ("tiny_moe_ep2_fw", "bucket{strategy=auto},reorder"),
    ("tiny_moe_ep2_fw", "groups,reorder,cleanup"),
    ("tiny_llama_fsdp4_fw", "reorder,bucket{strategy=overlap}"),
    ("tiny_moe_fsdp4_ep2_bw", "tag,dedup,bucket{groups=all},reorder"),
]
#: What no sample has on offer: a reduction of sizes that differ, a tensor that is written and read.
ELSEWHERE = {"lost write", "late write"}

#: The same launch twice brings the same; no result depends on a check of sizes, and its loss is a remark.
HARMLESS = {"doubled launch": "unproved", "lost check": "proved"}


def damaged(name, passes, program):
    """Each damage that the result offers, twice: pairs of its kind and the damaged program."""
    for kind, damage in KINDS.items():
        for number in (1, 2):
            graph = copied(program.graph)
            if damage(graph, random.Random(f"{name} {passes} {kind} {number}")):
                yield kind, replace(program, graph=graph)


def result(name, passes):
    return run(sample(name), parse_pipeline(passes), model=load_model("h100")).program


@pytest.mark.full
@pytest.mark.parametrize(("name", "passes"), RESULTS)
def test_damage_is_found(name, passes):
    before, after = sample(name), result(name, passes)
    verdict = verify(before, after)
    assert verdict.status == "proved", texts(verdict)
    tried = undecided = 0
    for kind, program in damaged(name, passes, after):
        tried += 1
        verdict = verify(before, program)
        if verdict.status != HARMLESS.get(kind, "different"):  # which node is damaged is drawn, and so is what reads it
            assert verdict.status == "unproved" and "not decided" in texts(verdict), kind
            undecided += 1
    assert tried >= 24 and undecided <= 1


@pytest.mark.full
def test_every_kind_of_damage_is_tried():
    tried = {kind for name, passes in RESULTS for kind, _ in damaged(name, passes, result(name, passes))}
    assert set(KINDS) - tried <= ELSEWHERE
