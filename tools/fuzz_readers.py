"""Coverage-guided fuzzing of the readers, of bounded length.

    python tools/fuzz_readers.py [--runs 20000] [--seconds 120] [--format text|pt2]

Mutates small sample graphs and reads them. Anything but a program or a one-line ``CommccError`` is
a crash: the input is kept in the current folder and the exit code is not 0. A text is mutated byte
by byte; for ``.pt2`` the input chooses edits of the JSON inside a valid archive, since damaged bytes
hardly ever pass a zip's checksum or a JSON parser. Needs the ``fuzz`` extra.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import io
import json
import pkgutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["commcc.serialization"]):
    import commcc.serialization

    # Readers are imported when they are needed; too late to be instrumented.
    for _module in pkgutil.walk_packages(commcc.serialization.__path__, "commcc.serialization."):
        importlib.import_module(_module.name)
    from commcc.base.errors import CommccError
    from commcc.serialization import load, save

SMALL = """\
class GraphModule(torch.nn.Module):
    def forward(self, p: "f32[4, 8][8, 1]cuda:0", n: "Sym(s0)", t: "f32[s0, 8][8, 1]cuda:0"):
        # Annotation: {'module_fqn': 'layers.0'} File: model.py:3 in forward, code: x = self.w(x)
        c: "bf16[4, 8][8, 1]cuda:0" = torch.ops.aten._to_copy.default(p, dtype = torch.bfloat16)
        a: "bf16[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(c, 2, '0')
        w: "bf16[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(a);  a = None
        s = torch.ops.aten.split.Tensor(w, 4)
        g: "bf16[4, 8][8, 1]cuda:0" = s[0];  s = None
        k: "Sym(s0 + 1)" = n + 1
        z: "f32[s0, 8][8, 1]cuda:0" = torch.ops.aten.mul.Tensor(t, -inf)
        return (g, None, [z, w], k)
"""
SAMPLES = Path(__file__).parent.parent / "sample_graphs"
EVIL = (
    "__import__('os').abort()",
    "../x",
    "os.system",
    "",
    "x" * 9999,
    "nan",
    "{",
    "Symbol('u0')",
    "torch.ops.aten.mm",
)
ODD: tuple[Any, ...] = (None, True, -1, 0, 2**63, 2**400, 1e999, [], {}, [[]], *EVIL)


def small_archive(folder: Path) -> tuple[dict[str, bytes], str]:
    """Entries of a small ``.pt2`` of our own, and the name of the one that holds the graph."""
    source, target = folder / "small.fx.txt", folder / "small.pt2"
    source.write_text(SMALL)
    save(load(source), target)
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        return {name: archive.read(name) for name in names}, next(n for n in names if n.endswith("models/model.json"))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value, in a fixed order."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in places(part, (*path, key)))]


def edited(value: Any, plan: atheris.FuzzedDataProvider) -> Any:
    """The JSON value with a few parts replaced, copied from elsewhere, dropped or doubled."""
    for _ in range(plan.ConsumeIntInRange(1, 4)):
        paths = places(value)[1:]
        path, other = (paths[plan.ConsumeIntInRange(0, len(paths) - 1)] for _ in range(2))
        parent = at(value, path[:-1])
        how = plan.ConsumeIntInRange(0, 3)
        if how == 0:
            parent[path[-1]] = ODD[plan.ConsumeIntInRange(0, len(ODD) - 1)]
        elif how == 1:
            parent[path[-1]] = json.loads(json.dumps(at(value, other)))
        elif how == 2:
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(json.loads(json.dumps(parent[path[-1]])))
        if not places(value)[1:]:
            break
    return value


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


class Target:
    """One reader under test; called with every mutated input."""

    def __init__(self, form: str, folder: Path) -> None:
        self.form = form
        self.path = folder / ("graph.fx.txt" if form == "text" else "graph.pt2")
        self.entries, self.model = small_archive(folder) if form == "pt2" else ({}, "")

    def __call__(self, data: bytes) -> None:
        self.path.write_bytes(data if self.form == "text" else self.archive(data))
        try:
            load(self.path)
        except CommccError as error:
            if "\n" in str(error):
                raise AssertionError(f"message of several lines: {error!r}") from error

    def archive(self, data: bytes) -> bytes:
        """The small archive with its graph, or commcc's extra file, edited as ``data`` says."""
        plan = atheris.FuzzedDataProvider(data)
        extra = next((name for name in self.entries if name.endswith("commcc.json")), self.model)
        chosen = extra if plan.ConsumeIntInRange(0, 3) == 0 else self.model
        changed = json.dumps(edited(json.loads(self.entries[chosen]), plan)).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made:
            for name, content in self.entries.items():
                made.writestr(name, changed if name == chosen else content)
        return buffer.getvalue()


def text_seeds() -> list[bytes]:
    small = sorted(SAMPLES.glob("tiny_*.fx.txt.gz"))[:2]
    return [SMALL.encode(), *(gzip.decompress(path.read_bytes())[:20_000] for path in small)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--format", choices=("text", "pt2"), default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus"
        corpus.mkdir()
        target = Target(options.format, folder)
        seeds = text_seeds() if options.format == "text" else [bytes(range(k, k + 40)) for k in range(0, 200, 20)]
        for number, seed in enumerate(seeds):
            (corpus / f"seed{number}").write_bytes(seed)
        limits = [f"-runs={options.runs}", f"-max_total_time={options.seconds}", "-max_len=30000", "-timeout=20"]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], target)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
