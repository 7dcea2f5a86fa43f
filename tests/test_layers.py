"""The layers of DESIGN, the weight of imports and the house rules on size, read off the source."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "commcc"

#: Lowest first; a package may import those of the rows above its own here, and none of its own row.
LAYERS = (
    ("base",),
    ("graph", "plan"),
    ("serialization", "timing"),
    ("planning", "capture", "ep", "diff", "verify"),
    ("apply",),
    ("schedule", "splitting"),
    ("passes",),
    ("run", "explain", "lint"),
    ("replay",),
    ("report", "api"),
    ("live",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

#: Who may import what; everybody else may not.
ONLY = {
    "torch.distributed": ("capture", "replay", "live"),
    "rich": ("report", "cli"),
    "click": ("report", "cli"),
}
#: The one module that names parts of torch.distributed, which are imported to register their ops with PyTorch.
REGISTERS = "commcc.graph.ops.libraries"
#: What needs a process group; not even that module may name these.
PROCESS_GROUPS = ("torch.distributed.distributed_c10d", "torch.distributed.rendezvous", "torch.distributed.launcher")

NO_TORCH = ("commcc.base", "commcc.plan", "commcc.passes", "commcc.cli", "commcc.report")

FILE_LINES = 500
FUNCTION_LINES = 60


@dataclass(frozen=True)
class Import:
    """One import statement's target, and whether it runs when the module is imported."""

    module: str
    target: str
    line: int
    immediate: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports_in(module: str, text: str) -> list[Import]:
    """Every import that can run, those in functions included, those for type checkers left out."""
    found: list[Import] = []

    def visit(node: ast.AST, immediate: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if for_types_only(child):
                continue
            if isinstance(child, ast.Import):
                found.extend(Import(module, alias.name, child.lineno, immediate) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}:{child.lineno} is a relative import"
                found.extend(
                    Import(module, f"{child.module}.{alias.name}", child.lineno, immediate) for alias in child.names
                )
            if isinstance(child, ast.Constant) and re.fullmatch(r"torch\.distributed(\.\w+)*", str(child.value)):
                found.append(Import(module, child.value, child.lineno, False))  # for importlib
            nested = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, immediate and not nested)

    visit(ast.parse(text), True)
    return found


def every_import() -> list[Import]:
    return [each for path in sources() for each in imports_in(module_name(path), path.read_text())]


def part(module: str) -> str:
    """``commcc.serialization.shapes`` -> ``serialization``."""
    return [*module.split("."), ""][1]


def within(target: str, package: str) -> bool:
    return target == package or target.startswith(package + ".")


def wrong_way(imports: list[Import]) -> list[str]:
    return [
        str(each)
        for each in imports
        if within(each.target, "commcc")
        and part(each.module)
        and part(each.target) in RANK
        and part(each.target) != part(each.module)
        and RANK[part(each.target)] >= RANK[part(each.module)]
    ]


def forbidden(imports: list[Import]) -> list[str]:
    found = []
    for each in imports:
        for package, allowed in ONLY.items():
            if not within(each.target, package) or part(each.module) in allowed:
                continue
            registers = each.module == REGISTERS and package == "torch.distributed" and each.target != package
            if not registers or any(within(each.target, name) for name in PROCESS_GROUPS):
                found.append(str(each))
    return found


def test_every_package_has_a_layer():
    there = {part(module_name(path)) for path in sources()} - {""}
    assert there == set(RANK), f"LAYERS and commcc/ differ in {sorted(there ^ set(RANK))}"


def test_imports_point_one_way():
    assert wrong_way(every_import()) == []


def test_heavy_packages_stay_where_they_belong():
    assert forbidden(every_import()) == []


def test_the_checks_fire():
    bad = imports_in("commcc.graph.index.build", "def f():\n    import rich.table\n    from commcc import cli\n")
    assert len(wrong_way(bad)) == 1
    assert len(forbidden(bad)) == 1
    group = imports_in("commcc.graph.ops.libraries", "import torch.distributed.distributed_c10d")
    assert len(forbidden(group)) == 1
    by_name = 'OPS = ("torch.distributed._functional_collectives", "torch.distributed.tensor")'
    assert forbidden(imports_in("commcc.graph.ops.libraries", by_name)) == []
    assert len(forbidden(imports_in("commcc.serialization.shapes", by_name))) == 2
    assert len(forbidden(imports_in("commcc.graph.ops.libraries", 'X = "torch.distributed.distributed_c10d"'))) == 1
    assert imports_in("commcc.plan", "if TYPE_CHECKING:\n    import torch\n") == []


def test_no_torch_at_import():
    """Checked in a fresh interpreter, so that what these modules import counts too."""
    modules = [name for name in map(module_name, sources()) if any(within(name, top) for top in NO_TORCH)]
    code = "\n".join(
        [
            "import sys, importlib",
            f"for name in {modules!r}:",
            "    importlib.import_module(name)",
            "    heavy = {'torch', 'numpy', 'sympy'} & set(sys.modules)",
            "    assert not heavy, f'{name} imports {sorted(heavy)}'",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_sizes(path: Path):
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES, f"{path.name} has more than {FILE_LINES} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{path.name}: {node.name} has {lines} lines"


TOO_COMPLEX = (
    "def f(x: int) -> int:\n" + "".join(f"    if x == {i}:\n        return {i}\n" for i in range(13)) + "    return x\n"
)
TOO_MANY_ARGUMENTS = "def f(a: int, b: int, c: int, d: int, e: int, g: int, h: int) -> int:\n    return a\n"
TOO_LONG = "def f() -> None:\n" + "".join(f"    print({i})\n" for i in range(51))
TOO_DEEP = (
    "def f(xs: list[int]) -> None:\n"
    "    for x in xs:\n        if x:\n            for y in xs:\n                if y:\n                    print(x)\n"
)
SHORT_NAME = "import passes\n"


@pytest.mark.skipif(shutil.which("ruff", path=str(Path(sys.executable).parent)) is None, reason="needs ruff")
@pytest.mark.parametrize(
    ("rule", "snippet"),
    [
        ("C901", TOO_COMPLEX),
        ("PLR0913", TOO_MANY_ARGUMENTS),
        ("PLR0915", TOO_LONG),
        ("PLR1702", TOO_DEEP),
        ("TID251", SHORT_NAME),
    ],
)
def test_ruff_caps_fire(rule: str, snippet: str):
    ruff = Path(sys.executable).parent / "ruff"
    command = [ruff, "check", "--output-format=concise", "--no-cache", "--stdin-filename=commcc/snippet.py", "-"]
    done = subprocess.run(command, input=snippet, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    name = subprocess.run([ruff, "rule", rule], capture_output=True, text=True, check=True).stdout.split()[1]
    assert rule in done.stdout or name in done.stdout, done.stdout
