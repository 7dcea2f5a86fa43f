"""Regions in the place of their calls: the nodes, the proof, the numbers, and which calls stay."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest
import torch
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import GraphError, InternalError
from commcc.cli.main import run
from commcc.graph.index.modules import module_path
from commcc.graph.ops import op_name
from commcc.graph.program import ProcessGroup, Program
from commcc.graph.regions import obstacle, region_of
from commcc.lint.registry import BY_ID
from commcc.lint.types import Subject
from commcc.passes.base import PlanContext
from commcc.passes.inline import Inline
from commcc.passes.options import parse_pipeline
from commcc.plan import Inlining
from commcc.serialization import load, save
from commcc.timing.snapshot import take
from commcc.verify import verify
from tests.verify_graphs import WORLD, Graph, aten, c10d

invoke, cond = torch.ops.higher_order.invoke_subgraph, torch.ops.higher_order.cond
GROUPS = {"0": ProcessGroup("0", WORLD, tuple(range(WORLD)))}


def called(capsys, *arguments: object) -> str:
    """What a command prints that ends well."""
    code = run([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out + printed.err


def module(g: Graph, *outputs) -> fx.GraphModule:
    g.graph.output(outputs)
    return fx.GraphModule(g.root, g.graph)


def layer(constant: bool = False, symbol: bool = False) -> fx.GraphModule:
    """x @ gathered w, and how many rows x has; returned as well: x itself."""
    g = Graph()
    x, w = g.input("x", 8, 16), g.input("w", 4, 16)
    full = g.gather(w)
    y = g(aten.mm.default, x, full, name="mm")
    if constant:
        y = g(aten.add.Tensor, y, g.attribute("bias", torch.ones(16)))
    if symbol:
        rows = g(aten.nonzero.default, x, name="nonzero")
        y = g(aten.add.Tensor, y, g(aten.sum.default, rows))
    return module(g, y, x, None)


def call(g: Graph, body: str, *operands, results, name=None) -> list[fx.Node]:
    """A call of a region of the root, and nodes for those of its results that are asked for."""
    values = tuple(result.meta["val"] if isinstance(result, fx.Node) else None for result in results)
    made = g(invoke, g.graph.get_attr(body), body, *operands, val=values, name=name)
    return [g(operator.getitem, made, place, val=value) for place, value in enumerate(values) if value is not None]


def mode_of(body: fx.GraphModule):
    return body.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode


def layers(count: int = 3, body: fx.GraphModule | None = None, **more) -> Program:
    """Layers that share a body, each with a weight of its own."""
    g = Graph()
    g.root.body = body or layer(**more)
    g.mode = mode_of(g.root.body)
    x = g.input("x", 8, 16)
    weights = [g.input(f"w{k}", 4, 16) for k in range(count)]
    results = g.root.body.graph.find_nodes(op="output")[0].args[0]
    for weight in weights:
        y, same = call(g, "body", x, weight, results=results, name="layer")
        x = g(aten.add.Tensor, g(aten.relu.default, y), same)
    return g.program(x, groups=GROUPS)


def inlined(program: Program, text: str = "inline") -> Program:
    (each,) = parse_pipeline(text)
    context = PlanContext.of(program)
    return apply_plan(program, context.index, each.plan(context))


def ops(program: Program) -> list[str]:
    return [op_name(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_nodes_stand_in_the_place_of_calls():
    before = layers()
    after = inlined(before)
    assert [node.name for node in after.graph.nodes][:14] == [
        *("x", "w0", "w1", "w2", "layer_all_gather_into_tensor_default", "layer_wait_tensor_default", "layer_mm"),
        *("relu_default", "add_tensor", "layer_1_all_gather_into_tensor_default", "layer_1_wait_tensor_default"),
        *("layer_1_mm", "relu_default_1", "add_tensor_1"),
    ]
    assert ops(after).count("_c10d_functional.all_gather_into_tensor") == 3
    assert not after.graph.find_nodes(op="get_attr")
    assert "body" not in after.root._modules
    assert "body" in before.root._modules
    assert verify(before, after).status == verify(after, before).status == "proved"


def test_collectives_of_other_layers_move_then():
    before = layers()
    program = before
    for each in parse_pipeline("inline,bucket,reorder"):
        from commcc.timing.cost import load_model

        context = PlanContext.of(program, load_model("h100"))
        program = apply_plan(program, context.index, each.plan(context))
    assert ops(program).count("_c10d_functional.all_gather_into_tensor") == 1
    assert verify(before, program).status == "proved"


def test_results_are_the_same_numbers(capsys, tmp_path):
    before = layers()
    save(before, tmp_path / "a.fx.txt")
    save(inlined(before), tmp_path / "b.fx.txt")
    said = called(capsys, "verify", tmp_path / "a.fx.txt", tmp_path / "b.fx.txt", "--numeric")
    assert "numeric: the same to the bit on 4 virtual ranks" in said
    assert "group '0'" not in said


def test_texts_and_plans(capsys, tmp_path):
    a, b, c = (tmp_path / f"{name}.fx.txt" for name in "abc")
    save(layers(), a)
    said = called(capsys, "run", a, "--passes", "inline", "-o", b, "--plan-out", tmp_path / "p.yaml")
    assert "3 of 1 region" in said
    assert "3 all_gather" in said
    assert "body" not in b.read_text().split("def forward")[1]
    called(capsys, "run", a, "--plan", tmp_path / "p.yaml", "-o", c)
    assert verify(load(b), load(c)).status == "proved"
    assert "the pass 'inline' puts its nodes in its place" in called(capsys, "inspect", a)


def test_regions_within_regions_and_their_branches():
    """Branches of a region belong to the root then; a region in a region goes with it."""
    inner = layer()
    g = Graph()
    g.mode = mode_of(inner)
    x, w, p = g.input("x", 8, 16), g.input("w", 4, 16), g.input("p", dtype=torch.bool)
    branches = []
    for factor in (2, 3):
        b = Graph()
        b.mode = g.mode
        branches.append(module(b, b(aten.mul.Tensor, b.input("x", 8, 16), factor)))
    g.root.inner, g.root.yes, g.root.no = inner, *branches
    y, _ = call(g, "inner", x, w, results=(x, x, None))
    yes, no = g.graph.get_attr("yes"), g.graph.get_attr("no")
    made = g(cond, p, yes, no, [y], val=(x.meta["val"],))
    body = module(g, g(operator.getitem, made, 0, val=x.meta["val"]), x, None)
    outer = Graph()
    outer.mode = g.mode
    x, w, p = outer.input("x", 8, 16), outer.input("w", 4, 16), outer.input("p", dtype=torch.bool)
    outer.root.body, outer.root.body_yes = body, torch.nn.Module()
    for _ in range(2):
        x, _ = call(outer, "body", x, w, p, results=(x, x, None))
    before = outer.program(x, groups=GROUPS)
    after = inlined(before)
    assert "higher_order.invoke_subgraph" not in ops(after)
    assert ops(after).count("higher_order.cond") == ops(after).count("aten.mm") == 2
    targets = [str(node.target) for node in after.graph.find_nodes(op="get_attr")]
    assert len(targets) == 4
    assert all(isinstance(getattr(after.root, target), fx.GraphModule) for target in targets)
    assert verify(before, after).status == "proved"


def quiet() -> fx.GraphModule:
    g = Graph()
    x, _ = g.input("x", 8, 16), g.input("w", 4, 16)
    return module(g, g(aten.mul.Tensor, x, 2), x, None)


@pytest.mark.parametrize(("text", "left"), [("inline", 2), ("inline{what=all}", 0)])
def test_which_calls_go(text, left):
    """Calls of what does not communicate stay unless they are asked for."""
    before = layers(2, quiet())
    after = inlined(before, text)
    assert ops(after).count("higher_order.invoke_subgraph") == left
    assert verify(before, after).status == "proved"
    report = parse_pipeline(text)[0].plan(PlanContext.of(before)).report
    assert report.left == ({"its sub-graph does not communicate": 2} if left else {})


def changed(how: str) -> Program:
    """Layers of which the first one cannot go."""
    program = layers(2, constant=how == "constant", symbol=how == "symbol")
    first, x = next(node for node in program.graph.nodes if node.target is invoke), next(iter(program.graph.nodes))
    value = x.meta["val"]
    if how == "layout":
        x.meta["val"] = value.new_empty_strided((8, 16), (1, 8))
    elif how == "unknown":
        del x.meta["val"]
    elif how == "whole":
        with program.graph.inserting_after(first):
            program.graph.call_function(aten.cat.default, (first,)).meta["val"] = value
    elif how == "operands":
        first.args = first.args[:-1]
    elif how == "result":
        next(iter(first.users)).meta["val"] = value.new_empty((8, 16), dtype=torch.bfloat16)
    elif how == "place":
        user = next(iter(first.users))
        user.args = (first, -3)
    return program


REASONS = {
    "constant": "its sub-graph holds the constant 'bias'",
    "symbol": "its sub-graph has sizes that are known only when it runs (u0)",
    "layout": "'x' is not known to have the layout that the sub-graph takes or returns",
    "unknown": "'x' is not known to have the layout that the sub-graph takes or returns",
    "result": "'getitem' is not known to have the layout that the sub-graph takes or returns",
    "whole": "its result is used as a whole",
    "place": "its result is used as a whole",
    "operands": "its sub-graph is not called in a way that commcc knows",
}


@pytest.mark.parametrize("how", REASONS)
def test_calls_that_stay(how):
    program = changed(how)
    number, node = next((n, node) for n, node in enumerate(program.graph.nodes) if node.target is invoke)
    region = region_of(node, program.root)
    assert str(obstacle(node, region)) == REASONS[how]
    context = PlanContext.of(program)
    plan = Inline().plan(context)
    assert number not in plan.rewrite.calls
    assert sum(plan.report.left.values()) >= 1
    with pytest.raises(InternalError, match="has to stay"):
        apply_plan(program, context.index, replace(plan, rewrite=Inlining((number,))))


def test_a_plan_for_what_is_no_call():
    program = layers()
    context = PlanContext.of(program)
    with pytest.raises(InternalError, match="'x' calls no region"):
        apply_plan(program, context.index, replace(Inline().plan(context), rewrite=Inlining((0,))))


def tampered(how: str) -> Program:
    after = inlined(layers())
    nodes = {node.name: node for node in after.graph.nodes}
    match how:
        case "weight":
            nodes["layer_1_all_gather_into_tensor_default"].args = (nodes["w0"], WORLD, "0")
        case "operands":
            nodes["layer_mm"].args = (nodes["w1"], nodes["layer_wait_tensor_default"])
        case "wait":
            nodes["layer_mm"].args = (nodes["x"], nodes["layer_all_gather_into_tensor_default"])
            after.graph.erase_node(nodes["layer_wait_tensor_default"])
        case "result":
            nodes["add_tensor"].args = (nodes["layer_mm"], nodes["x"])
        case "body":
            nodes["layer_1_mm"].target = aten.sub.Tensor
        case "group":
            nodes["layer_1_all_gather_into_tensor_default"].args = (nodes["w1"], WORLD, "1")
    return after


@pytest.mark.parametrize("how", ["weight", "operands", "wait", "result", "body", "group"])
def test_what_is_not_the_body_of_the_region_is_not_proved(how):
    assert verify(layers(), tampered(how)).status == "different"


def test_one_call_less_is_not_proved():
    """Both are compared without calls then: layer by layer."""
    assert verify(layers(3), layers(3)).status == "proved"
    before, after = layers(3), layers(3)
    last = [node for node in after.graph.nodes if node.target is invoke][-1]
    y, same = sorted(last.users, key=lambda user: user.args[1])
    y.replace_all_uses_with(same)
    after.graph.erase_node(y)
    for user in list(last.users):
        if not user.users:
            after.graph.erase_node(user)
    same.replace_all_uses_with(last.args[2])
    after.graph.erase_node(same)
    after.graph.erase_node(last)
    assert verify(before, after).status == "different"
    assert verify(after, before).status == "different"


def test_names_in_a_file_do_not_stand_for_nodes_of_a_region():
    """A node is called as the verifier calls those of regions."""

    def make(reads: str) -> Program:
        program = layers(1)
        (output,) = program.graph.find_nodes(op="output")
        nodes = {node.name: node for node in program.graph.nodes}
        with program.graph.inserting_before(output):
            other = program.graph.call_function(aten.mul.Tensor, (nodes[reads], 5))
        other.name = "layer/mm"
        other.meta["val"] = nodes[reads].meta["val"]
        output.args = ((output.args[0][0], other),)
        return program

    assert verify(make("x"), inlined(make("x"))).status == "proved"
    assert verify(make("x"), inlined(make("w0"))).status == "different"


def test_writes_to_operands_in_a_region():
    """What a region writes is written in the graph then."""

    def make(in_place: bool) -> Program:
        g = Graph()
        x = g.input("x", 8, 16)
        w = g.input("w", 4, 16)
        g(aten.add_.Tensor if in_place else aten.add.Tensor, x, 1)
        body = module(g, g(aten.mm.default, x, g.gather(w)), x, None)
        return layers(2, body)

    for in_place in (True, False):
        assert verify(make(in_place), inlined(make(in_place))).status == "proved"
    assert verify(make(True), inlined(make(False))).status == "different"


def test_launches_unused():
    """A region whose results nobody needs still launches."""
    program = layers(1)
    (output,) = program.graph.find_nodes(op="output")
    output.args = ((program.graph.find_nodes(op="placeholder")[0],),)
    after = inlined(program)
    assert c10d.all_gather_into_tensor.default in [node.target for node in after.graph.nodes]
    assert verify(program, after).status == "proved"


def nested(levels: int, calls: int) -> Program:
    """Regions that each call the next one so many times."""
    body = layer()
    for _ in range(levels):
        g = Graph()
        g.mode = mode_of(body)
        x, w = g.input("x", 8, 16), g.input("w", 4, 16)
        g.root.inner = body
        for _ in range(calls):
            x, _ = call(g, "inner", x, w, results=(x, x, None))
        body = module(g, x, x, None)
    return layers(1, body)


def test_calls_that_multiply():
    """Ten levels of ten calls are a few lines, and more nodes than any machine holds."""
    few = nested(2, 3)
    assert ops(inlined(few)).count("aten.mm") == 9
    assert verify(few, inlined(few)).status == "proved"
    many = nested(10, 10)
    with pytest.raises(GraphError, match="over 1,048,576 nodes run"):
        PlanContext.of(many)
    verdict = verify(many, layers(1))
    assert (verdict.status, str(verdict.unproved[0]).count("over 1,048,576 nodes run")) == ("unproved", 1)


def test_graphs_that_cannot_run_are_reported():
    """A region that reads what it has not computed yet, and a call of one that comes too early."""
    broken = layer()
    mm = next(node for node in broken.graph.nodes if node.name == "mm")
    mm.append(next(node for node in broken.graph.nodes if "wait" in node.name))
    assert verify(layers(2, broken), inlined(layers(2))).status != "proved"
    late = layers(2)
    calls = [node for node in late.graph.nodes if node.target is invoke]
    calls[0].prepend(calls[1])
    verdict = verify(late, inlined(layers(2)))
    assert (verdict.status, {finding.rule for finding in verdict.findings}) == ("different", {"order"})


@pytest.mark.parametrize(("body", "said"), [(None, 3), ("quiet", 0), ("constant", 0)])
def test_lint_names_what_inline_takes_apart(body, said):
    program = layers(body=quiet() if body == "quiet" else None, constant=body == "constant")
    rule = BY_ID["collective-in-region"]
    found = list(rule.check(Subject("g", program, take(program, None, {})), rule.options()))
    assert [finding.measured for finding in found] == [said] * bool(said)
    if found:
        assert found[0].text.startswith("3 collectives in 3 calls of regions")
        assert rule.fix(rule.options()) == "inline"
        after = inlined(program)
        assert not list(rule.check(Subject("g", after, take(after, None, {})), rule.options()))


def stack(*names):
    """As Dynamo writes it: modules from the outermost on, with their classes."""
    paths = [f"L['s'].{'.'.join(names[: depth + 1])}" for depth in range(len(names))]
    return {path: [path, f"Class{depth}"] for depth, path in enumerate(paths)}


@pytest.mark.parametrize(
    ("calls", "modules"),
    [
        (("blocks.1", "blocks.2"), ["blocks.1.up", "blocks.2.up"]),
        # of another class, at another depth, and nothing said: what is inside is not known
        (("other", "blocks.2"), ["other", "blocks.2.up"]),
        (("blocks.1.down", "blocks.2"), ["blocks.1.down", "blocks.2.up"]),
        ((None, "blocks.2"), [None, "blocks.2.up"]),
    ],
)
@pytest.mark.parametrize("key", ["nn_module_stack", "fwd_nn_module_stack"])
def test_nodes_are_in_the_module_of_their_call(calls, modules, key):
    """The region's own nodes say the module of the call that was traced first."""
    body = layer()
    for node in body.graph.nodes:
        node.meta["nn_module_stack"] = stack("blocks", "1", "up")
        node.meta["custom"] = {"module_fqn": "blocks.1.up", "other": 1}
    program = layers(2, body)
    for node, where in zip((n for n in program.graph.nodes if n.target is invoke), calls, strict=True):
        if where == "other":
            node.meta[key] = {"L['s'].other": ["L['s'].other", "Class7"]}
        elif where is not None:
            node.meta[key] = stack(*where.split("."))
            if where.endswith("down"):
                node.meta[key] = {name: [path, f"Down{at}"] for name, (path, at) in node.meta[key].items()}
    after = inlined(program)
    launches = [n for n in after.graph.nodes if "all_gather" in str(n.target)]
    assert [module_path(node.meta) for node in launches] == modules
    assert all(node.meta["custom"]["other"] == 1 for node in launches)
    assert "module_fqn" in next(iter(body.graph.nodes)).meta["custom"]
    assert verify(program, after).status == "proved"
