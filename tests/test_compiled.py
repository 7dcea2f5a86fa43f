"""Where machine code of kernels is kept, and that it is told from that of other sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = """
from commcc.base.jit import cold, compiled, kernel
import numpy as np

@compiled
def helper(x):
    return x + {number}

@kernel
def total(values):
    found = 0
    for value in values:
        found += helper(value)
    return found

print(cold("commcc.made"), total(np.arange(4)), sorted(total.stats.cache_hits.values()))
"""


def outputs(package, env):
    """A fresh process imports the package ``commcc.made``, of which the kernels are."""
    code = f"import commcc; commcc.__path__.append({str(package.parent)!r}); import commcc.made.kernels"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()


@pytest.fixture
def package(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "__init__.py").write_text("")
    (made / "kernels.py").write_text(KERNEL.replace("{number}", "1"))
    return made


def files(folder):
    return sorted(p.name for p in folder.rglob("*.nbc"))


@pytest.mark.full
def test_kept_between_processes_and_not_for_other_sources(package, tmp_path):
    """A change of a helper in another file is seen, which numba alone would not see."""
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    assert outputs(package, kept)[1:] == ["10", "[]"]
    first = files(tmp_path / "kept")
    assert outputs(package, kept)[1:] == ["10", "[1]"]
    assert files(tmp_path / "kept") == first
    assert len(first) == 1
    (package / "unrelated.py").write_text("# no kernel needs this\n")
    assert outputs(package, kept)[1:] == ["10", "[1]"]
    (package / "needed.py").write_text("NUMBER = 1\n")
    (package / "kernels.py").write_text("from commcc.made.needed import NUMBER\n" + KERNEL.replace("{number}", "1"))
    assert outputs(package, kept)[1:] == ["10", "[]"]
    (package / "needed.py").write_text("NUMBER = 2\n")
    assert outputs(package, kept)[1:] == ["10", "[]"]
    assert len(files(tmp_path / "kept")) == 3


def test_beside_the_package_where_the_home_folder_takes_nothing(package, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert outputs(package, {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(blocked), "HOME": str(blocked)})[1] == "10"
    assert len(files(package / "__pycache__")) == 1


def test_compiled_anew_where_nothing_can_be_written(package, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    env = {"NUMBA_CACHE_DIR": str(blocked)}
    assert outputs(package, env) == ["True", "10", "[]"]
    assert outputs(package, env) == ["True", "10", "[]"]
