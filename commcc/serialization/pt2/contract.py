"""What a ``.pt2`` file promises besides its graph, as facts that can be compared one by one.

::

    facts = contract(program)
    facts["input 0"]              # "parameter 'a.weight'"
    facts["output 1"]             # "new contents of buffer 'count'"
    facts["output tree"]          # the nesting of what a caller gets
    facts["weight 'a.weight'"]    # {'dtype': 7, 'sizes': ..., 'strides': ..., 'memory': "entry of 'a.weight'"}
    differing_entries(first, second)   # names of weights and constants whose bytes differ

Names of nodes do not count: inputs and outputs are told apart by their place. Not part of it: what only says how
the file was made (versions, example inputs, calls of sub-modules).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import sympy
import torch

from commcc.serialization.pt2.archive import Pt2Carrier, read_json
from commcc.serialization.pt2.checks import is_known
from commcc.serialization.pt2.schema import union
from commcc.serialization.pt2.zip_files import open_zip
from commcc.serialization.shapes import symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import fx

    from commcc.graph.program import Program
    from commcc.serialization.pt2.zip_files import ZipSource

_INPUT_WORDS = {
    "user_input": "an input of the caller's",
    "parameter": "parameter",
    "buffer": "buffer",
    "tensor_constant": "constant",
    "custom_obj": "object",
    "token": "a token",
    "constant_input": "the number or text",
}
_OUTPUT_WORDS = {
    "user_output": "an output",
    "loss_output": "the loss",
    "buffer_mutation": "new contents of buffer",
    "parameter_mutation": "new contents of parameter",
    "gradient_to_parameter": "the gradient of parameter",
    "gradient_to_user_input": "the gradient of",
    "user_input_mutation": "new contents of",
    "token": "a token",
}
_TARGETS = ("parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name", "user_input_name")


def contract(program: Program, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All facts by what they are about; empty for a program that came from no ``.pt2`` file.

    fixed: numbers for symbols in sizes of inputs.
    """
    carrier = program.carrier
    if not isinstance(carrier, Pt2Carrier):
        return {}
    module = carrier.document["graph_module"]
    signature = module["signature"]
    facts: dict[str, Any] = {}
    names = [_name(spec) for spec in signature["input_specs"]]
    for at, spec in enumerate(signature["input_specs"]):
        facts[f"input {at}"] = _words(spec, _INPUT_WORDS, names)
    for at, spec in enumerate(signature["output_specs"]):
        facts[f"output {at}"] = _words(spec, _OUTPUT_WORDS, names)
    facts.update(_misnamed(program.graph, names, [_name(spec) for spec in signature["output_specs"]]))
    call = next((entry["signature"] for entry in module["module_call_graph"] if entry["fqn"] == ""), None)
    if call is not None:
        facts["input tree"], facts["output tree"] = _tree(call["in_spec"]), _tree(call["out_spec"])
        facts["names of arguments"] = call["forward_arg_names"]
    facts["fields of named tuples"] = module["treespec_namedtuple_fields"]
    rules = carrier.document["verifiers"]
    # PyTorch does not load a program whose rules it does not know; those that have none keep the strictest.
    if not rules or not all(is_known(name) for name in rules):
        facts["rules that PyTorch checks it by"] = rules
    facts["guards"] = list(carrier.document["guards_code"])
    ranges = carrier.document["range_constraints"]
    # PyTorch does not load what names a symbol without a range.
    used = symbols_of([node.meta.get("val") for node in program.graph.nodes])
    for symbol in dict.fromkeys((*ranges, *sorted(used))):
        facts[f"range of '{symbol}'"] = ranges.get(symbol)
    facts.update(_sizes(program.graph, fixed or {}))
    facts.update(_stored(carrier))
    return facts


