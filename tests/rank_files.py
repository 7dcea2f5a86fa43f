"""What the file of another rank looks like: the same program, and all the rest different.

    write_rank(sample_text, mesh_of(sample_text), rank=3, path)

Run as a program it plans on such files and prints what came out:

    PYTHONHASHSEED=7 RANK=3 python -m tests.rank_files 'tag,bucket,reorder' rank3.fx.txt
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.mesh_groups import parts_along

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.graph.program import Program
    from commcc.timing.snapshot import Snapshot

_CODE = re.compile(r"^ {8}(\w+)(?=[ :=;]).* = (?:torch\.ops\.|\w+\[)")
_HEADER = "# commcc: "


def other_rank(text: str, rank: int) -> str:
    """The file that rank ``rank`` would dump: groups, names of nodes and groups, devices, paths, order of metadata."""
    lines = text.splitlines()
    mesh = next(found["header"]["mesh"] for line in lines if "mesh" in (found := _header(line)).get("header", {}))
    names = {name: f"{int(name) * 10 + rank}" for name in mesh["group_names"].values()}
    nodes = {found[1]: _renamed(found[1], rank) for line in lines if (found := _CODE.match(line))}
    made = [_line(line, rank, mesh, names) for line in lines]
    word = re.compile(rf"(?<![\w.'\"])({'|'.join(sorted(map(re.escape, nodes), key=len, reverse=True))})(?![\w'\"=])")
    return "\n".join(_in_code(line, word, nodes) for line in made) + "\n"


def _renamed(name: str, rank: int) -> str:
    """Another name, which sorts elsewhere; what was recomputed says so."""
    kept = "_recomputed" if name.endswith("_recomputed") else ""
    return f"n{zlib.crc32(f'{name} {rank}'.encode()):08x}{kept}"


def _header(line: str) -> dict[str, Any]:
    if not line.startswith(_HEADER + "{"):
        return {}
    found: dict[str, Any] = json.loads(line.removeprefix(_HEADER))
    return found


def _line(line: str, rank: int, mesh: dict[str, Any], names: dict[str, str]) -> str:
    found = _header(line)
    if "groups" in found:
        axes = {name: axis for axis, name in mesh["group_names"].items()}
        groups = {}
        for name, group in reversed(found["groups"].items()):
            ranks = next(part for part in parts_along(mesh, axes[name]) if rank in part)
            groups[names[name]] = {**group, "ranks": list(ranks)}
        return _HEADER + json.dumps({"groups": groups})
    if "mesh" in found.get("header", {}):
        mine = {axis: names[name] for axis, name in mesh["group_names"].items()}
        return _HEADER + json.dumps(
            {"header": {**found["header"], "mesh": {**mesh, "group_names": mine}, "rank": rank}}
        )
    line = line.replace("cuda:0", f"cuda:{7 - rank}").replace('File \\"commcc/', f'File \\"/home/user{rank}/src/')
    if "_c10d_functional" in line:
        line = re.sub(r", '(\d+)'\)", lambda m: f", '{names.get(m[1], m[1])}')", line)
    return line


def _in_code(line: str, word: re.Pattern[str], nodes: dict[str, str]) -> str:
    if not line.startswith("        ") or line.lstrip().startswith("#"):
        return line
    return word.sub(lambda m: nodes[m[1]], line)


def look(program: Program) -> str:
    """A digest of a whole program, without names of nodes and groups, device numbers and metadata."""
    from commcc.graph.index import build_index

    index = build_index(program)
    axes = {name: group.description for name, group in program.groups.items()}
    told = [
        (index.ops, index.data_preds, index.order_preds, index.outputs),
        [(t.dtype, t.shape, t.device.split(":")[0]) if t is not None else None for t in index.tensors],
        [(i, str(each.kind), each.reduction, each.waits, axes[each.group]) for i, each in index.launches.items()],
        [(i, len(members)) for i, members in index.merged_from.items()],
    ]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def planned(passes: str, path: str | Path) -> list[str]:
    """What a pipeline decides on a file: plans with reasons, the verdict, and the look of the result."""
    from commcc.passes.options import parse_pipeline
    from commcc.plan import PassReport
    from commcc.run.pipeline import run
    from commcc.serialization import load
    from commcc.timing.cost import load_model

    result = run(load(path), parse_pipeline(passes), model=load_model("h100"))
    # The report is told to people, in words that name groups.
    bare = [(replace(step.plan, fingerprint="", report=PassReport()), step.before) for step in result.steps]
    return [*(_without_names(repr(plan), seen) for plan, seen in bare), result.verified, look(result.program)]


def _without_names(text: str, seen: Snapshot) -> str:
    """Names of nodes as their places, names of groups as what their table says of them."""
    place = seen.index.position
    groups = {name: group.description for name, group in seen.index.groups.items()}
    text = re.sub(r"'(\d+)'", lambda m: f"'{groups.get(m[1], m[1])}'", text)
    return re.sub(r"\b[A-Za-z]\w*", lambda m: f"%{place[m[0]]}" if m[0] in place else m[0], text)


if __name__ == "__main__":
    print(json.dumps(planned(*sys.argv[1:])))
