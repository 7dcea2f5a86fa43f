"""Scheduling against PyTorch's own ``schedule_overlap_bucketing``, on the same graph in the same process.

    python benchmarks/against_overlap.py [FILE...] [--cost TEXT]... [--passes TEXT]... [--modes bucket,pre] [--json OUT]

For every graph and cost model: the peer in each of its modes (:mod:`torch_overlap`, which says what the
harness changes in it), commcc in each pipeline. All results are indexed, priced by the same model and
simulated by commcc. Columns: simulated step in ms; that over the peer's best mode; over the lower bound
that holds when collectives are merged within the budget (:mod:`merge_bound`); exposed ms; peak memory over the budget
(baseline peak and the larger of 1 GiB and 5 %), with ``!`` beyond it; max consecutive compute (between
reduce-scatters); collectives; CPU seconds of planning and applying, and how many times more the peer's
best mode takes. commcc's seconds: index, identify, price, plan, apply; verification is done but not counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "sample_graphs"
COSTS = (
    "h100",
    f"h100,table={HERE / 'costs' / 'bandwidth-bound.yaml'}",
    str(HERE / "costs" / "latency-rich.yaml"),
)
PIPELINES = ("reorder", "bucket,reorder")
GIB = 1 << 30


@dataclass
class Row:
    """One result under one model; times in ms, memory in bytes. ratios are filled in at the end."""

    file: str
    cost: str
    side: str
    step_ms: float = 0.0
    exposed_ms: float = 0.0
    compute_ms: float = 0.0
    communication_ms: float = 0.0
    peak_bytes: int = 0
    budget_bytes: int = 0
    max_consecutive_compute: int = 0
    collectives: int = 0
    seconds: float = 0.0
    nodes: int = 0
    bound_ms: float = 0.0
    over_bound: float = 0.0
    over_peer: float = 0.0
    peer_seconds_ratio: float = 0.0
    failed: str = ""


@dataclass
class Side:
    """A result before it is a row."""

    name: str
    program: Any
    seconds: float
    failed: str = ""


def commcc_side(program: Any, model: Any, text: str, *, check: bool) -> Side:
    """The graph through a pipeline; CPU seconds of indexing, planning and applying."""
    from commcc.apply import apply_plan
    from commcc.base.errors import CommccError
    from commcc.base.gc_pause import no_collection
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.passes.base import PlanContext
    from commcc.passes.options import parse_pipeline
    from commcc.verify import verify

    gc.collect()
    first, of_first, seconds = program, None, 0.0
    try:
        for number, made in enumerate(passes := parse_pipeline(text), 1):
            start = time.process_time()
            index = build_index(program)
            with no_collection():  # as the pipeline does
                behind = tuple(other.name for other in passes[number:])
                plan = made.plan(PlanContext(program, index, identify(index), model, of_first, behind=behind))
            after = apply_plan(program, index, plan) if plan.changes else program
            seconds += time.process_time() - start
            program, of_first = after, of_first or index
        status = verify(first, program).status if check else "proved"
    except CommccError as error:
        return Side(text, None, seconds, f"{type(error).__name__}: {error}"[:200])
    return Side(text, program, seconds, "" if status == "proved" else f"verify: {status}")


def peer_sides(program: Any, on_cpu: Any, model: Any, modes: list[str]) -> Iterator[Side]:
    from torch_overlap import Peer

    peer = Peer(program, on_cpu, model)
    for mode in modes:
        made = peer.run(mode)
        yield Side(f"torch {mode}", made.program, made.seconds, made.failed or "")


class Judge:
    """Prices and simulates the results for one graph under one model."""

    def __init__(self, path: Path, program: Any, cost: str) -> None:
        from commcc.timing.cost import load_model

        self.file, self.cost, self.model = path.name.split(".")[0], cost, load_model(cost)
        self.rows: list[Row] = []
        self._priced: list[tuple[Any, Any]] = []
        self._budget = 0
        before = self.add(Side("input", program, 0.0))
        self._budget = before.peak_bytes + max(GIB, before.peak_bytes // 20)

    def add(self, side: Side) -> Row:
        """One more result."""
        row = Row(self.file, self.cost, side.name, failed=side.failed, seconds=round(side.seconds, 3))
        self.rows.append(row)
        if side.program is None:
            return row
        from commcc.base.terms import Kind
        from commcc.graph.index import build_index
        from commcc.graph.memory import live_bytes
        from commcc.graph.metrics import longest_run
        from commcc.timing.simulate import Simulator

        index = build_index(side.program)
        costs = self.model.price(index)
        timeline = Simulator(index, costs).run()
        row.step_ms, row.exposed_ms = timeline.step_ns / 1e6, timeline.exposed_ns / 1e6
        row.compute_ms, row.communication_ms = timeline.compute_ns / 1e6, timeline.communication_ns / 1e6
        row.peak_bytes = live_bytes(index).peak_bytes
        row.max_consecutive_compute = longest_run(index, Kind.REDUCE_SCATTER)
        row.collectives, row.nodes = len(index.launches), len(index)
        if self._priced and wire_bytes(index) != wire_bytes(self._priced[0][0]):
            row.failed = row.failed or "moves other bytes than the input"
        self._priced.append((index, costs))
        return row

    def finished(self) -> list[Row]:
        """All rows with their ratios."""
        from merge_bound import merge_bound

        (index, costs), *others = self._priced
        bound = merge_bound(index, costs, self.model, others, self._budget).ns / 1e6
        peers = [row for row in self.rows if row.side.startswith("torch") and row.step_ms]
        best = min(peers, key=lambda row: row.step_ms, default=None)
        for row in self.rows:
            row.bound_ms, row.budget_bytes = bound, self._budget
            row.over_bound = row.step_ms / bound if bound else 0.0
            if best is not None:
                row.over_peer = row.step_ms / best.step_ms
                row.peer_seconds_ratio = best.seconds / row.seconds if row.seconds else 0.0
        return self.rows


def wire_bytes(index: Any) -> dict[tuple[str, str], int]:
    """Bytes that go into the collectives of each kind and group: merging must not change them."""
    found: dict[tuple[str, str], int] = {}
    for facts in index.launches.values():
        key = (facts.kind.value, facts.group)
        sent = sum(t.bytes for t in (index.tensors[i] for i in facts.inputs) if t is not None)
        found[key] = found.get(key, 0) + sent
    return found


HEAD = (
    f"{'':36} {'step':>9} {'/peer':>7} {'/bound':>7} {'exposed':>8} {'compute':>8} {'comm':>8} "
    f"{'peak':>6} {'/budget':>8} {'maxcc':>5} {'coll':>4} {'sec':>7} {'speed':>7}"
)


def text(rows: list[Row]) -> str:
    """The rows of one graph under one model."""
    first = rows[0]
    lines = [
        f"{first.file}, {first.nodes} nodes, {Path(first.cost).name}; bound {first.bound_ms:.2f} ms, "
        f"budget {first.budget_bytes / GIB:.2f} GiB",
        HEAD,
    ]
    for row in rows:
        if not row.step_ms:
            lines.append(f"{row.side[:36]:36} failed: {row.failed}")
            continue
        over = "!" if row.peak_bytes > row.budget_bytes else " "
        lines.append(
            f"{row.side[:36]:36} {row.step_ms:9.2f} {row.over_peer:7.3f} {row.over_bound:7.3f} {row.exposed_ms:8.2f} "
            f"{row.compute_ms:8.2f} {row.communication_ms:8.2f} {row.peak_bytes / GIB:6.2f} "
            f"{row.peak_bytes / row.budget_bytes:7.3f}{over} {row.max_consecutive_compute:5} {row.collectives:4} "
            f"{row.seconds:7.2f} {row.peer_seconds_ratio:7.1f} {row.failed}"
        )
    return "\n".join(lines) + "\n"


def summary(rows: list[Row]) -> str:
    """For every side: in how many cells it is below the peer, and worst and mean ratios."""
    lines = [
        f"{'':34} {'cells':>5} {'<peer':>5} {'mean/peer':>9} {'worst':>7} {'mean/bound':>10} {'worst':>7}"
        f" {'over budget':>11}"
    ]
    for side in dict.fromkeys(row.side for row in rows):
        mine = [row for row in rows if row.side == side and row.step_ms]
        if not mine:
            continue
        peer, bound = [row.over_peer for row in mine], [row.over_bound for row in mine]
        over = sum(row.peak_bytes > row.budget_bytes for row in mine)
        lines.append(
            f"{side[:34]:34} {len(mine):5} {sum(r < 1 for r in peer):5} {sum(peer) / len(peer):9.3f} {max(peer):7.3f} "
            f"{sum(bound) / len(bound):10.3f} {max(bound):7.3f} {over:11}"
        )
    return "\n".join(lines)


def compare(path: Path, options: argparse.Namespace, known: list[Row]) -> Iterator[list[Row]]:
    """Rows of one graph, for each model; those of the peer from ``known`` where they are."""
    from against_torch import load_on_cpu, register_groups

    from commcc.serialization import load

    program = load(path)
    modes = [mode for mode in options.modes.split(",") if mode]
    on_cpu = load_on_cpu(path) if modes else None
    if on_cpu is not None:
        register_groups(on_cpu)
    for cost in options.cost or COSTS:
        judge = Judge(path, program, cost)
        for pipeline in options.passes or PIPELINES:
            judge.add(commcc_side(program, judge.model, pipeline, check=not options.no_verify))
        old = [row for row in known if (row.file, row.cost) == (judge.file, cost) and row.side.startswith("torch")]
        judge.rows += old
        missing = [mode for mode in modes if f"torch {mode}" not in {row.side for row in old}]
        for side in peer_sides(program, on_cpu, judge.model, missing) if missing else ():
            judge.add(side)
        yield judge.finished()


def warm_up(modes: list[str]) -> None:
    """Both sides once on a small graph, so that nobody's seconds hold imports."""
    from against_torch import load_on_cpu, register_groups

    from commcc.serialization import load
    from commcc.timing.cost import load_model

    path, model = SAMPLES / "tiny_llama_fsdp2_bw.fx.txt.gz", load_model()
    program, on_cpu = load(path), load_on_cpu(path)
    register_groups(on_cpu)
    commcc_side(program, model, "bucket,reorder", check=True)
    list(peer_sides(program, on_cpu, model, modes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--cost", action="append", help="cost text; may be given several times")
    parser.add_argument("--passes", action="append", help="pipeline; may be given several times")
    parser.add_argument("--modes", default="overlap,bucket,pre,pre+bucket", help="of the peer; empty for none")
    parser.add_argument("--no-verify", action="store_true", help="leave out the check of commcc's results")
    parser.add_argument("--peer-from", type=Path, help="JSON of an earlier run: its rows of the peer are not run again")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    default = [p for p in sorted(SAMPLES.glob("*.fx.txt.gz")) if p.name.startswith(("llama3", "moe"))]
    rows: list[Row] = []
    known = [Row(**row) for row in json.loads(options.peer_from.read_text())] if options.peer_from else []
    warm_up([mode for mode in options.modes.split(",") if mode])
    for path in options.files or default:
        for found in compare(path, options, known):
            rows += found
            print(text(found), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
