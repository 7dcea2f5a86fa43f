"""A cost model: sources of prices in order, settings, a name and a hash.

    model = load_model("h100,table=coll.yaml")
    model.name, model.hash                 # 'h100-sxm + table coll.yaml', '3f0c9a51d2e4'
    model.price(index).ns

The hash covers every figure of every source and all settings, and nothing else: two files with the
same content give the same hash wherever they lie.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.errors import GraphError
from commcc.base.terms import Kind
from commcc.base.text import size as bytes_text
from commcc.timing.cost.settings import parse
from commcc.timing.cost.types import Costs, Operation, Price, Settings, Source, Transfer, Within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Inside
    from commcc.timing.cost.device import Device

DEFAULT_MODEL = "h100"
#: Sizes at which measured bandwidths are compared, as powers of two.
SMALLEST, LARGEST = 10, 34
#: Simulators and kernels keep times and bytes in 64 bits with a sign; sums of all, with a slow-down in thousandths,
#: stay below half of that. In time that is 53 days of one step.
MOST = 1 << 62


@dataclass(frozen=True)
class DeviceSource:
    """Prices by formula: roofline for compute, alpha-beta for collectives. It knows a price for everything."""

    device: Device
    settings: Settings

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def warnings(self) -> tuple[str, ...]:
        """None: a device file that cannot be used whole is refused."""
        return ()

    def facts(self) -> Json:
        """The device's figures, without titles and sources."""
        figures: dict[str, Json] = json.loads(json.dumps(dataclasses.asdict(self.device), default=dict))
        return {key: value for key, value in figures.items() if key not in ("title", "sources")}

    def operation(self, operation: Operation) -> Price:
        from commcc.timing.cost.roofline import operation_price

        return operation_price(self.device, operation)

    def transfer(self, transfer: Transfer) -> Price:
        from commcc.timing.cost.alphabeta import transfer_price

        return transfer_price(self.device.network, transfer, self.settings)


