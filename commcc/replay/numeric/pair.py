"""Two programs made ready to be compared: one layout, and BEFORE's inputs for both, by name.

    pair = make_pair(before, after, settings)
    pair.maker.of_rank(0)             # inputs of rank 0, for either program

Every process of a replay makes the same pair from the same two files and settings.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError, closest
from commcc.graph.collectives import identify
from commcc.graph.index.host import early_reads
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.inputs import InputMaker
from commcc.replay.layout import Layout, make_layout
from commcc.replay.prepare import Prepared, prepare
from commcc.replay.values import leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx
    from typing_extensions import Self

    from commcc.graph.program import Program
    from commcc.replay.layout import Parts


@dataclass(frozen=True)
class Settings:
    """How to run. ranks: None for as many as the graphs are for. real: on gloo, else virtual ranks.

    wide: everything in float64. tolerance: the largest difference to accept, relative to the largest number of a
    value; None for what another order of sums explains. timeout: seconds, of real ranks. imports: modules whose ops may
    run though they are not PyTorch's. ops: the file that describes such ops, for processes that read the graphs again.
    positive: matrices of positive numbers only.
    """

    ranks: int | None = None
    real: bool = False
    seed: int = 0
    wide: bool = False
    tolerance: float | None = None
    timeout: float = 300.0
    groups: Mapping[str, Parts] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    ops: str | None = None
    positive: bool = False

    def to_text(self) -> str:
        """As JSON, for the processes of real ranks."""
        return json.dumps({**asdict(self), "groups": dict(self.groups), "hints": dict(self.hints)})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """What :meth:`to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        groups = {name: tuple(map(tuple, parts)) for name, parts in data.pop("groups").items()}
        return cls(**{**data, "imports": tuple(data["imports"])}, groups=groups)


@dataclass(frozen=True)
class Pair:
    """Both programs. blocking: copies to the host that BEFORE itself reads without waiting."""

    old: Prepared
    new: Prepared
    layout: Layout
    maker: InputMaker
    blocking: frozenset[str]

    def inputs(self, *, of: Prepared, rank_inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What a program is given of all that a rank has: what it writes is a copy of its own."""
        return own_inputs(of, rank_inputs)


def own_inputs(of: Prepared, rank_inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A program's inputs out of all that a rank has, to be used once: those that it writes are copies."""
    return {
        node.name: rank_inputs[node.name].clone(memory_format=torch.preserve_format)
        if node.name in of.written and isinstance(rank_inputs[node.name], torch.Tensor)
        else rank_inputs[node.name]
        for node in of.inputs
    }


def make_pair(before: Program, after: Program, settings: Settings) -> Pair:
    """Prepare both programs; raises :class:`CommccError` for what cannot be run."""
    imported = imported_ops(settings.imports)
    old, new = (
        prepare(program, wide=settings.wide, hints=settings.hints, imported=imported) for program in (before, after)
    )
    match_inputs(old, new, ("BEFORE", "AFTER"))
    layout = make_layout([(side.program, side.index) for side in (old, new)], settings.ranks, settings.groups)
    maker = InputMaker(old, identify(old.index), layout, settings.seed, settings.hints, positive=settings.positive)
    return pair_of(old, new, layout, maker)


def pair_of(old: Prepared, new: Prepared, layout: Layout, maker: InputMaker) -> Pair:
    """Two programs that are prepared already, with a layout that fits both."""
    racing = early_reads(old.index, range(len(old.index)))
    return Pair(old, new, layout, maker, frozenset(old.index.names[copy] for _, copy in racing))


def match_inputs(old: Prepared, new: Prepared, names: tuple[str, str]) -> None:
    """Every input of the new program must be one of the old one; names: what to call the two."""
    known = [node.name for node in old.inputs]
    unknown = [node.name for node in new.inputs if node.name not in set(known)]
    if unknown:
        raise InputError(
            f"{names[1]} has an input '{unknown[0]}' that {names[0]} has not{closest(unknown[0], known)}",
            hint="inputs are matched by name; a rewrite keeps them",
        )


def producers(prepared: Prepared) -> list[fx.Node | None]:
    """The node behind each output; None for a constant."""
    return [leaf if hasattr(leaf, "op") else None for leaf in leaves(prepared.output)]
