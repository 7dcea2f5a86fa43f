"""Install a wheel or an sdist in an environment of its own, and use it as somebody would who has nothing else::

    python tools/smoke.py dist/*                            # dependencies are those of this Python
    python3.10 tools/smoke.py --all --torch 2.11.0 dist/*   # dependencies are installed too

Every package gets a new environment and an empty folder; the home folder cannot be written. Looked at are the
version, the licence, ``py.typed``, the files that only an installed package would miss (devices, pages, kernels), a
graph that is tuned and proved, and one that is shown as a page. Exits with 1 at the first thing that is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "sample_graphs" / "tiny_llama_fsdp2_fw.fx.txt"
ABOUT = """
import commcc, importlib.metadata as metadata, pathlib, sys
about = metadata.metadata("commcc")
home = pathlib.Path(commcc.__file__).parent
assert home.is_relative_to(sys.prefix), home
assert (home / "py.typed").is_file()
assert about["License-Expression"] == "BSD-3-Clause", about["License-Expression"]
assert about["Version"] == commcc.__version__
tops = {str(file).split("/")[0] for file in metadata.files("commcc") if not str(file).startswith("..")}
assert tops == {"commcc", f"commcc-{commcc.__version__}.dist-info"}, tops
print(commcc.__version__)
"""


class SmokeError(Exception):
    """What is wrong."""


def smoke(package: Path, *, everything: bool, torch: str | None) -> str:
    """Install and use one package; what was seen."""
    with tempfile.TemporaryDirectory(prefix="commcc-smoke-") as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True, symlinks=True)
        python = folder / "env" / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        if everything:
            wanted = [] if torch is None else [f"torch=={torch}"]
            _run([*pip, *wanted, package], folder)
        else:
            _run([*pip, "--no-deps", package], folder)
            _borrow(python, folder)
        (folder / "work").mkdir()
        return _use(folder / "env" / "bin", folder / "work")


def _borrow(python: Path, folder: Path) -> None:
    """Let the environment see the packages of this Python; an editable commcc among them is not seen."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    here, there = (_run([each, "-c", where], folder).strip() for each in (Path(sys.executable), python))
    (Path(there) / "dependencies.pth").write_text(here + "\n")


def _use(programs: Path, work: Path) -> str:
    """What somebody does first."""
    commcc = programs / "commcc"
    version = _run([programs / "python", "-c", ABOUT], work).strip()
    said = _run([commcc, "--version"], work).strip()
    _expect(said == f"commcc {version}", f"--version says '{said}'")
    _expect("bucket" in _run([commcc, "passes"], work), "passes are not listed")
    told = _run([commcc, "run", SAMPLE, "--preset", "auto", "-o", "tuned.fx.txt"], work)
    _expect("proved to be the same program" in told, f"the result is not proved:\n{told}")
    _run([commcc, "verify", SAMPLE, "tuned.fx.txt", "-q"], work)
    _run([commcc, "simulate", SAMPLE, "tuned.fx.txt", "--html", "page.html", "-q"], work)
    _expect((work / "page.html").stat().st_size > 10_000, "the page is empty")
    torch = _run([programs / "python", "-c", "import torch; print(torch.__version__)"], work).strip()
    return f"commcc {version}, torch {torch}"


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise SmokeError(text)


def _run(command: list[str | Path], folder: Path) -> str:
    """Standard output of a command that has to succeed, with no home and nothing of this Python in its way."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "COMMCC"))}
    settings = {**kept, "HOME": "/dev/null/home", "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SmokeError(f"{' '.join(words)} exits with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Install packages of commcc in environments of their own.")
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true", help="install the dependencies too")
    parser.add_argument("--torch", help="the release of PyTorch to install, with --all")
    given = parser.parse_args(arguments)
    if given.torch is not None and not given.all:
        parser.error("--torch is for --all: else PyTorch is that of this Python")
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        for package in given.packages:
            seen = smoke(package.resolve(), everything=given.all, torch=given.torch)
            print(f"{package.name}: {seen}, Python {python}")
    except SmokeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
