"""A region's order as a strip that people can read.

    strip_of(index, region, order)
    'h0 h0 h1 h1! D0 D1 [6 mm] wD0 [3 mm] C0 wD1 [3 mm] C1 wC0 wC1'

``D`` and ``C`` launch a dispatch and a combine of the chunk with that number, ``w`` waits for one; ``h`` copies token
counts to the host, ``!`` where the host waits. Between them the number of products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.ep.regions import Region
    from commcc.graph.index import GraphIndex


def events_of(region: Region) -> dict[int, str]:
    """Launches and waits of a region, each with its short name."""
    events: dict[int, str] = {}
    for chunk in range(region.chunks):
        for label, launch, wait in zip(region.labels, region.exchanges[chunk], region.waits[chunk], strict=True):
            events[launch] = f"{label[0].upper()}{chunk}"
            events[wait] = f"w{label[0].upper()}{chunk}"
    return events


def strip_of(
    index: GraphIndex, region: Region, order: Iterable[int], host_copies: Mapping[int, bool] | None = None
) -> str:
    """The strip of a region in ``order``, which may hold other nodes too."""
    events = events_of(region)
    unblocked = {**index.host_copies, **(host_copies or {})}
    for chunk, copies in enumerate(region.count_copies):
        events.update({node: f"h{chunk}" if unblocked[node] else f"h{chunk}!" for node in copies})
    inside = {node for body in region.bodies for node in body}
    parts: list[str] = []
    products = 0
    for node in order:
        if node in inside and index.compute[node]:
            products += 1
        if node in events:
            parts += [f"[{products} mm]"] if products else []
            parts.append(events[node])
            products = 0
    parts += [f"[{products} mm]"] if products else []
    return " ".join(parts)
