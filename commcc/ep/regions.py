"""Regions of a chunked graph, read from its annotations, whatever chunked it.

    regions = regions_of(index, annotations_of(program, index))
    regions[0].root, regions[0].backward       # 'layers.1.moe', False
    regions[0].bodies[1]                       # nodes of chunk 1, in graph order
    regions[0].labels                          # ('dispatch', 'combine')
    regions[0].exchanges[1][0]                 # launch of chunk 1's first token exchange

A region is a root in one direction. Its chunks are numbered from 0 and run the same exchanges in the same order;
the exchange of token counts is not one of them. The order of chunks in a schedule is that of their numbers in the
forward pass and the reverse in the backward pass.

Limits: what the annotations say is checked, not that the chunks compute the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import InputError, OptionError
from commcc.base.terms import Kind
from commcc.graph.modules import Matcher, entries_of
from commcc.graph.ops import WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.annotations import Annotation
    from commcc.graph.index import GraphIndex

_HINT = "chunk the graph again, or drop the annotations of chunks"


@dataclass(frozen=True)
class Region:
    """The chunks of one root in one direction.

    bodies, exchanges, waits: by chunk number, each in graph order: all nodes of the body, the launches of token
    exchanges, and with these their waits. labels: what each exchange is. count_copies: by chunk number the copies
    of token counts to the host. narrow: the root is the expert-parallel module itself, not one around it.
    """

    root: str
    backward: bool
    bodies: tuple[tuple[int, ...], ...]
    exchanges: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    count_copies: tuple[tuple[int, ...], ...]
    narrow: bool

    @property
    def chunks(self) -> int:
        return len(self.bodies)

    @property
    def chunk_order(self) -> tuple[int, ...]:
        """Chunks as they run: the backward pass begins with the last."""
        numbers = tuple(range(self.chunks))
        return numbers[::-1] if self.backward else numbers

    @property
    def name(self) -> str:
        return f"{self.root} {'backward' if self.backward else 'forward'}"


def regions_of(index: GraphIndex, notes: Sequence[Annotation], modules: Sequence[str] = ()) -> tuple[Region, ...]:
    """The regions that exchange tokens, in graph order. modules: patterns of their roots, none for all.

    Raises :class:`InputError` for annotations that contradict each other, :class:`OptionError` for a pattern that no
    root fits.
    """
    bodies = _bodies(index, notes)
    selection = entries_of(tuple(modules), dict.fromkeys(root for root, _ in bodies)) if modules else None
    if selection is not None and selection.problems:
        roots = ", ".join(dict.fromkeys(root for root, _ in bodies)) or "none"
        raise OptionError("; ".join(selection.problems), hint=f"chunked are {roots}")
    chosen = None if selection is None else Matcher(selection.entries)
    regions = []
    for (root, backward), chunks in bodies.items():
        if chosen is None or chosen(root) is not None:
            reader = _Reader(index, notes, root, backward, chunks)
            region = reader.region()
            regions += [] if region is None else [region]
    return tuple(regions)


def _bodies(index: GraphIndex, notes: Sequence[Annotation]) -> dict[tuple[str, bool], tuple[tuple[int, ...], ...]]:
    """Body nodes by root and direction, then by chunk."""
    bodies: dict[tuple[str, bool], dict[int, list[int]]] = {}
    for node, note in enumerate(notes):
        if note.role != "body":
            continue
        where = f"node '{index.names[node]}'"
        if note.region is None:
            raise InputError("is in the body of a chunk, but no region is named", where=where, hint=_HINT)
        if note.chunk is None:
            raise InputError(f"is in a body of '{note.region}', but of no chunk", where=where, hint=_HINT)
        chunks = bodies.setdefault((note.region, note.backward), defaultdict(list))
        chunks[note.chunk].append(node)
    for key, chunks in bodies.items():
        missing = [number for number in range(max(chunks) + 1) if number not in chunks]
        if missing or len(chunks) < 2:
            have = ", ".join(map(str, sorted(chunks)))
            lacks = f"chunk {missing[0]} is missing" if missing else "there is no other"
            raise InputError(f"has chunk {have}, {lacks}", where=f"region '{_name(key)}'", hint=_HINT)
    return {key: tuple(tuple(chunks[number]) for number in range(len(chunks))) for key, chunks in bodies.items()}


def _name(key: tuple[str, bool]) -> str:
    return f"{key[0]} {'backward' if key[1] else 'forward'}"


class _Reader:
    """Reads and checks one region."""

    def __init__(
        self,
        index: GraphIndex,
        notes: Sequence[Annotation],
        root: str,
        backward: bool,
        bodies: tuple[tuple[int, ...], ...],
    ) -> None:
        self.index, self.notes = index, notes
        self.root, self.backward, self.bodies = root, backward, bodies
        self.where = f"region '{_name((root, backward))}'"

    def region(self) -> Region | None:
        """The region, None when it exchanges no tokens."""
        exchanges = tuple(self._exchanges(body) for body in self.bodies)
        for body in self.bodies:
            self._check_marks(body)
        if not any(exchanges):
            return None
        labels = self._labels(exchanges)
        waits = tuple(
            tuple(self._wait(launch, set(body)) for launch in launches)
            for launches, body in zip(exchanges, self.bodies, strict=True)
        )
        products = [node for body in self.bodies for node in body if self.index.compute[node]]
        parts = [self.notes[node].part for node in products]
        # All products belong to expert parallelism; in a graph that does not say so the name decides.
        narrow = self.root.rpartition(".")[2] == "moe"
        if any(parts):
            narrow = all(part is not None or not self.notes[n].module for n, part in zip(products, parts, strict=True))
        copies = self._count_copies()
        return Region(self.root, self.backward, self.bodies, exchanges, waits, labels, copies, narrow)

    def _wrong(self, what: str, node: int | None = None) -> InputError:
        subject = "" if node is None else f"'{self.index.names[node]}' "
        return InputError(f"{subject}{what}", where=self.where, hint=_HINT)

    def _exchanges(self, body: tuple[int, ...]) -> tuple[int, ...]:
        exchanges = []
        for node in body:
            launch, note = self.index.launches.get(node), self.notes[node]
            if launch is None or launch.kind is not Kind.ALL_TO_ALL or note.count_exchange:
                continue
            if note.exchange is None:
                raise self._wrong("is an all-to-all that no annotation calls a dispatch or a combine", node)
            exchanges.append(node)
        return tuple(exchanges)

    def _check_marks(self, body: tuple[int, ...]) -> None:
        """Only a token exchange and its wait may be annotated as such."""
        for node in body:
            label = self.notes[node].exchange or self.notes[node].exchange_wait
            # A wait for what a wait has returned belongs to the same launch.
            inner = self.index.data_preds[node][:1] if self.index.ops[node] == WAIT else ()
            launch = self.index.wait_of.get(node, self.index.wait_of.get(inner[0], node) if inner else node)
            if label is None:
                continue
            facts = self.index.launches.get(launch)
            if facts is None or facts.kind is not Kind.ALL_TO_ALL:
                raise self._wrong(f"is annotated as a {label} and is no all-to-all and no wait for one", node)
            if label != self.notes[launch].exchange:
                other = self.notes[launch].exchange
                raise self._wrong(f"waits for '{self.index.names[launch]}', a {other}, and says {label}", node)

    def _labels(self, exchanges: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        labels = [tuple(str(self.notes[launch].exchange) for launch in launches) for launches in exchanges]
        for number, own in enumerate(labels):
            if own != labels[0]:
                first, other = (", ".join(names) or "nothing" for names in (labels[0], own))
                raise self._wrong(f"exchanges differ: chunk 0 has {first}, chunk {number} has {other}")
        return labels[0]

    def _wait(self, launch: int, body: set[int]) -> int:
        waits = self.index.launches[launch].waits
        if len(waits) != 1:
            raise self._wrong(f"has {len(waits)} waits, a token exchange has one", launch)
        if waits[0] not in body:
            raise self._wrong(f"is waited for by '{self.index.names[waits[0]]}', which is not in its chunk", launch)
        return waits[0]

    def _count_copies(self) -> tuple[tuple[int, ...], ...]:
        index = self.index
        # A conversion that moves its operand to another device; one that changes the dtype alone is none.
        moves = {
            n
            for body in self.bodies
            for n in body
            if index.ops[n] == "aten._to_copy" and (n in index.host_copies or n not in index.casts)
        }
        copies = [tuple(n for n in body if self.notes[n].count_sync and n in moves) for body in self.bodies]
        if len({len(chunk_copies) for chunk_copies in copies}) > 1:
            counts = ", ".join(str(len(chunk_copies)) for chunk_copies in copies)
            raise self._wrong(f"chunks bring token counts to the host in different numbers of copies: {counts}")
        for node in (n for chunk_copies in copies for n in chunk_copies):
            tensor = index.tensors[node]
            if node not in index.host_copies and (tensor is None or not tensor.device.startswith("cpu")):
                raise self._wrong("copies token counts, and not to the host", node)
        return tuple(tuple(n for n in chunk_copies if n in index.host_copies) for chunk_copies in copies)
