"""Files that somebody wrote to do harm, and what happens when commcc is given them.

    for name, content in texts("/some/folder/kept").items(): ...
    outcome = tried(folder, "evil.fx.txt", content)      # each command in a process of its own

Every file is given to the commands that read graphs, in a process with little memory and time. What must hold: an exit
code of 0, 1 or 2, one line when it is 2, no traceback, no byte on either stream that drives a terminal, nothing
written but the output, and no file named in a graph is opened.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.campaign_files import FSDP

if TYPE_CHECKING:
    from pathlib import Path

#: CPU seconds and bytes of address space that all commands on one small file may take.
SECONDS, BYTES = 60, 24 << 30

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4][1]cpu"):
{lines}
        neg: "f32[4][1]cpu" = torch.ops.aten.neg.default(x)
        all_reduce: "f32[4][1]cpu" = torch.ops._c10d_functional.all_reduce.default(neg, 'sum', '0')
        wait_tensor: "f32[4][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        return (wait_tensor, {used})
"""


def calling(*lines: str, used: str = "h") -> str:
    """A graph with these statements, the last of which names what it returns besides."""
    return GRAPH.format(lines="\n".join(f"        {line}" for line in lines), used=used)


def op(call: str, val: str = "f32[4][1]cpu") -> str:
    return calling(f'h: "{val}" = torch.ops.{call}')


def plain(call: str) -> str:
    return calling(f"h = {call}")


