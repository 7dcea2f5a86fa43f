"""Devices that come with commcc, and device files of users.

    load_device("h100").memory.gb_per_s        # 3350.0
    load_device("mine.yaml")                   # a file of the same schema
    device_names()                             # ('a100-sxm', 'b200', ...)

A file is read strictly: unknown and missing keys, wrong types and impossible numbers are named with
their lines, all at once. The schema is in ``docs/cost-devices.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError, closest
from commcc.base.terms import Kind
from commcc.base.yaml_file import Node, read_yaml
from commcc.timing.cost.device import Algorithm, Compute, Device, Host, Link, Memory, Network, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["device_names", "load_device"]

#: Floating dtypes from narrow to wide, then integers; ``float8`` and ``float4`` stand for all their formats.
DTYPES = ("float4", "float8", "float16", "bfloat16", "tfloat32", "float32", "float64", "int4", "int8")
FAMILIES = ("matmul", "grouped_matmul", "attention", "convolution")
ALGORITHMS = ("ring", "tree", "nvls", "pairwise")
#: What a figure of a device can be: as the settings of a cost text are, so that no time made of them overflows.
MOST_US = 1_000_000
MOST_RANKS = 1_000_000
LEAST_RATE, MOST_RATE = 1e-6, 1e9
LEAST_SHARE = 1e-6
_ALIASES = {
    "a100": "a100-sxm",
    "a100-80gb": "a100-sxm",
    "h100": "h100-sxm",
    "h100-sxm5": "h100-sxm",
    "h200": "h200-sxm",
    "b200-sxm": "b200",
    "mi300": "mi300x",
    "mi300x-oam": "mi300x",
    "cpu": "laptop-cpu",
    "laptop": "laptop-cpu",
}


def device_names() -> tuple[str, ...]:
    """Names of the devices that come with commcc, without the short forms."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


def load_device(name_or_path: str) -> Device:
    """A device by name, short name, or path of a ``.yaml`` or ``.yml`` file.

    Raises :class:`commcc.base.errors.OptionError` for a name that nobody has, and
    :class:`commcc.base.errors.InputError` for a file that is not a device.
    """
    if name_or_path.lower().endswith((".yaml", ".yml")):
        return read_device(name_or_path)
    names = device_names()
    word = name_or_path.strip().lower().replace("_", "-")
    name = _ALIASES.get(word, word)
    if name not in names:
        near = closest(word, (*names, *_ALIASES))
        raise OptionError(
            f"unknown device '{name_or_path}'{near}", hint=f"use {', '.join(names)}, or a file that ends in .yaml"
        )
    return read_device(Path(__file__).with_name(f"{name}.yaml"))


def read_device(path: str | Path) -> Device:
    """Read one device file."""
    file = read_yaml(path)
    top = file.root.mapping(
        {"name", "title", "launch_us", "compute", "memory", "host", "network"}, optional={"sources"}
    )
    device = Device(
        name=top["name"].text(),
        title=top["title"].text(),
        compute=_compute(top["compute"]),
        memory=_memory(top["memory"]),
        host=_host(top["host"]),
        network=_network(top["network"]),
        launch_us=_us(top["launch_us"]),
        sources={key: node.text() for key, node in top["sources"].entries().items()} if "sources" in top else {},
    )
    if "sources" in top:
        _check_sources(device, top["sources"].entries())
    file.check()
    return device


def _compute(node: Node) -> Compute:
    units = ("float32_matmul", "float32_convolution")
    fields = node.mapping({"peak_tflops", "achievable", "kernel_us"}, optional={"ramp_us", "attention_share", *units})
    peaks = fields["peak_tflops"].mapping({"float32"}, optional=DTYPES)
    fractions = fields["achievable"].mapping(FAMILIES)
    chosen = {unit: fields[unit].text(("float32", "tfloat32")) for unit in units if unit in fields}
    for unit, dtype in chosen.items():
        # Else every float32 matmul would be priced by a peak that is not there.
        if dtype not in peaks:
            fields[unit].fail(f"'{unit}' is {dtype}, which has no peak in 'peak_tflops'")
    return Compute(
        peak_tflops={name: _rate(value) for name, value in peaks.items()},
        achievable={name: _fraction(value) for name, value in fractions.items()},
        kernel_us=fields["kernel_us"].number(above=0, most=MOST_US),
        ramp_us=_us(fields["ramp_us"]) if "ramp_us" in fields else 0.0,
        float32_matmul=chosen.get("float32_matmul", "float32"),
        float32_convolution=chosen.get("float32_convolution", "float32"),
        attention_share=_fraction(fields["attention_share"]) if "attention_share" in fields else 1.0,
    )


