"""Types of the cost model: what is to be priced, what a price is, and who gives one. No torch.

All times are whole nanoseconds, so that sums do not depend on their order and results are the same
to the byte on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from commcc.base.options import option

if TYPE_CHECKING:
    from commcc.base.terms import Json, Kind
    from commcc.graph.index import Tensor
    from commcc.timing.cost.payers import Ints, Payers


@dataclass(frozen=True)
class Operation:
    """One node that runs on the compute stream.

    inputs, outputs: the tensors of the op as the graph states them, in order of the arguments.
    flops: None for ops without a formula. compute: whether it is a compute node (matmul family,
    attention, convolution). read_bytes, written_bytes: what really crosses the memory bus; less than
    the tensors' bytes when neighbours are fused. kernels: how many kernels it launches; 0 when a
    fused neighbour pays for the launch. host_sync: the host waits for the result, as it does not for a
    non-blocking copy. host_bytes: bytes that cross between host and device. unmasked: attention in which every query
    sees every key.
    """

    op: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: int | None = None
    compute: bool = False
    read_bytes: int = 0
    written_bytes: int = 0
    kernels: int = 1
    host_sync: bool = False
    host_bytes: int = 0
    unmasked: bool = False


@dataclass(frozen=True)
class Transfer:
    """One collective. Bytes are those of one rank's input and output.

    size: ranks in the group. ranks: which, when known (global rank numbers). uneven: an all-to-all
    whose split sizes are decided at run time. description: what the program calls the group
    (``dp_shard``), under which a table may know it.
    """

    kind: Kind
    group: str
    size: int
    input_bytes: int
    output_bytes: int
    dtype: str
    ranks: tuple[int, ...] | None = None
    uneven: bool = False
    description: str = ""

    @property
    def full_bytes(self) -> int:
        """The larger of input and output: what a gather ends with and a reduction begins with."""
        return max(self.input_bytes, self.output_bytes)


@dataclass(frozen=True)
class Price:
    """A duration.

    how: what decided it, in a few words: ``memory``, ``ring``, ``table 1 MiB to 2 MiB``.
    latency_ns: the part that does not grow with the bytes; what merging saves.
    note: something the user should know; equal notes are said once, with their number.
    """

    ns: int
    how: str
    latency_ns: int = 0
    note: str | None = None


class Source(Protocol):
    """Something that knows prices. A source that does not know one returns None, and the next is asked."""

    @property
    def name(self) -> str:
        """Short name for reports: ``h100-sxm``, ``table coll.yaml``."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the files behind it."""

    def facts(self) -> Json:
        """Everything that decides a price, for the hash of the model; no paths, no times."""

    def operation(self, operation: Operation) -> Price | None:
        """Time on the compute stream."""

    def transfer(self, transfer: Transfer) -> Price | None:
        """Time on the stream of the group."""


@dataclass(frozen=True)
class Settings:
    """What can be set in a cost text besides its sources."""

    fused: bool = option(
        True,
        "pointwise ops, casts and reductions pay only for what enters and leaves a chain of them, as after a compiler "
        "has fused them",
    )
    skew: float = option(
        1.0, "how much more than the mean the busiest rank of an uneven all-to-all gets", minimum=1, maximum=1_000_000
    )
    slowdown: float = option(1.0, "factor on compute while a collective is in flight", minimum=1, maximum=1_000_000)
    share_link: str = option(
        "none",
        "none: each group has a link of its own; topology: groups that cross nodes share the network, the others share "
        "the links inside a node; all: one link. A shared link carries one collective at a time, in order of launch",
        choices=("none", "topology", "all"),
    )
    launch_us: float | None = option(
        None,
        "time on the compute stream that a launch takes",
        minimum=0,
        maximum=1_000_000,
        none="the device's own figure",
    )
    ranks_per_node: int | None = option(None, "ranks in a node", minimum=1, maximum=1_000_000, none="the device's")
    algorithm: str = option("auto", "auto takes the fastest", choices=("auto", "ring", "tree", "nvls"))
    free_us: float = option(
        0.0,
        "time on the compute stream of a call that moves no data, as views do, where the host calls ops one by one",
        minimum=0,
        maximum=1_000_000,
    )

    def to_json(self) -> dict[str, Json]:
        return {
            "fused": self.fused,
            "skew": self.skew,
            "slowdown": self.slowdown,
            "share_link": self.share_link,
            "launch_us": self.launch_us,
            "ranks_per_node": self.ranks_per_node,
            "algorithm": self.algorithm,
            # Left out where it is not set: models without it keep their hash, which baselines and plans name.
            **({"free_us": self.free_us} if self.free_us else {}),
        }


@dataclass(frozen=True)
class Within:
    """What collectives take that the sub-graphs of one node launch, as these stand: of the node's ns, exposed_ns."""

    communication_ns: int
    exposed_ns: int


@dataclass(frozen=True)
class Costs:
    """Prices of every node of one graph under one model.

    ns: per node; for a launch the time on its group's stream, for all else that on the compute stream.
    priced_by: per node, position in ``sources``; -1 for nodes that run nothing.
    how: what decided the price of each launch. latency_ns: of each launch.
    launch_ns: what each launch takes of the compute stream. slowdown_permille: 1000 for none.
    streams: for every group the queue that its collectives wait in; groups in one queue share a link. within: of
    nodes whose sub-graphs communicate. payers: of fused chains; in other orders another node pays, and prices differ.
    None where no chain has several nodes.
    """

    model: str
    hash: str
    sources: tuple[str, ...]
    ns: tuple[int, ...]
    priced_by: tuple[int, ...]
    how: dict[int, str]
    latency_ns: dict[int, int]
    launch_ns: int
    slowdown_permille: int
    streams: dict[str, str]
    warnings: tuple[str, ...] = ()
    within: dict[int, Within] = field(default_factory=dict)
    payers: Payers | None = field(default=None, repr=False, compare=False)

    def in_order(self, order: Ints) -> Costs:
        """Those of the same graph in another order, by the same numbers of nodes."""
        changed = {} if self.payers is None else self.payers.prices(order)
        if not changed:
            return self
        ns = list(self.ns)
        for node, price in changed.items():
            ns[node] = price
        return replace(self, ns=tuple(ns), payers=None)