def ops(mark: str) -> dict[str, str]:
    """Graphs whose ops reach for something else than their tensors."""
    huge = 10**12
    calls = {
        "from_file": f"aten.from_file.default('{mark}', True, 4)",
        "from_file out": f"aten.from_file.out('{mark}', True, 4, out = x)",
        "save": f"aten.save.default(x, '{mark}')",
        "print": "aten._print.default('\\x1b[31m::error::')",
        "warn": "aten.warn.default('\\x1b[31m')",
        "load_library": f"load_library('{mark}')",
        "load_library as an op": f"torch.load_library.default('{mark}')",
        "classes": f"torchbind.load.default('{mark}')",
        "image": f"image.write_file.default('{mark}', x)",
        "torchvision": f"torchvision.read_file.default('{mark}')",
        "torchaudio": f"torchaudio.sox_io_save.default('{mark}', x)",
        "unknown library": f"mylib.write.default('{mark}', x)",
        "debugprims": f"debugprims.load_tensor.default('{mark}', [4], [1])",
        "profiler": f"profiler._record_function_enter.default('{mark}')",
        "prim": f"prim.Print.default('{mark}')",
        "quantized": "quantized.make_quantized_cell_params.default(x, x, x, x)",
        "mkldnn": "mkldnn._linear_pointwise.default(x, x, None, 'none', [], '')",
        "device 99": "prims.device_put.default(x, device(type='cuda', index=99))",
        "device xla": "prims.device_put.default(x, device(type='xla', index=0))",
        "device hpu": "aten.to.device(x, device(type='hpu'), torch.float32)",
        "device private": "aten._to_copy.default(x, device = device(type='privateuseone'))",
        "device unknown": "aten._to_copy.default(x, device = device(type='../../dev'))",
        "device of a text": f"aten.to.device(x, '{mark}', torch.float32)",
        "reshape_alias": "aten._reshape_alias.default(x, [4], [1000000])",
        "reinterpret": "inductor._reinterpret_tensor.default(x, [4], [1], 1000000)",
        "as_strided outside": "aten.as_strided.default(x, [4], [1000000], 1000000)",
        "as_strided negative": "aten.as_strided.default(x, [4], [-1], -100)",
        "set_ outside": "aten.set_.source_Tensor_storage_offset(x, x, 1000000, [4], [1])",
        "set_ huge": f"aten.set_.source_Tensor_storage_offset(x, x, 0, [{huge}], [1])",
        "resize_": f"aten.resize_.default(x, [{huge}])",
        "resize_storage": f"inductor.resize_storage_bytes_.default(x, {huge})",
        "resize_storage down": "inductor.resize_storage_bytes_.default(x, 0)",
        "record_stream": "aten.record_stream.default(x, 0)",
        "symm_mem": "symm_mem.one_shot_all_reduce.default(x, 'sum', '0')",
        "group nobody has": "_c10d_functional.all_reduce.default(x, 'sum', '/etc/passwd')",
        "reduction nobody has": "_c10d_functional.all_reduce.default(x, '\\n::error::', '0')",
        "broadcast from rank 1e12": f"_c10d_functional.broadcast.default(x, {huge}, '0')",
        "all-gather of 1e12 ranks": f"_c10d_functional.all_gather_into_tensor.default(x, {huge}, '0')",
        "triton kernel": "higher_order.triton_kernel_wrapper_mutation(kernel_idx = 0, constant_args_idx = 0)",
        "inline assembly": "higher_order.inline_asm_elementwise(x, asm_str = 'trap;', constraints = '=r,r')",
        "torchbind": f"higher_order.call_torchbind(x, '{mark}')",
        "aoti": f"higher_order.aoti_call_delegate('{mark}', None, [x], [x])",
        "delegate": f"higher_order.executorch_call_delegate('{mark}', x)",
        "effect token": f"higher_order.with_effects(x, torch.ops.aten.from_file.default, '{mark}', True, 4)",
        "handed on": f"higher_order.auto_functionalized(torch.ops.aten.from_file.default, filename = '{mark}')",
        "a body that is not there": "higher_order.cond(True, nothing, nothing, (x,))",
        "assertion": "aten._assert_scalar.default(False, '\\n::error::\\x1b[31m')",
        "assertion async": "aten._assert_async.msg(x, '\\n::error::\\x1b[31m')",
        "random state": "prims.inductor_reserve_rng_state.default()",
    }
    sizes = {
        "empty": f"aten.empty.memory_format([{huge}], dtype = torch.float32)",
        "randn": f"aten.randn.default([{huge}])",
        "full": f"aten.full.default([{huge}], 1.0)",
        "arange": f"aten.arange.default({huge})",
        "iota": f"prims.iota.default({huge}, start = 0, step = 1, dtype = torch.int64, device = device(type='cpu'))",
        "repeat": f"aten.repeat.default(x, [{huge}])",
        "expand": f"aten.expand.default(x, [{huge}, 4])",
        "expanded and added": f"aten.add.Tensor(x, torch.ops.aten.expand.default(x, [{huge}, 4]))",
        "one_hot": f"aten.one_hot.default(x, {huge})",
        "eye": "aten.eye.default(10000000)",
        "linspace": f"aten.linspace.default(0, 1, {huge})",
        "pad": f"aten.constant_pad_nd.default(x, [0, {huge}])",
        "split": "aten.split.Tensor(x, 1)",
        "tri": "aten.tril_indices.default(1000000, 1000000)",
    }
    return {
        **{f"op {name}": op(call) for name, call in calls.items()},
        **{f"size {name}": op(call, f"f32[{huge}][1]cpu") for name, call in sizes.items()},
        "size empty, no values": plain(f"torch.ops.aten.empty.memory_format([{huge}], dtype = torch.float32)"),
    }


