"""Write docs/api.md, the Python API, from signatures and docstrings, or check that it is up to date::

python tools/api_docs.py docs/api.md
python tools/api_docs.py --check docs/api.md
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

#: Functions by heading: their name on ``commcc``, and where they are defined.
FUNCTIONS = {
    "Graphs in files": {
        "load": "commcc.api",
        "save": "commcc.api",
        "inspect": "commcc.api",
        "simulate": "commcc.api",
        "run": "commcc.api",
        "verify": "commcc.api",
        "diff": "commcc.api",
    },
    "Models": {"capture": "commcc.capture", "shard": "commcc.capture.shards"},
    "Training jobs": {
        "backend": "commcc.live.backends",
        "inductor_pass": "commcc.live.backends",
        "graph_pass": "commcc.live.rewriting",
    },
}
#: What they return, and what a pass is made of.
CLASSES = (
    "commcc.graph.program.Program",
    "commcc.timing.snapshot.Snapshot",
    "commcc.timing.predict.Prediction",
    "commcc.run.pipeline.RunResult",
    "commcc.verify.Verdict",
    "commcc.diff.GraphDiff",
    "commcc.live.options.Options",
    "commcc.capture.request.Request",
    "commcc.passes.base.PlanContext",
    "commcc.passes.base.Pass",
    "commcc.plan.Plan",
    "commcc.base.errors.CommccError",
)
HEAD = """# Python API

Written from the code by `make docs`. Everything here is typed. Importing `commcc` imports no torch.
"""


def document() -> str:
    """The whole page."""
    parts = [HEAD]
    for heading, functions in FUNCTIONS.items():
        parts.append(f"## {heading}\n")
        parts += [_function(name, home) for name, home in functions.items()]
    parts.append("## Results and parts\n")
    parts += [_class(path) for path in CLASSES]
    return "\n".join(parts)


def _function(name: str, home: str) -> str:
    module = importlib.import_module(home)
    # A package that is a function too says what a call does in its class.
    function = type(module).__call__ if home == f"commcc.{name}" else getattr(module, name)
    return f"### commcc.{name}\n\n```python\n{_signature(name, function)}\n```\n\n{_text(function)}\n"


def _signature(name: str, function: Any) -> str:
    """On one line where that is short, else a parameter a line."""
    signature = inspect.signature(function)
    shown: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    whole = f"{name}({', '.join(shown)}) -> {signature.return_annotation}"
    if len(whole) <= 100:
        return whole
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f") -> {signature.return_annotation}"])


def _class(path: str) -> str:
    """What it is, its fields, and what can be asked of it."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    own = [
        (each, value)
        for each, value in vars(found).items()
        if not each.startswith("_") and (inspect.isfunction(value) or isinstance(value, (property, classmethod)))
    ]
    lines = [f"### {path}\n", f"{_text(found)}\n"]
    fields = list(getattr(found, "__dataclass_fields__", {}))
    if fields:
        lines.append(f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n")
    for each, value in own:
        said = inspect.getdoc(value.fget if isinstance(value, property) else value)
        if said:
            call = "" if isinstance(value, property) else "()"
            lines.append(f"- `{each}{call}`: {_plain(said.split(chr(10) * 2)[0])}")
    return "\n".join(lines).rstrip("\n") + "\n"


def _text(found: object) -> str:
    """A docstring in Markdown: what is indented stays as it is."""
    said = inspect.getdoc(found) or ""
    return "\n\n".join(part if part.startswith("    ") else _plain(part) for part in said.split("\n\n"))


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return " ".join(text.split()).rstrip(":") + (":" if text.rstrip().endswith("::") else "")


def main(arguments: list[str]) -> int:
    """Write or check the document; the exit code."""
    path = Path(next(a for a in arguments if not a.startswith("-")))
    text = document()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if "--check" not in arguments:
        path.write_text(text, encoding="utf-8")
        return 0
    print(f"{path} is out of date: run 'make docs'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
