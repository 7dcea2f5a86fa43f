"""Chunked expert-parallel regions by hand: text in the form of a dump, a line for each node, annotations above it.

::

    text = Chunked(chunks=2).forward().text()
    program = parse(text)

Names tell step and chunk: ``dispatch_1`` is launched by chunk 1. Chunks are interleaved node by node, as chunking
leaves them.
"""

from __future__ import annotations

from typing import Any

ROOT = "layers.0.moe"
C10D, ATEN = "torch.ops._c10d_functional", "torch.ops.aten"

#: name, type, call; ``{k}`` is the chunk, ``{before}`` the one before it. Then what is annotated.
FORWARD: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("router", "f32[8, 8]", ATEN + ".mm.default(x_{k}, wr)", {"EP": "compute"}),
    ("count", "i64[2]", ATEN + ".bincount.default(router_{k})", {"EP": "dispatch"}),
    (
        "exchanged",
        "i64[2]",
        C10D + ".all_to_all_single.default(count_{k}, [1, 1], [1, 1], '0')",
        {"EP": "dispatch", "EP_token_count_exchange": "dispatch"},
    ),
    (
        "counted",
        "i64[2]",
        C10D + ".wait_tensor.default(exchanged_{k})",
        {"EP": "dispatch", "EP_token_count_exchange": "dispatch", "EP_token_count_sync": "dispatch"},
    ),
    (
        "sent",
        "i64[2]cpu",
        ATEN + "._to_copy.default(count_{k}, device = device(type='cpu'), non_blocking = True)",
        {"EP_token_count_sync": "dispatch"},
    ),
    (
        "received",
        "i64[2]cpu",
        ATEN + "._to_copy.default(counted_{k}, device = device(type='cpu'))",
        {"EP_token_count_sync": "dispatch"},
    ),
    ("one", "i64[]cpu", ATEN + ".select.int(sent_{k}, 0, 0)", {"EP_token_count_sync": "dispatch"}),
    ("two", "i64[]cpu", ATEN + ".select.int(received_{k}, 0, 0)", {"EP_token_count_sync": "dispatch"}),
    ("out", "Sym(u1{k})", ATEN + "._local_scalar_dense.default(one_{k})", {"EP_token_count_sync": "dispatch"}),
    ("back", "Sym(u2{k})", ATEN + "._local_scalar_dense.default(two_{k})", {"EP_token_count_sync": "dispatch"}),
    ("tokens", "f32[8, 8]", ATEN + ".relu.default(x_{k})", {"EP": "dispatch"}),
    (
        "dispatch",
        "f32[8, 8]",
        C10D + ".all_to_all_single.default(tokens_{k}, [back_{k}, back_{k}], [out_{k}, out_{k}], '0')",
        {"EP": "dispatch", "EP_token_exchange": "dispatch"},
    ),
    (
        "arrived",
        "f32[8, 8]",
        C10D + ".wait_tensor.default(dispatch_{k})",
        {"EP": "dispatch", "EP_token_exchange": "dispatch"},
    ),
    ("expert", "f32[8, 8]", ATEN + ".mm.default(arrived_{k}, we)", {"EP": "compute"}),
    (
        "combine",
        "f32[8, 8]",
        C10D + ".all_to_all_single.default(expert_{k}, [out_{k}, out_{k}], [back_{k}, back_{k}], '0')",
        {"EP": "combine", "EP_token_exchange": "combine"},
    ),
    (
        "combined",
        "f32[8, 8]",
        C10D + ".wait_tensor.default(combine_{k})",
        {"EP": "combine", "EP_token_exchange": "combine"},
    ),
    ("shared", "f32[8, 8]", ATEN + ".mm.default(x_{k}, ws)", {"EP": "compute"}),
    ("y", "f32[8, 8]", ATEN + ".add.Tensor(combined_{k}, shared_{k})", {"EP": "compute"}),
)
BACKWARD: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "combine",
        "f32[8, 8]",
        C10D + ".all_to_all_single.default(g_{k}, [4, 4], [4, 4], '0')",
        {"EP": "combine", "EP_token_exchange": "combine"},
    ),
    (
        "combined",
        "f32[8, 8]",
        C10D + ".wait_tensor.default(combine_{k})",
        {"EP": "combine", "EP_token_exchange": "combine"},
    ),
    ("again", "f32[8, 8]", ATEN + ".relu.default(h_{k})", {"EP": "compute"}),
    ("dgrad", "f32[8, 8]", ATEN + ".mm.default(combined_{k}, we)", {"EP": "compute"}),
    ("wgrad", "f32[8, 8]", ATEN + ".mm.default(again_{k}, combined_{k})", {"EP": "compute"}),
    (
        "dispatch",
        "f32[8, 8]",
        C10D + ".all_to_all_single.default(dgrad_{k}, [4, 4], [4, 4], '0')",
        {"EP": "dispatch", "EP_token_exchange": "dispatch"},
    ),
    (
        "arrived",
        "f32[8, 8]",
        C10D + ".wait_tensor.default(dispatch_{k})",
        {"EP": "dispatch", "EP_token_exchange": "dispatch"},
    ),
    ("shared", "f32[8, 8]", ATEN + ".mm.default(g_{k}, ws)", {"EP": "compute"}),
    ("y", "f32[8, 8]", ATEN + ".add.Tensor(arrived_{k}, shared_{k})", {"EP": "compute"}),
)
Step = tuple[str, str, str, dict[str, str]]