def numbers() -> dict[str, str]:
    """Graphs whose integers grow without an end, or are none."""
    nested = ["h0 = operator.getitem([x, x], slice(None, None, None))"]
    nested += [f"h{i + 1} = operator.getitem([h{i}, h{i}], slice(None, None, None))" for i in range(60)]
    symbols = ['n: "Sym(s0)" = torch.ops.aten.sym_size.int(x, 0)', "h0 = operator.mul(n, n)"]
    symbols += [f"h{i + 1} = operator.mul(h{i}, h{i})" for i in range(60)]
    squares = ["h0 = operator.mul(10, 10)", *(f"h{i + 1} = operator.mul(h{i}, h{i})" for i in range(60))]
    return {
        "number power": plain("operator.pow(9, operator.pow(9, 9))"),
        "number power in steps": calling("a = operator.pow(9, 9)", "b = operator.pow(9, a)", "h = operator.pow(b, b)"),
        "number shift": plain("operator.lshift(1, 1000000000000)"),
        "number squares": calling(*squares, used="h60"),
        "number squares of a symbol": calling(*symbols, used="h60"),
        "number pairs of pairs": calling(*nested, used="h60"),
        "number lists joined": calling(
            "h0 = operator.add([1], [1])", *(f"h{i + 1} = operator.add(h{i}, h{i})" for i in range(60)), used="h60"
        ),
        "number exponent": plain("math.exp(1000000)"),
        "number divided by zero": plain("operator.floordiv(1, 0)"),
        "number list times": plain("operator.mul([1], 10000000000)"),
        "number text times": plain("operator.mul('a', 10000000000)"),
        "number tuple of a size": plain("operator.getitem([1], 100000000000)"),
        "number of 5000 digits": op(f"aten.add.Tensor(x, {'9' * 5000})"),
        "number as size": op(f"aten.view.default(x, [{'9' * 400}])"),
        "number of 400 digits in a slice": op(f"aten.slice.Tensor(x, 0, 0, {'9' * 400})"),
        "number inf": op("aten.add.Tensor(x, inf)"),
        "number nan as size": op("aten.view.default(x, [nan])"),
        "number 1e400": op("aten.add.Tensor(x, 1e400)"),
        "number minus": op("aten.view.default(x, [-9223372036854775808])"),
        "number as a method": plain("x.__class__"),
        "number from a formatted text": plain("'{0.__class__}'.format(x)"),
    }


def shapes() -> dict[str, str]:
    """Graphs with annotations that are too large, too deep or no sizes at all."""

    def given(val: str) -> str:
        return calling(f'h: "{val}" = torch.ops.aten.abs.default(x)')

    return {
        "annotation of 400 digits": given(f"f32[{'9' * 400}][1]cpu"),
        "annotation of 5000 digits": given(f"f32[{'9' * 5000}][1]cpu"),
        "annotation minus": given("f32[-4][1]cpu"),
        "annotation of 100,000 dimensions": given(f"f32[{', '.join(['1'] * 100_000)}]cpu"),
        "annotation power": given("f32[2**2**2**2**2**2**2][1]cpu"),
        "annotation power of symbols": given("f32[s0**s0**s0**99999][1]cpu"),
        "annotation nested": given(f"f32[{'(' * 5000}s0{')' * 5000}][1]cpu"),
        "annotation Max": given(f"f32[{'Max(s0, ' * 300}1{')' * 300}][1]cpu"),
        "annotation product": given(f"f32[{'*'.join(f'(s{i} + 1)' for i in range(60))}][1]cpu"),
        "annotation sum to the 60th": given(f"f32[({' + '.join(f's{i}' for i in range(20))})**60][1]cpu"),
        "annotation Mod": given(f"f32[{'Mod(s0, ' * 100}7{')' * 100}][1]cpu"),
        "annotation of a function": given("f32[exec(1)][1]cpu"),
        "annotation of a lambda": given("f32[(lambda: 1)()][1]cpu"),
        "annotation dtype": given("__import__[4][1]cpu"),
        "annotation device": given("f32[4][1]/etc/passwd"),
        "annotation strides": given(f"f32[4][{'9' * 30}]cpu"),
    }


def attributes() -> dict[str, str]:
    """Graphs that fetch attributes which are no constants."""
    names = ("__class__", "__dict__", "forward", "_modules", "__init__.__globals__", "a.__class__.__mro__", "training")
    made = {f"attribute {name}": plain(f"self.{name}") for name in names}
    return {
        **made,
        "attribute of 100,000 dots": plain("self." + ".".join(["a"] * 100_000)),
        "attribute called": plain("self.forward(x)"),
        "attribute by getattr": plain("getattr(self, '__class__')"),
        "attribute by getattr climbing": plain("getattr(self, '../../../etc/passwd')"),
        "attribute climbing": plain("self.a['../../etc/passwd']"),
    }


