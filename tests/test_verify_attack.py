"""The verifier under attack: random graphs with random edits, both run; what is called proved leaves the same."""

from __future__ import annotations

import logging
import runpy
import sys
import warnings
from pathlib import Path

import pytest

from tests.effort import FULL

ROOT = Path(__file__).parents[1]
PAIRS = 40


@pytest.fixture(scope="module")
def tool():
    sys.modules["attack_verify"] = module = type(sys)("attack_verify")  # dataclasses look their module up
    module.__dict__.update(runpy.run_path(str(ROOT / "tools" / "attack_verify.py"), run_name="attack_verify"))
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(40 if FULL else 2))
def test_no_wrong_pair_is_proved(tool, block):
    warnings.filterwarnings("ignore")
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        found = [tool.attack(seed, (), 3) for seed in range(PAIRS * block, PAIRS * (block + 1))]
    finally:
        logging.disable(before)
    tried = [pair for pair in found if pair is not None]
    assert len(tried) > PAIRS // 2
    assert [(pair.seed, pair.kinds) for pair in tried if pair.wrong] == []
    assert {pair.verdict.status for pair in tried} >= {"proved", "different"}


def test_a_wrong_proof_would_be_seen(tool, monkeypatch):
    """The harness with a verifier that believes everything."""
    import commcc.verify
    from commcc.verify import Verdict

    monkeypatch.setattr(commcc.verify, "verify", lambda _before, _after: Verdict("proved"))
    logging.disable(logging.CRITICAL)
    try:
        found = [tool.attack(seed, ("operand", "write"), 1) for seed in range(20)]
    finally:
        logging.disable(logging.NOTSET)
    assert any(pair is not None and pair.wrong for pair in found)
