"""Rules about what a graph may not do, or what nothing is known of."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from commcc.graph.ops.collective_table import LAUNCHING, WAIT
from commcc.graph.ops.libraries import NATIVE, fenced
from commcc.lint.options import NoOptions
from commcc.lint.types import Finding, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.index import GraphIndex
    from commcc.lint.types import Subject

#: Launches that one finding names.
_NAMED = 5
#: How AOTAutograd describes outputs of a forward that its backward takes.
_SAVED = "SavedForBackwards"


def illegal_graph(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Nothing: a graph that breaks the rules of the index has no subject, and the run itself says so."""
    del subject, options
    return iter(())


_FUNCTIONAL = "use the functional collectives of torch.ops._c10d_functional"
#: Of functional ops that are no collectives, as messages between two ranks.
_ACCEPT = "commcc plans around it, and only collectives can be moved; --ignore unknown-communication accepts that"


def unknown_communication(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Every node that communicates in a way that commcc does not understand."""
    del options
    index = subject.index
    for node in index.barriers:
        op, began = index.ops[node], [p for q in index.data_preds[node] for p in (q, *index.data_preds[q])]
        if node in index.inside or (op == WAIT and not set(began).isdisjoint(index.barriers)):
            continue  # what its sub-graphs launch is known and priced; what a wait waits for has a finding of its own
        if fenced(op) is not None:
            continue  # it sends nothing
        does = "waits for what is not known" if op == WAIT else "communicates in an unknown way"
        yield Finding(
            f"'{index.names[node]}' ({op}) {does}: nothing is moved across it, and its time and bytes are not counted",
            subject.spots(node),
            remedy=_remedy(op.partition(".")[0]),
        )


def _remedy(library: str) -> str:
    if library in LAUNCHING:
        return _ACCEPT
    return (
        _FUNCTIONAL
        if library in NATIVE
        else f"{_FUNCTIONAL}, or say in a file that its channels are its own (--ops FILE)"
    )


def use_before_wait(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Every launch, and input in flight, that something reads before it is waited for."""
    del options
    index = subject.index
    waits = {launch: set(facts.waits) for launch, facts in index.launches.items() if facts.asynchronous}
    for wait, source in index.begun_elsewhere.items():
        waits.setdefault(source, set()).add(wait)
    for source, awaited in waits.items():
        early = next(_readers(index, source, frozenset(awaited)), None)
        if early is None and source in index.launches:
            early = next(_readers_of_buffer(index, source, min(awaited, default=source)), None)
        if early is None:
            continue
        what = f"the result of '{index.names[source]}' before it is waited for"
        if source not in index.launches:
            what = f"the input '{index.names[source]}', which is in flight until it is waited for"
        yield Finding(
            f"'{index.names[early]}' reads {what}",
            subject.spots(early, source),
            remedy="let it read the result of the wait",
        )


def _readers(index: GraphIndex, launch: int, waits: frozenset[int]) -> Iterator[int]:
    """Nodes that read a launch's result, or a view of it, other than its waits and the output.

    Not among them are ops that hold a graph of their own, for it may be that which waits, and what stays behind a wait
    for all that it reads whatever moves: the op may give back what it was given, as all that is in place does.
    """
    from commcc.graph.ops.kernels import Work

    stack, seen = [launch], {launch}
    while stack:
        node = stack.pop()
        for user in index.users[node]:
            if user in waits or user in seen or index.ops[user] == "output" or _holds_graph(index, user):
                continue
            seen.add(user)
            behind = waits.intersection(index.all_preds[user])
            there = {storage for wait in behind for storage in index.storages[wait]}
            if index.storages[node] and there.issuperset(index.storages[node]):
                continue
            if index.estimates.work[user] is not Work.FREE:
                yield user
            elif set(index.storages[user]) & set(index.storages[launch]):
                stack.append(user)


def _readers_of_buffer(index: GraphIndex, launch: int, wait: int) -> Iterator[int]:
    """Nodes up to the wait that read, under another name, memory that a launch was given to write its result to.

    Not among them are collectives of the same group, which run behind this one.
    """
    from commcc.graph.ops.kernels import Work

    facts = index.launches[launch]
    written = {storage for target in facts.writes_to for storage in index.storages[target]}
    for node in range(launch + 1, wait) if written else ():
        after = index.launches.get(node)
        if node in index.wait_of or _holds_graph(index, node) or (after is not None and after.group == facts.group):
            continue
        read = {storage for operand in index.data_preds[node] for storage in index.storages[operand]}
        if index.estimates.work[node] is not Work.FREE and written & read:
            yield node


def _holds_graph(index: GraphIndex, node: int) -> bool:
    return index.ops[node].startswith("higher_order.")


def write_in_flight(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Every write to what a collective still sends or receives."""
    del options
    index = subject.index
    busy: dict[int, list[int]] = defaultdict(list)
    for node in range(len(index)):
        launched = node in index.launches
        for launch in _written_under(index, node, busy):
            yield Finding(
                f"'{index.names[node]}' writes to memory that '{index.names[launch]}' sends or receives until it "
                "is waited for",
                subject.spots(node, launch),
                remedy="move the write behind the wait",
            )
        if launched and index.launches[node].waits:
            facts = index.launches[node]
            for storage in {s for operand in (node, *facts.inputs, *facts.writes_to) for s in index.storages[operand]}:
                busy[storage].append(node)
        elif node in index.wait_of:
            for launches in busy.values():
                launches[:] = [pending for pending in launches if pending != index.wait_of[node]]


def _written_under(index: GraphIndex, node: int, busy: Mapping[int, list[int]]) -> Iterator[int]:
    """Launches in flight whose memory a node writes; collectives of one group run one behind the other."""
    own = index.launches.get(node)
    written = {storage for target in index.writes.get(node, ()) for storage in index.storages[target]}
    for storage in sorted(written):
        for launch in busy.get(storage, ()):
            if own is None or own.group != index.launches[launch].group:
                yield launch


def never_waited(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Every asynchronous launch without a wait."""
    del options
    index = subject.index
    for launch, facts in index.launches.items():
        if facts.waits or not facts.asynchronous or any(_holds_graph(index, u) for u in index.users[launch]):
            continue
        returned = any(index.ops[user] == "output" for user in index.users[launch])
        slot = index.output_slots.get(launch)
        if slot is not None and _SAVED in str(index.output_descriptors[slot]):
            yield Finding(
                f"'{index.names[launch]}' is in flight at the end, saved for the backward, which has to wait for it",
                subject.spots(launch),
                severity=Severity.INFO,
                remedy="commcc simulate FORWARD BACKWARD shows both as one step",
            )
            continue
        fate = "and is returned: whoever takes it has to wait" if returned else "and its buffers live to the end"
        yield Finding(
            f"'{index.names[launch]}' is never waited for, {fate}",
            subject.spots(launch),
            remedy="wait for it with torch.ops._c10d_functional.wait_tensor",
        )


def unknown_size(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """All collectives whose sizes nothing tells, as one finding."""
    del options
    unsized = [c.launch for c in subject.ident.collectives if c.unknown]
    if unsized:
        some = "collective has a size" if len(unsized) == 1 else "collectives have sizes"
        yield Finding(
            f"{len(unsized):,} {some} that nothing tells: counted with 0 bytes and no time",
            subject.spots(*unsized[:_NAMED]),
            measured=len(unsized),
            remedy=subject.index.size_remedy,
        )


def host_sync_in_flight(subject: Subject, options: NoOptions) -> Iterator[Finding]:
    """Every host sync between the launch of a collective and its wait."""
    from commcc.graph.index.host import devices_awaited

    del options
    index = subject.index
    syncs = [node for node in sorted(index.host_syncs) if devices_awaited(index, node)]
    during: dict[int, list[int]] = defaultdict(list)
    for launch, facts in index.launches.items() if syncs else ():
        end = facts.waits[0] if facts.waits else launch
        for at in range(bisect_right(syncs, launch), bisect_right(syncs, end)):
            during[syncs[at]].append(launch)
    for sync, launches in sorted(during.items()):
        names = ", ".join(f"'{index.names[launch]}'" for launch in launches[:2])
        more = f" and {len(launches) - 2} more" if len(launches) > 2 else ""
        yield Finding(
            f"'{index.names[sync]}' ({index.ops[sync]}) makes the host wait for the device while {names}{more} "
            f"{'is' if len(launches) == 1 else 'are'} in flight: nothing more is queued until then",
            subject.spots(sync, *launches[:_NAMED]),
            measured=len(launches),
            weight=len(launches),
            remedy="move the sync ahead of the launch or behind the wait",
        )


LEGALITY = (
    Rule(
        "illegal-graph",
        Severity.ERROR,
        illegal_graph,
        NoOptions,
        "graphs that cannot run",
        "A wait for something that launches nothing, or an order that contradicts the graph's own control edges. No "
        "other rule is run on such a graph. A file in which a node stands before one that it needs, or a process group "
        "has two sizes, cannot be read at all.",
    ),
    Rule(
        "unknown-communication",
        Severity.ERROR,
        unknown_communication,
        NoOptions,
        "ops that communicate in an unknown way",
        "Collectives outside the functional ones, `isend` and `irecv`, custom ops that take a process group, and waits "
        "for what any other op began. Passes move nothing across them and no figure counts them, so whatever else is "
        "measured on such a graph is incomplete.",
    ),
    Rule(
        "use-before-wait",
        Severity.ERROR,
        use_before_wait,
        NoOptions,
        "results that are read before they are waited for",
        "The result of an asynchronous collective is not there before its wait: what reads it earlier, directly or "
        "through a view, reads whatever the buffer held. So is an input that the graph waits for: another graph has "
        "launched what it receives.",
    ),
    Rule(
        "write-in-flight",
        Severity.WARNING,
        write_in_flight,
        NoOptions,
        "writes to buffers of collectives in flight",
        "Between its launch and its wait a collective reads its input and writes its result. Writing to the same "
        "memory meanwhile is a race. Views of one buffer count as the whole buffer, so disjoint "
        "slices are reported too.",
    ),
    Rule(
        "never-waited",
        Severity.WARNING,
        never_waited,
        NoOptions,
        "collectives that nobody waits for",
        "Without a wait nothing says when the result is there, and its buffers are held to the end of the step.",
    ),
    Rule(
        "unknown-size",
        Severity.WARNING,
        unknown_size,
        NoOptions,
        "collectives of unknown size",
        "Sizes that depend on data have no value in the graph. Without hints such collectives count 0 bytes and no "
        "time, so limits on bytes and times say little.",
    ),
    Rule(
        "host-sync-in-flight",
        Severity.WARNING,
        host_sync_in_flight,
        NoOptions,
        "host syncs between a launch and its wait",
        "A host sync (item, a copy to the host that blocks) holds up the host until the device has caught up. Compute "
        "that should hide a collective in flight is not queued until then.",
    ),
)
