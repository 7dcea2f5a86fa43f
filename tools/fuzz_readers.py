"""Coverage-guided fuzzing of the readers, of bounded length.

    python tools/fuzz_readers.py [--runs 20000] [--seconds 120] [--format text|pt2]

Mutates small sample graphs and reads them. Anything but a program or a one-line ``CommccError`` is
a crash: the input is kept in the current folder and the exit code is not 0. A text is given to the
text reader as it is; for ``.pt2`` the JSON inside a valid archive is what gets mutated, since a
damaged zip hardly ever passes its checksum. Needs the ``fuzz`` extra.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["commcc.serialization"]):
    from commcc.errors import CommccError
    from commcc.serialization import load

SAMPLES = Path(__file__).parent.parent / "sample_graphs"


def seeds_text() -> list[bytes]:
    """Small text graphs, cut to a size that mutates quickly."""
    small = sorted(SAMPLES.glob("tiny_*.fx.txt")) + sorted(SAMPLES.glob("tiny_*.fx.txt.gz"))
    data = [gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in small[:4]]
    tail = b'    def forward(self, p0: "f32[4]cpu"):\n        x: "f32[4]cpu" = torch.ops.aten.neg.default(p0)\n'
    return [*data, b"class G(torch.nn.Module):\n" + tail + b"        return (x,)\n"]


def model_name(archive: zipfile.ZipFile) -> str:
    return next(name for name in archive.namelist() if name.endswith("models/model.json"))


def seed_archive() -> tuple[dict[str, bytes], str]:
    """Entries of a small ``.pt2`` and the name of the one that holds the graph."""
    with zipfile.ZipFile(next(iter(sorted(SAMPLES.glob("tiny_*.pt2"))))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}, model_name(archive)


class Target:
    """One reader under test; called with every mutated input."""

    def __init__(self, form: str, folder: Path) -> None:
        self.form = form
        self.path = folder / ("graph.fx.txt" if form == "text" else "graph.pt2")
        self.entries, self.model = seed_archive() if form == "pt2" else ({}, "")

    def __call__(self, data: bytes) -> None:
        self.path.write_bytes(data if self.form == "text" else self.archive(data))
        try:
            load(self.path)
        except CommccError as error:
            if "\n" in str(error):
                raise AssertionError(f"message of several lines: {error!r}") from error

    def archive(self, model: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made:
            for name, content in self.entries.items():
                made.writestr(name, model if name == self.model else content)
        return buffer.getvalue()


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
        seeds = seeds_text() if options.format == "text" else [target.entries[target.model]]
        for number, seed in enumerate(seeds):
            (corpus / f"seed{number}").write_bytes(seed)
        limits = [f"-runs={options.runs}", f"-max_total_time={options.seconds}", "-max_len=400000", "-timeout=20"]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], target)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