def _sizes(graph: fx.Graph, fixed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What PyTorch makes guards of: sizes of inputs, with symbols named in the order in which they come."""
    names: dict[sympy.Symbol, Any] = {}
    for at, node in enumerate(graph.find_nodes(op="placeholder")):
        val = node.meta.get("val")
        if not isinstance(val, (torch.Tensor, torch.SymInt)):
            continue
        said = []
        for size in val.shape if isinstance(val, torch.Tensor) else (val,):
            expr = sympy.sympify(size) if isinstance(size, int) else size.node.expr
            for symbol in sorted(expr.free_symbols, key=str):
                number = fixed.get(symbol.name)
                new = sympy.Symbol(f"size{len(names)}", integer=True, positive=symbol.is_positive)
                names.setdefault(symbol, sympy.Integer(number) if type(number) is int else new)
            said.append(str(expr.xreplace(names)))
        yield f"sizes of input {at}", said


def _words(spec: dict[str, Any], words: dict[str, str], inputs: list[str]) -> str:
    kind, value = union(spec)
    if kind == "constant_input":
        return f"{words[kind]} {json.dumps(value['value'], sort_keys=True)}"
    target = next((value[key] for key in _TARGETS if key in value), None)
    if "user_input_name" in value:
        target = f"input {inputs.index(target)}" if target in inputs else target
    persistent = "" if value.get("persistent", True) else ", not persistent"
    return words[kind] + ("" if target is None else f" '{target}'") + persistent


def _name(spec: dict[str, Any]) -> str:
    """What the signature calls an input or output in the graph; empty for numbers."""
    kind, value = union(spec)
    if kind == "constant_input":
        return str(value["name"])
    argument = value["arg"]
    if "name" not in argument:
        _, argument = union(argument)
    name = argument.get("name", argument.get("as_name", "")) if isinstance(argument, dict) else ""
    return str(name)


def _misnamed(graph: fx.Graph, inputs: list[str], outputs: list[str]) -> Iterator[tuple[str, str]]:
    """Where the signature and the graph name different nodes: PyTorch goes by the one here, by the other there."""
    places = [node.name for node in graph.nodes if node.op == "placeholder"]
    listed = [name for name in inputs if name in set(places)]
    yield from _unlike("input", listed, [name for name in places if name in set(listed)])
    returned = next((node.args[0] for node in graph.nodes if node.op == "output" and node.args), ())
    leaves = returned if isinstance(returned, (tuple, list)) else (returned,)
    there = [str(getattr(leaf, "name", "")) for leaf in leaves]
    yield from _unlike("output", outputs, there)


def _unlike(what: str, listed: list[str], there: list[str]) -> Iterator[tuple[str, str]]:
    for at, (name, other) in enumerate(zip(listed, there, strict=False)):
        if name and other and name != other:
            yield f"name of {what} {at}", f"'{name}', where the graph has '{other}'"


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _stored(carrier: Pt2Carrier) -> Iterator[tuple[str, Any]]:
    """What the archive says of every weight and constant: layout, and which of them lie in one memory."""
    with open_zip(carrier.path) as source:
        carrier.check_unchanged(source)
        for kind, word in (("weights", "weight"), ("constants", "stored constant")):
            entry = f"data/{kind}/{carrier.layout.name}_{kind}_config.json"
            config = read_json(source, entry)["config"] if entry in source.entries else {}
            first: dict[str, str] = {}
            for name, meta in config.items():
                described = {key: value for key, value in meta.items() if key not in ("path_name", "tensor_meta")}
                memory = first.setdefault(meta["path_name"], name)
                layout = meta.get("tensor_meta") or {}
                yield f"{word} '{name}'", {**described, **layout, "memory": f"entry of '{memory}'"}


def differing_entries(before: Program, after: Program) -> list[str]:
    """Weights and constants of the same name whose bytes in the two files are not the same."""
    first, second = before.carrier, after.carrier
    assert isinstance(first, Pt2Carrier) and isinstance(second, Pt2Carrier)
    with open_zip(first.path) as one, open_zip(second.path) as other:
        first.check_unchanged(one)
        second.check_unchanged(other)
        old = {**_entries(one, first, "weights"), **_entries(one, first, "constants")}
        new = {**_entries(other, second, "weights"), **_entries(other, second, "constants")}
        return sorted(name for name in old.keys() & new.keys() if not _same((one, old[name]), (other, new[name])))


def _same(first: tuple[ZipSource, str], second: tuple[ZipSource, str]) -> bool:
    one, other = (source.entries[name] for source, name in (first, second))
    return (one.size, one.crc) == (other.size, other.crc) and _hash(*first) == _hash(*second)


def _entries(source: ZipSource, carrier: Pt2Carrier, kind: str) -> dict[str, str]:
    entry = f"data/{kind}/{carrier.layout.name}_{kind}_config.json"
    config = read_json(source, entry)["config"] if entry in source.entries else {}
    paths = {name: f"data/{kind}/{meta['path_name']}" for name, meta in config.items()}
    missing = next((name for name, path in paths.items() if path not in source.entries), None)
    if missing is not None:
        raise source.error(f"{missing[:60]!r} names no entry of the archive", entry)
    return paths


class _Digest:
    """A sink that only hashes."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.sha.update(data)


def _hash(source: ZipSource, name: str) -> bytes:
    digest = _Digest()
    source.copy(name, digest)  # type: ignore[arg-type]
    return digest.sha.digest()
