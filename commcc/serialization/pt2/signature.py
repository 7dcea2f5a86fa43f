"""What a ``.pt2`` file says besides the graph: signature, calling convention, ranges, versions.

Usage::

    document = check_document(read_json(source, "models/model.json"))    # only known keys, checked
    constant_names(document)                                              # names of the inputs, by position
    rename(document, graph_data)                                          # the same for a rewritten graph

All of it is carried as the JSON that it was, since only PyTorch gives it meaning, but nothing is carried
unchecked: names become Python code when PyTorch loads the file.
Limits: the number, order and kinds of inputs and outputs cannot change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError, OutputError
from commcc.serialization.pt2.code import check_guard, check_tree_spec
from commcc.serialization.pt2.schema import SCHEMA_MAJOR, check_name, check_path, union

if TYPE_CHECKING:
    from collections.abc import Callable, Container

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
_SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")
_NUMBERS = {"as_int": (int,), "as_bool": (bool,), "as_float": (int, float, str), "as_none": (bool,)}


def check_document(document: Any) -> dict[str, Any]:
    """Everything but the graph, checked and without unknown keys; the graph stays under ``graph_module``."""
    if not isinstance(document, dict) or not isinstance(document.get("graph_module"), dict):
        raise InputError("has no table 'graph_module'")
    version = document.get("schema_version")
    if not isinstance(version, dict) or type(version.get("major")) is not int or type(version.get("minor")) is not int:
        raise InputError("does not say which version of the schema it follows")
    if version["major"] != SCHEMA_MAJOR:
        raise InputError(f"follows schema version {version['major']}, commcc reads {SCHEMA_MAJOR}")
    module = document["graph_module"]
    return {
        "graph_module": {
            "graph": module["graph"],
            "signature": _check_signature(module["signature"]),
            "module_call_graph": [_check_call(entry) for entry in module["module_call_graph"]],
            "metadata": _table(module.get("metadata", {}), str),
            "treespec_namedtuple_fields": _check_tuples(module.get("treespec_namedtuple_fields", {})),
        },
        "opset_version": _table(document["opset_version"], int),
        "range_constraints": _check_ranges(document["range_constraints"]),
        "schema_version": {"major": version["major"], "minor": version["minor"]},
        "verifiers": _list(document.get("verifiers", []), check_path),
        "torch_version": check_path(document.get("torch_version", "")),
        "guards_code": _list(document.get("guards_code", []), _guard),
    }


def _guard(text: Any) -> str:
    check_guard(text)
    return str(text)


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


def _check_tuples(items: Any) -> dict[str, Any]:
    return {str(name): {"field_names": _list(fields["field_names"], check_name)} for name, fields in items.items()}


def check_spec_argument(data: Any) -> dict[str, Any]:
    """An argument of a signature or calling convention: a name or a number, never a graph or an op."""
    kind, value = union(data)
    if kind in ("as_tensor", "as_custom_obj"):
        check_name(value["name"])
        extra = {"class_fqn": check_path(value["class_fqn"])} if kind == "as_custom_obj" else {}
        return {kind: {"name": value["name"], **extra}}
    if kind in _SYMBOLIC:
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


_INFINITE = ("Infinity", "-Infinity", "NaN")


def _check_signature(signature: Any) -> dict[str, Any]:
    return {
        "input_specs": _list(signature["input_specs"], lambda spec: _check_spec(spec, _INPUTS)),
        "output_specs": _list(signature["output_specs"], lambda spec: _check_spec(spec, _OUTPUTS)),
    }


def _check_spec(spec: Any, kinds: dict[str, str | None]) -> dict[str, Any]:
    kind, value = union(spec)
    if kind not in kinds:
        raise InputError(f"unknown kind of input or output {kind[:40]!r}")
    if kind == "constant_input":
        constant, item = union(value["value"])
        name = value["name"]
        return {kind: {"name": check_name(name) if name else "", "value": check_spec_argument({constant: item})}}
    if kind in ("user_input", "user_output", "custom_obj"):
        argument = value["arg"] if kind != "custom_obj" else {"as_custom_obj": value["arg"]}
        checked = check_spec_argument(argument)
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
            "inputs": _list(signature["inputs"], check_spec_argument),
            "outputs": _list(signature["outputs"], check_spec_argument),
            "in_spec": signature["in_spec"],
            "out_spec": signature["out_spec"],
            "forward_arg_names": None if names is None else _list(names, check_name),
        }
    return {"fqn": check_path(entry["fqn"]), "signature": signature}


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
    for what, specs, found in (("inputs", inputs, graph["inputs"]), ("outputs", outputs, graph["outputs"])):
        if len(specs) != len(found):
            raise OutputError(f"the graph has {len(found)} {what}, the exported program {len(specs)}")
    new = {_input_name(spec): name for spec, name in zip(inputs, names, strict=True)}
    renamed = {
        "input_specs": [_rename_input(spec, *new_) for spec, *new_ in zip(inputs, graph["inputs"], names, strict=True)],
        "output_specs": [_rename_output(spec, data, new) for spec, data in zip(outputs, graph["outputs"], strict=True)],
    }
    calls = [_rename_call(entry, new) for entry in module["module_call_graph"]]
    new_module = {"graph": graph, **module, "signature": renamed, "module_call_graph": calls}
    return {**document, "graph_module": {**new_module, "graph": graph}}


def dangling_calls(document: dict[str, Any], names: Container[str]) -> list[str]:
    """Modules whose calling convention names nodes that the graph no longer has; they cannot be unflattened."""
    out = []
    for entry in document["graph_module"]["module_call_graph"]:
        signature = entry["signature"] or {"inputs": [], "outputs": []}
        used = [_argument_name(argument) for argument in (*signature["inputs"], *signature["outputs"])]
        if any(name is not None and name not in names for name in used):
            out.append(entry["fqn"])
    return out


def _input_name(spec: dict[str, Any]) -> str:
    kind, value = union(spec)
    if kind == "constant_input":
        return str(value["name"])
    argument = value["arg"]
    found = _argument_name(argument) if kind == "user_input" else argument["name"]
    return found or ""


def _argument_name(argument: dict[str, Any]) -> str | None:
    kind, value = union(argument)
    if kind in ("as_tensor", "as_custom_obj"):
        return str(value["name"])
    return value.get("as_name") if kind in _SYMBOLIC else None


def _rename_input(spec: dict[str, Any], data: dict[str, Any], name: str) -> dict[str, Any]:
    kind, value = union(spec)
    if kind == "constant_input":
        return {kind: {**value, "name": name}}
    if kind == "user_input":
        if next(iter(data)) != next(iter(value["arg"])):
            raise OutputError(f"input {name!r} is no longer what the exported program says it is")
        return {kind: {"arg": data}}
    return {kind: {**value, "arg": {**value["arg"], "name": name}}}


def _rename_output(spec: dict[str, Any], data: dict[str, Any], new: dict[str, str]) -> dict[str, Any]:
    kind, value = union(spec)
    if kind == "user_output":
        return {kind: {"arg": data}}
    name = _argument_name(data)
    if name is None:
        raise OutputError(f"the graph returns a number where the exported program has a {kind}")
    out = {**value, "arg": {"name": name}}
    if "user_input_name" in value:
        out["user_input_name"] = new.get(value["user_input_name"], value["user_input_name"])
    return {kind: out}


def _rename_call(entry: dict[str, Any], new: dict[str, str]) -> dict[str, Any]:
    signature = entry["signature"]
    if signature is None or not signature["inputs"]:
        return entry
    inputs = []
    for argument in signature["inputs"]:
        kind, value = union(argument)
        name = _argument_name(argument)
        key = "as_name" if kind in _SYMBOLIC else "name"
        inputs.append(argument if name is None else {kind: {**value, key: new.get(name, name)}})
    return {**entry, "signature": {**signature, "inputs": inputs}}
