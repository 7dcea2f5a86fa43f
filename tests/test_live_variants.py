"""Graphs of one function for inputs of other sizes: ranks may not mix those that commcc has made different."""

from __future__ import annotations

import logging

from commcc.live import graph_pass
from commcc.live.variants import Variants
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from tests.test_live import sample


def test_what_launched_the_same_and_no_longer_does():
    variants, program, other = Variants(), sample(), sample("tiny_llama_ddp_fw")
    merged = run(program, parse_pipeline("bucket{groups=all}")).program
    assert variants.other(1, program, merged, trains=True) is None
    assert variants.other(2, program, merged, trains=True) is None
    assert variants.other(3, program, program, trains=False) is None  # an evaluation
    assert variants.other(4, other, other, trains=True) is None  # nothing to launch
    forward = sample("tiny_llama_fsdp2_fw")
    assert variants.other(5, forward, forward, trains=True) is None
    assert variants.other(6, program, program, trains=True) == 1


def test_it_is_a_warning(caplog):
    the_pass = graph_pass(pipeline="bucket{groups=all}")
    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        the_pass.rewrite(sample().graph_module())
        the_pass.rewrite(sample().graph_module())
        assert not caplog.text
        the_pass.passes = ()
        the_pass.rewrite(sample().graph_module())
    assert "graph 3 has the collectives of graph 1, for inputs of other sizes" in caplog.text