def _fraction(node: Node) -> float:
    return node.number(least=LEAST_SHARE, most=1)


def _us(node: Node) -> float:
    return node.number(least=0, most=MOST_US)


def _rate(node: Node) -> float:
    """What a device does of something in a second, or has of it: TFLOPs, GB a second, GiB."""
    return node.number(least=LEAST_RATE, most=MOST_RATE)


def _memory(node: Node) -> Memory:
    fields = node.mapping({"gb_per_s", "achievable", "gib"})
    return Memory(
        gb_per_s=_rate(fields["gb_per_s"]),
        achievable=_fraction(fields["achievable"]),
        gib=_rate(fields["gib"]),
    )


def _host(node: Node) -> Host:
    fields = node.mapping({"gb_per_s", "sync_us"})
    return Host(gb_per_s=_rate(fields["gb_per_s"]), sync_us=_us(fields["sync_us"]))


def _network(node: Node) -> Network:
    fields = node.mapping({"ranks_per_node", "intra", "inter", "algorithms"})
    listed = fields["algorithms"].items()
    if fields["algorithms"].value == []:
        fields["algorithms"].fail("'algorithms' is empty")
    algorithms = tuple(_algorithm(entry) for entry in listed)
    _once("algorithm", listed, [algorithm.name for algorithm in algorithms])
    return Network(
        ranks_per_node=fields["ranks_per_node"].integer(least=1, most=MOST_RANKS),
        intra=_link(fields["intra"]),
        inter=_link(fields["inter"]),
        algorithms=algorithms,
    )


def _once(what: str, nodes: Sequence[Node], names: Sequence[str]) -> None:
    for position, (node, name) in enumerate(zip(nodes, names, strict=True)):
        if name and name in names[:position]:
            node.fail(f"{what} '{name}' is given twice")


def _link(node: Node) -> Link:
    fields = node.mapping({"name", "gb_per_s", "latency_us"}, optional={"post_us"})
    return Link(
        name=fields["name"].text(),
        gb_per_s=_rate(fields["gb_per_s"]),
        latency_us=_us(fields["latency_us"]),
        post_us=_us(fields["post_us"]) if "post_us" in fields else None,
    )


def _algorithm(node: Node) -> Algorithm:
    fields = node.mapping({"name", "kinds", "achievable_intra", "achievable_inter"}, optional={"base_us", "protocols"})
    if ("base_us" in fields) == ("protocols" in fields):
        node.fail("an algorithm needs either 'base_us' or 'protocols'")
    listed = fields["kinds"].items()
    kinds = tuple(kind.text(tuple(map(str, Kind))) for kind in listed)
    if fields["kinds"].value == []:
        fields["kinds"].fail("'kinds' is empty")
    if len(set(filter(None, kinds))) < len(list(filter(None, kinds))):
        fields["kinds"].fail("a kind is given twice")
    return Algorithm(
        name=fields["name"].text(ALGORITHMS),
        kinds=kinds,
        base_us=_us(fields["base_us"]) if "base_us" in fields else None,
        achievable_intra=_fraction(fields["achievable_intra"]),
        achievable_inter=_fraction(fields["achievable_inter"]),
        protocols=_protocols(fields["protocols"]) if "protocols" in fields else (),
    )


def _protocols(node: Node) -> tuple[Protocol, ...]:
    listed = node.items()
    if node.value == []:
        node.fail("'protocols' is empty")
    protocols = tuple(_protocol(entry) for entry in listed)
    _once("protocol", listed, [protocol.name for protocol in protocols])
    return protocols


def _protocol(node: Node) -> Protocol:
    fields = node.mapping({"name", "base_us", "intra_us", "inter_us", "share_intra", "share_inter"})
    return Protocol(
        name=fields["name"].text(),
        base_us=_us(fields["base_us"]),
        intra_us=_us(fields["intra_us"]),
        inter_us=_us(fields["inter_us"]),
        share_intra=_fraction(fields["share_intra"]),
        share_inter=_fraction(fields["share_inter"]),
    )


def _check_sources(device: Device, sources: Mapping[str, Node]) -> None:
    """Every source must be of something that is in the file."""
    known = {"compute.float32_matmul", "compute.float32_convolution", "network.intra.name", "network.inter.name"}
    known |= {f"network.algorithms.{algorithm.name}.kinds" for algorithm in device.network.algorithms}
    for key in device.figures():
        parts = key.split(".")
        known.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    for key, node in sources.items():
        if key not in known:
            node.fail(f"a source for '{key[:60]}', which is not in the file{closest(key, sorted(known))}")
