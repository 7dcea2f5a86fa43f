"""Every sort of bad file through the command line: one line, exit code 2, nothing written, nothing run."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from commcc.cli.main import run

SAMPLES = Path(__file__).parent.parent / "sample_graphs"
HEAD = 'class GraphModule(torch.nn.Module):\n    def forward(self, p: "f32[4, 8][8, 1]cpu", x: "f32[8, 8][8, 1]cpu"):\n'
GATHER = "torch.ops._c10d_functional.all_gather_into_tensor.default"
WAIT = "torch.ops._c10d_functional.wait_tensor.default"


def text(*lines: str) -> bytes:
    return (HEAD + "".join(f"        {line}\n" for line in lines)).encode()


def small_text() -> bytes:
    return (SAMPLES / "tiny_llama_fsdp2_fw.fx.txt").read_bytes()


def entries() -> dict[str, bytes]:
    with zipfile.ZipFile(SAMPLES / "tiny_llama_fsdp2_fw.pt2") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


def model_path(files: dict[str, bytes]) -> str:
    return next(name for name in files if name.endswith("models/model.json"))


def model_changed(find: str, put: str) -> bytes:
    files = entries()
    path = model_path(files)
    content = files[path].decode()
    assert find in content
    return packed({**files, path: content.replace(find, put).encode()})


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def pickled_inputs(marker: str) -> bytes:
    files = entries()
    root = model_path(files).split("/")[0]
    content = {f"archive/{n}": c for n, c in {"data.pkl": pickle.dumps(Payload(marker)), "version": b"3\n"}.items()}
    return packed({**files, f"{root}/data/sample_inputs/model.pt": packed(content)})


def pickled_opaque(marker: str) -> bytes:
    files = entries()
    root = model_path(files).split("/")[0]
    return packed({**files, f"{root}/data/constants/opaque_obj_0": pickle.dumps(Payload(marker))})


def first_name() -> str:
    files = entries()
    nodes = json.loads(files[model_path(files)])["graph_module"]["graph"]["nodes"]
    return nodes[0]["outputs"][0]["as_tensor"]["name"]


TEXTS = {
    "empty": b"",
    "not a graph": b"hello\n",
    "binary": bytes(range(256)) * 40,
    "half a statement": small_text()[: len(small_text()) // 2 + 3],
    "call outside the op namespaces": text("y = os.system('touch MARKER')", "return (y,)"),
    "import": text("y = __import__('os').system('touch MARKER')", "return (y,)"),
    "torch function that is no op": text("y = torch.load('MARKER')", "return (y,)"),
    "attribute of an op": text("y = torch.ops.aten.neg.default.__class__(p)", "return (y,)"),
    "code in an annotation": text(
        """y: "f32[__import__('os').system('touch MARKER')]" = torch.ops.aten.neg.default(p)""", "return (y,)"
    ),
    "code in a default": HEAD.replace(", x:", "=open('MARKER', 'w'), x:").encode() + b"        return (p,)\n",
    "statement of another sort": text("while True: pass", "return (p,)"),
    "many brackets": HEAD.encode() + b"        y = " + b"(" * 3_000_000,
    "duplicate names": text("y = torch.ops.aten.neg.default(p)", "y = torch.ops.aten.abs.default(p)", "return (y,)"),
    "an item without its place": text("y = operator.getitem(p)", "return (p,)"),
    "use before definition": text(
        "y = torch.ops.aten.neg.default(z)", "z = torch.ops.aten.neg.default(p)", "return (y,)"
    ),
    "wait without a launch": text(
        'n: "f32[4, 8]cpu" = torch.ops.aten.neg.default(p)',
        "a: \"f32[4, 8]cpu\" = torch.ops._c10d_functional.all_reduce_.default(n, 'sum', '0')",
        f'w: "f32[4, 8]cpu" = {WAIT}(n)',
        "return (w,)",
    ),
    "a group with two sizes": text(
        f'a: "f32[8, 8]cpu" = {GATHER}(p, 2, "0")',
        f'b: "f32[16, 8]cpu" = {GATHER}(p, 4, "0")',
        f'v: "f32[8, 8]cpu" = {WAIT}(a)',
        f'w: "f32[16, 8]cpu" = {WAIT}(b)',
        "return (v, w)",
    ),
    "no return": text("y = torch.ops.aten.neg.default(p)"),
    "header that is no JSON": b"# commcc: {'groups'\n" + small_text(),
}


def damaged_archives(marker: str) -> dict[str, bytes]:
    whole = packed(entries())
    name = first_name()
    evil = f"x=__import__('os').system('touch {marker}')"
    return {
        "cut short": whole[: len(whole) // 2],
        "zip without a model": packed({"model/version": b"1"}),
        "JSON that ends early": packed({**entries(), model_path(entries()): b'{"graph_module": {'}),
        "deep JSON": packed({**entries(), model_path(entries()): b"[" * 200_000}),
        "code for a node name": model_changed(f'"name": "{name}"', f'"name": "{evil}"'),
        "an op outside the namespaces": model_changed("torch.ops.aten.mm.default", "os.system"),
        "climbing entry": packed({**entries(), "../../MARKER": b"x"}),
        "absolute entry": packed({**entries(), "/tmp/MARKER": b"x"}),
        "bomb": packed({**entries(), model_path(entries()): b" " * 400_000_000}, zipfile.ZIP_DEFLATED),
        "pickled sample inputs": pickled_inputs(marker),
        "pickled opaque object": pickled_opaque(marker),
        "wrong schema": model_changed('"major": 8', '"major": 99'),
    }


ARCHIVES = (
    "cut short",
    "zip without a model",
    "JSON that ends early",
    "deep JSON",
    "code for a node name",
    "an op outside the namespaces",
    "climbing entry",
    "absolute entry",
    "bomb",
    "pickled sample inputs",
    "pickled opaque object",
    "wrong schema",
)


def refused(path: Path, capsys) -> str:
    """Run ``bucket`` on the file; everything but a clean refusal is a failure."""
    output = path.parent / "result.fx.txt"
    before = sorted(p.name for p in path.parent.iterdir())
    code = run(["bucket", str(path), "-o", str(output)])
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert path.name in err, err
    assert sorted(p.name for p in path.parent.iterdir()) == before
    return err


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_bad_text(name, tmp_path, capsys):
    path = tmp_path / "graph.fx.txt"
    path.write_bytes(TEXTS[name].replace(b"MARKER", str(tmp_path / "marker").encode()))
    refused(path, capsys)


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.sampled(1)
def test_bad_archive(name, tmp_path, capsys):
    path = tmp_path / "graph.pt2"
    path.write_bytes(damaged_archives(str(tmp_path / "marker"))[name])
    refused(path, capsys)


def test_infinite_numbers_are_refused(tmp_path, capsys):
    """JSON has them as ``1e400``, and no way to write them again."""
    path = tmp_path / "graph.fx.txt"
    path.write_bytes(b'# commcc: {"provenance": [{"pass": "tag", "metrics": {"step_ms": 1e400}}]}\n' + small_text())
    assert "1e400 is not a JSON number" in refused(path, capsys)


def test_a_sub_graph_that_returns_a_number_is_no_program(tmp_path, capsys):
    path, output = tmp_path / "graph.fx.txt", tmp_path / "graph.pt2"
    path.write_text(
        """class G(torch.nn.Module):
    def forward(self, x: "f32[4][1]cpu"):
        body = self.body
        y = torch.ops.higher_order.control_deps((x,), body, x)
        return (y,)

    class body(torch.nn.Module):
        def forward(self, x: "f32[4][1]cpu"):
            return 1.5
