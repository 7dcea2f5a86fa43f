"""Ranks that communicate in a graph compare what each has made of it, before it runs for the first time.

    digest = digest_of(before, after, "commcc 0.2.0, bucket,reorder, cost 8f03...")
    compare(digest, ranks=(0, 1, 2, 3), timeout_s=300.0)      # AgreementError, on every one of them

Ranks that merged or ordered collectives differently would wait for each other for ever, or exchange the wrong
tensors. They compare over the key-value store of ``torch.distributed``: no collective is launched, so that it works
where one rank compiles and another has it compiled already. Each rank keeps a log there of its graphs and of the ranks
in each, and reads in the logs of others what they have in common with it: stages of a pipeline have other graphs.

A digest holds what is the same on every rank of a program that all of them run (:mod:`commcc.graph.structure`).
Limits: graphs whose shapes differ by rank do not agree; ``agree=False`` leaves the comparison out.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from commcc.base.errors import CommccError
from commcc.graph.ops import collective_of
from commcc.graph.structure import structure_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.graph.structure import Structure

_CALLS = itertools.count()
_PREFIX = "commcc/agreement"
#: In place of a hash, of a graph that could not be read.
UNREAD = "unread"
_HINT = "versions, options and cost models must be the same on all ranks"


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

    def to_json(self) -> list[Json]:
        return [self.settings, self.before, self.after, self.launches]

    def against(self, other: Digest) -> str:
        """The first thing that differs, in words; empty where nothing does."""
        if self.settings != other.settings:
            return f"it runs with '{other.settings}', this one with '{self.settings}'"
        if self.before != other.before:
            unread = {self.before: "this one", other.before: "it"}.get(UNREAD)
            return f"{unread} could not read the graph" if unread else "it has another graph"
        if (self.after, self.launches) != (other.after, other.launches):
            return f"it made {other.launches} launches of the same graph, or another order; this one {self.launches}"
        return ""


@dataclass
class _Log:
    """told: entries of this rank. read: entries that were read in the log of each other rank. due: how many of those
    that it has in common with this rank are not read yet. store: where the logs are; begun: ranks of which it is known
    where theirs begins there. A job that ends its process groups and begins again has another store, or the same one
    with what was told before.
    """

    told: int = 0
    read: Counter[int] = field(default_factory=Counter)
    due: Counter[int] = field(default_factory=Counter)
    store: Any = None
    begun: set[int] = field(default_factory=set)


_LOG = _Log()


def digest_of(before: Program, after: Program, settings: str, here: Structure | None = None) -> Digest:
    """settings: version, pipeline and cost model, in words. here: the structure of BEFORE, where it is known."""
    here = here or structure_of(before)
    there = here if after is before else structure_of(after)
    return Digest(settings, here.fingerprint, there.fingerprint, launches_of(after))


def launches_of(program: Program) -> int:
    """How many collectives a program launches."""
    return sum(collective_of(node.target) is not None for node in program.graph.nodes if node.op == "call_function")


def compare_all(settings: str, digests: Sequence[Digest], timeout_s: float) -> None:
    """Compare all that has been made so far with all other ranks, which call this too; as :func:`compare`.

    A graph that only some of them have made is not compared: others had it compiled in a cache, under these settings.
    """
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return
    store, rank, number = dist.distributed_c10d._get_default_store(), dist.get_rank(), next(_CALLS)
    own = {digest.before: digest for digest in digests}
    told = json.dumps([settings, [digest.to_json() for digest in own.values()]])
    store.set(f"{_PREFIX}/all/{number}/{rank}", told)
    for other in range(dist.get_world_size()):
        if other == rank:
            continue
        said, made = _wait(store, f"{_PREFIX}/all/{number}/{other}", other, "compare", timeout_s)
        theirs = [Digest(*each) for each in made]
        nothing = Digest(settings, "", "", 0).against(Digest(said, "", "", 0))
        known = (own[digest.before].against(digest) for digest in theirs if digest.before in own)
        different = nothing or next(filter(None, known), "")
        if different:
            what = f"rank {other} has not made the same: {different}"
            raise AgreementError(what, where=f"rank {rank}", hint=_HINT)


def _wait(store: Any, key: str, other: int, what: str, timeout_s: float) -> Any:
    """What another rank has stored there, read from JSON."""
    began, where = time.monotonic(), f"rank {dist.get_rank()}"
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        return json.loads(store.get(key))
    except RuntimeError as error:
        if time.monotonic() - began < 0.9 * timeout_s:
            text = f"the store of torch.distributed is gone while rank {other} was waited for"
            raise AgreementError(text, where=where, hint="the process that holds it has ended: see its log") from error
        causes = "has failed, compiles for longer (agree_timeout_s), or has inputs of other sizes (agree=False)"
        hint = f"it {causes}: see its log"
        text = f"rank {other} has not come to {what} in {timeout_s:g} s"
        raise AgreementError(text, where=where, hint=hint) from error


def _tell(others: Collection[int], said: Json) -> None:
    """Into the log of this rank, of a graph that these have in common with it. said: a digest, or a reason."""
    rank = dist.get_rank()
    with_ranks = sum(1 << other for other in others)  # a digit for four ranks, and jobs have thousands
    store = dist.distributed_c10d._get_default_store()
    if _LOG.store is not store:
        _LOG.store = store
        _LOG.due.clear()
        _LOG.begun.clear()
        store.set(f"{_PREFIX}/begin/{rank}", str(_LOG.told))
    store.set(f"{_PREFIX}/{_LOG.told}/{rank}", json.dumps([f"{with_ranks:x}", said]))
    _LOG.told += 1
    _LOG.due.update(others)


def _answer(other: int, what: str, timeout_s: float) -> Digest:
    """What another rank has made of the last graph that was told, or :class:`AgreementError`."""
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    said: Any = None
    if other not in _LOG.begun:
        begin = _wait(store, f"{_PREFIX}/begin/{other}", other, what, timeout_s)
        _LOG.read[other] = max(_LOG.read[other], begin)
        _LOG.begun.add(other)
    while _LOG.due[other]:
        with_ranks, told = _wait(store, f"{_PREFIX}/{_LOG.read[other]}/{other}", other, what, timeout_s)
        _LOG.read[other] += 1
        if int(with_ranks, 16) >> rank & 1:
            _LOG.due[other] -= 1
            said = told
    if isinstance(said, str):
        raise AgreementError(f"rank {other} does not come to {what}: {said}", where=f"rank {rank}")
    return Digest(*said)


def refuse(why: str, ranks: Sequence[int] | None = None) -> None:
    """Tell the other ranks that this one will not come to the next comparison, so that they need not wait for it.

    It counts as a comparison here, so that ranks that all refuse have counted the same. ranks: of the groups of the
    graph that it is about; all of the job without.
    """
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return
    others = set(range(dist.get_world_size()) if ranks is None else ranks) - {dist.get_rank()}
    if others:
        _tell(others, " ".join(why.split())[:500])


def compare(digest: Digest, ranks: Sequence[int], timeout_s: float, graph: str = "a graph") -> None:
    """Compare with the other ranks; raises :class:`AgreementError` where they differ, or do not come in time.

    ranks: of the groups of the graph. graph: what the log of this rank calls it, for errors. Of two ranks, the first
    graph that one runs with the other is compared with the first that the other runs with it, and so on. Nothing is
    done without a process group, or with one of fake ranks.
    """
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return
    rank = dist.get_rank()
    others = sorted(set(ranks) - {rank})
    if not others:  # a rank may evaluate something for itself
        return
    _tell(others, digest.to_json())
    for other in others:
        different = digest.against(_answer(other, graph, timeout_s))
        if different:
            what = f"rank {other} has not made the same of {graph}: {different}"
            raise AgreementError(what, where=f"rank {rank}", hint=_HINT)
