"""Our own profile files: medians that were taken elsewhere.

    profile: 1
    ops:
    - op: aten.mm
      inputs: ["bfloat16[4096, 4096]", "bfloat16[4096, 14336]"]
      median_us: 812.4
      count: 24
    collectives:
    - {kind: all_gather, group_size: 8, input_bytes: 16777216, dtype: bfloat16, us: 143.2, count: 12}

    read_profile("run.yaml", pool)          # into a Pool
    profile_text(profile)                   # and back

``count`` may be left out and is 1 then; ``dtype`` of a collective is for the reader only, since bytes
decide its time. ``us`` is the time without waiting for other ranks.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from commcc.base.errors import closest
from commcc.base.terms import Kind
from commcc.base.text import shown
from commcc.base.yaml_file import read_yaml
from commcc.timing.cost.profiles.dtypes import ITEM_BYTES
from commcc.timing.cost.profiles.measured import CollectiveKey, OpKey

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.base.yaml_file import Node
    from commcc.timing.cost.profiles.measured import Pool, Profile, TensorKey

VERSION = 1
_OP = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_TENSOR = re.compile(r"(\w{1,40})\[(\s*|\s*\d{1,18}\s*(?:,\s*\d{1,18}\s*){0,20})\]", re.ASCII)
_LONGEST_US = 1e12
_MOST_BYTES = 1 << 62
_MOST_COUNT = 10**9


def read_profile(path: str | Path, pool: Pool) -> None:
    """Add the times of a file to ``pool``; :class:`~commcc.base.errors.InputError` names all its mistakes."""
    file = read_yaml(path)
    root = file.root.mapping({"profile"}, {"ops", "collectives", "device", "note"})
    root["profile"].integer(least=VERSION, most=VERSION)
    if "ops" not in root and "collectives" not in root and not file.mistakes:
        file.root.fail("the file has neither 'ops' nor 'collectives'")
    ops = [_op(entry) for entry in root["ops"].items()] if "ops" in root else []
    collectives = [_collective(entry) for entry in root["collectives"].items()] if "collectives" in root else []
    seen: dict[object, int] = {}
    for key, _, _, entry in (*ops, *collectives):
        line = seen.setdefault(key, entry.line)
        if line != entry.line:
            entry.fail(f"the same as in line {line}")
    file.check()
    for op, ns, count, _ in ops:
        pool.median(op, ns, count)
    for collective, ns, count, _ in collectives:
        pool.collective(collective, ns, count=count)


def _op(entry: Node) -> tuple[OpKey, int, int, Node]:
    fields = entry.mapping({"op", "inputs", "median_us"}, {"count"})
    name = fields["op"].text()
    if name and not _OP.fullmatch(name):
        fields["op"].fail(f"'{shown(name)}' is no op: write namespace.op without the overload, as in aten.mm")
    inputs = tuple(tensor for node in fields["inputs"].items() if (tensor := _tensor(node)) is not None)
    if not inputs and fields["inputs"].value == []:
        fields["inputs"].fail("an op without tensors cannot be matched")
    return OpKey(name, inputs), _ns(fields["median_us"]), _count(fields), entry


def _tensor(node: Node) -> TensorKey | None:
    """``bfloat16[4096, 4096]``; None for a tensor without dimensions, and for mistakes, which are noted."""
    text = node.text()
    match = _TENSOR.fullmatch(text)
    if match is None:
        if text:
            node.fail(f"'{shown(text)}' is no tensor: write dtype and shape, as in 'bfloat16[4096, 4096]'")
        return None
    if match[1] not in ITEM_BYTES:
        node.fail(f"dtype '{match[1]}' is not known{closest(match[1], list(ITEM_BYTES))}")
        return None
    shape = tuple(int(size) for size in match[2].split(",") if size.strip())
    return (match[1], shape) if shape else None


def _collective(entry: Node) -> tuple[CollectiveKey, int, int, Node]:
    fields = entry.mapping({"kind", "group_size", "input_bytes", "us"}, {"dtype", "count"})
    kind = fields["kind"].text([str(kind) for kind in Kind])
    key = CollectiveKey(
        Kind(kind) if kind else Kind.ALL_REDUCE,
        fields["group_size"].integer(least=1, most=1 << 31),
        fields["input_bytes"].integer(least=0, most=_MOST_BYTES),
    )
    if "dtype" in fields:
        fields["dtype"].text(ITEM_BYTES)
    return key, _ns(fields["us"]), _count(fields), entry


def _ns(node: Node) -> int:
    return round(node.number(least=0, most=_LONGEST_US) * 1000)


def _count(fields: dict[str, Node]) -> int:
    return fields["count"].integer(least=1, most=_MOST_COUNT) if "count" in fields else 1


def profile_text(profile: Profile, *, device: str = "", note: str = "") -> str:
    """A profile as such a file, the same text for the same times. device, note: for the reader only."""
    lines = [f"profile: {VERSION}"]
    lines += [f"{key}: {json.dumps(text)}" for key, text in (("device", device), ("note", note)) if text]
    lines += ["ops:"] if profile.ops else []
    for key, time in profile.ops.items():
        inputs = json.dumps([f"{dtype}{list(shape)}" for dtype, shape in key.inputs])
        lines.append(f"- {{op: {key.op}, inputs: {inputs}, median_us: {time.ns / 1000}, count: {time.count}}}")
    lines += ["collectives:"] if profile.collectives else []
    for which, took in profile.collectives.items():
        where = f"kind: {which.kind}, group_size: {which.size}, input_bytes: {which.input_bytes}"
        lines.append(f"- {{{where}, us: {took.ns / 1000}, count: {took.count}}}")
    return "\n".join([*lines, ""])
