"""Which compute hides which collective: from a simulated order, or from a file.

    hiding = hidden_by_order(index, timeline)
    hiding.by_launch[launch]        # nodes that run while the collective moves its bytes

A file names launches and the nodes that hide them::

    all_gather_into_tensor_3: [mm_7, mm_8]
    reduce_scatter_tensor: [mm_12]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError, OptionError, closest
from commcc.plan import Before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from commcc.graph.index import GraphIndex
    from commcc.timing.simulate import Timeline

_LARGEST_FILE = 16 << 20


@dataclass(frozen=True)
class Hiding:
    """by_launch: for hidden collectives the nodes that hide them, in graph order. waits: their first waits."""

    by_launch: Mapping[int, tuple[int, ...]]
    waits: Mapping[int, int]

    def edges(self) -> Iterator[tuple[int, int]]:
        """Launch before what hides it, before the wait."""
        for launch, nodes in self.by_launch.items():
            for node in nodes:
                yield launch, node
                yield node, self.waits[launch]

    def without(self, nodes: Collection[int]) -> Hiding:
        """The same without some of the nodes that hide."""
        kept = {launch: tuple(n for n in hiding if n not in nodes) for launch, hiding in self.by_launch.items()}
        return Hiding({launch: hiding for launch, hiding in kept.items() if hiding}, self.waits)

    def kept(self, index: GraphIndex) -> tuple[Before, ...]:
        """The same in the terms of a plan, without what follows from direct dependences among the nodes that hide."""
        found: list[Before] = []
        for launch, nodes in self.by_launch.items():
            among = frozenset(nodes)
            found += [Before(launch, n) for n in nodes if among.isdisjoint(index.preds(n))]
            found += [Before(n, self.waits[launch]) for n in nodes if among.isdisjoint(index.users[n])]
        return tuple(found)


def hidden_by_order(index: GraphIndex, timeline: Timeline) -> Hiding:
    """Collectives that the order hides altogether, with what runs on the compute stream meanwhile."""
    running = [n for n in timeline.order if timeline.end[n] > timeline.start[n]]
    left_out = {*index.launches, *index.wait_of}
    running = [n for n in running if n not in left_out]
    ends = [timeline.end[n] for n in running]
    by_launch: dict[int, tuple[int, ...]] = {}
    for launch, facts in index.launches.items():
        span = timeline.spans[launch]
        if not facts.asynchronous or not facts.waits or not span.ns or timeline.exposed.get(launch, 0):
            continue
        wait = min(facts.waits)
        hiding: list[int] = []
        for node in running[bisect_right(ends, span.start) :]:
            if timeline.start[node] >= span.end:
                break
            if launch < node < wait:
                hiding.append(node)
        if hiding:
            by_launch[launch] = tuple(hiding)
    return Hiding(by_launch, {launch: min(index.launches[launch].waits) for launch in by_launch})


def read_hiding(index: GraphIndex, path: str) -> Hiding:
    """Hiding relations from a YAML file.

    Raises :class:`InputError` for a file that cannot be read and :class:`OptionError`, with all that is
    wrong, for names that are not in the graph.
    """
    content = _load(path)
    wrong: list[str] = []
    by_launch: dict[int, tuple[int, ...]] = {}
    for name, nodes in content.items():
        launch = index.position.get(str(name))
        if launch is None or launch not in index.launches:
            launches = [index.names[n] for n in index.launches]
            wrong.append(f"no collective '{name}' in the graph{closest(str(name), launches)}")
            continue
        names = nodes if isinstance(nodes, list) else [nodes]
        unknown = [str(n) for n in names if str(n) not in index.position]
        wrong += [f"no node '{n}' in the graph{closest(n, index.names)}" for n in unknown]
        if not index.launches[launch].waits:
            wrong.append(f"'{name}' is never waited for")
        elif not unknown and names:
            by_launch[launch] = tuple(sorted({index.position[str(n)] for n in names}))
    if wrong:
        raise OptionError("; ".join(wrong), where=path, hint="write launch: [node, node]")
    return Hiding(by_launch, {launch: min(index.launches[launch].waits) for launch in by_launch})


def _load(path: str) -> dict[Any, Any]:
    import yaml

    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise InputError("too large for a file of hiding relations", where=path)
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=path) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where is not None else ""
        raise InputError("is not YAML", where=f"{path}{line}") from None
    if not isinstance(content, dict):
        raise InputError("has to name launches and the nodes that hide them", where=path, hint="launch: [node, node]")
    return content
