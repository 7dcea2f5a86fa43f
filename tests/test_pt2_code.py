"""Code in the graph of a ``.pt2`` file: in sizes, names, keywords, guards. None of it runs."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch

from commcc.base.errors import InputError
from commcc.serialization.pt2.code import check_guard, check_tree_spec
from commcc.serialization.pt2.program import read_pt2
from tests.counting import at_most
from tests.pt2_files import MODEL, document, refused, with_document


def rename_everywhere(data, old, new):
    return json.loads(json.dumps(data).replace(json.dumps(old), json.dumps(new)))


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch {marker}')",
        "open('{marker}','w')",
        "Symbol('s17').__class__",
        "(lambda: open('{marker}','w'))()",
        "Symbol(open('{marker}','w'))",
        "Integer(open('{marker}','w'))",
        "[open('{marker}','w') for x in (1,)]",
        "Symbol('s17', integer=open('{marker}','w'))",
        "Symbol('x y')",
        "Pow(Integer(10), Integer(1000000000))",
        "LShift(Integer(1), Integer(1000000000000))",
        "Function('f')(Integer(1))",
        "sympify('1')",
        "Add(true, Integer(1))",
        "Max(Integer(1), Eq(Integer(1), Integer(1)))",
        "Integer(" + "9" * 5000 + ")",
        "Add(" * 300 + "Integer(1)" + ")" * 300,
        "(" * 100_000,
        "",
        "1/0",
    ],
)
def test_code_in_a_symbolic_size(tmp_path, expression):
    data = document()
    marker = tmp_path / "marker"
    values = data["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0]["as_expr"]["expr_str"] = expression.format(marker=marker)
    with at_most(200_000):
        if expression.startswith("Symbol('s17', integer"):
            read_pt2(with_document(tmp_path, data))
        else:
            refused(with_document(tmp_path, data), MODEL, marker=marker)
    assert not marker.exists()


NO_NAMES = ["x=open('m','w')", "a b", "x)", "lambda", "self", "", "é", "x\n", "1x", "__import__('os')"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_code_in_a_node_name(tmp_path, name):
    data = document()
    refused(with_document(tmp_path, rename_everywhere(data, "add_", name)), MODEL, "node name")
    refused(with_document(tmp_path, rename_everywhere(data, "x", name)), MODEL)


NO_OPS = [
    *("os.system", "builtins.eval", "torch.load", "torch.hub.load", "torch.ops.aten", "torch.ops.__class__.x", "eval"),
    *("torch.ops.load_library", "operator.attrgetter", "_operator.call", "", "#x:y", "torch.ops.a.b.c.d"),
]


@pytest.mark.parametrize("target", NO_OPS)
def test_targets_that_are_no_ops(tmp_path, target):
    data = document()
    data["graph_module"]["graph"]["nodes"][1]["target"] = target
    refused(with_document(tmp_path, data), MODEL, "not an op")


def test_code_in_a_keyword(tmp_path):
    data = document()
    node = next(n for n in data["graph_module"]["graph"]["nodes"] if n["target"].endswith("cond"))
    node["inputs"].append({"name": "a=open('m','w'),b", "arg": {"as_int": 1}, "kind": 2})
    refused(with_document(tmp_path, data), MODEL, "node name")


def test_code_in_the_name_of_a_subgraph(tmp_path):
    data = document()
    renamed = rename_everywhere(data, "true_graph_0", 'x", open("m","w"))#')
    refused(with_document(tmp_path, renamed), MODEL)


@pytest.mark.parametrize("key", ["parameter_name", "buffer_name", "tensor_constant_name"])
def test_code_in_the_name_of_a_parameter(tmp_path, key):
    data = document()
    for spec in data["graph_module"]["signature"]["input_specs"]:
        for value in spec.values():
            if key in value:
                value[key] = 'a-b", open("m","w"))#'
    refused(with_document(tmp_path, data), MODEL, "not the name of a parameter")


def test_code_in_argument_names(tmp_path):
    data = document()
    call = data["graph_module"]["module_call_graph"][0]["signature"]
    call["forward_arg_names"] = ["x=open('m','w')", "y"]
    refused(with_document(tmp_path, data), MODEL, "node name")


def test_graphs_hidden_in_the_signature(tmp_path):
    data = document()
    graph = {"as_graph": {"name": "g", "graph": data["graph_module"]["graph"]}}
    data["graph_module"]["module_call_graph"][0]["signature"]["inputs"] = [graph]
    refused(with_document(tmp_path, data), MODEL, "no place in a signature")


def test_code_in_guards(tmp_path):
    data = document()
    data["guards_code"] = ["open('m','w')"]
    refused(with_document(tmp_path, data), MODEL, "guard")


def test_guards():
    for fine in (
        "L['x'].size()[0] == L['y'].size()[0]",
        "not (L['x'].stride()[0] < 2)",
        "torch.sym_max(1, L['n']) >= 3",
    ):
        check_guard(fine)
    check_guard("math.floor(L['x'].size()[0] / 2) == 3 and 1 <= L['a_0'] <= inf")
    for bad in (
        *("open('m','w')", "L.__class__", "L['x'].__class__()", "torch.load('m')", "[x for x in L]", "L['a' 'b']()"),
        *(
            'L["x"] == 1',
            "L['x'] == 1 # ",
            "L['x']\n== 1",
            "L['x'].size(open('m'))",
            "(lambda: 1)()",
            "x := 1",
            "1) or (1",
        ),
        *("L['x'] == '\\x22'", "{1: 2}", "L['x'].size().__class__", "getattr(L, 'x')", "(" * 1000, "L[0](1)", 5),
    ):
        with pytest.raises(InputError):
            check_guard(bad)


def test_tree_specs():
    leaf = {"type": None, "context": None, "children_spec": []}

    def spec(kind, context, *children):
        return {"type": kind, "context": context, "children_spec": list(children)}

    args = spec("builtins.tuple", "null", leaf)
    check_tree_spec(json.dumps([1, spec("builtins.tuple", "null", args, spec("builtins.dict", '["y"]', leaf))]))
    factory = {"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": ["a"]}
    check_tree_spec(json.dumps([1, spec("collections.defaultdict", factory, leaf)]))
    enum = {"__enum__": True, "fqn": "antigravity:x", "name": "A"}
    for bad in (
        spec("builtins.tuple", "null", args, spec("builtins.dict", '["y=open(1)"]', leaf)),
        spec("collections.defaultdict", {**factory, "default_factory_module": "antigravity"}, leaf),
        spec("collections.defaultdict", {**factory, "default_factory_name": "eval"}, leaf),
        spec("builtins.dict", json.dumps([enum]), leaf),
        spec("builtins.dict", json.dumps([[{"a": enum}]]), leaf),
        spec("x", enum, leaf),
        spec("builtins.tuple", "null", {"type": 1, "context": None, "children_spec": []}),
        {"type": None},
        [],
        7,
    ):
        with pytest.raises(InputError):
            check_tree_spec(json.dumps([1, bad]))
    for text in ("", "[]", "[2, {}]", "[" * 100_000, None):
        with pytest.raises(InputError):
            check_tree_spec(text)


def test_quotes_in_a_text_input(tmp_path):
    class Named(torch.nn.Module):
        def forward(self, x, name: str):
            return x + len(name)

    torch.export.save(torch.export.export(Named(), (torch.ones(2), "mode")), tmp_path / "a.pt2")
    with zipfile.ZipFile(tmp_path / "a.pt2") as source, zipfile.ZipFile(tmp_path / "b.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b'"mode"', b"\"'+str(open('m','w'))+'\""))
    assert read_pt2(tmp_path / "a.pt2").graph
    refused(tmp_path / "b.pt2", "model.json")
