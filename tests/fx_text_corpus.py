"""Graphs with everything that FX text must carry, and exact comparison of graphs."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from commcc.graph.program import NodeRecord, Program
from commcc.serialization.metadata import encode_entry, is_lost
from commcc.serialization.shapes import ShapeContext, format_val, parse_val
from commcc.serialization.targets import resolve

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


class Builder:
    """Adds nodes with annotations: ``b.call("mm", aten.mm.default, x, w, val="f32[4, 4][4, 1]cuda:0")``."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.ctx = ShapeContext()

    def val(self, node: fx.Node, annotation: str | None) -> fx.Node:
        if annotation is not None:
            node.meta["val"] = parse_val(annotation, self.ctx)
        return node

    def input(self, name: str, annotation: str | None = None, target: str | None = None) -> fx.Node:
        node = self.graph.create_node("placeholder", target or name, (), {}, name=name)
        node.name = name
        return self.val(node, annotation)

    def call(self, name: str, target: Any, *args: Any, val: str | None = None, **kwargs: Any) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.name = name
        return self.val(node, val)

    def attribute(self, name: str, path: str, value: Any = None, val: str | None = None) -> fx.Node:
        if value is not None:
            owner = self.root
            *parents, last = path.split(".")
            for part in parents:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]
            if isinstance(value, torch.nn.Module):
                owner.add_module(last, value)
            else:
                owner.register_buffer(last, value)
        node = self.graph.create_node("get_attr", path, (), {}, name=name)
        node.name = name
        return self.val(node, val)

    def module(self, result: Any) -> fx.GraphModule:
        self.graph.output(result)
        return fx.GraphModule(self.root, self.graph)

    def program(self, result: Any) -> Program:
        """Without a ``GraphModule``: FX cannot generate code for all that a graph may hold."""
        self.graph.output(result)
        return Program(self.graph, self.root)


T = "f32[4, 4][4, 1]cuda:0"


