"""cleanup: removes nodes that nothing needs, and metadata that nothing reads.

    t = t(w)              nobody uses t     ->    (gone)
    ag = all_gather(p)    v = wait(ag)            (stays, though nobody here uses its result)

A collective stays: other ranks may use what they receive, and wait for this one. Graphs differ by rank where the model
looks at the rank; in causal ring attention the first rank needs nothing of what it receives. PyTorch's own passes keep
such collectives too. In a group of one rank they go.

A node is needed by an output, by a write to memory, by random numbers (leaving one out changes
those drawn after it), by asserts, prints, host syncs and effect tokens, or by another node that is needed. The
waits of a launch that stays are needed. Inputs stay. Ops that commcc does not know, and higher-order ops, stay.

Of the metadata goes what tracers leave behind for themselves (``original_aten``, ``source_fn_stack``,
``from_node``, ``tensor_meta`` and the like, DTensor's ``sharding``); with ``metadata=all`` everything goes that
neither commcc nor ``torch.export`` nor PyTorch's compiler is known to read: values, tags, descriptors, module
paths, annotations (expert parallelism, chunks, phases) are kept.

A wait for what a wait has returned goes: there is nothing left to wait for.

With ``views`` nodes go that show all of another tensor as it is, under the same shape and strides: detach, alias, and
views that change nothing. What the graph returns stays, and so does what belongs to a chunk or shows a collective that
is in flight, and in exported programs, which may yet be trained, what keeps a gradient from its operand.

Limits: constants and process groups that nobody refers to any more stay in the program.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import left_out
from commcc.graph.annotations import REGION
from commcc.graph.ops.collective_table import WAIT
from commcc.graph.ops.views import DETACH, SHOWING
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import Dead, PassReport, Plan, Removal, Same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program

#: What tracers, DTensor and the partitioner note for themselves; all of it is derived or private.
TRACING = frozenset(
    {
        *("tensor_meta", "example_value", "eager_input_vals", "grapharg", "dynamo_source", "original_aten"),
        *("from_node", "source_fn_stack", "fwd_source_fn_stack", "torch_fn", "output_stack_traces"),
        *("mutation_region_id", "sharding", "tensor_dict", "concrete_value"),
    }
)
#: What commcc, its readers and writers, torch.export, PyTorch's compiler and annotations of chunks and phases need.
NEEDED = frozenset(
    {
        *("val", "commcc", "desc", "unbacked_bindings"),
        *("custom", "nn_module_stack", "fwd_nn_module_stack", "stack_trace", "seq_nr"),
        *("autograd_backward", "partitioner_tag", "recompute", "ac_graph_id", "is_gradient_acc"),
        *("fsdp_bucket", "torchtitan_chunk_symbol_hints", "chunk_id", "chunked_region_fqn", "chunked_region_role"),
        *("chunked_region_is_backward", "chunked_region_producer", "chunked_original_name"),
        *("chunked_materialization_proof", "user_visible_output_idxs", "original_output_strides", "should_fallback"),
        *("inductor_realize_to_strides", "low_precision_pointwise_barrier", "dislike_padding", "has_backward_hook"),
        *("saved_for_offloading", "must_be_in_forward", "must_be_in_backward", "nested_region_config"),
    }
)


@dataclass(frozen=True)
class CleanupReport(PassReport):
    """Numbers of nodes: removed, those of them that launch collectives, by op, and that held a key of metadata."""

    nodes_removed: int
    collectives_removed: int
    ops_removed: Mapping[str, int]
    metadata_dropped: Mapping[str, int]
    views_removed: int | None = left_out()
    waits_removed: int | None = left_out()


@dataclass(frozen=True)
class Cleanup(Pass):
    """What to remove; see the module docstring."""

    name: ClassVar[str] = "cleanup"
    summary: ClassVar[str] = "remove nodes that nothing needs and metadata that nothing reads"

    dead: bool = option(True, "remove nodes without effect that nothing needs")
    metadata: str = option(
        "tracing",
        "metadata to drop: tracing (what tracers leave behind for themselves), all (whatever nothing is known to "
        "need), or keep it",
        choices=("tracing", "all", "keep"),
    )
    views: bool = option(False, "remove views that show all of a tensor as it is")
    stack_traces: bool = option(True, "keep stack traces, for people to read")

    def plan(self, context: PlanContext) -> Plan:
        """Dead nodes, in two entries: those that nothing uses, and those that only fed others; and views."""
        index = context.index
        dead = _dead(index, context.ident) if self.dead else []
        unused = tuple(n for n in dead if not index.users[n])
        feeding = tuple(n for n in dead if index.users[n])
        entries = (Dead(unused, Reason.of("unused")), Dead(feeding, Reason.of("feeds_removed")))
        keys = tuple(key for key in index.metadata if self._drops(key))
        gone = set(dead)
        views = _same(context.program, index) if self.views else ()
        doubled = tuple(duplicate for duplicate in _waits_again(context.program, index) if duplicate.node not in gone)
        same = (*doubled, *(duplicate for duplicate in views if duplicate.node not in gone))
        counts = Counter(index.ops[node] for node in dead)
        report = CleanupReport(
            nodes_removed=len(dead),
            collectives_removed=sum(node in index.launches for node in dead),
            ops_removed=dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))),
            metadata_dropped={key: index.metadata[key] for key in keys},
            views_removed=len(same) - len(doubled) if self.views else None,
            waits_removed=len(doubled) or None,
        )
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Removal(dead=tuple(entry for entry in entries if entry.nodes), same=same, metadata=keys),
            report=report,
        )

    def _drops(self, key: str) -> bool:
        if key == "stack_trace":
            return not self.stack_traces
        if self.metadata == "keep":
            return False
        return key in TRACING or (self.metadata == "all" and key not in NEEDED)


def _dead(index: GraphIndex, ident: Identification) -> list[int]:
    """Nodes that nothing needs, in graph order."""
    fixed = {node for node, op in enumerate(index.ops) if op in ("placeholder", "output")}
    # A wait on what no launch of this graph made is somebody's synchronization.
    foreign = {n for n, op in enumerate(index.ops) if op == WAIT and n not in index.wait_of}
    met = [collective.launch for collective in ident.collectives if collective.group_size != 1]
    live: set[int] = set()
    stack = [*fixed, *foreign, *met, *index.held, *index.stays]
    while stack:
        node = stack.pop()
        if node in live:
            continue
        live.add(node)
        stack.extend(index.data_preds[node])
        if node in index.launches:  # what stays in flight is waited for
            stack.extend(index.launches[node].waits)
    return [node for node in range(len(index)) if node not in live]


def _waits_again(program: Program, index: GraphIndex) -> Iterator[Same]:
    """Waits for what a wait has returned, or for what nothing writes to any more, in graph order: traces of code that
    waits for sure have them. Of what an op has begun that is not known nobody can say that it has ended.
    """
    from commcc.graph.index.waits import waits_for_nothing

    known = {*index.wait_of, *index.begun_elsewhere}
    for node, graph_node in enumerate(program.graph.nodes):
        source = index.position.get(getattr(next(iter(graph_node.args), None), "name", ""))
        if index.ops[node] != WAIT or source is None or node in index.held:
            continue
        if source in known or waits_for_nothing(graph_node):
            known.add(node)
            yield Same(node, source)


def _same(program: Program, index: GraphIndex) -> Iterator[Same]:
    """Views that change nothing, in graph order."""
    from commcc.serialization.shapes import format_val

    nodes = list(program.graph.nodes)
    returned = set(index.output_slots)
    kept = {DETACH} if program.carrier is not None else set()
    for node, op in enumerate(index.ops):
        shows = nodes[node].args[:1] if op in SHOWING - kept and node not in returned and node not in index.held else ()
        source = index.position.get(getattr(shows[0], "name", "")) if shows else None
        # A view of a launch is a view of what is not there yet.
        if source is None or source in index.launches or index.storages[node] != index.storages[source]:
            continue
        meta = nodes[node].meta
        custom = meta.get("custom")
        if REGION in meta or (isinstance(custom, dict) and REGION in custom):
            continue  # the views at the border of a chunked region say where it is cut
        old, new = nodes[source].meta.get("val"), nodes[node].meta.get("val")
        # Compared as texts, since sizes and offsets may be symbols.
        shown = format_val(new)
        if shown and shown == format_val(old) and str(old.storage_offset()) == str(new.storage_offset()):
            yield Same(node, source)