class Chunked:
    """A region with this many chunks. ``change`` replaces or adds annotations of a node, None removes one."""

    def __init__(self, chunks: int = 2, root: str = ROOT) -> None:
        self.chunks, self.root = chunks, root
        self.lines: list[tuple[str, str, str, dict[str, Any]]] = []
        self.inputs: dict[str, str] = {}
        self.returned: list[str] = []
        self.changes: dict[str, dict[str, Any]] = {}

    def forward(self, steps: tuple[Step, ...] = FORWARD) -> Chunked:
        return self._region(steps, ("x",), ("wr", "we", "ws"), backward=False)

    def backward(self, steps: tuple[Step, ...] = BACKWARD) -> Chunked:
        return self._region(steps, ("g", "h"), ("we", "ws"), backward=True)

    def _region(self, steps: tuple[Step, ...], cut: tuple[str, ...], whole: tuple[str, ...], backward: bool) -> Chunked:
        rows = 8 * self.chunks
        self.inputs.update(dict.fromkeys(cut, f"f32[{rows}, 8]") | dict.fromkeys(whole, "f32[8, 8]"))
        mark = {"chunked_region_fqn": self.root, "chunked_region_is_backward": backward}
        boundary = {**mark, "chunked_region_role": "split_boundary"}
        for name in cut:
            sizes = ", ".join(["8"] * self.chunks)
            self.lines.append((f"{name}s", "", f"{ATEN}.split_with_sizes.default({name}, [{sizes}])", boundary))
            for k in range(self.chunks):
                part = {**mark, "chunked_region_role": "chunk_input", "chunk_id": k}
                self.lines.append((f"{name}_{k}", "f32[8, 8]", f"{name}s[{k}]", part))
        for name, kind, call, notes in steps:
            for k in range(self.chunks):
                own = {"module_fqn": self.root, **notes, **mark, "chunked_region_role": "body", "chunk_id": k}
                self.lines.append((f"{name}_{k}", kind.format(k=k), call.format(k=k, before=k - 1), own))
        parts = ", ".join(f"y_{k}" for k in range(self.chunks))
        joined = {**mark, "chunked_region_role": "materialization"}
        self.lines.append(("y", f"f32[{rows}, 8]", f"{ATEN}.cat.default([{parts}])", joined))
        self.returned.append("y")
        if backward:
            self._sum("wgrad", joined)
        return self

    def _sum(self, name: str, notes: dict[str, Any]) -> None:
        total = f"{name}_0"
        for k in range(1, self.chunks):
            made = f"{name}_sum_{k}"
            self.lines.append((made, "f32[8, 8]", f"{ATEN}.add.Tensor({total}, {name}_{k})", notes))
            total = made
        self.returned.append(total)

    def change(self, name: str, **notes: Any) -> Chunked:
        self.changes.setdefault(name, {}).update(notes)
        return self

    def swap(self, name: str, call: str) -> Chunked:
        """Another call for one node."""
        self.lines = [(n, kind, call if n == name else old, notes) for n, kind, old, notes in self.lines]
        return self

    def text(self) -> str:
        arguments = ", ".join(f'{name}: "{_full(kind)}"' for name, kind in self.inputs.items())
        body = []
        for name, kind, call, notes in self.lines:
            merged = {**notes, **self.changes.get(name, {})}
            body.append(f"# Annotation: { {key: value for key, value in merged.items() if value is not None} }")
            body.append(f'{name}: "{_full(kind)}" = {call}' if kind else f"{name} = {call}")
        body.append(f"return ({', '.join(self.returned)},)")
        return f"def forward(self, {arguments}):\n" + "\n".join(f"    {line}" for line in body)


def _full(kind: str) -> str:
    """``f32[8, 8]`` -> ``f32[8, 8][8, 1]cuda:0``."""
    if kind.startswith("Sym"):
        return kind
    shape, _, device = kind.partition("]")
    sizes = [int(size) for size in shape.partition("[")[2].split(",") if size.strip()]
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.insert(0, stride)
        stride *= size
    return f"{shape}][{', '.join(map(str, strides))}]{device or 'cuda:0'}"


def parse(text: str) -> Any:
    """The program of a text; all groups have two ranks."""
    from dataclasses import replace

    from commcc.graph.program import ProcessGroup
    from commcc.serialization.fx import parse_text

    inner = "\n".join(f"    {line}" for line in text.splitlines())
    program = parse_text(f"class GraphModule(torch.nn.Module):\n{inner}\n", "hand made")
    return replace(program, groups={**program.groups, "0": ProcessGroup("0", 2, (0, 1))})
