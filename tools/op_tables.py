"""Tables of op names outside the one that may hold them, ``commcc/graph/ops``::

    python tools/op_tables.py            # a line for each: file, line, name, how many ops
    python tools/op_tables.py --check    # exits with 1 when there is one

A table is a collection that names ops: as ``"aten.mm"``, as ``aten.mm.default`` under ``torch.ops``, or bare (``"mm"``)
where nearly all of its words are ops of PyTorch. In a module or a class one op makes a table, in a function two do. A
single op that code compares with is no table.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "commcc" / "graph" / "ops"

LIBRARIES = (
    *("aten", "prims", "_c10d_functional", "c10d_functional", "c10d", "_dtensor", "inductor", "inductor_prims"),
    *("bucketing", "fsdp", "symm_mem", "higher_order", "rngprims", "streams", "quantized_decomposed", "operator"),
)
_QUALIFIED = re.compile(rf"^(torch\.ops\.)?({'|'.join(LIBRARIES)})(\.|::)\w*")
_COLLECTIONS = (ast.Set, ast.Tuple, ast.List, ast.Dict, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Words that are ops as well: Python's comparisons, and methods of tensors in code of guards.
NO_TABLES = {"commcc/serialization/fx/statements.py": "_COMPARE", "commcc/serialization/pt2/code.py": "_GUARD_METHODS"}
#: Words of a table of bare names that may be something else.
_BARE_SHARE = 0.8
_FEWEST_BARE = 3


@dataclass(frozen=True)
class Table:
    """A collection that names ops."""

    file: str
    line: int
    name: str
    ops: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name} ({self.ops})"


def tables(path: Path, bare: frozenset[str]) -> list[Table]:
    """Of one file; bare: names of PyTorch's ops without their library."""
    file = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for name, value in _assigned(tree):
        count = _named(value, bare)
        if count and NO_TABLES.get(file) != name:
            found.append(Table(file, value.lineno, name, count))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for value in (
            node for node in ast.walk(function) if isinstance(node, (ast.Set, ast.Tuple, ast.List, ast.Dict))
        ):
            count = sum(_is_op(node) for node in ast.iter_child_nodes(value))
            if count > 1:
                found.append(Table(file, value.lineno, f"in {function.name}", count))
    return found


def _assigned(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    """Names and values of a module and its classes."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assign):
            found.append((ast.unparse(node.targets[0]), node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found.append((ast.unparse(node.target), node.value))
        elif isinstance(node, ast.ClassDef):
            found += _assigned(node)
    return found


def _named(value: ast.expr, bare: frozenset[str]) -> int:
    """How many ops a value names, if it is a collection."""
    if not any(isinstance(node, _COLLECTIONS) for node in ast.walk(value)):
        return 0
    qualified = sum(_is_op(node) for node in ast.walk(value))
    words = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    plain = [word.split(".")[0] for word in words if re.fullmatch(r"\w+(\.\w+)?", word)]
    known = sum(word in bare for word in plain)
    if qualified or known < _FEWEST_BARE or known < _BARE_SHARE * len(words):
        return qualified
    return known


def _is_op(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _QUALIFIED.match(node.value) is not None
    text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return text.count(".") > 1 and _QUALIFIED.match(text) is not None and text.endswith(".default")


def all_tables() -> list[Table]:
    """Of all files but those in the table's home."""
    import torch

    schemas = (schema.name.partition("::") for schema in torch._C._jit_get_all_schemas())
    bare = frozenset(op for library, _, op in schemas if library in ("aten", "prims"))
    files = sorted(path for path in (ROOT / "commcc").rglob("*.py") if HOME not in path.parents)
    return [table for path in files for table in tables(path, bare)]


def main(arguments: list[str]) -> int:
    found = all_tables()
    for table in found:
        print(table)
    print(f"{len(found)} tables of ops in {len({table.file for table in found})} files outside commcc/graph/ops")
    return 1 if found and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
