"""FX text: what PyTorch prints is read back exactly, and the canonical form loses nothing."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import pytest
import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from commcc.base.errors import GraphError, InputError, OutputError
from commcc.graph.program import NodeRecord, Note, ProcessGroup, Program, record_of
from commcc.serialization.fx import parse_text, write_text
from commcc.serialization.shapes import format_val, requires_grad_of
from tests.fx_text_corpus import CORPUS, PRINTABLE, Builder, T, aten, described, encode_meta, plain, program_of

FULL = {"include_stride": True, "include_device": True}
FORMS = {
    "plain": {},
    "strides": {"include_stride": True},
    "devices": {"include_device": True},
    "full": FULL,
    "expanded": {**FULL, "expanded_def": True},
    "colored": {**FULL, "colored": True},
    "meta": {**FULL, "expanded_def": True, "additional_meta": ["seq_nr", "nn_module_stack", "custom", "torch_fn"]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PRINTABLE)
def test_printed_graphs_come_back(name, form):
    module = PRINTABLE[name]()
    text = module.print_readable(print_output=False, **FORMS[form])
    found = parse_text(text, name)
    full = FORMS[form].get("include_stride") and FORMS[form].get("include_device")
    columns = 6 if full else 5
    assert [row[:columns] for row in described(found.graph)] == [row[:columns] for row in described(module.graph)]
    found.graph.lint()


@pytest.mark.parametrize("name", CORPUS)
def test_canonical_text_loses_nothing(name):
    program = CORPUS[name]()
    text, notes = write_text(program)
    again = parse_text(text, name)
    assert described(again.graph, full=True) == described(program.graph, full=True)
    assert write_text(again) == (text, ())
    assert notes == again.notes == ()
    assert text.isascii() or name == "arguments"


@pytest.mark.parametrize("name", PRINTABLE)
def test_canonical_text_of_a_printed_graph_is_stable(name):
    printed = parse_text(PRINTABLE[name]().print_readable(print_output=False, **FORMS["meta"]), name)
    text, _ = write_text(printed)
    again = parse_text(text, name)
    assert write_text(again)[0] == text
    assert described(again.graph, full=True) == described(printed.graph, full=True)
    assert again.notes == tuple(dict.fromkeys((*printed.notes, *again.notes)))


def test_values_come_back_exactly():
    again = parse_text(write_text(CORPUS["metadata"]())[0], "x")
    nodes = {node.name: node for node in again.graph.nodes}
    shifted = nodes["shifted"].meta["val"]
    assert (format_val(shifted), shifted.storage_offset()) == ("f32[2, 4][4, 1]cuda", 8)
    assert requires_grad_of(shifted)
    assert not shifted.requires_grad
    many = nodes["many"].meta["val"]
    assert isinstance(many, tuple)
    assert [type(part).__name__ for part in many][1:] == ["NoneType", "int", "float", "bool", "str", "SymInt", "list"]
    assert nodes["none"].meta["val"] is None
    assert math.isnan(nodes["real"].meta["val"])
    assert "val" not in nodes["packet"].meta
    assert record_of(nodes["many"]) == NodeRecord("fsdp", "gathers a parameter", ("ag_1", "ag_2"))
    assert nodes["many"].meta["custom"]["tuple"] == (1, (2.5, None))
    assert [(n.name, n.target, n.args) for n in again.graph.nodes if n.op == "placeholder"] == [
        ("x_1", "x", ()),
        ("rest", "*rest", ()),
        ("flag", "flag", (None,)),
    ]
    assert again.graph.output_node().name == "output_7"


def test_all_values_of_a_program_share_one_mode():
    again = parse_text(write_text(CORPUS["symbols"]())[0], "x")
    modes = {id(n.meta["val"].fake_mode) for n in again.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    assert len(modes) == 1


def test_comments_become_metadata():
    text = PRINTABLE["fsdp"]().print_readable(print_output=False, **FORMS["meta"])
    nodes = {node.name: node.meta for node in parse_text(text, "x").graph.nodes}
    gathered = nodes["all_gather_into_tensor"]
    assert gathered["seq_nr"] == 10
    assert gathered["custom"] == {"module_fqn": "layers.0.wq", "n": 0}
    assert (gathered["recompute"], gathered["ac_graph_id"]) == (CheckpointPolicy.MUST_RECOMPUTE, 3)
    assert nodes["wait_tensor"]["recompute"] is CheckpointPolicy.MUST_SAVE
    assert gathered["stack_trace"] == 'File "model.py", line 20, in forward\n    y = x @ w  # 0'
    assert nodes["mm"]["nn_module_stack"]["1"] == ("L['self'].layers.0", "torch.nn.modules.linear.Linear")
    assert "stack_trace" not in nodes["to"]  # "No stacktrace found" ends what held above
    assert nodes["primals_1"]["desc"] == "ParamAOTInput(target='w')"
    assert nodes["output"]["desc"] == ["PlainAOTOutput(idx=0)", "Saved('mm')", "Nothing()", "Saved('x')"]


def test_arguments_that_repeat_are_read_once_and_belong_to_each_node():
    head = 'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[4][1]cpu", y: "f32[4][1]cpu"):\n        '
    lines = [
        "a = torch.ops.aten.view.default(x, [2, 2])",
        "b = torch.ops.aten.view.default(y, [2, 2])",
        "c = torch.ops.aten.add.Tensor(a, b, alpha = 2)",
        "d = torch.ops.aten.sub.Tensor(b, a, alpha = 2)",
        "e = torch.ops.aten.mul.Tensor(c, d)",
        "f = torch.ops.aten.neg.default(e)",
        "return (f,)",
    ]
    nodes = {node.name: node for node in parse_text(head + "\n        ".join(lines), "x").graph.nodes}
    assert nodes["b"].args == (nodes["y"], [2, 2])
    assert type(nodes["b"].args[1]) is fx.immutable_collections.immutable_list
    assert nodes["a"].args[1] is not nodes["b"].args[1]
    assert (nodes["d"].args, nodes["d"].kwargs) == ((nodes["b"], nodes["a"]), {"alpha": 2})
    assert (nodes["d"].target, nodes["e"].args) == (torch.ops.aten.sub.Tensor, (nodes["c"], nodes["d"]))
    assert list(nodes["a"].users) == [nodes["c"], nodes["d"]]


@pytest.mark.parametrize("name", ["u0", "slice", "complex"])
def test_a_name_in_arguments_is_looked_up_each_time(name):
    """What is no node in one call may be one in the next, under the same text."""
    head = (
        'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[u0, 4][4, 1]cpu", z: "Sym(u0)"):\n        '
    )
    argument = {"u0": "u0", "slice": "slice(0, 4)", "complex": "complex(1, 2)"}[name]
    lines = [
        f"a = torch.ops.aten.view.default(x, [{argument}, 4])",
        f"{name} = torch.ops.aten.sym_size.int(x, 0)",
        f"c = torch.ops.aten.view.default(x, [{argument}, 4])",
        f"d = torch.ops.aten.view.default(x, [{name}, 4])",
        "return (a, c, d)",
    ]
    nodes = {node.name: node for node in parse_text(head + "\n        ".join(lines), "x").graph.nodes}
    assert not isinstance(nodes["a"].args[1][0], fx.Node)
    assert isinstance(nodes["c"].args[1][0], fx.Node) is (name == "u0")
    assert nodes["d"].args[1][0] is nodes[name]


@pytest.mark.parametrize(
    "end", ["x, alpha = 2, alpha = 2)", "x, alpha = 2))", "x, alpha = 2", "x, alpha = 2]", "gone, alpha = 2)"]
)
def test_calls_that_begin_like_one_that_was_read_are_refused(end):
    head = 'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[4][1]cpu"):\n        '
    call = "torch.ops.aten.add.Tensor(x, "
    text = f"{head}a = {call}x, alpha = 2)\n        b = {call}{end}\n        return (b,)"
    with pytest.raises(InputError) as caught:
        parse_text(text, "f")
    assert caught.value.where == "f:4"


def test_stack_traces_print_as_they_were_read():
    module = PRINTABLE["fsdp"]()
    text = module.print_readable(print_output=False, **FULL)
    again = parse_text(text, "x")
    assert "MUST_RECOMPUTE" in text
    assert fx.GraphModule(torch.nn.Module(), again.graph).print_readable(print_output=False, **FULL) == text


def test_cut_annotations_are_noted():
    module = PRINTABLE["single"]()
    next(n for n in module.graph.nodes if n.name == "neg").meta["custom"] = {"long": "x" * 60, "short": "y"}
    program = parse_text(module.print_readable(print_output=False, **FULL), "x")
    assert next(n for n in program.graph.nodes if n.name == "neg").meta["custom"] == {"short": "y"}
    assert any("custom['long']" in note.text for note in program.notes)


@pytest.mark.parametrize("form", FORMS)
def test_pytree_form_of_joint_graphs(form):
    module = PRINTABLE["fsdp"]()
    inputs = pytree.tree_flatten(([0], [0]))[1]
    module.graph.set_codegen(
        _PyTreeCodeGen(_PyTreeInfo(["primals", "tangents"], inputs, pytree.tree_flatten([0] * 4)[1]))
    )
    module.recompile()
    text = module.print_readable(print_output=False, **FORMS[form])
    assert "tree_flatten_spec" in text
    assert "tree_unflatten" in text
    program = parse_text(text, "joint")
    assert [row[:5] for row in described(program.graph)] == [row[:5] for row in described(module.graph)]
    if form == "expanded":
        assert next(iter(program.graph.nodes)).meta["desc"] == "ParamAOTInput(target='w')"


def test_boxed_form():
    codegen = pytest.importorskip("torch.fx.graph")
    if not hasattr(codegen, "_BoxedCodeGen"):
        pytest.skip("this PyTorch has no boxed form")
    module = PRINTABLE["fsdp"]()
    module.graph.set_codegen(codegen._BoxedCodeGen())
    program = parse_text(module.print_readable(print_output=False, **FULL), "boxed")
    assert [row[:5] for row in described(program.graph)] == [row[:5] for row in described(module.graph)]


def test_class_names_need_not_be_identifiers():
    text = PRINTABLE["single"]().print_readable(print_output=False, **FULL).replace("GraphModule", "<lambda>", 1)
    program = parse_text(text, "x")
    assert program.header["class_name"] == "<lambda>"
    assert "class <lambda>(torch.nn.Module):" in write_text(program)[0]


def test_subgraphs_are_on_the_root():
    program = parse_text(write_text(CORPUS["subgraphs"]())[0], "x")
    first = program.root.get_submodule("true_graph_0")
    nested = program.root.get_submodule("nested.false_graph_0")
    assert isinstance(first, fx.GraphModule)
    assert isinstance(first.get_submodule("inner"), fx.GraphModule)
    assert plain(nested.graph.output_node().args) == ("tuple", "%neg")
    original = CORPUS["subgraphs"]()
    assert described(first.graph, full=True) == described(original.root.get_submodule("true_graph_0").graph, full=True)


def test_constants_are_kept_by_value():
    original, again = CORPUS["subgraphs"](), parse_text(write_text(CORPUS["subgraphs"]())[0], "x")
    for path in ("_tensor_constant0", "flag"):
        assert torch.equal(again.root.get_buffer(path), original.root.get_buffer(path))
    weight = again.root.get_buffer("blocks.0.weight")
    assert torch.equal(weight, original.root.get_buffer("blocks.0.weight"))
    assert (weight.stride(), weight.dtype) == ((1, 3), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint8, torch.float64, torch.bool])
def test_constants_of_any_dtype(dtype):
    b = Builder()
    value = torch.arange(4).to(dtype).reshape(2, 2)
    b.attribute("c", "c", value)
    again = parse_text(write_text(b.program(()))[0], "x").root.get_buffer("c")
    assert torch.equal(again.view(torch.uint8), value.view(torch.uint8))


def test_odd_constants():
    b = Builder()
    b.attribute("expanded", "expanded", torch.zeros(1).expand(3, 4))
    b.attribute("nothing", "nothing", torch.zeros(0, 3))
    b.attribute("scalar", "scalar", torch.tensor(2.5))
    b.root.parameter = torch.nn.Parameter(torch.ones(2))
    b.attribute("parameter", "parameter")
    text, notes = write_text(b.program(()))
    root = parse_text(text, "x").root
    assert (root.expanded.shape, root.nothing.shape, root.scalar.item()) == ((3, 4), (0, 3), 2.5)
    assert isinstance(root.parameter, torch.nn.Parameter)
    assert requires_grad_of(root.parameter)
    assert not root.parameter.requires_grad
    assert write_text(parse_text(text, "x")) == (text, ())
    assert notes == ()


def test_what_cannot_be_kept_is_said_once():
    b = Builder()
    b.attribute("big", "big", torch.zeros(100_000))
    b.root.missing = b.ctx.tensor((3,), (1,), torch.float32, "cuda:5")
    missing = b.attribute("missing", "missing", val="f32[3][1]cuda:5")
    b.attribute("body", "body")
    for name in ("a", "b"):
        b.call(name, aten.neg.default, missing, val=T).meta["mine"] = object()
    text, notes = write_text(b.program((missing,)))
    assert [note.text for note in notes] == [
        "the value of constant big is not in the text",
        "the value of constant missing is not in the text",
        "what body is (a sub-graph or a constant) is not in the text",
        "metadata 'mine' of 2 nodes cannot be written",
    ]
    again = parse_text(text, "x")
    assert again.notes == notes
    assert format_val(again.root.big) == "f32[100000][1]cpu"
    assert isinstance(again.root.missing, torch.Tensor)
    assert write_text(again) == (text, ())


def test_header_groups_provenance_and_notes():
    program = replace(
        CORPUS["fsdp"](),
        groups={"0": ProcessGroup("0", 8, tuple(range(8)), "dp_shard"), "9": ProcessGroup("9", None)},
        header={"mesh": {"shape": [8], "t": (1, 2)}, "x": math.inf},
        notes=(Note("something", "mm"), Note("else")),
        provenance=({"pass": "bucket", "options": {"cap": 1.5}},),
    )
    text, _ = write_text(program)
    again = parse_text(text, "x")
    assert (again.groups, again.header, again.notes) == (program.groups, program.header, program.notes)
    assert again.provenance == program.provenance
    assert again.format == "fx_text"
    assert write_text(again)[0] == text


def test_symbol_ranges_and_hints_survive():
    program = CORPUS["symbols"]()
    text, _ = write_text(program)
    again = parse_text(text, "x")
    assert again.header["symbols"] == {"u0": [0, 4096, None], "s77": [2, None, 16]}
    value = next(n for n in again.graph.nodes if n.name == "arg0_1").meta["val"]
    assert value.node.hint == 16


def test_groups_come_from_collectives():
    assert parse_text(PRINTABLE["fsdp"]().print_readable(print_output=False), "x").groups == {"0": ProcessGroup("0", 8)}


def test_two_sizes_of_one_group_cannot_be_written():
    program = replace(CORPUS["fsdp"](), groups={"0": ProcessGroup("0", 4)})
    with pytest.raises(GraphError, match="has 4 ranks"):
        write_text(program)


def test_what_the_text_leaves_out_is_assumed_and_noted():
    program = parse_text(PRINTABLE["fsdp"]().print_readable(print_output=False), "x")
    assert program.header["assumed"] == ["strides", "devices"]
    assert [note.text for note in program.notes] == [
        "strides are not in the text and taken as contiguous",
        "devices are not in the text and taken as cpu",
    ]
    text = PRINTABLE["arguments"]().print_readable(print_output=False, include_stride=True)
    assert format_val(next(iter(parse_text(text, "x").graph.nodes)).meta["val"]) == T.replace("cuda:0", "cuda:3")


def test_programs_that_cannot_be_written():
    def fails(change):
        b = Builder()
        x = b.input("x", T)
        change(b, x)
        with pytest.raises(OutputError):
            write_text(b.program((x,)))

    fails(lambda b, x: b.call("a", aten.neg.default, torch.zeros(2)))
    fails(lambda b, x: b.call("a", aten.neg.default, range(3)))
    fails(lambda b, x: b.call("a", torch.nn.functional.relu, x))
    fails(lambda b, x: b.call("a", aten.neg.default, **{"not an identifier": x}))
    fails(lambda b, x: b.graph.call_method("view", (x, 2)))
    fails(lambda b, x: b.graph.call_module("sub", (x,)))
    fails(lambda b, x: setattr(b.call("a", aten.neg.default, x), "name", "x"))
    fails(lambda b, x: setattr(b.call("a", aten.neg.default, x), "name", "a b"))
    with pytest.raises(OutputError):
        write_text(Program(fx.Graph(), torch.nn.Module()))
    with pytest.raises(OutputError):
        write_text(replace(CORPUS["single"](), header={"x": object()}))


ODD_NAMES = ["a_1", "a_01", "a_001", "a__1", "slice", "max", "print", "type", "_", "__x", "operator", "math", "round"]


def test_odd_names_stay():
    b = Builder()
    x = b.input("x", T)
    for name in ODD_NAMES:
        x = b.call(name, operator.add, x, 1) if name != "round" else b.call(name, round, x)
    b.call("floor", math.floor, x)
    text, _ = write_text(b.program((x,)))
    again = parse_text(text, "x")
    assert [node.name for node in again.graph.nodes] == ["x", *ODD_NAMES, "floor", "output"]
    assert write_text(again)[0] == text
    made = [again.graph.placeholder(name).name for name in ODD_NAMES]
    assert not set(made) & set(ODD_NAMES)


def test_inputs_with_defaults_and_stars():
    head = "class GraphModule(torch.nn.Module):\n    def forward(self, x, flag=None, *rest, scale=-1.5, **more):\n"
    program = parse_text(head + "        return x\n", "x")
    assert [(n.name, n.target, n.args) for n in program.graph.nodes if n.op == "placeholder"] == [
        ("x", "x", ()),
        ("flag", "flag", (None,)),
        ("rest", "*rest", ()),
        ("scale", "scale", (-1.5,)),
        ("more", "**more", ()),
    ]
    assert described(parse_text(write_text(program)[0], "x").graph) == described(program.graph)


def test_an_input_under_another_name():
    """FX prints an input whose name is not its parameter's as ``x_1 = x``; the parameter's name is then free."""
    head = "class GraphModule(torch.nn.Module):\n    def forward(self, x, y):\n        x_1 = x\n"
    body = "        x = torch.ops.aten.neg.default(x_1)\n        z = y\n        w = torch.ops.aten.neg.default(z)\n"
    program = parse_text(f"{head}{body}        return (x, w)\n", "x")
    assert [(n.name, n.target) for n in program.graph.nodes if n.op == "placeholder"] == [("x_1", "x"), ("z", "y")]
    assert plain(program.graph.output_node().args) == ("tuple", ("tuple", "%x", "%w"))
    aliased = parse_text(
        f"{head}        y_1 = x_1\n        a = torch.ops.aten.neg.default(y_1)\n        return a\n", "x"
    )
    assert plain(list(aliased.graph.nodes)[2].args) == ("tuple", "%x_1")


def test_values_of_tensor_subclasses():
    class Wrapped(torch.Tensor):
        pass

    text = (
        'class A(torch.nn.Module):\n    def forward(self, x: "DTensor(f32[4, 4][4, 1]cpu, S(0))"):\n        return x\n'
    )
    program = parse_text(text, "x")
    assert [note.text for note in program.notes] == ["DTensor values are kept as plain tensors (1 nodes)"]
    assert format_val(next(iter(program.graph.nodes)).meta["val"]) == "f32[4, 4][4, 1]cpu"
    b = Builder()
    b.input("x").meta["val"] = torch.zeros(2).as_subclass(Wrapped)
    assert [note.text for note in write_text(b.program(()))[1]] == [
        "Wrapped values are kept as plain tensors (1 nodes)"
    ]


def test_texts_with_all_metadata_in_strings(monkeypatch):
    monkeypatch.setenv("FX_GRAPH_SHOW_META", "1")
    module = PRINTABLE["fsdp"]()
    text = module.print_readable(print_output=False, **FULL)
    assert '"""' in text
    assert described(parse_text(text, "x").graph) == described(module.graph)