def written() -> dict[str, str | bytes]:
    """Texts that are hard to read or to show."""
    deep = "[" * 20_000 + "]" * 20_000
    # What a tag, a header or an annotation holds, as JSON.
    tags = ("NaN", "Infinity", "-Infinity", '"\\u001b[31m\\n::error::"', "1" * 5000, "[" * 90_000, '{"a":' * 5000)
    lines = GRAPH.format(lines="        h = torch.ops.aten.abs.default(x)", used="h")
    return {
        "text nested arguments": op(f"aten.view.default(x, {deep})"),
        "text nested calls": plain("torch.ops.aten.abs.default(" * 3000 + "x" + ")" * 3000),
        "text a name of 10 MB": plain("torch.ops.aten." + "a" * 10_000_000 + ".default(x)"),
        "text 20,000 nodes": calling(*(f"h{i} = torch.ops.aten.abs.default(x)" for i in range(20_000)), used="h7"),
        "text zeros": lines.replace("abs", "a\0bs"),
        "text UTF-16": lines.encode("utf-16"),
        "text UTF-8 with a mark": b"\xef\xbb\xbf" + lines.encode(),
        "text not UTF-8": lines.replace("abs", "a\xffbs").encode("latin-1"),
        "text bidi name": lines.replace("h = ", "h\u202e = "),
        "text bidi in an op": lines.replace("abs", "a\u202ebs"),
        "text escape in an op": lines.replace("abs", "a\x1b[31mbs"),
        "text line end in an op": lines.replace("abs.default", "mylib\\n::error::.default"),
        "text surrogate": op("mylib.f.default(x, '\\ud800\\n::error::\\x1b[31m')"),
        "text carriage returns": lines.replace("\n", "\r"),
        "text line separators": lines.replace("h = ", "\u2028::error::\u2028h = "),
        "text group with a line end": FSDP.replace("'0'", "'0\\n::error::\\x1b[31m'").replace('{"0"', '{"1"'),
        **{
            f"text header {i}": f'# commcc: {{"fx_text": 1}}\n# commcc: {{"groups": {tag}}}\n{lines}'
            for i, tag in enumerate(tags)
        },
        **{
            f"text symbols {i}": f'# commcc: {{"fx_text": 1}}\n# commcc: {{"header": {tag}}}\n{lines}'
            for i, tag in enumerate(tags)
        },
        "text group of 1e18": FSDP.replace('"size": 2', '"size": 1000000000000000000'),
        "text group of NaN": FSDP.replace('"size": 2', '"size": NaN'),
        "text group minus": FSDP.replace('"ranks": [0, 1]', '"ranks": [-1, 1e30]'),
        "text group of a million ranks": FSDP.replace("[0, 1]", str(list(range(1_000_000)))),
        "text annotation as code": FSDP.replace("{'module_fqn': 'layers.0'}", "__import__('os').system('touch MARK')"),
        "text annotation nested": FSDP.replace("{'module_fqn': 'layers.0'}", "{'a': " * 5000 + "1" + "}" * 5000),
        "text module path climbing": FSDP.replace("layers.0", "../../../../etc/passwd"),
        "text module path with controls": FSDP.replace("layers.0", "a\\n::error::\\x1b[31m\\u202e"),
        "text file name with controls": FSDP.replace("model.py", "m\x1b]0;x\x07.py"),
    }


def large() -> dict[str, str]:
    """Graphs of a few hundred bytes, or a few hundred thousand, that ask for very much."""

    def of_large(call: str) -> str:
        text = calling(f"h = torch.ops.aten.{call.replace('x', 'y')}")
        return text.replace('x: "f32[4][1]cpu"', f'x: "f32[4][1]cpu", y: "f32[{huge}][1]cpu"')

    huge = 10**11
    many = ", ".join(["x"] * 10_000)
    calls = ("split.Tensor(x, 1)", "chunk.default(x, 100000000000)", "unbind.int(x, 0)", "unsafe_split.Tensor(x, 1)")
    calls += (
        "unsafe_chunk.default(x, 100000000000)",
        "tensor_split.sections(x, 100000000000)",
        "split_copy.Tensor(x, 1)",
    )
    calls += ("hsplit.int(x, 100000000000)", "unbind_copy.int(x, 0)", "split(x, 1)", "to_sparse.default(x)")
    calls += ("unfold.default(x, 0, 1, 1)", "meshgrid.default([x, x])", "combinations.default(x)")
    unknown = ["h0 = torch.ops.mylib.f.default(x, x)", "h1 = torch.ops.mylib.f.default(h0, x)"]
    unknown += [f"h{i} = torch.ops.mylib.f.default(h{i - 1}, h{i - 2})" for i in range(2, 500)]
    return {
        **{f"large {call}": of_large(f"aten.{call}") for call in calls},
        "large outputs": GRAPH.format(
            lines="        h = torch.ops.aten.abs.default(x)", used=", ".join(["h"] * 100_000)
        ),
        "large cat": op(f"aten.cat.default([{many}])"),
        "large foreach": calling(f"h = torch.ops.aten._foreach_add_.Scalar([{many}], 1)"),
        "large coalesced": calling(
            f"h = torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default([{many}], 2, '0')"
        ),
        "large unknown op": calling(f"h = torch.ops.mylib.f.default([{many}])"),
        "large unknown ops": calling(*unknown, used="h499"),
    }


