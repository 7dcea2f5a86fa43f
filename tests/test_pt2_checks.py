"""Files that PyTorch would not load, or not run, are refused, or not proved to be what they were made from."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch

from commcc.base.errors import InputError
from commcc.serialization.pt2.program import read_pt2
from commcc.verify import verify
from tests.pt2_models import MAKERS, make

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


@pytest.fixture
def damaged(tmp_path):
    """A saved model, and the same with one of its JSON entries changed in place."""

    def make_pair(name, change, entry=MODEL):
        torch.export.save(make(name).exported, tmp_path / "a.pt2")
        with zipfile.ZipFile(tmp_path / "a.pt2") as source, zipfile.ZipFile(tmp_path / "b.pt2", "w") as target:
            for held in source.namelist():
                data = source.read(held)
                if held.endswith(entry):
                    document = json.loads(data)
                    change(document)
                    data = json.dumps(document).encode()
                target.writestr(held, data)
        return tmp_path / "a.pt2", tmp_path / "b.pt2"

    return make_pair


def put(*place):
    """A change that puts the last item at the place that the others lead to; ``...`` takes it out."""
    *path, key, value = place

    def change(document):
        for step in path:
            document = next(iter(document.values())) if step == "*" else document[step]
        if value is ...:
            del document[key]
        else:
            document[key] = value

    return change


MODULE = ("graph_module",)
GRAPH = ("graph_module", "graph")
SIGNATURE = ("graph_module", "signature")
REFUSED = [
    ("tied", put(*GRAPH, "sym_float_values", {"as_int": 1}), "sym_float_values.as_int"),
    ("tied", put(*GRAPH, "custom_obj_values", ""), 'is "", not a table'),
    ("tied", put(*GRAPH, "sym_bool_values", ...), "has no 'sym_bool_values'"),
    ("tied", put(*GRAPH, "is_single_tensor_return", 3), "not true or false"),
    ("tied", put(*GRAPH, "nodes", 0, "is_hop_single_tensor_return", {"as_bool": True}), "nodes[0].is_hop_single"),
    ("tied", put(*GRAPH, "nodes", 0, "metadata", ...), "nodes[0] has no 'metadata'"),
    ("tied", put(*GRAPH, "tensor_values", "*", "requires_grad", 0.5), "requires_grad is 0.5"),
    (
        "loops",
        put(*GRAPH, "nodes", 0, "inputs", 0, "name", {"as_none": True}),
        "node 0 ('lift_fresh_copy') is malformed",
    ),
    ("sizes", put(*GRAPH, "sym_int_values", "*", "as_expr", "hint", "as_int", "x"), "the example x"),
    ("sizes", put(*GRAPH, "tensor_values", "y", "sizes", 0, "as_expr", "hint", {"as_bool": True}), "the example True"),
    ("structures", put(*GRAPH, "inputs", 3, "as_bool", False), "input 3 is"),
    ("tied", put(*SIGNATURE, "input_specs", 0, "parameter", "arg", "name", "linear"), "input 0 is linear in the sig"),
    ("sizes", put(*SIGNATURE, "input_specs", 1, "user_input", "arg", "as_tensor", "name", "x"), "input 1 is x in"),
    ("mutates", put(*SIGNATURE, "output_specs", -1, "user_output", "arg", {"as_int": 1}), 'is {"as_int": 1} in the'),
    ("tied", put(*SIGNATURE, "output_specs", []), "the signature has 0 outputs, the graph 1"),
    (
        "tied",
        put(*MODULE, "module_call_graph", 0, "signature", "outputs", [{"as_tensor": {"name": "gone"}}]),
        "names 'gone', which is no node",
    ),
    ("tied", lambda document: document["graph_module"]["module_call_graph"].reverse(), "do not begin with that of"),
    ("data", put(*GRAPH, "nodes", 0, "outputs", []), "has 0 results, aten.sum gives 1"),
    ("loops", put(*GRAPH, "tensor_values", "*", "requires_grad", True), "torch.int64 is said to require a gradient"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED, ids=[f"{n}-{w[:30]}" for n, _, w in REFUSED])
def test_what_pytorch_does_not_load_is_refused(name, change, words, damaged):
    original, path = damaged(name, change)
    read_pt2(original)
    with pytest.raises(InputError) as caught:
        read_pt2(path)
    text = str(caught.value)
    assert words in text
    assert "\n" not in text and len(text) < 400
    with pytest.raises(Exception):  # noqa: B017
        made = make(name)
        torch.export.load(path).module()(*made.args, **made.kwargs)


def test_a_size_has_one_example(damaged):
    """PyTorch 2.15 takes such a file, earlier releases do not."""

    def other(document):
        size = document["graph_module"]["graph"]["tensor_values"]["y"]["sizes"][0]["as_expr"]
        size["hint"]["as_int"] = 3
        # What a symbol is said to be stands in whatever order sympy has kept.
        size["expr_str"] = size["expr_str"].replace("positive=True, integer=True", "integer=True, positive=True")

    with pytest.raises(InputError, match=r"the example \d+ is not the one that .* has elsewhere"):
        read_pt2(damaged("sizes", other)[1])


def test_types_of_weights(damaged):
    change = put("config", "*", "is_param", "yes")
    with pytest.raises(InputError, match=r'is_param is "yes", not true or false'):
        read_pt2(damaged("tied", change, WEIGHTS)[1])


def call(document, name):
    return next(node for node in document["graph_module"]["graph"]["nodes"] if node["name"] == name)


def test_arguments_that_an_op_takes_only_by_name(damaged):
    def by_position(document):
        call(document, "contiguous")["inputs"][1]["kind"] = 1

    with pytest.raises(InputError, match=r"aten\.contiguous\.default is given by position that is only taken by name"):
        read_pt2(damaged("conv", by_position)[1])


def test_functions_on_numbers_take_what_they_take(damaged):
    def twice(document):
        node = call(document, "mul")
        node["inputs"].append(node["inputs"][0])

    with pytest.raises(InputError, match=r"mul is called wrongly: too many positional arguments"):
        read_pt2(damaged("sizes", twice)[1])


def doubled(document):
    values = document["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0] = values["y"]["sizes"][0]


UNPROVED = [
    ("mutates", put("verifiers", ["TRAINING1"]), "rules that PyTorch checks it by is ['TRAINING1']"),
    ("mutates", put("verifiers", ...), "rules that PyTorch checks it by is []"),
    # PyTorch checks the sizes of what it is given.
    ("sizes", doubled, "sizes of input 0 is ['2*size0', '4'], in BEFORE's file ['size0', '4']"),
]


@pytest.mark.parametrize(("name", "change", "words"), UNPROVED)
def test_what_pytorch_runs_otherwise_is_not_proved(name, change, words, damaged):
    before, after = (read_pt2(path) for path in damaged(name, change))
    verdict = verify(before, after)
    assert verdict.status == "different"
    assert words in " ".join(finding.text for finding in verdict.findings)


@pytest.mark.parametrize("name", MAKERS)
def test_what_pytorch_writes_is_read_and_is_itself(name, damaged):
    first, second = damaged(name, lambda document: None)
    assert verify(read_pt2(first), read_pt2(second)).status in ("proved", "unproved")