def fsdp() -> fx.GraphModule:
    """A gathered weight, a matmul, a reduced gradient, with the metadata that PyTorch puts on them."""
    b = Builder()
    w, x = b.input("primals_1", "bf16[2, 16][16, 1]cuda:0"), b.input("primals_2", "bf16[8, 16][16, 1]cuda:0")
    ag = b.call(
        "all_gather_into_tensor", c10d.all_gather_into_tensor.default, w, 8, "0", val="bf16[16, 16][16, 1]cuda:0"
    )
    wait = b.call("wait_tensor", c10d.wait_tensor.default, ag, val="bf16[16, 16][16, 1]cuda:0")
    t = b.call("t", aten.t.default, wait, val="bf16[16, 16][1, 16]cuda:0")
    mm = b.call("mm", aten.mm.default, x, t, val="bf16[8, 16][16, 1]cuda:0")
    f32 = b.call("to", aten._to_copy.default, mm, dtype=torch.float32, val="f32[8, 16][16, 1]cuda:0")
    rs = b.call("rs", c10d.reduce_scatter_tensor.default, f32, "avg", 8, "0", val="f32[1, 16][16, 1]cuda:0")
    out = b.call("wait_tensor_1", c10d.wait_tensor.default, rs, val="f32[1, 16][16, 1]cuda:0")
    w.meta["desc"], x.meta["desc"] = "ParamAOTInput(target='w')", "PlainAOTInput(idx=0)"
    for number, node in enumerate((ag, wait, t, mm)):
        node.meta["seq_nr"] = 10 + number // 2
        node.meta["stack_trace"] = (
            f'File "model.py", line {20 + number // 2}, in forward\n    y = x @ w  # {number // 2}'
        )
        node.meta["custom"] = {"module_fqn": "layers.0.wq", "n": number // 2}
    ag.meta["recompute"], ag.meta["ac_graph_id"] = CheckpointPolicy.MUST_RECOMPUTE, 3
    wait.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    mm.meta["nn_module_stack"] = {"1": ("L['self'].layers.0", torch.nn.Linear), "2": ("L['self']", torch.nn.Module)}
    gm = b.module((out, mm, None, x))
    gm.graph.output_node().meta["desc"] = ["PlainAOTOutput(idx=0)", "Saved('mm')", "Nothing()", "Saved('x')"]
    return gm


def arguments() -> fx.GraphModule:
    """Every sort of argument."""
    b = Builder()
    x = b.input("x", T)
    op = torch.ops.aten.mm.default
    full = torch.ops.aten.full.default
    b.call("numbers", full, [0, -1, 2**40], 1.5, -0.0, 1e-300, math.inf, -math.inf, math.nan, True, False, None)
    b.call("strings", full, "", "it's", 'say "hi"', "a\nb\\", "ünïcode 漢", "tab\t;  x = None", "# no comment")
    b.call(
        "types", full, torch.bfloat16, torch.float8_e4m3fn, torch.strided, torch.channels_last, torch.preserve_format
    )
    b.call("devices", full, torch.device("cuda", 3), torch.device("cuda"), torch.device("cpu"), torch.device("meta"))
    b.call("containers", full, (), (x,), [x, None, [x, (1, 2)]], {"a": x, "b": [1, {"c": (x,)}], 3: x}, ((),), [[]])
    b.call("slices", full, slice(0, 4, None), (slice(None, None, None), x), slice(x, None, 2), ...)
    b.call("complexes", full, 2j, -2j, 1 + 2j, -1.5 - 2j, 0j)
    b.call("functions", torch.ops.higher_order.with_effects, x, op, x, torch.ops.higher_order.cond)
    b.call(
        "keywords", full, x, dtype=torch.int64, layout=torch.strided, device=torch.device("cuda:0"), pin_memory=False
    )
    b.call("empty", full)
    return b.module((x,))


def symbols() -> fx.GraphModule:
    """Symbolic scalars, all operators on them, symbolic shapes."""
    b = Builder()
    b.ctx.declare("u0", lower=0, upper=4096)
    b.ctx.declare("s77", lower=2, hint=16)
    s = b.input("arg0_1", "Sym(s77)")
    x = b.input("arg1_1", "f32[s77, 8][8, 1]cuda:0")
    u = b.call("_local_scalar_dense", aten._local_scalar_dense.default, x, val="Sym(u0)")
    names = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
    for name in (*names, "eq", "ne", "lt", "gt", "le", "ge", "matmul"):
        b.call(f"{name}_1", getattr(operator, name), s, 3)
        b.call(f"{name}_2", getattr(operator, name), -2, u)
    for name in ("neg", "pos", "invert", "not_", "index", "abs"):
        b.call(f"{name}_3", getattr(operator, name), u)
    b.call("sym_sum", torch.sym_sum, [u, s, 2], val="Sym(u0 + s77 + 2)")
    b.call("sym_max", torch.sym_max, u, 1, val="Sym(Max(1, u0))")
    b.call("sym_not", torch.sym_not, u)
    b.call("floor_1", math.floor, u)
    b.call("odd_power", operator.pow, u, -1.5)
    b.call("assert_1", aten._assert_scalar.default, u, "u0 >= 0 is false")
    y = b.call("empty", aten.empty.memory_format, [u, 8], dtype=torch.float32, val="f32[8*u0 + 3, (u0//8)][8, 1]cuda:0")
    view = b.call("view", aten.view.default, y, [u, b.ctx.parse_integer("8*u0")])
    return b.module((s, x, y, view, 3, 1.5))


def outputs() -> fx.GraphModule:
    """Several results, duplicates, aliases, nested tuples, None, an unused input, a mesh without a value."""
    b = Builder()
    x, mesh, _unused = b.input("x", T), b.input("mesh"), b.input("unused", T)
    split = b.call("split", aten.split.Tensor, x, 2)
    split.meta["val"] = [parse_val(T, b.ctx), parse_val("f32[2, 4][4, 1]cuda:0", b.ctx)]
    a = b.call("getitem", operator.getitem, split, 0, val="f32[2, 4][4, 1]cuda:0")
    c = b.call("getitem_1", operator.getitem, split, -1, val="f32[2, 4][4, 1]cuda:0")
    b.call("getitem_2", operator.getitem, split, "key")
    b.call("getitem_3", operator.getitem, x, (slice(None, None, None), 0))
    b.call("getitem_4", operator.getitem, x, a)
    copy = b.call("copy_", aten.copy_.default, x, x, val=T)
    nothing = b.call("nothing", aten._assert_async.default, x)
    nothing.meta["val"] = None
    return b.module([x, a, a, (c, [x, (mesh,)]), None, copy, nothing])


def single() -> fx.GraphModule:
    b = Builder()
    return b.module(b.call("neg", aten.neg.default, b.input("x", T), val=T))


def empty() -> fx.GraphModule:
    return Builder().module(())


def _body(name: str) -> fx.GraphModule:
    b = Builder()
    x = b.input(name, T)
    inner = b.attribute("inner", "inner", single(), None)
    out = b.call("cond", torch.ops.higher_order.cond, True, inner, inner, [x])
    return b.module((b.call("getitem", operator.getitem, out, 0, val=T),))


def subgraphs() -> fx.GraphModule:
    """Higher-order ops with bodies (one nested), and constants with values."""
    b = Builder()
    x = b.input("x", T)
    first = b.attribute("true_graph", "true_graph_0", _body("arg0"))
    second = b.attribute("false_graph", "nested.false_graph_0", single())
    b.call("cond", torch.ops.higher_order.cond, x, first, second, (x,))
    b.call("invoke", torch.ops.higher_order.invoke_subgraph, first, "key_0", x)
    small = b.attribute("_tensor_constant0", "_tensor_constant0", torch.tensor([1.0, math.inf]), "f32[2][1]cpu")
    dotted = b.attribute("weight", "blocks.0.weight", torch.arange(6, dtype=torch.bfloat16).view(2, 3).t())
    flag = b.attribute("flag", "flag", torch.tensor(True))
    return b.module((small, dotted, flag))


def hops() -> fx.GraphModule:
    """Higher-order ops without bodies, as post-grad graphs hold them."""
    b = Builder()
    x = b.input("x", T)
    hop = resolve("torch.ops.higher_order.control_deps")
    auto = resolve("torch.ops.higher_order.auto_functionalized_v2")
    triton = resolve("torch.ops.higher_order.triton_kernel_wrapper_functional")
    body = b.attribute("sub", "sub", single())
    b.call("control_deps", hop, (x,), body, x, val=T)
    b.call("auto", auto, aten.copy_.default, x_base_index=0, _all_bases=[x])
    b.call(
        "triton",
        triton,
        kernel_idx=0,
        constant_args_idx=0,
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"in_ptr0": x, "out_ptr": x},
        tensors_to_clone=["out_ptr"],
    )
    b.call("effects", torch.ops.higher_order.with_effects, x, aten._print.default, "moo")
    b.call("rng", resolve("torch.ops.higher_order.graphsafe_run_with_rng_state"), aten.rand.default, [4], rng_state=x)
    return b.module((x,))


