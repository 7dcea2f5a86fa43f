"""What a ``.pt2`` file says besides the graph: signature, calling convention, ranges, versions.

Usage::

    document = check_document(read_json(source, "models/model.json"))    # only known keys, checked
    constant_names(document)                                              # names of the inputs, by position
    rename(document, graph_data, names)                                   # the same for a rewritten graph
    new_document(graph, graph_data, inputs, ranges)                       # for a graph from elsewhere

All of it is carried as the JSON that it was, since only PyTorch gives it meaning, but nothing is carried
unchecked: names become Python code when PyTorch loads the file.

A graph from a text or from memory has no signature, so one is made: every placeholder is an input of the user's, in
order, every returned value an output, and every symbol keeps its range.
Limits: the number, order and kinds of inputs and outputs cannot change; a new document carries no parameters, they
are inputs like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from commcc.base.errors import InputError, OutputError
from commcc.serialization.pt2.code import check_guard, check_tree_spec
from commcc.serialization.pt2.schema import (
    SCHEMA_MAJOR,
    SCHEMA_MINOR,
    SYMBOLIC,
    argument_name,
    check_name,
    check_path,
    union,
)
from commcc.serialization.pt2.specs import map_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.serialization.pt2.tables import InputTable

#: What PyTorch calls the verifier that lets in-place ops and collectives pass.
_DIALECT = "TRAINING"
#: For each kind of input and output: the key of the target's name in the specification, if it has one.
_INPUTS = {
    "user_input": None,
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
    "custom_obj": "custom_obj_name",
    "token": None,
    "constant_input": None,
}
_OUTPUTS = {
    "user_output": None,
    "loss_output": None,
    "buffer_mutation": "buffer_name",
    "parameter_mutation": "parameter_name",
    "gradient_to_parameter": "parameter_name",
    "gradient_to_user_input": "user_input_name",
    "user_input_mutation": "user_input_name",
    "token": None,
}
_NUMBERS = {"as_int": (int,), "as_bool": (bool,), "as_float": (int, float, str), "as_none": (bool,)}
_INFINITE = ("Infinity", "-Infinity", "NaN")


def check_document(document: Any) -> dict[str, Any]:
    """Everything but the graph, checked and without unknown keys; the graph stays under ``graph_module``."""
    if not isinstance(document, dict) or not isinstance(document.get("graph_module"), dict):
        raise InputError("has no table 'graph_module'")
    version = document.get("schema_version")
    if not isinstance(version, dict) or type(version.get("major")) is not int or type(version.get("minor")) is not int:
        raise InputError("does not say which version of the schema it follows")
    # A new major version may give old names a new meaning.
    if version["major"] != SCHEMA_MAJOR:
        raise InputError(f"follows schema version {version['major']}, commcc reads {SCHEMA_MAJOR}")
    module = document["graph_module"]
    signature, tuples = module["signature"], module.get("treespec_namedtuple_fields", {})
    return {
        "graph_module": {
            "graph": module["graph"],
            "signature": {
                "input_specs": _list(signature["input_specs"], lambda spec: _check_spec(spec, _INPUTS)),
                "output_specs": _list(signature["output_specs"], lambda spec: _check_spec(spec, _OUTPUTS)),
            },
            "module_call_graph": [_check_call(entry) for entry in module["module_call_graph"]],
            "metadata": _table(module.get("metadata", {}), str),
            "treespec_namedtuple_fields": {
                str(name): {"field_names": _list(fields["field_names"], check_name)} for name, fields in tuples.items()
            },
        },
        "opset_version": _table(document["opset_version"], int),
        "range_constraints": _check_ranges(document["range_constraints"]),
        "schema_version": {"major": version["major"], "minor": version["minor"]},
        "verifiers": _list(document.get("verifiers", []), check_path),
        "torch_version": check_path(document.get("torch_version", "")),
        "guards_code": _list(document.get("guards_code", []), check_guard),
    }


def _list(items: Any, check: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(items, list):
        raise InputError(f"expected a list, found {str(items)[:40]!r}")
    return [check(item) for item in items]


def _table(items: Any, kind: type) -> dict[str, Any]:
    if not isinstance(items, dict) or not all(type(value) is kind for value in items.values()):
        raise InputError(f"expected a table of {kind.__name__}, found {str(items)[:40]!r}")
    return dict(items)


def _check_ranges(items: Any) -> dict[str, Any]:
    out = {}
    for name, bounds in items.items():
        low, high = bounds["min_val"], bounds["max_val"]
        if not all(bound is None or type(bound) is int for bound in (low, high)):
            raise InputError(f"the range of {name[:40]!r} is not made of integers")
        out[check_path(name)] = {"min_val": low, "max_val": high}
    return out


def _check_argument(data: Any) -> dict[str, Any]:
    """An argument of a signature or calling convention: a name or a number, never a graph or an op."""
    kind, value = union(data)
    if kind in ("as_tensor", "as_custom_obj"):
        check_name(value["name"])
        extra = {"class_fqn": check_path(value["class_fqn"])} if kind == "as_custom_obj" else {}
        return {kind: {"name": value["name"], **extra}}
    if kind in SYMBOLIC:
        inner, item = union(value)
        if inner == "as_name":
            check_name(item)
        elif type(item) not in (int, float, bool):
            raise InputError(f"{str(item)[:40]!r} is not a number")
        return {kind: {inner: item}}
    if kind == "as_string":
        return {kind: check_path(value)}
    if type(value) not in _NUMBERS.get(kind, ()) or (type(value) is str and value not in _INFINITE):
        raise InputError(f"{kind[:40]!r} has no place in a signature")
    return {kind: value}


def _check_spec(spec: Any, kinds: dict[str, str | None]) -> dict[str, Any]:
    kind, value = union(spec)
    if kind not in kinds:
        raise InputError(f"unknown kind of input or output {kind[:40]!r}")
    if kind == "constant_input":
        constant, item = union(value["value"])
        name = value["name"]
        return {kind: {"name": check_name(name) if name else "", "value": _check_argument({constant: item})}}
    if kind in ("user_input", "user_output", "custom_obj"):
        argument = value["arg"] if kind != "custom_obj" else {"as_custom_obj": value["arg"]}
        checked = _check_argument(argument)
        out: dict[str, Any] = {"arg": checked if kind != "custom_obj" else checked["as_custom_obj"]}
    else:
        out = {"arg": {"name": check_name(value["arg"]["name"])}}
    target = kinds[kind]
    if target is not None:
        out[target] = check_path(value[target])
    if kind == "buffer":
        out["persistent"] = value["persistent"] is True
    return {kind: out}


def _check_call(entry: Any) -> dict[str, Any]:
    signature = entry.get("signature")
    if signature is not None:
        for spec in (signature["in_spec"], signature["out_spec"]):
            check_tree_spec(spec)
        names = signature.get("forward_arg_names")
        signature = {
            "inputs": _list(signature["inputs"], _check_argument),
            "outputs": _list(signature["outputs"], _check_argument),
            "in_spec": signature["in_spec"],
            "out_spec": signature["out_spec"],
            "forward_arg_names": None if names is None else _list(names, check_name),
        }
    return {"fqn": check_path(entry["fqn"]), "signature": signature}


def new_document(graph: fx.Graph, data: dict[str, Any], inputs: InputTable, ranges: dict[str, Any]) -> dict[str, Any]:
    """Everything but the graph, for a program that came from no ``.pt2`` file.

    data: the graph in the schema, ``inputs`` its inputs.
    """
    lifted = {name: path for path, name in inputs.lifted.items()}
    specs: list[dict[str, Any]] = []
    for name, written in zip(inputs.names, data["inputs"], strict=True):
        if name in lifted:
            specs.append({"tensor_constant": {"arg": {"name": name}, "tensor_constant_name": lifted[name]}})
        elif name in inputs.constants:
            specs.append({"constant_input": {"name": name, "value": written}})
        else:
            specs.append({"user_input": {"arg": written}})
    # Constants that were lifted are no arguments of the caller.
    user_inputs = [0] * (len(specs) - len(lifted))
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    signature: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "in_spec": pytree.treespec_dumps(pytree.tree_structure((tuple(user_inputs), {})), 1),
        "out_spec": pytree.treespec_dumps(pytree.tree_structure(_leaves(returned)), 1),
        "forward_arg_names": None,
    }
    return {
        "graph_module": {
            "graph": data,
            "signature": {
                "input_specs": specs,
                "output_specs": [{"user_output": {"arg": written}} for written in data["outputs"]],
            },
            "module_call_graph": [{"fqn": "", "signature": signature}],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": torch._C._get_max_operator_version()},
        "range_constraints": ranges,
        "schema_version": {"major": SCHEMA_MAJOR, "minor": SCHEMA_MINOR},
        "verifiers": [_DIALECT],
        "torch_version": str(torch.__version__),
        "guards_code": [],
    }


def _leaves(returned: Any) -> Any:
    """The structure of what a graph returns, as plain containers with a number at each leaf."""
    if isinstance(returned, (tuple, list, dict)):
        return map_arguments(returned, _leaves)
    return 0


def constant_names(document: dict[str, Any]) -> list[str]:
    """The name of each input that is a constant, by position; empty for the others."""
    specs = document["graph_module"]["signature"]["input_specs"]
    return [spec["constant_input"]["name"] if "constant_input" in spec else "" for spec in specs]


def rename(document: dict[str, Any], graph: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The document for a rewritten graph: same inputs and outputs, which may have other names.

    names: of the inputs, constants included. Raises :class:`OutputError` if their number or kind changed.
    """
    module = document["graph_module"]
    signature = module["signature"]
    inputs, outputs = signature["input_specs"], signature["output_specs"]
    for what, specs, items in (("inputs", inputs, graph["inputs"]), ("outputs", outputs, graph["outputs"])):
        if len(specs) != len(items):
            raise OutputError(f"the graph has {len(items)} {what}, the exported program {len(specs)}")
    new = {_input_name(spec): name for spec, name in zip(inputs, names, strict=True)}
    renamed = {
        "input_specs": [_rename_input(spec, *new_) for spec, *new_ in zip(inputs, graph["inputs"], names, strict=True)],
        "output_specs": [_rename_output(spec, data, new) for spec, data in zip(outputs, graph["outputs"], strict=True)],
    }
    calls = [_rename_call(entry, new) for entry in module["module_call_graph"]]
    renamed_module = {"graph": graph, **module, "signature": renamed, "module_call_graph": calls}
    return {**document, "graph_module": renamed_module}


