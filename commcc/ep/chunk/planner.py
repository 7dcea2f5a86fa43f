"""Plans all regions of a graph: see :mod:`commcc.ep.chunk`."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx

from commcc.base.errors import InputError
from commcc.base.text import plural
from commcc.ep.chunk.body import draft_of
from commcc.ep.chunk.grid import infer, parts
from commcc.ep.chunk.leaving import JOINT, check_widened, kept_whole, leaving
from commcc.ep.chunk.outside import counted_outside
from commcc.ep.chunk.refuse import Refused, described, named, refuse, shape_text
from commcc.ep.chunk.region import Trial
from commcc.ep.chunk.roots import kinds_around, roots_of
from commcc.ep.chunk.view import is_in, view_of
from commcc.graph import ops
from commcc.graph.annotations import is_tangent
from commcc.plan import ChunkedRegion, Cut, Resize

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from commcc.ep.chunk.body import Draft
    from commcc.ep.chunk.grid import Grid
    from commcc.ep.chunk.view import View
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program


#: Nodes of a module that are left whole, at most.
_MOST_WHOLE = 24
_WITHOUT_ASSERTS = "dump the graph with torch._dynamo.config.do_not_emit_runtime_asserts"
_NOT_AHEAD = (
    "leave this module whole; what can be cut are routers in which each token chooses, without a capacity that all "
    "tokens share or with one for each sample"
)


@dataclass(frozen=True)
class Chunks:
    """regions: in graph order. skipped: modules that were named but exchange nothing. annotated: see ``Roots``.
    directionless: a module exchanges more than a forward pass does, and no node is known to be backward. left: where no
    modules were named, why some that exchange tokens cannot be cut.
    """

    regions: tuple[ChunkedRegion, ...]
    skipped: tuple[str, ...]
    annotated: bool
    directionless: bool
    left: tuple[str, ...] = ()


def plan_chunks(program: Program, index: GraphIndex, patterns: Sequence[str], chunks: int, policy: str) -> Chunks:
    """The regions to cut in ``chunks`` parts; without patterns, of the modules around exchanges.

    Raises :class:`InputError` for whatever cannot be; without patterns, where nothing can be.
    """
    view = view_of(program, index)
    done = next((i for i, note in enumerate(view.notes) if note.role == "body"), None)
    if done is not None:
        raise InputError(
            f"the graph is chunked already: '{index.names[done]}' is of a chunk of '{view.notes[done].region}'",
            where="ep-chunk",
            hint="go on with ep-schedule",
        )
    skipped: tuple[str, ...] = ()
    left: list[str] = []
    if patterns:
        roots = roots_of(view, patterns)
        _check_whole(view)
        skipped, annotated = roots.skipped, roots.annotated
        regions = _regions_of(view, roots.modules, chunks, policy)
    else:
        kinds = kinds_around(view)
        _check_whole(view)
        annotated = not view.exchanging
        regions, left = _around_exchanges(view, kinds, chunks, policy)
    # A forward pass dispatches once, and combines once; the backward pass does so again, the other way round.
    told = any(note.backward for note in view.notes)
    labels = [[view.notes[n].exchange for n in region.body if view.exchanges(n)] for region in regions]
    twice = any(label is not None and own.count(label) > 1 for own in labels for label in own)
    ordered = tuple(sorted(regions, key=lambda r: r.body[0]))
    return Chunks(ordered, skipped, annotated, twice and not told, tuple(left))


def _around_exchanges(
    view: View, kinds: Sequence[Sequence[tuple[str, ...]]], chunks: int, policy: str
) -> tuple[list[ChunkedRegion], list[str]]:
    """Regions of each kind of modules, at the outermost level that can be cut, and why other kinds cannot."""
    regions: list[ChunkedRegion] = []
    errors: list[InputError] = []
    for levels in kinds:
        within = [region.root for region in regions]
        if any(is_in(module, root) for module in levels[-1] for root in within):
            continue
        found, refused = list[ChunkedRegion](), list[InputError]()
        for modules in levels:
            try:
                found = _regions_of(view, modules, chunks, policy)
            except InputError as error:
                refused.append(error)
            if found:
                break
        else:
            errors += refused[:1]
        regions += found
    if not regions and errors:
        raise errors[0]
    return regions, [f"left whole: {error}" for error in errors]


def _regions_of(view: View, roots: Sequence[str], chunks: int, policy: str) -> list[ChunkedRegion]:
    return [region for root in roots for region in _with_counts(view, root, chunks, policy)]


def _check_whole(view: View) -> None:
    """Refuse the backward half of a step before any work: it has no tokens of its own to cut."""
    index = view.index
    tangents = [i for i in index.placeholders if is_tangent(index, i)]
    if tangents and all(view.notes[node].backward for node in index.launches if view.exchanges(node)):
        what = "it is the backward half of a step: what the forward saved for it is whole, in the order of the experts"
        raise InputError(what, where="ep-chunk", hint=JOINT)


def _with_counts(view: View, root: str, chunks: int, policy: str) -> list[ChunkedRegion]:
    """The regions of a module. Where its tokens are counted outside, for one by a router that is no part of it, they
    are counted for each chunk, as if the module did so itself.
    """
    try:
        return _regions(view, root, chunks, policy)
    except Refused:
        counted = counted_outside(view, root, _drafts(view, root, None), policy)
        # An input of the graph is computed of no tokens: something else is in the way.
        if counted is None or (not counted.nodes and view.index.ops[counted.entering] == "placeholder"):
            raise
    if counted.nodes:
        with contextlib.suppress(Refused):
            return _regions(view.with_inside(counted.nodes, root), root, chunks, policy)
    what = "comes in computed of all tokens, and how many are exchanged depends on it"
    return refuse(
        root, view.nodes[counted.entering], what, f"name the module that makes it too: modules={counted.around}"
    )


def _regions(
    view: View, root: str, chunks: int, policy: str, whole: Mapping[int, fx.Node] | None = None
) -> list[ChunkedRegion]:
    """The regions of a module. What needs all tokens, a loss that balances the load for one, is left whole: computed
    once, from what the chunks make, and cut where they go on with it.
    """
    whole = whole or {}
    try:
        return _cut(view, root, chunks, policy, whole)
    except Refused as refusal:
        mixer, reason, hint = refusal.mixer, refusal.what, refusal.hint
        # What writes in place would write to a copy of what the chunks have.
        more = mixer is not None and view.number[mixer] not in {*whole, *view.index.writes}
        more = more and len(whole) < _MOST_WHOLE
        if not more and not whole:
            raise
    if mixer is not None and more:
        return _regions(view, root, chunks, policy, {**whole, view.number[mixer]: mixer})
    what = f"needs all tokens; computed once for all of them, it leaves what cannot be cut: {reason}"
    # What is asserted can be left out of the graph, and the module be cut after all.
    return refuse(root, next(iter(whole.values())), what, hint if hint == _WITHOUT_ASSERTS else _NOT_AHEAD)


def _cut(view: View, root: str, chunks: int, policy: str, whole: Mapping[int, fx.Node]) -> list[ChunkedRegion]:
    drafts = _drafts(view, root, None)
    if not any(view.exchanges(node) for draft in drafts for node in draft.body) and not drafts:
        return []
    grid = _grid(view, root, drafts, policy)
    _check_folded(view, root, drafts, grid)
    if grid.extent < chunks:
        unit = plural(grid.extent, "token" if grid.axis or grid.inner == 1 else "sample")
        fewer = f"use at most {grid.extent} chunks" if grid.extent > 1 else "leave it whole"
        # Only samples have a sequence left to cut.
        instead = f", or cut their sequence of {grid.inner} with dim=seq" if not grid.axis and grid.inner > 1 else ""
        what = f"{unit} cannot be cut in {chunks} chunks"
        raise InputError(what, where=f"region '{root}'", hint=fewer + instead)
    drafts = _drafts(view, root, grid, whole)
    sent = {node for draft in _drafts(view, root, grid) for node in draft.body if view.exchanges(node)} if whole else ()
    lost = next((node for node in sorted(sent) if not any(node in draft.body for draft in drafts)), None)
    if lost is not None:
        what = "exchanges what is computed for all tokens at once, so that no chunk could go ahead"
        refuse(root, view.nodes[lost], what, _NOT_AHEAD)
    sizes = parts(grid.extent, chunks)
    # One chunk changes nothing; whether it could be cut shows at another size.
    tried = dict.fromkeys(sizes) if chunks > 1 else (max(1, grid.extent // 2),)
    trials = [Trial(view, root, grid, part) for part in tried]
    for trial in trials:
        for draft in drafts:
            trial.run(draft)
    first = trials[0]
    for other in trials[1:]:
        unlike = next((node for node, state in first.states.items() if other.states.get(node) != state), None)
        if unlike is not None:
            what = f"is not the same to a chunk of {first.lab.part} as to one of {other.lab.part}"
            refuse(root, unlike, what, "choose a number of chunks that divides the tokens")
    return _settled(view, first, drafts, sizes)


def _drafts(view: View, root: str, grid: Grid | None, whole: Collection[int] = ()) -> list[Draft]:
    forward = draft_of(view, root, None, grid, whole)
    backward = draft_of(view, root, forward, grid, whole)
    return [draft for draft in (forward, backward) if draft.body]


def _grid(view: View, root: str, drafts: list[Draft], policy: str) -> Grid:
    inside = {node for draft in drafts for node in draft.body}
    entering = [node for draft in drafts for node in draft.enters if node not in inside]
    free = next((node for node in entering if view.free_symbols(node)), None)
    if free is not None:
        symbol = view.free_symbols(free)[0]
        number = view.recorded.get(symbol, "NUMBER")
        raise InputError(
            f"{described(view.nodes[free])} enters it with a size that is not fixed: {symbol}",
            where=f"region '{root}'",
            hint=f"fix it before, with ep-concretize{{symbols={symbol}={number}}}, then cut",
        )
    grid = infer([tuple(view.nodes[node].meta["val"].shape) for node in entering], policy)
    if grid is None:
        shapes = Counter(shape_text(view.nodes[node].meta["val"])[2:] for node in entering)
        raise InputError(
            f"nothing that enters it can be cut by {policy} (entering: {', '.join(sorted(shapes)) or 'nothing'})",
            where=f"region '{root}'",
            hint="name the module that the tokens go into as [tokens, features] or [batch, sequence, features]",
        )
    return grid


def _check_folded(view: View, root: str, drafts: list[Draft], grid: Grid) -> None:
    """Where a sequence is cut, rows of several samples must not come in folded: chunks would be no slices of them."""
    entering = (node for draft in drafts for node in draft.enters if grid.axis and grid.outer > 1)
    for node in entering:
        shape = tuple(view.nodes[node].meta["val"].shape)
        if len(shape) > 1 and grid.dim_of(shape) is None and grid.multiple(shape[0], grid.outer):
            what = f"comes in with {grid.outer} samples and their sequences of {grid.extent} in dimension 0"
            refuse(root, view.nodes[node], what, "fold them inside the module, or use dim=batch")


def _settled(view: View, trial: Trial, drafts: list[Draft], sizes: tuple[int, ...]) -> list[ChunkedRegion]:
    members = {node for draft in drafts for node in draft.body}
    members -= kept_whole(view, trial, members)
    for draft in drafts:
        draft.body = [node for node in draft.body if node in members]
    _check_buffers(view, trial, members)
    check_widened(view, trial, members)
    # Activations from outside that a body still reads.
    read = {draft.backward: {p for node in draft.body for p in view.index.data_preds[node]} for draft in drafts}
    regions = [
        ChunkedRegion(
            root=trial.root,
            backward=draft.backward,
            extent=trial.grid.extent,
            sizes=sizes,
            body=tuple(draft.body),
            cuts=tuple(
                Cut(node, dim)
                for node, dim in draft.enters.items()
                if node in read[draft.backward] - members and dim is not None
            ),
            joins=leaving(view, trial, draft, members),
            resized=tuple(
                Resize(node, edit.argument, edit.place, edit.per)
                for node in draft.body
                for edit in trial.resized.get(node, ())
            ),
            chained=tuple(node for node in draft.body if node in trial.chained),
        )
        for draft in drafts
    ]
    _check_assertions(view, trial, members)
    return regions


def _check_assertions(view: View, trial: Trial, members: set[int]) -> None:
    """Nothing may be asserted of a chunk that holds of the whole alone."""
    for node in (view.nodes[number] for number in sorted(members)):
        claim = node.args[0] if ops.is_assertion(node.target) and node.args else None
        known = isinstance(claim, fx.Node) and view.number[claim] in trial.resized
        if isinstance(claim, fx.Node) and claim.target in (operator.eq, operator.ge, operator.gt) and not known:
            whole = next((size for size in claim.args if trial.grid.multiple(size)), None)
            if whole is not None:
                what = f"asserts how large the whole is ({whole}), of what differs from chunk to chunk"
                refuse(trial.root, node, what, _WITHOUT_ASSERTS)


def _check_buffers(view: View, trial: Trial, members: set[int]) -> None:
    """Nothing in a body may read a buffer that a body adds to: it would see the sum of some chunks."""
    index = view.index
    for number, buffer in trial.chained.items():
        storages = set(index.storages[buffer])
        readers = [
            node
            for node in sorted(members)
            if node != number and any(storages & set(index.storages[pred]) for pred in index.data_preds[node])
        ]
        if readers:
            what = f"writes to '{index.names[buffer]}', which {named(view.nodes[r] for r in readers)} inside reads"
            hint = "read the buffer outside the module, or leave this module whole"
            refuse(trial.root, view.nodes[number], what, hint)