def metadata() -> Program:
    """Values and metadata that only commcc's own text can say."""
    b = Builder()
    x = b.input("x_1", T, target="x")
    args = b.graph.create_node("placeholder", "*rest", (), {}, name="rest")
    default = b.graph.create_node("placeholder", "flag", (None,), {}, name="flag")
    shifted = b.call("shifted", aten.alias.default, x)
    shifted.meta["val"] = b.ctx.tensor((2, 4), (4, 1), torch.float32, "cuda", storage_offset=8, requires_grad=True)
    many = b.call("many", aten.native_layer_norm.default, x)
    odd = {"inf": math.inf, "tuple": (1, (2.5, None)), 7: ["x"], "$tag": {"a": 1j}}
    many.meta["val"] = (
        shifted.meta["val"],
        None,
        3,
        2.5,
        True,
        "s",
        parse_val("Sym(u0 + 1)", b.ctx),
        [parse_val(T, b.ctx)],
    )
    many.meta.update({"custom": odd, "seq_nr": 4, "stack_trace": 'a "quoted"\nline \u2028 # x', "mine": {"k": [1, 2]}})
    many.meta["nn_module_stack"] = {"k": ("path", "torch.nn.Linear")}
    many.meta["commcc"] = NodeRecord("fsdp", "gathers a parameter", ("ag_1", "ag_2"))
    args.meta["custom"] = odd
    for name, value in (("none", None), ("number", 3), ("real", math.nan), ("text", "x"), ("flagged", False)):
        b.call(name, aten.sym_size.int, x, 0).meta["val"] = value
    b.call("unknown", resolve("torch.ops.mylib.fused_thing.out"), x, [x], scale=0.5, val=T)
    b.call("with_keyword", operator.add, x, b=1)
    b.call(
        "packet", torch.ops.higher_order.with_effects, x, aten.mm, {"op": aten.mm.default}, [resolve("torch.ops.a.b.c")]
    )
    program = b.program((many, default))
    out = program.graph.output_node()
    out.name = "output_7"
    out.meta["desc"] = ["a", "b"]
    return program


#: Graphs that PyTorch can print, and all graphs.
PRINTABLE = {f.__name__: f for f in (fsdp, arguments, symbols, outputs, single, empty, subgraphs, hops)}
CORPUS = {**{name: (lambda f=f: program_of(f())) for name, f in PRINTABLE.items()}, "metadata": metadata}


def program_of(module: fx.GraphModule) -> Program:
    return Program(module.graph, module)


def encode_meta(node: fx.Node) -> dict[str, Any]:
    """All metadata of a node that a file can hold; ``val`` only as far as its annotation does not say it."""
    entries = {key: encode_entry(key, value) for key, value in sorted(node.meta.items())}
    return {key: entry for key, entry in entries.items() if not is_lost(entry)}


def described(graph: fx.Graph, *, full: bool = False) -> list[tuple[Any, ...]]:
    """The graph as plain data, type-exact; ``full`` includes all metadata."""
    out: list[tuple[Any, ...]] = []
    for node in graph.nodes:
        val = node.meta.get("val", "nothing")
        value = format_val(val)  # nothing is printed of values that are no tensors
        extra = encode_meta(node) if full else None
        out.append((node.op, node.name, str(node.target), plain(node.args), plain(node.kwargs), value, extra))
    return out


def plain(value: Any) -> Any:
    """An argument as data in which 1, 1.0 and True, tuples and lists, are different things."""
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return ("list" if isinstance(value, list) else "tuple", *(plain(item) for item in value))
    if isinstance(value, dict):
        return {(type(key).__name__, key): plain(item) for key, item in value.items()}
    if isinstance(value, slice):
        return ("slice", plain(value.start), plain(value.stop), plain(value.step))
    return (type(value).__name__, repr(value) if isinstance(value, (float, complex)) else str(value))
