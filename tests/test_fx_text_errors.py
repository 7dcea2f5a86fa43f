"""Texts that must be refused: with the line, in one line, at once, and with nothing executed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from commcc.base.errors import InputError
from commcc.serialization.fx import parse_text, write_text
from tests.counting import at_most
from tests.fx_text_corpus import CORPUS

HEAD = 'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[4, 4][4, 1]cpu", y):\n'


def graph(*statements: str, result: str = "(x,)", head: str = HEAD) -> str:
    lines = "".join(f"        {line}\n" for line in statements)
    return f"{head}{lines}        return {result}\n"


def refused(text: str, *, line: int | None = None) -> str:
    with pytest.raises(InputError) as caught, at_most(100_000):
        parse_text(text, "some.txt")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("some.txt:" if line is None else f"some.txt:{line}: "), message
    assert len(message) < 500
    return message


def sub_graph(name: str, parameters: str = "self", result: str = "1") -> str:
    return f"    class {name}(torch.nn.Module):\n        def forward({parameters}):\n            return {result}\n"


INIT = "class A(torch.nn.Module):\n    def __init__(self):\n        {}\n    def forward(self, x):\n        return x\n"

STATEMENTS = {
    "used before it is defined": "a = torch.ops.aten.neg.default(z)",
    "'x' is defined twice": "x = torch.ops.aten.neg.default(y)",
    "'os.system' is not an op": "a = os.system('true')",
    "'eval' is not an op": "a = eval('1')",
    "'__import__' is not an op": "a = __import__('os')",
    "'torch.load' is not an op": "a = torch.load('x')",
    "'torch.ops.load_library' is not an op": "a = torch.ops.load_library('x.so')",
    "'torch.ops.aten.__class__.x' is not an op": "a = torch.ops.aten.__class__.x(y)",
    "'torch.ops.aten.mm.default.__globals__' is not an op": "a = torch.ops.aten.mm.default.__globals__(x)",
    "only ops can be called": "a = (lambda: 1)()",
    "calls a module or a method": "a = x.__reduce__()",
    "'self.layer' calls a module": "a = self.layer(x)",
    "is not an attribute of the graph's module": "a = x.__class__",
    "'self.__class__' is not an attribute": "a = self.__class__",
    "'self.__dict__.a' is not an attribute": "a = getattr(self, '__dict__').a",
    "only attributes of self": "a = getattr(self, x)",
    "Lambda is not allowed in an argument": "a = torch.ops.aten.neg.default(lambda: 1)",
    "ListComp is not allowed": "a = torch.ops.aten.neg.default([i for i in y])",
    "JoinedStr is not allowed": "a = torch.ops.aten.neg.default(f'{x}')",
    "NamedExpr is not allowed": "a = torch.ops.aten.neg.default((b := 1))",
    "Starred is not allowed": "a = torch.ops.aten.neg.default(*x)",
    "** or a repeated keyword": "a = torch.ops.aten.neg.default(**x)",
    "a call of 'open'": "a = torch.ops.aten.neg.default(open('x'))",
    "'os.environ' is neither an op nor": "a = torch.ops.aten.neg.default(os.environ)",
    "attribute 'b' of an expression": "a = torch.ops.aten.neg.default((x).b[0].b)",
    "bytes are not allowed": "a = torch.ops.aten.neg.default(b'x')",
    "a dictionary key": "a = torch.ops.aten.neg.default({x: 1})",
    "not a device": "a = torch.ops.aten.neg.default(device(type='quark'))",
    "arithmetic on 'x'": "a = torch.ops.aten.neg.default(x + 1)",
    "Compare is not allowed": "a = torch.ops.aten.neg.default(x < 1)",
    "'u7' is used before": "a = torch.ops.aten.neg.default(8 * u7)",
    "assigned a number": "a = inf",
    "assigned a Constant": "a = 5",
    "assigned a List": "a = [x]",
    "'inf' cannot be the name": "inf = torch.ops.aten.neg.default(x)",
    "'torch' cannot be the name": "torch = torch.ops.aten.neg.default(x)",
    "'None' cannot be the name of a node": "None = torch.ops.aten.neg.default(x)",
    "'z' is deleted but not defined": "z = None",
    "this comparison is not allowed": "a = x < 1 < 2",
    "'not' is not allowed": "a = not x",
    "not a statement of a graph": "torch.ops.aten.neg.default(x)",
    "statement not allowed in a graph": "import os",
    "cannot parse": "a = torch.ops.aten.neg.default(x",
    "unknown dtype": 'a: "q7[4][1]cpu" = torch.ops.aten.neg.default(x)',
    "cannot read the annotation": 'a: "what is this" = torch.ops.aten.neg.default(x)',
    "no tensor can have this shape": 'a: "f32[-4][1]cpu" = torch.ops.aten.neg.default(x)',
    "is not the name of a symbolic size": 'a: "f32[os][1]cpu" = torch.ops.aten.neg.default(x)',
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_bad_statements_name_their_line(what):
    assert what in refused(graph("b = torch.ops.aten.neg.default(y)", STATEMENTS[what]), line=4)


@pytest.mark.parametrize(
    "word", ["for a in b:", "if x:", "while 1:", "with open('x') as f:", "assert x", "del x", "raise x"]
)
def test_other_statements_are_refused(word):
    assert "not allowed" in refused(graph(word), line=3)


def test_use_after_deletion():
    text = graph("a = torch.ops.aten.neg.default(x);  x = None", "b = torch.ops.aten.neg.default(x)", result="(b,)")
    assert "after it was deleted" in refused(text, line=4)


OUTLINES = {
    "unexpected statement": "just some text",
    "unexpected statement outside": "class A(torch.nn.Module):\n    x = 3\n    def forward(self):\n        return 1\n",
    "a second graph starts here": graph() + graph(),
    "has no return": HEAD + "        a = torch.ops.aten.neg.default(x)\n",
    "unexpected function": "class A(torch.nn.Module):\n    def evil(self):\n        return 1\n",
    "a function is defined where none belongs": HEAD + "        def f(a):\n            return a\n        return x\n",
    "has no parameter 'self'": graph(head="class A(torch.nn.Module):\n    def forward(x):\n"),
    "cannot parse the parameters": graph(head="class A(torch.nn.Module):\n    def forward(self, x y):\n"),
    "a call is returned": graph(result="os.system('true')"),
    "cannot parse": graph(result="(x,"),
    "defined twice": graph(head="class A(torch.nn.Module):\n    def forward(self, x, x_1):\n", result="x").replace(
        "        return", "        x_1 = torch.ops.aten.neg.default(x)\n        return"
    ),
    "two sub-graphs have the same name": graph() + sub_graph("b") * 2,
    "cannot be the name of a constant": graph() + sub_graph("forward"),
}


@pytest.mark.parametrize("what", OUTLINES)
def test_bad_outlines(what):
    assert what in refused(OUTLINES[what])


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n"])
def test_no_graph(text):
    with pytest.raises(InputError, match="no graph in this text"):
        parse_text(text, "some.txt")


MANY = 7_500_000
LARGE = {
    "brackets": lambda: graph("a = " + "(" * MANY),
    "100 MB of brackets": lambda: graph("a = " + "(" * 100_000_000),
    "mixed brackets": lambda: graph("a = " + "([{" * (MANY // 3)),
    "only brackets": lambda: "[" * MANY,
    "brackets in the signature": lambda: graph(
        head="class A(torch.nn.Module):\n    def forward(self, x=" + "(" * MANY + "):\n"
    ),
    "brackets in the result": lambda: graph(result="(" * MANY),
    "brackets on lines": lambda: graph(result="(\n" * 1_000_000),
    "minus signs": lambda: graph("a = " + "-" * MANY + "x"),
    "sums": lambda: graph("a = " + "+".join(["x"] * (MANY // 2))),
    "sums on lines": lambda: graph(result="(" + " +\n".join(["x"] * 400_000) + ")"),
    "attributes": lambda: graph("a = x" + ".a" * (MANY // 2)),
    "lambdas": lambda: graph("a = " + "lambda:" * (MANY // 7)),
    "conditions": lambda: graph("a = " + "x if x else " * (MANY // 12)),
    "subscripts with commas": lambda: graph("a = x" + "[0, 0]" * (MANY // 6)),
    "sums of tuples": lambda: graph("a = " + " + ".join(["(x, x)"] * (MANY // 9))),
    "conditions with commas": lambda: graph("a = " + "x if (x, x) else " * 400_000 + "x"),
    "lambdas with commas": lambda: graph("a = " + "lambda a=(1, 2):" * 400_000 + "x"),
    "f-strings": lambda: graph('a = f"{x' + "[0]" * 2_000_000 + '}"'),
    "commas": lambda: graph("a = torch.ops.aten.neg.default(" + "," * MANY),
    "subscripts": lambda: graph("a = x" + "[0]" * (MANY // 3)),
    "calls": lambda: graph("a = x" + "()" * (MANY // 2)),
    "a number": lambda: graph("a = torch.ops.aten.neg.default(" + "9" * MANY + ")"),
    "a name": lambda: graph("a" * MANY + " = torch.ops.aten.neg.default(x)"),
    "an annotation": lambda: graph('a: "f32[' + "(" * MANY + ']" = torch.ops.aten.neg.default(x)'),
    "classes": lambda: "".join(f"{' ' * i}class A{i}(torch.nn.Module):\n" for i in range(1000)),
    "a comment": lambda: graph("# Annotation: {" + "[" * MANY, "a = x y"),
    "a deletion": lambda: graph("a = " * (MANY // 4) + "None"),
}


@pytest.mark.parametrize("what", LARGE)
@pytest.mark.sampled(2)
def test_large_nonsense_is_refused_quickly(what):
    text = LARGE[what]()
    with pytest.raises(InputError), at_most(100 * len(text)):
        parse_text(text, "some.txt")


def test_nothing_runs(tmp_path):
    """Payloads in every place that could be evaluated; none may leave its mark."""
    mark = tmp_path / "mark"
    payload = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    texts = [
        graph(f"a = {payload}"),
        graph(f"a = torch.ops.aten.neg.default({payload})"),
        graph(f'a: "{payload}" = torch.ops.aten.neg.default(x)'),
        graph(f'a: "Sym({payload})" = torch.ops.aten.neg.default(x)'),
        graph(f'a: "f32[{payload}]" = torch.ops.aten.neg.default(x)'),
        graph(f"a: {payload} = torch.ops.aten.neg.default(x)"),
        graph(result=payload),
        graph(head=f"class A(torch.nn.Module):\n    def forward(self, x={payload}):\n"),
        graph(head=f"class A(torch.nn.Module):\n    def forward(self, x: {payload}):\n"),
        graph(head=f"class {payload}(torch.nn.Module):\n    def forward(self, x):\n"),
        graph(f"# Annotation: {{'a': {payload}}} File: a:1 in f, code: {payload}", "a = torch.ops.aten.neg.default(x)"),
        graph(f"# custom: {{'a': {payload}}} # x", "a = torch.ops.aten.neg.default(x)"),
        graph(f'a = getattr(self, "{payload}")'),
        graph(f"a = self.x; {payload}"),
        graph(f'"""\n{payload}\n"""', "a = torch.ops.aten.neg.default(x)"),
        graph() + sub_graph(payload, f"self, b={payload}"),
        graph() + sub_graph("sub", f'self, b="{payload}"', f'"{payload}"'),
        INIT.format(payload),
        f"@{payload}\n" + graph(),
        f"{payload}\n" + graph(),
    ]
    for text in texts:
        try:
            program = parse_text(text, "some.txt")
        except InputError:
            continue
        write_text(program)
        program.graph_module()
    assert not mark.exists()


def test_init_is_skipped_and_not_executed():
    assert len(parse_text(INIT.format("exit(3)"), "x").graph.nodes) == 2


def canonical() -> str:
    return write_text(CORPUS["subgraphs"]())[0].replace("GraphModule", "A") + ""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('{"fx_text": 1}', '{"fx_text": 2}', "format version 2, expected 1"),
        ('{"fx_text": 1}', '{"fx_text": 1, "more": 1}', "unknown or repeated section 'more'"),
        ('{"fx_text": 1}', '{"fx_text": NaN}', "broken JSON"),
        ('{"fx_text": 1}', "[" * 100_000, "broken JSON"),
        ('{"fx_text": 1}', '{"fx_text": 1, "groups": {"0": {"size": -1}}}', "group '0' has size -1"),
        ('{"fx_text": 1}', '{"fx_text": 1, "groups": {"0": {"size": 1, "ranks": 3}}}', "ranks of group '0'"),
        ('{"fx_text": 1}', '{"fx_text": 1, "groups": 7}', "groups in a commcc comment is not a dict"),
        ('{"fx_text": 1}', '{"fx_text": 1, "notes": [["x"]]}', "is not [text, node]"),
        ('{"fx_text": 1}', '{"fx_text": 1, "provenance": [3]}', "provenance in a commcc comment is not a dict"),
        ('{"fx_text": 1}', '{"fx_text": 1, "header": {"symbols": {"u0": 3}}}', "is not [lower, upper, hint]"),
        ('{"fx_text": 1}', '{"fx_text": 1, "header": {"symbols": {"os": [0, 1, 1]}}}', "not the name of a symbolic"),
        ('{"fx_text": 1}', '{"fx_text": 1, "header": {"symbols": {"u0": [3, 1, null]}}}', "range of u0 is empty"),
        ('{"fx_text": 1}', '{"fx_text": 1, "header": {"a": {"$evil": 1}}}', "unknown tag '$evil'"),
        ("# commcc: constant [", "# commcc: constant {", "broken commcc comment"),
        ("# commcc: constant [", "# commcc: thing [", "broken commcc comment"),
        ('"data": "', '"data": "!', "a constant is damaged"),
        ('"shape": [2]', '"shape": [3]', "a constant is damaged"),
        ('"stride": [1]', '"stride": [1000000]', "a constant is damaged"),
        ('"dtype": "torch.float32"', '"dtype": "torch.nn"', "a constant is damaged"),
    ],
)
def test_damaged_commcc_comments(old, new, what):
    text = canonical()
    assert old in text
    assert what in refused(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("meta", "what"),
    [
        ('{"seq_nr": "x"}', "metadata 'seq_nr' has the wrong type"),
        ('{"custom": 0}', "the table of 'custom' has no entry 0"),
        ('{"custom": [1]}', "the table of 'custom' has no entry"),
        ('{"$at": 0}', "the table of '$at' has no entry 0"),
        ('{"commcc": {"role": 3}}', "broken commcc record"),
        ('{"commcc": 3}', "broken commcc record"),
        ('{"val": {"$val": "f32[4][1]cpu"}}', None),
        ('{"val": {"offset": 3}}', None),
        ('{"val": {"offset": -3}}', "no tensor can have this shape"),
        ('{"val": {"offset": "os"}}', "is not the name of a symbolic size"),
        ('{"val": {"requires_grad": 7}}', "only tensors have a storage offset"),
        ('{"val": null}', "the value is given twice"),
        ("{", "broken JSON"),
        ('{"a": 1e999}', "1e999 is not a JSON number"),
    ],
)
def test_damaged_node_metadata(meta, what):
    text = '# commcc: {"fx_text": 1}\n' + graph(
        f"# {meta}", 'a: "f32[4, 4][4, 1]cpu" = torch.ops.aten.neg.default(x)', result="(a,)"
    )
    if what is None:
        parse_text(text, "x")
    else:
        assert what in refused(text)


@pytest.mark.parametrize(
    "entries",
    [
        ['["custom", 0, {}]', '["custom", 0, {"a": 1}]'],
        ['["$at", 0, {"val": null}]'],
        ['["$at", 0, 7]'],
        ['["$at", 0, {"stack_trace": 9}]'],
        ['["custom", "0", {}]'],
        ['["custom", 0]'],
        ['{"custom": 0}'],
        ['["custom", 0, [1]]'],
        ["["],
    ],
)
def test_damaged_tables(entries):
    text = '# commcc: {"fx_text": 1}\n' + graph('# {"$at": 0, "custom": 0}', "a = torch.ops.aten.neg.default(x)")
    refused(text + "".join(f"    # commcc: meta {entry}\n" for entry in entries))


def test_groups_with_two_sizes():
    call = "torch.ops._c10d_functional.all_gather_into_tensor.default"
    message = refused(graph(f"a = {call}(x, 8, '0')", f"b = {call}(x, 4, '0')"))
    assert "group '0' has 8 ranks, but node 'b' says 4" in message


def test_a_cut_file_is_refused_wherever_it_is_cut():
    text = write_text(CORPUS["metadata"]())[0]
    lines = text.split("\n")
    body = next(i for i, line in enumerate(lines) if line.startswith("    # commcc:"))
    for count in range(1, body):
        with pytest.raises(InputError):
            parse_text("\n".join(lines[:count]), "cut")


@pytest.mark.full
def test_reading_imports_nothing_of_the_file():
    code = (
        "import sys; from commcc.serialization.fx import parse_text\n"
        "text = 'class A(torch.nn.Module):\\n    def forward(self, x):\\n'\n"
        "text += '        a = torch.ops.antigravity.this.default(x)\\n        return a\\n'\n"
        "parse_text(text, 'x'); assert 'antigravity' not in sys.modules and 'this' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