def every(mark: str) -> dict[str, str | bytes]:
    """All of them by name."""
    return {**ops(mark), **numbers(), **shapes(), **attributes(), **written(), **large()}


@dataclass(frozen=True)
class Outcome:
    """What a command did with a file. status: of its process; said: both streams; left: new files."""

    command: str
    status: int
    said: str
    left: tuple[str, ...]
    seconds: float

    def problems(self) -> list[str]:
        found = []
        if self.status not in (0, 1, 2):
            found.append(f"status {self.status}")
        if "Traceback" in self.said:
            found.append("traceback")
        # A report of lint goes on to the next file; notes of what was read come before the error.
        errors = [line for line in self.said.strip("\n").split("\n") if not line.startswith("note: ")]
        if self.status == 2 and not self.command.startswith("lint") and len(errors) != 1:
            found.append("more than one line")
        if not all(line.isprintable() for line in self.said.split("\n")):
            found.append("not printable")
        if any(line.startswith("::") for line in self.said.split("\n")):
            found.append("a command for a runner")
        return found + [f"left {name}" for name in self.left]


COMMANDS = (
    ("inspect", "G", "--all"),
    ("verify", "G", "G"),
    ("verify", "G", "G", "--numeric", "--virtual-ranks", "2"),
    ("lint", "G"),
    ("diff", "G", "G"),
    ("simulate", "G"),
    ("convert", "G", "-o", "out.fx.txt"),
    ("convert", "G", "-o", "out.pt2"),
    ("bench", "G", "--nproc", "2", "--device", "emulated-cpu", "--repeat", "1", "--warmup", "0"),
)


def tried(
    folder: Path, name: str, content: str | bytes, commands: tuple[tuple[str, ...], ...] = COMMANDS
) -> list[Outcome]:
    """Give a file to commands, each in a process of its own; the folder may hold nothing else that matters."""
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return [_run(folder, file, tuple(str(file) if word == "G" else word for word in command)) for command in commands]


def _run(folder: Path, file: Path, arguments: tuple[str, ...]) -> Outcome:
    known = _files(folder)
    said = folder.parent / f"{folder.name}.said"
    child = os.fork()
    if not child:
        try:
            code = _inside(folder, said, arguments)
        except BaseException as error:
            said.write_text(f"Traceback: {type(error).__name__}: {error}")
            code = 99
        os._exit(code)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    new = {name for name, kept in _files(folder).items() if known.get(name) != kept}
    outputs = {arguments[i + 1] for i, word in enumerate(arguments) if word == "-o"}
    for output in outputs:
        (folder / output).unlink(missing_ok=True)
    text = said.read_text(errors="replace")
    said.unlink()
    return Outcome(
        " ".join(arguments).replace(str(file), "G"), code, text, tuple(sorted(new - outputs)), usage.ru_utime
    )


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


def _inside(folder: Path, said: Path, arguments: tuple[str, ...]) -> int:
    from commcc.cli.main import run

    os.chdir(folder)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    # PyTorch makes a folder for its own kernels when it is imported.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    stream = io.TextIOWrapper(os.fdopen(1, "wb", buffering=0), errors="surrogatepass", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        return run(list(arguments))
