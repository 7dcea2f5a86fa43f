"""What a device file says; :func:`commcc.cost.devices.load_device` reads one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Compute:
    """peak_tflops: by dtype (``bfloat16``, ``float32``, ...), dense. achievable: fraction of it that large
    ops reach, by family (``matmul``, ``attention``, ``convolution``, ``grouped_matmul``).
    kernel_us: shortest time that a kernel takes of its stream.
    """

    peak_tflops: Mapping[str, float]
    achievable: Mapping[str, float]
    kernel_us: float


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

    gb_per_s: 1e9 bytes a second, each way. latency_us: of one hop, as a collective sees it.
    """

    name: str
    gb_per_s: float
    latency_us: float


@dataclass(frozen=True)
class Algorithm:
    """One way to run collectives: ``ring``, ``tree``, ``nvls``, ``pairwise`` (all-to-all).

    kinds: collectives it can do. base_us: time before the first byte moves. achievable: fraction of
    the links' bandwidth that large messages reach, inside a node and between nodes.
    """

    name: str
    kinds: tuple[str, ...]
    base_us: float
    achievable_intra: float
    achievable_inter: float


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
