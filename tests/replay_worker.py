"""One rank of a replay: runs graphs before and after a rewrite on gloo, and compares them to the bit.

    python -m torch.distributed.run --standalone --nproc-per-node 4 replay_worker.py JOBS.json OUT_DIR

JOBS.json is a list of {"name", "before", "after", "forward"}: graph files, and optionally the forward
whose results are a backward's inputs; with "within", numbers may differ by that much, relative to the largest of
a tensor. Each rank writes OUT_DIR/rankN.json; the exit code is 1 when
anything differs. Limits: groups follow from the mesh in the file's header.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mesh_groups import parts_along
from replay_inputs import copied, first_difference, has_nan, largest_difference, make_inputs
from torch import fx
from torch.fx.node import map_aggregate

from commcc.graph.ops import argument_names, collective_of
from commcc.serialization import load

TIMEOUT = timedelta(seconds=240)
SEED = 11


class Groups:
    """Real process groups for a mesh, made in one order on all ranks."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[tuple[int, ...], ...]], str] = {}

    def names(self, mesh: dict[str, Any], split: dict[str, str]) -> dict[str, str]:
        """The real name, on this rank, of each group that a graph names; ``split``: origins of groups split off."""
        if _product(mesh["shape"]) != dist.get_world_size():
            raise ValueError(f"the graph is for {_product(mesh['shape'])} ranks, not {dist.get_world_size()}")
        parts = {name: parts_along(mesh, axis) for axis, name in sorted(mesh["group_names"].items())}
        known = {name: self._real("", each) for name, each in parts.items()}
        return known | {name: self._real(name, parts[origin]) for name, origin in sorted(split.items())}

    def _real(self, name: str, parts: tuple[tuple[int, ...], ...]) -> str:
        """The group of these ranks; a split-off group is one of its own, told by its name."""
        if (name, parts) not in self._made:
            groups = [dist.new_group(list(part), timeout=TIMEOUT, backend="gloo") for part in parts]
            mine = next(g for g, part in zip(groups, parts, strict=True) if dist.get_rank() in part)
            self._made[name, parts] = mine.group_name
        return self._made[name, parts]


def _product(sizes: list[int]) -> int:
    return int(torch.tensor(sizes).prod())


def runnable(path: str, groups: Groups) -> tuple[fx.GraphModule, fx.Graph]:
    """The graph of a file on CPU ranks: devices are cpu, groups are real; and the graph as it was read."""
    program = load(path)
    split = {group.name: group.origin for group in program.groups.values() if group.origin is not None}
    names = groups.names(program.header["mesh"], split)
    module = program.graph_module()
    for node in module.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, _to_cpu), map_aggregate(node.kwargs, _to_cpu)
        if node.op == "call_function" and collective_of(node.target) is not None:
            _bind(node, names)
    return module, program.graph


def _to_cpu(leaf: Any) -> Any:
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf


def _bind(node: fx.Node, names: dict[str, str]) -> None:
    if "group_name" in node.kwargs:
        node.update_kwarg("group_name", names[node.kwargs["group_name"]])
        return
    position = argument_names(node.target).index("group_name")
    node.update_arg(position, names[node.args[position]])


def run(module: fx.GraphModule, inputs: list[Any]) -> Any:
    with torch.no_grad():
        return fx.Interpreter(module).run(*inputs)


def results_by_name(path: str, groups: Groups, seed: int) -> dict[str, Any]:
    """What a forward graph is given and gives back, by node name: the inputs of its backward."""
    module, graph = runnable(path, groups)
    inputs = make_inputs(graph, {}, seed)
    outputs = run(module, copied(inputs))
    known = {node.name: value for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True)}
    for node, value in zip(graph.output_node().args[0], outputs, strict=True):
        if isinstance(node, fx.Node):
            known[node.name] = value
    return known


class Replays:
    """Runs of graphs on equal inputs; a graph that several jobs compare with runs once."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.seed = SEED * dist.get_world_size() + dist.get_rank()
        self._references: dict[tuple[str, str], tuple[list[Any], list[Any], Any]] = {}

    def reference(self, before: str, forward: str) -> tuple[list[Any], list[Any], Any]:
        """Inputs, the same after the run, and outputs."""
        if (before, forward) not in self._references:
            known = results_by_name(forward, self.groups, self.seed) if forward else {}
            module, graph = runnable(before, self.groups)
            inputs = make_inputs(graph, known, self.seed)
            given = copied(inputs)
            self._references[before, forward] = inputs, given, run(module, given)
        return self._references[before, forward]

    def verdict(self, job: dict[str, str]) -> dict[str, Any]:
        """Whether the job's graph gives what its reference gives."""
        inputs, mutated, outputs = self.reference(job["before"], job.get("forward", ""))
        module, _ = runnable(job["after"], self.groups)
        given = copied(inputs)
        results = run(module, given)
        if "within" in job:
            error = max(largest_difference(outputs, results), largest_difference(mutated, given))
            far = f"the largest relative difference is {error:.1e}" if not error <= float(job["within"]) else None
            return {"name": job["name"], "difference": far, "nan": has_nan(outputs), "error": error}
        difference = first_difference(outputs, results, "output") or first_difference(mutated, given, "input")
        return {"name": job["name"], "difference": difference, "nan": has_nan(outputs)}


def main() -> int:
    jobs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    # oneDNN uses what the processor advertises; some virtual machines advertise AMX and then trap it.
    torch.backends.mkldnn.set_flags(False)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    replays = Replays()
    verdicts = [replays.verdict(job) for job in jobs]
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(verdicts))
    print(json.dumps({"rank": dist.get_rank(), "differ": [v for v in verdicts if v["difference"]]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return int(any(verdict["difference"] for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
