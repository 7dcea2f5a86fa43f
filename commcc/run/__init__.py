"""Runs of passes: pipelines and their written forms, plan files, provenance, sweeps."""

from __future__ import annotations

from commcc.base.callables import also_a_function

also_a_function(__name__, "commcc.api")