def _input_name(spec: dict[str, Any]) -> str:
    kind, value = union(spec)
    if kind == "constant_input":
        return str(value["name"])
    argument = value["arg"]
    name = argument_name(argument) if kind == "user_input" else argument["name"]
    return name or ""


def _rename_input(spec: dict[str, Any], data: dict[str, Any], name: str) -> dict[str, Any]:
    kind, value = union(spec)
    if kind == "constant_input":
        return {kind: {**value, "name": name}}
    if kind == "user_input":
        # A tensor where the caller gives a number cannot work.
        if next(iter(data)) != next(iter(value["arg"])):
            raise OutputError(f"input {name!r} is no longer what the exported program says it is")
        return {kind: {"arg": data}}
    return {kind: {**value, "arg": {**value["arg"], "name": name}}}


def _rename_output(spec: dict[str, Any], data: dict[str, Any], new: dict[str, str]) -> dict[str, Any]:
    kind, value = union(spec)
    if kind == "user_output":
        return {kind: {"arg": data}}
    name = argument_name(data)
    if name is None:
        raise OutputError(f"the graph returns a number where the exported program has a {kind}")
    out = {**value, "arg": {"name": name}}
    if "user_input_name" in value:
        out["user_input_name"] = new.get(value["user_input_name"], value["user_input_name"])
    return {kind: out}


def _rename_call(entry: dict[str, Any], new: dict[str, str]) -> dict[str, Any]:
    signature = entry["signature"]
    # A module without a calling convention names nothing.
    if signature is None or not signature["inputs"]:
        return entry
    inputs = []
    for argument in signature["inputs"]:
        kind, value = union(argument)
        name = argument_name(argument)
        key = "as_name" if kind in SYMBOLIC else "name"
        inputs.append(argument if name is None else {kind: {**value, key: new.get(name, name)}})
    return {**entry, "signature": {**signature, "inputs": inputs}}
