"""Each graph in each way that a bench runs it: op by op, and through Inductor where that is asked for.

::

    ways(2, compiled=True)        # graph 1, graph 2, graph 1 compiled, graph 2 compiled
    ways(2, compiled=True)[2].against     # 0: what Inductor makes of graph 1, against graph 1 op by op
    ways(2, compiled=True)[3].against     # 2: both through Inductor

Results of compiled code are rounded otherwise, since Inductor keeps intermediate results of what it fuses in more
digits, so they are compared within the rounding of the least precise numbers in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.replay.compiled.cuda_graphs import require_capturable
from commcc.replay.compiled.inductor import require_compiler
from commcc.replay.numeric.rounding import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.index import GraphIndex
    from commcc.replay.bench.graph_set import BenchSettings, GraphSet


#: Rounding adds up along a whole step, not at one sum only. A compiled training step in bfloat16 was seen to differ by
#: 0.044 of a value's largest number, and by 0.019 when Inductor rounds in between as eager ops do.
_ALONG = 5


@dataclass(frozen=True)
class Way:
    """graph: its number, from 0. captured: as a recorded CUDA graph. against: the number of the way that it is compared
    with, None for the first.
    """

    graph: int
    compiled: bool = False
    captured: bool = False
    against: int | None = None

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"graph {self.graph + 1}{', compiled' if self.compiled else ''}"

    def named(self, name: str) -> str:
        """What the report calls a graph of this name."""
        return f"{name}, compiled" if self.compiled else name


def ways(graphs: int, *, compiled: bool = False, captured: bool = False) -> tuple[Way, ...]:
    """All that is run, in the order of its turns."""
    plain = [Way(n, False, captured, 0 if n else None) for n in range(graphs)]
    through = [Way(n, True, captured, graphs if n else 0) for n in range(graphs)]
    return (*plain, *(through if compiled else ()))


def ways_of(settings: BenchSettings) -> tuple[Way, ...]:
    """All that a bench with these settings runs."""
    return ways(settings.graphs, compiled=settings.compiled, captured=settings.captured)


def require_ways(graphs: GraphSet, settings: BenchSettings) -> None:
    """Raise :class:`InputError` for a way that is not possible here."""
    if settings.compiled:
        require_compiler(settings.device)
    if settings.captured and settings.emulated:
        raise InputError(
            "--cuda-graphs needs real communication, not --device emulated", hint="leave one of the two away"
        )
    if settings.captured:
        for number, each in enumerate(graphs.prepared, 1):
            require_capturable(each, f"graph {number}")


def within_rounding(settings: BenchSettings, indices: Iterable[GraphIndex]) -> BenchSettings:
    """Settings to compare compiled results with: a tolerance, unless one was asked for."""
    dtypes = {tensor.dtype for index in indices for tensor in index.tensors if tensor is not None}
    tolerance = _ALONG * max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=0.0)
    return settings if settings.tolerance is not None else replace(settings, tolerance=tolerance)