@dataclass(frozen=True)
class CostModel:
    """``sources`` are asked in turn; the last one, the device, always answers."""

    name: str
    sources: tuple[Source, ...]
    device: Device
    settings: Settings

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits of the SHA-256 of all figures and settings."""
        content = {"sources": [source.facts() for source in self.sources], "settings": self.settings.to_json()}
        text = json.dumps(content, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def launch_ns(self) -> int:
        """What launching a collective takes of the compute stream."""
        us = self.settings.launch_us
        return round(1000 * (self.device.launch_us if us is None else us))

    def operation(self, operation: Operation) -> Price:
        """Time on the compute stream."""
        return self._ask_operation(operation)[1]

    def transfer(self, transfer: Transfer) -> Price:
        """Time on the group's stream."""
        return self._ask_transfer(transfer)[1]

    def group_call(self, transfers: Sequence[Transfer]) -> Price:
        """Time of one call that launches several collectives of one kind on one group.

        They share what a launch takes whatever its size, the longest of them, and each takes the time of its own bytes;
        together no less than one collective of all bytes.
        """
        first = transfers[0]
        prices = [self.transfer(transfer) for transfer in transfers]
        latency = max(price.latency_ns for price in prices)
        sent = sum(transfer.input_bytes for transfer in transfers)
        got = sum(transfer.output_bytes for transfer in transfers)
        whole = self.transfer(replace(first, input_bytes=sent, output_bytes=got))
        ns = latency + sum(price.ns - price.latency_ns for price in prices)
        return replace(whole, ns=max(whole.ns, ns), latency_ns=latency, how=f"{len(prices)} in one call, {whole.how}")

    def _ask_operation(self, operation: Operation) -> tuple[int, Price]:
        for position, source in enumerate(self.sources):
            price = source.operation(operation)
            if price is not None:
                return position, price
        raise AssertionError("a device prices everything")

    @cached_property
    def _transfers(self) -> dict[Transfer, tuple[int, Price]]:
        """What was asked before: planners ask for the same members of ever other buckets."""
        return {}

    def _ask_transfer(self, transfer: Transfer) -> tuple[int, Price]:
        known = self._transfers.get(transfer)
        if known is not None:
            return known
        for position, source in enumerate(self.sources):
            price = source.transfer(transfer)
            if price is not None:
                self._transfers[transfer] = position, price
                return position, price
        raise AssertionError("a device prices everything")

    def saturation_bytes(self, transfer: Transfer) -> int:
        """Smallest full tensor that moves at a share of this group's highest bandwidth for this kind of collective.

        The share is :data:`commcc.timing.cost.alphabeta.SATURATED`. By formula where the device prices it; where a
        measurement does, by looking between powers of two up to ``1 << LARGEST``.
        """
        from commcc.timing.cost.alphabeta import SATURATED, saturation_bytes

        source, _ = self._ask_transfer(transfer)
        if source == len(self.sources) - 1:
            network = self.device.network
            return saturation_bytes(network, transfer.kind, transfer.size, transfer.ranks, self.settings)

        def rate(full: int) -> float:
            small = max(1, full // transfer.size)
            sent = small if transfer.kind is Kind.ALL_GATHER else full
            got = small if transfer.kind is Kind.REDUCE_SCATTER else full
            return full / max(1, self.transfer(replace(transfer, input_bytes=sent, output_bytes=got)).ns)

        aim = SATURATED * max(rate(1 << power) for power in range(SMALLEST, LARGEST + 1))
        power = next(power for power in range(SMALLEST, LARGEST + 1) if rate(1 << power) >= aim)
        low, high = (1 << power) // 2, 1 << power  # the first is too small, the second is not
        while high - low > high >> 10:
            middle = (low + high) // 2
            low, high = (low, middle) if rate(middle) >= aim else (middle, high)
        return high

    def price(self, index: GraphIndex) -> Costs:
        """Prices of every node of a graph."""
        from commcc.timing.cost.operations import free_calls, operations_and_chains
        from commcc.timing.cost.payers import Payers
        from commcc.timing.cost.topology import streams

        count = len(index)
        ns, priced_by = [0] * count, [-1] * count
        notes: Counter[str] = Counter()
        seen: dict[Transfer | tuple[Transfer, ...], tuple[int, Price]] = {}
        free_ns = round(1000 * self.settings.free_us)
        for node in free_calls(index) if free_ns else ():
            priced_by[node], ns[node] = len(self.sources) - 1, free_ns
        how: dict[int, str] = {}
        latency: dict[int, int] = {}
        operations, chains = operations_and_chains(index, fused=self.settings.fused)
        # Layers repeat, so few operations are asked about: most are the same as an earlier one.
        asked = {
            key: self._ask_operation(operation)
            for key, operation in {id(operation): operation for operation in operations.values()}.items()
        }
        for node, operation in operations.items():
            priced_by[node], price = asked[id(operation)]
            ns[node] = price.ns
            if price.note:
                notes[price.note] += 1
        for node in index.launches:
            transfer, assumed = self.transfer_of(index, node)
            answer = seen.get(transfer) or seen.setdefault(transfer, self._ask_transfer(transfer))
            parts = _in_one_call(index, node, transfer)
            if len(parts) > 1:
                answer = seen.get(parts) or seen.setdefault(parts, (answer[0], self.group_call(parts)))
            priced_by[node], ns[node] = answer[0], answer[1].ns
            how[node], latency[node] = answer[1].how, answer[1].latency_ns
            notes.update(filter(None, (answer[1].note, assumed)))
        within: dict[int, Within] = {}
        for node, inside in index.inside.items():
            priced_by[node], (ns[node], within[node]) = len(self.sources) - 1, self._inside(inside)
        self._require_range(index, ns)
        said = tuple(f"{text} ({count:,} times)" if count > 1 else text for text, count in sorted(notes.items()))
        return Costs(
            model=self.name,
            hash=self.hash,
            sources=tuple(source.name for source in self.sources),
            ns=tuple(ns),
            priced_by=tuple(priced_by),
            how=how,
            latency_ns=latency,
            launch_ns=self.launch_ns,
            slowdown_permille=round(1000 * self.settings.slowdown),
            streams=streams(index.groups, self.ranks_per_node, self.settings.share_link),
            warnings=tuple(text for source in self.sources for text in source.warnings) + said,
            within=within,
            payers=Payers(chains, operations, lambda op: self.operation(op).ns) if chains and chains.after else None,
        )

    def _require_range(self, index: GraphIndex, ns: Sequence[int]) -> None:
        """Times and bytes can be added up in 64 bits; GraphError names the node that is larger than any machine."""
        slowdown = max(1000, round(1000 * self.settings.slowdown))
        sizes = index.estimates.buffer_bytes
        if (sum(ns) + len(index.launches) * self.launch_ns) * slowdown >= MOST:
            worst = max(range(len(index)), key=ns.__getitem__)
            what = f"'{index.names[worst]}' alone would take {ns[worst] / 8.64e13:,.3g} days by {self.name}"
        elif sum(sizes) >= MOST:
            what = f"all tensors together hold {bytes_text(sum(sizes))}"
        else:
            return
        hint = "look at its sizes, their --hint and the cost model; --cost none leaves times out"
        raise GraphError(f"{what}: too much to simulate", hint=hint)

    def _inside(self, inside: Inside) -> tuple[int, Within]:
        """What a node takes whose sub-graphs communicate: each of them simulated by itself, as it stands."""
        from commcc.timing.simulate.simulator import Simulator

        lines = [Simulator(graph, self.price(graph)).run() for graph in inside.graphs]
        if inside.one:
            # Nobody knows which of them it is.
            lines = [max(lines, key=lambda line: line.step_ns)]
        exposed, moved = sum(line.exposed_ns for line in lines), sum(line.communication_ns for line in lines)
        step = sum(line.step_ns for line in lines)
        return inside.runs * step, Within(inside.runs * moved, inside.runs * exposed)

    @property
    def ranks_per_node(self) -> int:
        return self.settings.ranks_per_node or self.device.network.ranks_per_node

    def transfer_of(self, index: GraphIndex, launch: int) -> tuple[Transfer, str | None]:
        """The collective at ``launch``, and what had to be assumed about it."""
        facts = index.launches[launch]
        entry = index.groups.get(facts.group)
        sent = sum(t.bytes for t in (index.tensors[i] for i in facts.inputs) if t is not None)
        result = index.tensors[launch]
        parts = index.estimates.parts.get(launch, ())
        got = result.bytes if result is not None else sum(t.bytes for t in parts if t is not None)
        size = facts.group_size or (entry.size if entry is not None else None)
        first = index.tensors[facts.inputs[0]] if facts.inputs else None
        transfer = Transfer(
            kind=facts.kind,
            group=facts.group,
            size=size or self._size_by_bytes(facts.kind, sent, got),
            input_bytes=sent,
            output_bytes=got or sent,
            dtype=first.dtype if first is not None else "unknown",
            ranks=entry.ranks if entry is not None else None,
            uneven=facts.kind is Kind.ALL_TO_ALL and bool(facts.splits),
            description=entry.description if entry is not None else "",
        )
        empty = first is not None and index.estimates.unknown.isdisjoint((launch, *facts.inputs))
        if not sent and not got and not empty:
            where = "is not in the graph" if first is None else "is known only at run time"
            remedy = "" if first is None else "; give --hint"
            return transfer, f"a collective's size {where} and counts as 0 bytes{remedy}"
        return transfer, None if size else f"group '{facts.group}' has no size: {transfer.size} ranks are assumed"

    def _size_by_bytes(self, kind: Kind, sent: int, got: int) -> int:
        """Ranks of a group that nothing tells: what the shapes say, else one node."""
        small, large = sorted((sent, got))
        if kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) and small and large // small > 1:
            return large // small
        return self.ranks_per_node


