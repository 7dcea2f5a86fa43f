"""Prices from a profile; what was not measured has none.

An op is found by its name and by dtype and shape of every tensor it reads, in order; tensors without
dimensions do not count. A collective is found by kind, ranks in the group and bytes of one rank's
input. Between two or more measured sizes of one kind and group size, times are interpolated
(:mod:`commcc.timing.cost.interpolate`).

Not found on purpose: ops with sizes known only at run time; ops whose result is sized by a number and
not by what they read (``aten.new_zeros``); ops that are to be fused with their neighbours, since the
ops of a trace ran alone. Limits: strides are not compared; an op that reads one tensor twice
(``mul(x, x)``) is not found, since a graph names its producers once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.text import short_size
from commcc.graph.ops.constants import SIZED_BY_NUMBERS
from commcc.timing.cost.interpolate import Curve
from commcc.timing.cost.profiles.measured import CollectiveKey, OpKey
from commcc.timing.cost.types import Price

if TYPE_CHECKING:
    from commcc.base.terms import Json, Kind
    from commcc.timing.cost.profiles.measured import Profile
    from commcc.timing.cost.types import Operation, Transfer

_VARIED = "profile: calls with the same inputs but other arguments took different times; their median is used"
_ONE_RANK = "profile: collectives were recorded on one rank only, so their times include waiting for the others"


@dataclass(frozen=True)
class ProfileSource:
    """A :class:`commcc.timing.cost.types.Source` of prices. warnings: what the files gave that was left out."""

    name: str
    profile: Profile

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.profile.warnings

    def facts(self) -> Json:
        """All medians, in a fixed order."""
        return {
            "ops": [
                [key.op, [[dtype, list(shape)] for dtype, shape in key.inputs], time.ns]
                for key, time in sorted(self.profile.ops.items())
            ],
            "collectives": [
                [str(key.kind), key.size, key.input_bytes, time.ns]
                for key, time in sorted(self.profile.collectives.items())
            ],
        }

    def operation(self, operation: Operation) -> Price | None:
        """The median of the calls of this op on these inputs."""
        key = op_key(operation)
        time = self.profile.ops.get(key) if key is not None else None
        if time is None:
            return None
        return Price(time.ns, f"profile, median of {time.count}", note=_VARIED if time.varied else None)

    def transfer(self, transfer: Transfer) -> Price | None:
        """The measured time of this size, or a time between those of other sizes."""
        curve = self._curves.get((transfer.kind, transfer.size))
        if curve is None:
            return None
        reading = curve.read(transfer.input_bytes)
        time = self.profile.collectives.get(CollectiveKey(transfer.kind, transfer.size, transfer.input_bytes))
        if time is not None:
            least = f"minimum over {time.ranks} ranks, " if time.ranks > 1 else ""
            how = f"profile, {least}median of {time.count}"
            return Price(time.ns, how, reading.fixed_ns, _ONE_RANK if time.ranks == 1 < transfer.size else None)
        # One size says nothing of others: with a single point, time would just grow in proportion.
        if len(curve.sizes) < 2:
            return None
        note = None
        if reading.beyond:
            largest = short_size(curve.sizes[-1])
            note = f"profile: {transfer.kind} over {transfer.size} ranks is extrapolated beyond {largest}"
        return Price(reading.ns, f"profile, {reading.span}", reading.fixed_ns, note)

    @cached_property
    def _curves(self) -> dict[tuple[Kind, int], Curve]:
        points: dict[tuple[Kind, int], list[tuple[int, int]]] = defaultdict(list)
        for key, time in self.profile.collectives.items():
            points[key.kind, key.size].append((key.input_bytes, time.ns))
        return {which: Curve.of(sizes) for which, sizes in points.items()}


def op_key(operation: Operation) -> OpKey | None:
    """Under what a profile has the time of an operation; None for one that it can have no time of."""
    if operation.op in SIZED_BY_NUMBERS or not operation.kernels:
        return None
    # What it writes stays in a kernel that it shares with its neighbours. In-place scatters write less than
    # the tensor they return, too, and are never fused.
    stays_inside = operation.written_bytes < sum(tensor.bytes for tensor in operation.outputs)
    if stays_inside and not operation.op.endswith("_"):
        return None
    inputs: list[tuple[str, tuple[int, ...]]] = []
    for tensor in operation.inputs:
        shape = tuple(size for size in tensor.shape if isinstance(size, int))
        # The sizes of a trace are numbers, so a symbolic shape has no measured time.
        if len(shape) < len(tensor.shape):
            return None
        if shape:
            inputs.append((tensor.dtype, shape))
    return OpKey(operation.op, tuple(inputs))
