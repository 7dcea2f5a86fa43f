"""What a device file says; :func:`commcc.timing.cost.devices.load_device` reads one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True)
class Compute:
    """peak_tflops: by dtype (``bfloat16``, ``float32``, ...), dense. achievable: fraction of it that large
    ops reach, by family (``matmul``, ``attention``, ``convolution``, ``grouped_matmul``).
    kernel_us: shortest time that a kernel takes of its stream. ramp_us: what a compute node takes
    besides its FLOPs: filling and draining the device; at flops / rate = ramp_us half the achievable
    rate is reached. float32_matmul: whose peak float32 matmuls get, ``float32`` or ``tfloat32``;
    float32_convolution: the same for convolutions. attention_share: share of attention's counted FLOPs that kernels
    do where the op does not say that it has no mask; a causal one skips half.
    """

    peak_tflops: Mapping[str, float]
    achievable: Mapping[str, float]
    kernel_us: float
    ramp_us: float = 0.0
    float32_matmul: str = "float32"
    float32_convolution: str = "float32"
    attention_share: float = 1.0


@dataclass(frozen=True)
class Memory:
    """gb_per_s: 1e9 bytes a second, peak. achievable: fraction reached by a large copy. gib: capacity."""

    gb_per_s: float
    achievable: float
    gib: float


@dataclass(frozen=True)
class Host:
    """gb_per_s: between host and device, one way. sync_us: what a host sync costs the compute stream."""

    gb_per_s: float
    sync_us: float


@dataclass(frozen=True)
class Link:
    """One way out of one device: inside a node (NVLink, xGMI, PCIe), or the network between nodes.

    gb_per_s: 1e9 bytes a second, each way. latency_us: of one hop, as a collective sees it, for algorithms
    that list no protocols. post_us: the least that a step of a ring takes while the ring uses this link,
    since the host posts a message for each.
    """

    name: str
    gb_per_s: float
    latency_us: float
    post_us: float | None = None


@dataclass(frozen=True)
class Protocol:
    """How an algorithm moves its bytes: NCCL's ``LL``, ``LL128`` and ``Simple``.

    base_us: time before the first byte moves. intra_us, inter_us: of one hop inside a node and between
    nodes. share: fraction of the algorithm's achievable bandwidth, inside a node and between nodes.
    """

    name: str
    base_us: float
    intra_us: float
    inter_us: float
    share_intra: float
    share_inter: float


@dataclass(frozen=True)
class Algorithm:
    """One way to run collectives: ``ring``, ``tree``, ``nvls``, ``pairwise`` (all-to-all).

    kinds: collectives it can do. achievable: fraction of the links' bandwidth that large messages reach,
    inside a node and between nodes. protocols: what it chooses from, by size. Without any there is one,
    with base_us, the latencies of the links and all of the bandwidth; else base_us is None.
    """

    name: str
    kinds: tuple[str, ...]
    base_us: float | None
    achievable_intra: float
    achievable_inter: float
    protocols: tuple[Protocol, ...] = ()


@dataclass(frozen=True)
class Network:
    """Topology: ``ranks_per_node`` devices in a node, each with one ``inter`` link."""

    ranks_per_node: int
    intra: Link
    inter: Link
    algorithms: tuple[Algorithm, ...]


@dataclass(frozen=True)
class Device:
    """One device file. launch_us: what launching a collective takes of the compute stream.
    sources: where each figure comes from, by dotted key (``compute.peak_tflops``).
    """

    name: str
    title: str
    compute: Compute
    memory: Memory
    host: Host
    network: Network
    launch_us: float
    sources: Mapping[str, str]

    def source_of(self, key: str) -> str | None:
        """Where a figure comes from: the source of its dotted key, or of the nearest key above it."""
        while key:
            if key in self.sources:
                return self.sources[key]
            key = key.rpartition(".")[0]
        return None

    def figures(self) -> dict[str, float]:
        """Every number of the device by its dotted key (``network.algorithms.ring.protocols.LL.base_us``)."""
        content = {k: v for k, v in asdict(self).items() if k != "sources"}
        content["network"]["algorithms"] = algorithms = _by_name(content["network"]["algorithms"])
        for algorithm in algorithms.values():
            algorithm["protocols"] = _by_name(algorithm["protocols"])
        return dict(_numbers("", content))


def _by_name(listed: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in listed}


def _numbers(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{key}.", value)
        elif isinstance(value, (int, float)):
            yield f"{prefix}{key}", value
