"""Annotates waits for token exchanges as such.

A trace gives a launch and its wait the same annotation. Afterwards only launches carry it::

    b = wait_tensor(a)   EP_token_exchange: dispatch   ->   EP_token_exchange_wait: dispatch

Numbers do not depend on annotations. The key is written where it was read: at the top level of the metadata or in
``custom``, and to ``custom`` where it is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import InternalError
from commcc.graph.annotations import EXCHANGE, EXCHANGE_WAIT, EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.plan import Plan


def label_waits(nodes: Mapping[str, fx.Node], index: GraphIndex, plan: Plan) -> None:
    """Change annotations in a graph that nobody else has yet; ``nodes`` by name."""
    for label in plan.wait_labels:
        node = nodes[index.names[label.wait]]
        if label.wait not in index.wait_of or label.exchange not in EXCHANGES:
            raise InternalError(f"'{node.name}' is no wait for a '{label.exchange}'", where="apply")
        own = (EXCHANGE, EXCHANGE_WAIT)
        at_top = any(key in node.meta for key in own)
        custom = {key: value for key, value in (node.meta.get("custom") or {}).items() if key not in own}
        kept = {key: value for key, value in node.meta.items() if key not in own}
        made = {EXCHANGE_WAIT: label.exchange}
        node.meta = {**kept, **(made if at_top else {}), "custom": {**custom, **({} if at_top else made)}}
