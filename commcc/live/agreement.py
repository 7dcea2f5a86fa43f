"""Ranks that communicate in a graph compare what each has made of it, before it runs for the first time.

    digest = digest_of(before, after, "commcc 0.2.0, bucket,reorder, cost 8f03...")
    compare(digest, ranks=(0, 1, 2, 3), timeout_s=300.0)      # AgreementError, on every one of them

Ranks that merged or ordered collectives differently would wait for each other for ever, or exchange the wrong
tensors. They compare over the key-value store of ``torch.distributed``: no collective is launched, so that it works
where one rank compiles and another has it compiled already.

A digest holds what is the same on every rank of a program that all of them run (:mod:`commcc.graph.structure`).
Limits: graphs whose shapes differ by rank do not agree; ``agree=False`` leaves the comparison out.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from commcc.base.errors import CommccError
from commcc.graph.ops import collective_of
from commcc.graph.structure import structure_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.program import Program

_NUMBERS = itertools.count()
_PREFIX = "commcc/agreement"


class AgreementError(CommccError):
    """Ranks that have not made the same of a graph."""

    exit_code = 1


@dataclass(frozen=True)
class Digest:
    """What a rank has made of a graph. settings: in words. before, after: hashes of the graphs. launches: in AFTER."""

    settings: str
    before: str
    after: str
    launches: int

    def to_json(self) -> str:
        return json.dumps([self.settings, self.before, self.after, self.launches])

    def against(self, other: Digest) -> str:
        """The first thing that differs, in words; empty where nothing does."""
        if self.settings != other.settings:
            return f"it runs with '{other.settings}', this one with '{self.settings}'"
        if self.before != other.before:
            return "it has another graph"
        if (self.after, self.launches) != (other.after, other.launches):
            return f"it made {other.launches} launches of the same graph, or another order; this one {self.launches}"
        return ""


def digest_of(before: Program, after: Program, settings: str) -> Digest:
    """settings: version, pipeline and cost model, in words."""
    return Digest(settings, structure_of(before).fingerprint, structure_of(after).fingerprint, launches_of(after))


def launches_of(program: Program) -> int:
    """How many collectives a program launches."""
    return sum(collective_of(node.target) is not None for node in program.graph.nodes if node.op == "call_function")


def compare(digest: Digest, ranks: Sequence[int], timeout_s: float) -> None:
    """Compare with the other ranks; raises :class:`AgreementError` where they differ, or do not come in time.

    ranks: of the groups of the graph. The graphs of a process that communicate are counted; the first that one rank
    runs is compared with the first that another runs. Nothing is done without a process group, or with one of fake
    ranks.
    """
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    others = sorted(set(ranks) - {rank})
    if not others:  # a rank may evaluate something for itself
        return
    number = next(_NUMBERS)
    store.set(f"{_PREFIX}/{number}/{rank}", digest.to_json())
    for other in others:
        key = f"{_PREFIX}/{number}/{other}"
        try:
            store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as error:
            what = f"rank {other} has not come to graph {number} in {timeout_s:g} s"
            hint = "it has failed, or compiles for longer: see its log, or give agree_timeout_s"
            raise AgreementError(what, where=f"rank {rank}", hint=hint) from error
        different = digest.against(Digest(*json.loads(store.get(key))))
        if different:
            hint = "versions, options and cost models must be the same on all ranks"
            raise AgreementError(
                f"rank {other} has not made the same of graph {number}: {different}", where=f"rank {rank}", hint=hint
            )
