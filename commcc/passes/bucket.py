"""bucket: merges many small collectives into few large ones.

Three launches of one kind, group, reduction and dtype become one::

    ag1 = all_gather(p1)   w1 = wait(ag1)       flat = cat(p1.flatten(), p2.flatten())
    ag2 = all_gather(p2)   w2 = wait(ag2)  ->   ag = all_gather(flat)   w = wait(ag).view(W, -1)
                                                w1, w2 = w.split([n1, n2], 1), each reshaped

or, in form ``coalesced``, one call on the tensors as they are, ``ag1, ag2 = all_gather_coalesced([p1, p2])``.

Eligible are gathers of one parameter and reductions that only lead to outputs (by tag, else by
identification). Which of them share a bucket is the strategy's choice (:mod:`commcc.passes.strategies`).
Limits: members with symbolic sizes, other users than one wait, or in-place writes stay out, each
with its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from commcc.base.options import option, options_of
from commcc.base.record import left_out as only_where_known
from commcc.base.text import listed
from commcc.graph.modules import syntax_problems
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.options import to_text
from commcc.passes.strategies.pairs import prefetch_problems
from commcc.plan import Merging, PassReport, Plan
from commcc.planning.bucket_model import AUTO, COPY, FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from commcc.base.record import Record
    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.passes.strategies.results import BucketResult

#: The form that a strategy has by itself.
_OWN = "own"
#: Modules of the strategies; the first one is the default.
STRATEGIES = {
    "greedy": "commcc.passes.strategies.greedy",
    "overlap": "commcc.passes.strategies.overlap",
    "auto": "commcc.passes.strategies.auto",
    "module": "commcc.passes.strategies.module",
}


@dataclass(frozen=True)
class BucketReport(PassReport):
    """own: the strategy's account, whose keys stand among the others. copies: results copied out; shared_casts:
    casts merged; reordered_buckets: those not in graph order; left_out: collectives by kind and reason. coalesced:
    buckets that are one call of several launches.
    """

    strategy: str
    primary_group: str | None
    buckets: int
    members: int
    by_kind: Mapping[str, Mapping[str, int]]
    own: Record
    copies: int
    shared_casts: int
    reordered_buckets: int
    left_out: Mapping[str, int]
    remarks: tuple[str, ...]
    coalesced: int | None = only_where_known()

    def to_json(self) -> dict[str, Json]:
        """See :class:`commcc.base.record.Record`."""
        return {
            key: value
            for name, part in super().to_json().items()
            for key, value in (self.own.to_json() if name == "own" else {name: part}).items()
        }


@dataclass(frozen=True)
class Bucket(Pass):
    """Options of all strategies; those that belong to some only say so."""

    name: ClassVar[str] = "bucket"
    summary: ClassVar[str] = "merge collectives of one kind, group, reduction and dtype"

    strategy: str = option("greedy", "how buckets are formed", choices=tuple(STRATEGIES))
    bucket_cap_mb: str | float | tuple[float, ...] | None = option(
        200.0,
        "MiB in one bucket, the larger of input and output counted; a list 10:25 gives caps by bucket number; auto is, "
        "for each kind and group, where its bandwidth saturates by the cost model",
        minimum=0,
        choices=("auto",),
        none="no limit",
        strategies=("greedy", "overlap"),
    )
    max_topo_span: int | None = option(
        1500,
        "nodes between the first and the last member, in the graph before the pass",
        minimum=0,
        none="no limit, only bytes count",
        strategies=("greedy", "overlap", "auto"),
    )
    max_consecutive: int | None = option(
        None,
        "longest run of compute nodes between reduce-scatters that merging may make",
        minimum=1,
        none="no limit",
        strategies=("greedy",),
    )
    modules: str | tuple[str, ...] = option(
        "transformer_block",
        "what gets a bucket of its own: paths, patterns layers.[0-5] and layers.*, several together norm+output; "
        "transformer_block finds the repeated blocks",
        choices=("transformer_block",),
        strategies=("module",),
    )
    prefetch: str | tuple[str, ...] | None = option(
        "next",
        "modules to gather for before a module's own gather is waited for: next, a number of them, or pairs "
        "layers.0=layers.1:layers.1=layers.2; results of reductions are waited for after the next module's launch",
        choices=("next",),
        none="buckets stay where they are",
        strategies=("module",),
    )
    strict: bool = option(False, "refuse a graph with collectives that no entry covers", strategies=("module",))
    include_all_reduce: bool = option(False, "merge all-reduces of gradients too", strategies=("module",))
    groups: str | tuple[str, ...] = option(
        "auto",
        "groups that take part: primary, all, or names a:b; auto is primary with greedy, else all",
        choices=("auto", "primary", "all"),
    )
    form: str = option(
        _OWN,
        "copy puts members side by side in one tensor, with a copy in and a copy out; coalesced is one call that "
        "launches every member by itself, without copies; auto is what takes less by the cost model; own is auto with "
        "strategy auto, else copy",
        choices=(_OWN, *FORMS),
    )
    multi_dtype: bool = option(False, "let all-gathers of several dtypes share a bucket; form copy sends them as bytes")
    param_order: bool = option(False, "concatenate in order of parameters and outputs instead of graph order")

    hiding: str | None = option(
        None,
        "YAML file that says which nodes hide which collective",
        none="as in the graph's order, simulated",
        strategies=("overlap",),
    )
    exposed_first: bool = option(True, "form buckets of exposed collectives first, not last", strategies=("overlap",))
    memory_budget: str | float | None = budget_option("peak memory", strategies=("overlap", "auto", "module"))
    effort: int = option(
        16,
        "bucketings to try; as many again where both forms are tried, of unequal sizes 2 or 16 times as many, and "
        "4 times for each further stream",
        minimum=1,
        strategies=("auto",),
    )

    def problems(self) -> Iterator[str]:
        """Options that the chosen strategy does not have, and texts that no graph could give a meaning."""
        yield from syntax_problems(self.modules_given)
        yield from prefetch_problems(self.prefetch)
        for name, declared in options_of(type(self)).items():
            having = declared.strategies
            if having and self.strategy not in having and getattr(self, name) != declared.default:
                yield f"{name} is an option of strategy {listed(having, None)}, not of {self.strategy}"

    @property
    def modules_given(self) -> tuple[str, ...]:
        """Entries as texts."""
        return (self.modules,) if isinstance(self.modules, str) else self.modules

    @property
    def groups_given(self) -> str | tuple[str, ...]:
        """Groups, with what ``auto`` stands for."""
        if self.groups != "auto":
            return self.groups
        return "primary" if self.strategy == "greedy" else "all"

    @property
    def form_given(self) -> str:
        """Form, with what ``own`` stands for."""
        if self.form != _OWN:
            return self.form
        return AUTO if self.strategy == "auto" else COPY

    def plan(self, context: PlanContext) -> Plan:
        """Buckets as the strategy forms them."""
        index, ident = context.index, context.ident
        form: Callable[[Bucket, PlanContext], BucketResult] = import_module(STRATEGIES[self.strategy]).form
        result = form(self, context)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Merging(result.buckets, result.moves, result.before),
            left_out=tuple(sorted(result.left_out, key=lambda entry: entry.launch)),
            report=self._report(index, ident, result),
        )

    def _report(self, index: GraphIndex, ident: Identification, result: BucketResult) -> BucketReport:
        buckets = result.buckets
        remarks = [*result.remarks]
        if self.groups_given == "primary" and ident.primary is None and ident.collectives:
            remarks.insert(0, "no group gathers parameters, so none is primary; name groups or use groups=all")
        left_out = Counter(f"{index.launches[entry.launch].kind}: {entry.reason.general}" for entry in result.left_out)
        by_kind: dict[str, dict[str, int]] = {}
        for bucket in buckets:
            counts = by_kind.setdefault(bucket.kind.value, {"buckets": 0, "members": 0})
            counts["buckets"] += 1
            counts["members"] += len(bucket.members)
        return BucketReport(
            strategy=self.strategy,
            primary_group=ident.primary,
            buckets=len(buckets),
            members=sum(len(b.members) for b in buckets),
            by_kind=by_kind,
            own=result.report,
            copies=sum(sum(b.copies) for b in buckets),
            shared_casts=sum(len(b.members) for b in buckets if b.shared_cast),
            reordered_buckets=sum(list(b.members) != sorted(b.members) for b in buckets),
            left_out=dict(sorted(left_out.items())),
            remarks=tuple(remarks),
            coalesced=sum(b.coalesced for b in buckets) or None,
        )
