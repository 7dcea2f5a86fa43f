"""The baseline: what a run measured, kept in a file that can be reviewed and compared with later.

    commcc_baseline: 1
    graphs:
      bw.fx.txt.gz:
        cost_model: {name: h100-sxm, hash: "6f5d13d3f533"}
        metrics:
          collectives.all_gather: 290
          step_ms: 796.017

Graphs go by their path relative to the baseline file. Keys are sorted, nothing depends on the machine, and the
file is replaced as a whole, so that equal runs write equal bytes and a reader never sees half of it. JSON where
the name ends in ``.json``, else YAML.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OutputError
from commcc.lint.tolerance import flat
from commcc.lint.types import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.base.yaml_file import Node
    from commcc.timing.snapshot import Snapshot

VERSION = 1
_EXTENSIONS = (".yaml", ".yml", ".json")


def check_path(path: str) -> None:
    """Raise :class:`OutputError` for a name that is no baseline's."""
    if not path.lower().endswith(_EXTENSIONS):
        raise OutputError("unknown extension of a baseline", where=path, hint=f"use {', '.join(_EXTENSIONS)}")


def key_of(graph: str, baseline: str) -> str:
    """What a graph is called in a baseline file."""
    file, separator, name = graph.partition("::") if not Path(graph).exists() else (graph, "", "")
    relative = os.path.relpath(Path(file).absolute(), Path(baseline).absolute().parent)
    return Path(relative).as_posix() + separator + name


def measured(seen: Snapshot) -> Known:
    """What a baseline stores of a graph."""
    prediction = seen.prediction
    model = None if prediction is None else (prediction.costs.model, prediction.costs.hash)
    hints = {hint.symbol: hint.value for hint in seen.index.estimates.hints}
    return Known(flat(seen.to_json()), model, hints)


def read_baseline(path: str) -> dict[str, Known]:
    """The graphs of a baseline file; :class:`commcc.base.errors.InputError` names every mistake with its line."""
    from commcc.base.yaml_file import read_yaml

    file = read_yaml(path)
    fields = file.root.mapping(("commcc_baseline", "graphs"))
    version = fields["commcc_baseline"]
    if version.integer() != VERSION and not file.mistakes:
        version.fail(f"is a baseline of version {version.value}, expected {VERSION}: made by another version of commcc")
    graphs = {} if fields["graphs"].missing else fields["graphs"].entries()
    known = {graph: _known(node) for graph, node in graphs.items()}
    file.check()
    return known


def _known(node: Node) -> Known:
    fields = node.mapping(("metrics",), ("cost_model", "hints"))
    metrics = {} if fields["metrics"].missing else fields["metrics"].entries()
    model = None
    if "cost_model" in fields and not fields["cost_model"].is_null:
        parts = fields["cost_model"].mapping(("name", "hash"))
        model = (parts["name"].text(), parts["hash"].text())
    hints = fields["hints"].entries() if "hints" in fields else {}
    return Known(
        {metric: value.number() for metric, value in metrics.items()},
        model,
        {symbol: value.integer() for symbol, value in hints.items()},
    )


def baseline_text(graphs: Mapping[str, Known], path: str) -> str:
    """The whole file."""
    from commcc.base.yaml_text import dump

    entries: dict[str, Json] = {}
    for graph, known in sorted(graphs.items()):
        model: Json = None if known.model is None else {"name": known.model[0], "hash": known.model[1]}
        hints: dict[str, Any] = {"hints": dict(sorted(known.hints.items()))} if known.hints else {}
        # Whole numbers without a fraction, as JSON and YAML readers return them.
        metrics: dict[str, Any] = {
            metric: int(value) if float(value).is_integer() else value
            for metric, value in sorted(known.metrics.items())
        }
        entries[graph] = {"cost_model": model, **hints, "metrics": metrics}
    document: dict[str, Json] = {"commcc_baseline": VERSION, "graphs": entries}
    return json.dumps(document, indent=1) + "\n" if path.lower().endswith(".json") else dump(document)


def write_baseline(path: str, new: Mapping[str, Known], gone: Iterable[str] = ()) -> None:
    """Store the graphs, next to those that the file holds already; ``gone`` are dropped.

    Raises :class:`commcc.base.errors.InputError` where the file is no baseline, which is then left as it is.
    """
    from commcc.base.files import replace_text

    check_path(path)
    kept = read_baseline(path) if Path(path).exists() else {}
    graphs = {key: known for key, known in {**kept, **new}.items() if key not in set(gone)}
    replace_text(Path(path), baseline_text(graphs, path))
