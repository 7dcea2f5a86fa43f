"""What an op does, in a closed world: what is not known to be harmless is an effect.

    fact = facts(torch.ops.aten.unsafe_split.Tensor)
    fact.views            # ("self",): its results are in the storage of that argument
    fact.writes           # ()
    fact.pure             # True: it computes its results from its arguments, and nothing else

Facts come from the schema where it can be believed, and from :mod:`commcc.graph.ops.undeclared` and
:mod:`commcc.graph.ops.effects` for what schemas do not say. An in-place op is its functional twin with a write.

An op of a library that is not PyTorch's is an effect, even if its schema is functional: it is never dropped, never
duplicated, and keeps its order among effects. It may write all its arguments, and its results may be in any of them,
whether its library is loaded or not: a schema is a promise that nobody has held against the kernel.

Limits: an op that keeps a tensor for itself and writes it in a later call is not seen through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.graph.ops import effects, libraries, packets, undeclared
from commcc.graph.ops.communication import collective_of, is_unknown_communication, is_wait
from commcc.graph.ops.functions import plain_name
from commcc.graph.ops.names import argument, argument_names, described_as, library_of, op_name
from commcc.graph.ops.products import COMPUTE

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.ops.collective_table import CollectiveOp

#: In place of argument names: all tensors among the arguments.
ALL = ("*",)


@dataclass(frozen=True)
class OpFacts:
    """What there is to know about one op.

    writes: arguments whose tensors it writes, or whose sizes or strides it changes. views: arguments in whose storage
    a result may be. bases: the same for each result by itself. Each may be :data:`ALL`.
    sometimes: the results are usually new all the same. joins: two arguments that are in one storage afterwards.
    writes_keywords: it writes all tensors in keywords.

    lists: only a result that is a list holds operands; a tensor is new.

    reads: it looks at elements, not only at sizes. strides: its results depend on how elements lie in memory; storage:
    and on what is around them. identity: and on which tensors they are, or how these were made. allocates: what its
    result holds is undefined.

    random: it draws random numbers. host_sync: the host waits for it. assertion: it only checks something, and stops
    the program. launch: the collective that it starts. wait: it waits for one. barrier: nothing may move across it.
    effect: it does something else, or may do. body: it does what the graphs that it is given do.
    """

    name: str
    arguments: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    bases: tuple[tuple[str, ...], ...] = ()
    sometimes: bool = False
    lists: bool = False
    joins: tuple[str, str] | None = None
    writes_keywords: bool = False
    reads: bool = True
    strides: bool = False
    storage: bool = False
    identity: bool = False
    allocates: bool = False
    random: bool = False
    host_sync: bool = False
    assertion: bool = False
    launch: CollectiveOp | None = None
    wait: bool = False
    barrier: bool = False
    effect: bool = False
    body: bool = False

    @property
    def writing(self) -> bool:
        """Whether it writes any argument."""
        return bool(self.writes) or self.writes_keywords

    @property
    def aliases(self) -> bool:
        """Whether its results are in the storage of an operand, or copies of it; it may also write there."""
        return bool(self.views) and self.views != ALL and not self.sometimes

    @property
    def blind(self) -> bool:
        """Whether it is known to give the same values for the same elements, however these lie in memory.

        What draws random numbers does not: it draws them in the order of memory.
        """
        return self.name.partition(".")[0] in libraries.TESTED and not (self.strides or self.random)

    @property
    def looks(self) -> bool:
        """Whether it reads no element: its results are always in the storage of an operand, and it writes none."""
        return self.aliases and not self.writing and self.name not in undeclared.MAY_COPY

    @property
    def acts(self) -> bool:
        """Whether it has an effect of any kind besides its results, writes and launches."""
        return self.effect or self.assertion or self.host_sync or self.random or self.barrier

    @property
    def pure(self) -> bool:
        """Whether it computes its results and does nothing else; it may go when nobody uses them.

        So may a launch without its wait: what was sent is never looked at.
        """
        meets = self.launch is not None and not self.launch.asynchronous
        return not (self.acts or self.writing or self.body or self.joins or meets)


@lru_cache(maxsize=4096)
def facts(target: Any) -> OpFacts:
    """Of any target of a ``call_function`` node: an op, a higher-order op, a Python function, an unknown name."""
    if isinstance(target, OpOverload):
        return _of_op(target)
    if isinstance(target, OpOverloadPacket):
        return _of_packet(target)
    if isinstance(target, HigherOrderOperator):
        return _of_higher_order(target)
    if plain_name(target) is not None:
        name = op_name(target)
        views = ALL if name in undeclared.HANDED_ON else undeclared.VIEWS.get(name, ())
        return OpFacts(
            name,
            argument_names(target),
            views=views,
            bases=(views,) if views else (),
            sometimes=views == ALL,
            lists=name in undeclared.JOINED_LISTS,
            identity=name in undeclared.SAME,
        )
    return _of_unknown(target)


def _of_unknown(target: Any) -> OpFacts:
    described = described_as(target)
    if described is not None and described.like is not None:
        # Writes and views under the same names, but for arguments that the op does not have.
        return replace(_of_op(described.like), arguments=described.arguments)
    if described is not None:
        writes = described.writes  # what it gives may be what it has written
        return OpFacts(
            described.name,
            described.arguments,
            writes=writes,
            views=writes,
            bases=(writes,) if writes else (),
            sometimes=bool(writes),
            effect=described.communicates,
        )
    name, launch = op_name(target), collective_of(target)
    if launch is not None:
        out = (launch.out,) if launch.out else ()
        return OpFacts(name, launch.arguments, writes=out, views=out, bases=(out,) if out else (), launch=launch)
    barrier = is_unknown_communication(target) or libraries.fenced(op_name(target)) is not None
    return OpFacts(name, writes=ALL, views=ALL, barrier=barrier, effect=not barrier)


#: What an op without an overload may do if any of its overloads does, and what it does only if all of them do.
_ANY = (
    *("writes_keywords", "reads", "strides", "storage", "identity", "sometimes"),
    *("random", "host_sync", "barrier", "effect", "body"),
)
_EVERY = ("allocates", "assertion", "wait", "lists")


def _of_packet(packet: OpOverloadPacket) -> OpFacts:
    """Which overload runs is known only at run time: what any of them does, the op may do.

    Where a name does not say which argument is meant, all arguments are.
    """
    every = [_of_op(op) for op in packets.overloads_of(packet)]
    changed: dict[str, Any] = {key: any(getattr(fact, key) for fact in every) for key in _ANY}
    changed.update({key: all(getattr(fact, key) for fact in every) for key in _EVERY})
    for key in ("writes", "views"):
        names = dict.fromkeys(name for fact in every for name in getattr(fact, key))
        known = "*" not in names and all(packets.has_one_place(packet, name) for name in names)
        changed[key] = tuple(names) if known else ALL
    views = changed["views"]
    if any(fact.joins != every[0].joins or (fact.assertion and not changed["assertion"]) for fact in every):
        changed["effect"] = changed["barrier"] = True
    # An ``out`` is named where it is given; what overloads take by position, some may give views of and others not.
    taken = [set(fact.views).intersection(packets.fixed_names(packet)) for fact in every]
    changed["sometimes"] = changed["sometimes"] or views == ALL or any(names != taken[0] for names in taken)
    bases = max((fact.bases for fact in every), key=len, default=())
    return replace(every[0], arguments=(), bases=tuple(views for _ in bases), **changed)


def _of_op(op: OpOverload) -> OpFacts:
    name = op_name(op)
    launch = collective_of(op)
    barrier = is_unknown_communication(op) or libraries.fenced(name) is not None
    believed = library_of(op) in libraries.BELIEVED and not (barrier and library_of(op) in libraries.UNTOLD)
    believed = believed and _is_dispatched(op)
    if launch is None and not believed and name not in effects.PURE_OPS:
        random = torch.Tag.nondeterministic_seeded in op.tags
        return replace(_of_unknown(op), arguments=argument_names(op), random=random)
    infos = [(a.name, a.alias_info) for a in op._schema.arguments if a.alias_info is not None]
    writes = (*_hidden(undeclared.WRITES, op), *(n for n, info in infos if info.is_write))
    bases = _bases(op)
    if not op._schema.returns and name.startswith("aten._foreach_"):
        # Inductor takes parts of what these give, which is what they have written.
        bases = (tuple(n for n, info in infos if info.is_write),)
    assertion = name in effects.ASSERTIONS
    known = library_of(op) in libraries.PURE or name in effects.PURE_OPS or launch is not None
    silent = not op._schema.returns and not writes and not assertion
    identity = _asks(op)
    return OpFacts(
        name,
        argument_names(op),
        writes=tuple(dict.fromkeys(writes)),
        views=tuple(a.name for a in op._schema.arguments if any(a.name in base for base in bases)),
        bases=bases,
        sometimes=name in undeclared.SOMETIMES,
        joins=undeclared.JOINS.get(name),
        reads=name not in undeclared.SIZES,
        strides=name in undeclared.STRIDES or name in undeclared.STORAGE or identity or _fills(op._overloadname),
        storage=name in undeclared.STORAGE or identity,
        identity=identity,
        allocates=name in undeclared.ALLOCATIONS,
        random=torch.Tag.nondeterministic_seeded in op.tags or name in undeclared.RANDOM,
        host_sync=name in effects.HOST_SYNCS,
        assertion=assertion,
        launch=launch,
        wait=is_wait(op),
        barrier=barrier,
        effect=not barrier and (silent or name in effects.ACTING or not known),
    )


def _fills(overload: str) -> bool:
    """Whether an overload puts its results into tensors that it is given: some kernels expect these in one piece."""
    return overload in ("out", "grad_input") or overload.endswith("_out")


def _is_dispatched(op: OpOverload) -> bool:
    """Whether an op, in any overload, has a kernel of its own. What has none belongs to TorchScript's interpreter: it
    may draw, write or save, and neither its schema nor a tag says so.
    """
    packet = op.overloadpacket
    names: list[str] = packet.overloads()
    every = (f"{op._schema.name}{'' if name == 'default' else f'.{name}'}" for name in names)
    return any(torch._C._dispatch_has_kernel(name) for name in every)


def _asks(op: OpOverload) -> bool:
    """Whether an op tells something of the tensors that it is given that their elements, dtypes and sizes do not."""
    name, schema = op_name(op), op._schema
    if name in undeclared.SIZES or name in undeclared.DTYPES or name in effects.HOST_SYNCS:
        return False
    given, results = (", ".join(str(a.type) for a in part) for part in (schema.arguments, schema.returns))
    return "Tensor" in given and bool(results) and "Tensor" not in results


def _hidden(table: dict[str, tuple[str, ...]], op: OpOverload) -> tuple[str, ...]:
    """Arguments of this overload that the schema does not mark."""
    known = {a.name for a in op._schema.arguments}
    return tuple(name for name in table.get(op_name(op), ()) if name in known)


def _bases(op: OpOverload) -> tuple[tuple[str, ...], ...]:
    """For each result, the arguments in whose storage it may be."""
    owners: dict[str, list[str]] = {}
    for given in op._schema.arguments:
        for mark in () if given.alias_info is None else given.alias_info.before_set:
            owners.setdefault(mark, []).append(given.name)
    hidden = (*_hidden(undeclared.VIEWS, op), *_hidden(undeclared.SOMETIMES, op))
    # A list of results (split, chunk) carries no mark of its own; its argument does.
    unmarked = tuple(a.name for a in op._schema.arguments if a.alias_info is not None and not a.alias_info.is_write)
    bases = []
    for result in op._schema.returns:
        marks = sorted(result.alias_info.before_set) if result.alias_info is not None else ()
        own = tuple(name for mark in marks for name in owners.get(mark, ()))
        bases.append(tuple(dict.fromkeys((*hidden, *(own or (unmarked if len(op._schema.returns) == 1 else ()))))))
    return tuple(bases)


def _of_higher_order(op: HigherOrderOperator) -> OpFacts:
    name = op_name(op)
    body, wrapper = name in effects.BODIES, name in effects.WRAPPERS
    return OpFacts(
        name,
        writes=() if body or wrapper else ALL,
        views=() if body or wrapper else ALL,
        writes_keywords=name in effects.WRITES_KEYWORDS,
        random=name in effects.RANDOM_WRAPPERS,
        effect=not body and not wrapper,
        body=body or wrapper,
        barrier=is_unknown_communication(op),
    )


@lru_cache(maxsize=4096)
def is_compute(target: Any) -> bool:
    """Whether the op has a FLOP formula (DESIGN: a *compute node*)."""
    described = described_as(target)
    return op_name(target) in COMPUTE or (described is not None and described.flops is not None)


def draws(node: fx.Node) -> bool:
    """Whether a call draws from a random-number generator, so that its order decides its result.

    PyTorch tags attention as random whatever its dropout; without dropout its kernels leave the generator alone.
    """
    fact = facts(node.target)
    if not fact.random or library_of(node.target) != "aten" or "dropout_p" not in argument_names(node.target):
        return fact.random
    return bool(argument(node, "dropout_p", 0.0) != 0.0)


def facts_of_call(node: fx.Node) -> OpFacts:
    """What there is to know about an op as this node calls it."""
    fact = facts(node.target)
    return fact if fact.random == draws(node) else replace(fact, random=False)


def is_host_sync(target: Any) -> bool:
    """Whether the host waits for the op."""
    return facts(target).host_sync


def is_effect(target: Any) -> bool:
    """Whether the op does something besides computing its result: asserts, prints, ops of unknown libraries."""
    fact = facts(target)
    return fact.effect or fact.assertion


def is_assertion(target: Any) -> bool:
    """Whether the op only checks something and stops the program when it does not hold."""
    return facts(target).assertion


def only_computes(target: Any) -> bool:
    """Whether an op is known to do nothing but compute its result, so that it may go when nobody uses it."""
    return facts(target).pure


@dataclass(frozen=True)
class Aliasing:
    """Which arguments an op writes, and which arguments its results may share storage with.

    writes, views: argument names, in schema order. ``writes_keywords``: all tensors in keyword
    arguments are written (triton kernels).
    """

    writes: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    writes_keywords: bool = False

    @property
    def pure(self) -> bool:
        return not self.writes and not self.writes_keywords


@lru_cache(maxsize=4096)
def aliasing(target: Any) -> Aliasing:
    """Writes and views of :func:`facts`."""
    fact = facts(target)
    return Aliasing(fact.writes, fact.views, fact.writes_keywords)