def _in_one_call(index: GraphIndex, launch: int, whole: Transfer) -> tuple[Transfer, ...]:
    """The collectives that a coalesced launch makes in one call; none where a size is not known."""
    facts = index.launches[launch]
    results = index.estimates.parts.get(launch, ())
    if not facts.coalesced or len(results) != len(facts.inputs):
        return ()
    both = [(index.tensors[sent], got) for sent, got in zip(facts.inputs, results, strict=True)]
    parts = tuple(
        replace(whole, input_bytes=sent.bytes, output_bytes=got.bytes, dtype=sent.dtype)
        for sent, got in both
        if sent is not None and got is not None and sent.bytes and got.bytes
    )
    return parts if len(parts) == len(both) else ()


def load_model(text: str = DEFAULT_MODEL) -> CostModel:
    """The model that a cost text describes; see :mod:`commcc.timing.cost.settings`.

    Raises OptionError for a wrong text and InputError, with file and line, for a wrong file.
    """
    from commcc.timing.cost.devices import load_device

    chosen = parse(text)
    device = load_device(chosen.device)
    settings = chosen.settings
    if settings.ranks_per_node is not None:
        device = replace(device, network=replace(device.network, ranks_per_node=settings.ranks_per_node))
    measured: list[Source] = []
    if chosen.profiles:
        from commcc.timing.cost.profiles import load_profile

        measured.append(load_profile(chosen.profiles))
    if chosen.tables:
        from commcc.timing.cost.tables import load_table

        ranks = device.network.ranks_per_node
        tables = [load_table(path, ranks_per_node=ranks, skew=settings.skew) for path in chosen.tables]
        measured += reversed(tables)
    sources: tuple[Source, ...] = (*measured, DeviceSource(device, settings))
    # Named by the sources from the general to the specific, then by the settings that are not as usual.
    usual = Settings().to_json()
    changed = [f"{key}={value}" for key, value in settings.to_json().items() if value != usual.get(key)]
    name = " + ".join(source.name for source in reversed(sources))
    if changed:
        name += f" ({', '.join(changed)})"
    return CostModel(name, sources, device, settings)
