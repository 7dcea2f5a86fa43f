"""How ``bucket`` forms its buckets: one module for each strategy, dispatched by name.

A strategy is a function ``form(options, index, ident, model) -> Formed`` in a module of its own; it is
imported when it is asked for. To add one, add a line to the table here and name the strategy in the
``strategies`` of the options in :class:`commcc.passes.bucket.Bucket` that belong to it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.passes.bucket import Bucket
    from commcc.passes.strategies.formed import Formed
    from commcc.timing.cost import CostModel

_STRATEGIES = {
    "greedy": "commcc.passes.strategies.greedy",
    "overlap": "commcc.passes.strategies.overlap",
    "auto": "commcc.passes.strategies.auto",
    "module": "commcc.passes.strategies.module",
}


class Strategy(Protocol):
    """Decides which collectives to merge. Reads only; the same arguments give the same result."""

    def __call__(
        self, options: Bucket, index: GraphIndex, ident: Identification, model: CostModel | None
    ) -> Formed: ...


def names() -> tuple[str, ...]:
    """Names of all strategies; the first one is the default."""
    return tuple(_STRATEGIES)


def get(name: str) -> Strategy:
    """The strategy called ``name``, which is one of :func:`names`."""
    form: Strategy = importlib.import_module(_STRATEGIES[name]).form
    return form