def test_inside_a_tracing_mode():
    """A backend may save a graph while PyTorch traces with fake tensors."""
    program = CORPUS["subgraphs"]()
    with torch._subclasses.fake_tensor.FakeTensorMode():
        text, notes = write_text(program)
        again = parse_text(text, "x")
    assert notes == ()
    assert type(again.root.get_buffer("flag")) is torch.Tensor
    assert write_text(again)[0] == text


def test_metadata_keys_of_the_format_are_not_mistaken():
    program = CORPUS["single"]()
    node = next(n for n in program.graph.nodes if n.name == "neg")
    node.meta.update({"$at": 3, "$name": "x", "at": 1, "key with spaces": [1], 7: 2})
    text, notes = write_text(program)
    again = parse_text(text, "x")
    meta = encode_meta(next(n for n in again.graph.nodes if n.name == "neg"))
    assert meta == {"at": 1, "key with spaces": [1]}
    assert len(notes) == 3


def test_reading_has_no_side_effects():
    import gc
    import warnings

    gc.enable()
    before = list(warnings.filters)
    parse_text(write_text(CORPUS["symbols"]())[0], "x")
    assert gc.isenabled()
    assert list(warnings.filters) == before
    gc.disable()
    try:
        parse_text(write_text(CORPUS["symbols"]())[0], "x")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_program_of_a_reread_graph_can_become_a_module():
    program = parse_text(write_text(CORPUS["subgraphs"]())[0], "x")
    module = program.graph_module()
    assert [n.name for n in module.graph.nodes] == [n.name for n in program.graph.nodes]
    assert program_of(module).graph is module.graph