"""
    )
    assert run(["convert", str(path), "-o", str(output)]) == 2
    assert "a sub-graph returns neither a tensor nor a list" in capsys.readouterr().err
    assert not output.exists()


def test_symbolic_expressions_are_data(tmp_path, capsys):
    files = entries()
    path = model_path(files)
    model = json.loads(files[path])
    evil = f"__import__('os').system('touch {tmp_path}/marker')"
    expression = {"as_expr": {"expr_str": evil, "hint": {"as_int": 4}}}
    tensors = model["graph_module"]["graph"]["tensor_values"]
    tensors[next(iter(tensors))]["sizes"][0] = expression
    target = tmp_path / "graph.pt2"
    target.write_bytes(packed({**files, path: json.dumps(model).encode()}))
    refused(target, capsys)


@pytest.mark.full
def test_broken_and_exploding_gzip(tmp_path, capsys):
    path = tmp_path / "graph.fx.txt.gz"
    path.write_bytes(gzip.compress(small_text())[:-200])
    refused(path, capsys)
    path.write_bytes(gzip.compress(b"\n" * 600_000_000, compresslevel=1))
    refused(path, capsys)


def test_unknown_ops_are_kept(tmp_path, capsys):
    path = tmp_path / "graph.fx.txt"
    path.write_bytes(text('y: "f32[4, 8]cpu" = torch.ops.mylib.fused_norm.default(p, eps = 1e-05)', "return (y,)"))
    assert run(["convert", str(path), "-o", str(tmp_path / "again.fx.txt")]) == 0
    assert "torch.ops.mylib.fused_norm.default(p, eps = 1e-05)" in (tmp_path / "again.fx.txt").read_text()
    capsys.readouterr()


def test_other_statements_of_a_python_file_are_passed_over(tmp_path, capsys):
    """Repro files and dumps come with imports and calls around the class; none of them runs."""
    marker = tmp_path / "marker"
    path = tmp_path / "graph.py"
    path.write_bytes(f"import os\nos.system('touch {marker}')\n".encode() + text("return (p,)"))
    assert run(["inspect", str(path)]) == 0
    assert not marker.exists()
    capsys.readouterr()
