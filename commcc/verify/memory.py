"""Storages and their versions: what a tensor holds after something was written through another one.

Every tensor lives in a storage. A write ends a version of the storage; a tensor made under an
earlier version reads as a *load* term, which names where the tensor is in its storage and all that was
written there, in order::

    add_(x, y)         version 1 of x's storage = write(version 0, at x, add_(x, y))
    relu(x)            before: relu of x; after: relu of load(at x, version 1)

Swapping a read and a write, or two writes, thus changes terms. Where it is known which elements a write
brings, the elements of the whole storage are tracked instead, and reading is looking them up::

    copy_(x[2:4], y)   x's storage = x[0:2] y x[4:6]
    relu(x[4:6])       relu of x[4:6], written to or not

A launch in flight reads its inputs and fills its outputs until its wait; :class:`Storage` says so, and the
tracer objects to touching them.

Limits: a write of unknown elements to part of a storage ends the version of all of it, so a rewrite that
relies on two such parts not overlapping is not proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.graph.ops import facts
from commcc.verify.contents import Run, runs_of, spliced
from commcc.verify.regroup import regroup, regroups
from commcc.verify.reshaping import Formed
from commcc.verify.sizes import UNKNOWN, Meta, Size, Undecidable, is_apart, product
from commcc.verify.terms import Tensor, key_of, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.verify.terms import Terms

SLOT = "slot"
LOAD = "load"
WRITE = "write"
INITIAL = "initial"
EARLY = "early"


@dataclass(eq=False)
class Flight:
    """A launch between its start and its last wait.

    key: what is launched, the same in every graph that launches it. inputs: what it reads. waits_left: results not yet
    waited for. doubt: why it may have landed already: a wait was for something that may be its result or not.
    """

    node: str
    key: tuple[Any, ...]
    inputs: tuple[Tensor, ...] = ()
    waits_left: int = 1
    doubt: str = ""


@dataclass(eq=False, slots=True)
class Group:
    """Storages that may be one. log: versions of what was written to any of them since they are together."""

    members: list[int]
    log: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Storage:
    """One storage: its owner, its version, and the launches that use it now.

    version: term of all writes, None before the first. content: its elements now, None when they are not known.
    filling, reading: launches in flight, each with the part of the storage that it fills or reads.
    doubt: why writing here may write elsewhere as well. group: storages that may be this one; seen: how much of its
    log the version counts in, which is all where :meth:`Memory.at` gave the storage.
    reshaped: whether an op changed sizes of a tensor in it in place: they depend on when they are asked for.
    lifted: whether ``aten.lift`` gave a tensor in it a second name.
    """

    owner: Tensor
    writes: int = 0
    version: int | None = None
    content: int | None = None
    filling: list[tuple[Flight, Tensor]] = field(default_factory=list)
    reading: list[tuple[Flight, Tensor]] = field(default_factory=list)
    doubt: str = ""
    group: Group | None = None
    seen: int = 0
    reshaped: bool = False
    lifted: bool = False


_MAY_COPY = "whether an op copies what is read or written behind it"


def supposed_of(tensor: Tensor) -> tuple[int, ...]:
    """The ops, by their numbers, each of which may have copied what a tensor is a view of."""
    found: dict[int, None] = {}
    at: Tensor | None = tensor if tensor.may_copy else None
    while at is not None and at.base is not None:
        found.update({at.may_copy: None} if at.may_copy else {})
        at = at.base
    return tuple(found)


def _check_apart(owner: Tensor) -> None:
    """Raises :class:`Undecidable` where the elements of a storage may not be told by their places in its owner."""
    if not is_apart(owner.meta.shape, owner.meta.strides):
        raise Undecidable("memory in which several elements of one tensor may be in one place")


class Memory:
    """All storages of one graph."""

    def __init__(self, table: Terms) -> None:
        self._table = table
        self._storages: list[Storage] = []
        # Ops that may have copied: what each makes of what; those that make the same, numbered as they came to matter.
        self._supposed: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], dict[int, int]] = {}
        # Storages that launches fill or read, and some that they did.
        self._used: dict[int, Storage] = {}

    def at(self, root: int) -> Storage:
        """A storage, with all that was written to it."""
        storage = self._storages[root]
        group = storage.group
        if group is not None and storage.seen < len(group.log):
            # Most storages of a large group are never looked at again.
            for version in group.log[storage.seen :]:
                storage.version = self._table.intern((WRITE, self._version_of(storage), "linked", version))
            storage.content, storage.writes = None, storage.writes + len(group.log) - storage.seen
            storage.seen = len(group.log)
        return storage

    def used(self) -> dict[int, Storage]:
        """Storages that launches in flight fill or read, by their roots."""
        landed = [root for root, storage in self._used.items() if not (storage.filling or storage.reading)]
        for root in landed:
            del self._used[root]
        return self._used

    def fill(self, flight: Flight, result: Tensor) -> None:
        """A launch fills a tensor from now on."""
        self._used.setdefault(result.root, self._storages[result.root]).filling.append((flight, result))

    def lend(self, flight: Flight, tensor: Tensor) -> None:
        """A launch reads a tensor from now on."""
        self._used.setdefault(tensor.root, self._storages[tensor.root]).reading.append((flight, tensor))

    def allocate(self, content: int, meta: Meta) -> Tensor:
        """A tensor that owns a new storage."""
        tensor = Tensor(content, meta, len(self._storages))
        self._storages.append(Storage(tensor))
        return tensor

    def suppose(self, tensor: Tensor, path: str) -> None:
        """Take note that a tensor is a view only perhaps: the op called ``path`` may have copied its base."""
        base = UNKNOWN if tensor.base is None else tensor.base.meta
        self._supposed.append((path, tensor.content, tensor.shape, base.shape, base.strides, base.dtype))
        tensor.may_copy = len(self._supposed)

    def guess(self, tensor: Tensor) -> tuple[Any, ...]:
        """What decides whether a tensor is in the storage that it is taken to be in; empty where that is certain.

        The same op on operands that lie alike does the same in both graphs; any two others are not to be taken for one,
        nor are two copies that it may have made.
        """
        views = []
        for which in supposed_of(tensor):
            made = self._supposed[which - 1]
            known = self._numbers.setdefault(made, {})
            views.append((*made, known.setdefault(which, len(known))))
        return tuple(views)

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor as it reads now: itself, or a load when its storage was written since it was made."""
        storage = self.at(tensor.root)
        if storage.writes == tensor.stamp:
            return tensor
        place = self.where(tensor)
        content = self._seen(tensor, storage)
        if content is None:
            content = self._load(tensor)
        return Tensor(
            content, tensor.meta, tensor.root, storage.writes, tensor.base, tensor.via, tensor.may_copy, place
        )

    def _load(self, tensor: Tensor) -> int:
        """What is in a part of a storage of which only the writes are known, not the elements."""
        place = self.where(tensor)
        numel: Size | None = None if tensor.shape is None else product(tensor.shape)
        guess = self.guess(tensor)
        key = (LOAD, place.content, place.shape, tensor.dtype, self.version(tensor.root), *guess)
        source = self._table.source(key, numel, tensor.dtype)
        if guess:
            self._table.undecided.setdefault(source, _MAY_COPY)
        return source

    def _seen(self, tensor: Tensor, storage: Storage) -> int | None:
        """The content of a view of a storage, known or loaded as a whole; None where that cannot be told.

        So it does not matter whether the view is made before a write or after it. What may be a copy is not looked
        up: if it is one, it holds what was there when it was made.
        """
        owner = storage.owner
        if tensor.may_copy:
            return None
        chain: list[Tensor] = []
        at: Tensor | None = tensor
        while at is not None and at is not owner:
            chain.append(at)
            at = at.base
        # ``as_strided`` of a part shows what lies around it, which the elements of the part do not tell.
        if at is None or any(view.via is not None and facts(view.via[0].target).storage for view in chain):
            return None
        whole = self._load(owner) if storage.content is None else storage.content
        seen = Tensor(whole, owner.meta, owner.root)
        for view in reversed(chain):
            if view.via is not None:
                seen = self._replay(view, seen)
        return seen.content if seen.shape == tensor.shape else None

    def link(self, roots: Iterable[int]) -> None:
        """Storages that may be one: from now on, a write to one is taken to be a write to each."""
        groups: dict[int, Group] = {}
        for root in dict.fromkeys(roots):
            group = self._storages[root].group or Group([root])
            groups.setdefault(id(group), group)
        if not groups or (len(groups) == 1 and len(next(iter(groups.values())).members) == 1):
            return
        largest = max(groups.values(), key=lambda group: len(group.members))
        for group in groups.values():
            joining = [] if group is largest and len(group.members) > 1 else group.members
            for storage in map(self.at, joining):
                storage.group, storage.seen = largest, len(largest.log)
            if group is not largest:
                largest.members += group.members

    def together(self, one: int, other: int) -> bool:
        """Whether two storages are one, or may be."""
        group = self._storages[one].group
        return one == other or (group is not None and group is self._storages[other].group)

    def first_together(self, root: int) -> int:
        """The storage that stands for all that may be the same one."""
        group = self._storages[root].group
        return root if group is None else group.members[0]

    def coming(self, tensor: Tensor) -> bool:
        """Whether a launch may be filling the tensor's storage."""
        storage = self._storages[tensor.root]
        return bool(storage.filling or storage.group)

    def users(self, tensor: Tensor, *, reading: bool) -> list[tuple[Flight, Tensor, str]]:
        """Launches in flight that fill, or also read, what a tensor overlaps with, and why that is not certain."""
        users = []
        storage = self._storages[tensor.root]
        for flight, part in (*storage.filling, *(storage.reading if reading else ())):
            doubt = self.apart(part, tensor)
            if doubt is not None:
                users.append((flight, part, doubt or flight.doubt))
        if storage.group is not None:
            for other in self.used().values():
                uses = (*other.filling, *(other.reading if reading else ()))
                if uses and other is not storage and other.group is storage.group:
                    users.extend((flight, part, "memory that may be shared") for flight, part in uses)
        return users

    def version(self, root: int) -> int:
        """The term of all that was written to a storage, and what it held at first."""
        return self._version_of(self.at(root))

    def _version_of(self, storage: Storage) -> int:
        if storage.version is not None:
            return storage.version
        return self._table.intern((INITIAL, storage.owner.content))

    def write(self, tensor: Tensor, by: int, place: int, content: int | None = None) -> int:
        """Record that the op with term ``by`` writes ``tensor``, its ``place``-th target; the new version's term.

        content: what the tensor holds from now on, where that is known.
        """
        storage = self.at(tensor.root)
        at = self.where(tensor)
        before = self.version(tensor.root)
        storage.content = None if content is None or tensor.may_copy else self._filled(storage, at, content)
        if storage.content is None:
            guess = self.guess(tensor)
            storage.version = self._table.intern((WRITE, before, at.content, at.shape, by, place, *guess))
            if guess:
                self._table.undecided.setdefault(storage.version, _MAY_COPY)
        else:
            storage.version = self._table.intern((INITIAL, storage.content))
        storage.writes += 1
        if storage.group is not None:
            storage.group.log.append(storage.version)
            storage.seen = len(storage.group.log)
        return storage.version

    def _filled(self, storage: Storage, at: Tensor, content: int) -> int | None:
        """The elements of a storage of which the part at ``at`` is overwritten; None when that cannot be told."""
        owner = storage.owner
        known = owner.content if storage.writes == 0 else storage.content
        try:
            _check_apart(owner)
            return spliced(self._table, self._slot(owner).content, known, at.content, content)
        except Undecidable:
            return None

    def runs(self, tensor: Tensor) -> list[Run]:
        """The runs of elements that a tensor is in its storage; :class:`Undecidable` when that cannot be told."""
        owner = self._storages[tensor.root].owner
        _check_apart(owner)
        return runs_of(self._table, self.where(owner).content, self.where(tensor).content)

    def first_of(self, root: int) -> int:
        """What owns a storage, as a term of its first elements."""
        return self._storages[root].owner.content

    def overlap(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors share an element; :class:`Undecidable` when that cannot be told."""
        if first.root != second.root:
            return False
        places = self.where(first).content, self.where(second).content
        owner = self._storages[first.root].owner
        if places[0] == places[1] or self.where(owner).content in places:
            return True
        ends: list[tuple[int, int, int]] = []
        for which, tensor in enumerate((first, second)):
            ends.extend((run.start, run.start + run.length, which) for run in self.runs(tensor))
        reach = [0, 0]
        for start, end, which in sorted(ends):
            if start < reach[1 - which]:
                return True
            reach[which] = max(reach[which], end)
        return False

    def apart(self, first: Tensor, second: Tensor) -> str | None:
        """None when two tensors share no element, else why that is not certain."""
        try:
            return "" if self.overlap(first, second) else None
        except Undecidable as reason:
            return str(reason)

    def where(self, tensor: Tensor) -> Tensor:
        """The tensor as a view of a storage whose elements are numbered: which of them it holds."""
        chain: list[Tensor] = []
        at: Tensor | None = tensor
        while at is not None and at.where is None:
            chain.append(at)
            at = at.base
        place = None if at is None else at.where
        for view in reversed(chain):
            if place is None:
                place = self._slot(view)
            elif view.via is not None:
                place = self._replay(view, place)
            view.where = place
        if place is None:
            raise AssertionError("a tensor without a place")
        return place

    def _slot(self, owner: Tensor) -> Tensor:
        shape = owner.shape
        numel = None if shape is None else product(shape)
        content = self._table.source((SLOT, shape, owner.meta.strides, owner.dtype), numel, owner.dtype)
        return Tensor(content, Meta(shape, owner.meta.strides, owner.dtype, None), owner.root)

    def _replay(self, view: Tensor, place: Tensor) -> Tensor:
        """The view that made a tensor, over another base."""
        if view.via is None:
            return place
        node, given, index, base = view.via
        path = path_of(node.target)
        arguments = {**given, base: place}
        why = ""
        if regroups(path):
            try:
                formed = regroup(self._table, path, arguments)
                part = formed if isinstance(formed, Formed) else formed[index]
                return Tensor(part.content, Meta(part.shape, part.strides, part.dtype, None), place.root)
            except Undecidable as reason:
                why = str(reason)
        keys = tuple((name, key_of(self._table, value)) for name, value in arguments.items())
        numel = None if view.shape is None else product(view.shape)
        term = self._table.intern(("op", path, keys))
        if why:
            self._table.undecided.setdefault(term, why)
        if isinstance(node.meta.get("val"), (tuple, list)):
            term = self._table.intern(("out", term, index))
        return Tensor(self._table.source(("array", term), numel, view.dtype), view.meta, place.root)
