"""Pairs of small graphs, written as text: AFTER is given by the lines of BEFORE that it has, in its order.

::

    pair(folder, "x, y", ["a = aten.neg.default(x)", "b = aten.exp.default(y)"], [1, 0], "a, b")
"""

from __future__ import annotations

from commcc.serialization import load


def program(folder, name, inputs, lines, returned):
    """The graph of a text with these lines; ``aten.`` and ``c10d.`` stand for libraries of ops."""
    body = [f"        {line.replace('aten.', 'torch.ops.aten.', 1)}" for line in lines]
    body = [line.replace("c10d.", "torch.ops._c10d_functional.").replace(" ops.f", " torch.ops.f") for line in body]
    text = ["class GraphModule(torch.nn.Module):", f"    def forward(self, {inputs}):", *body]
    file = folder / f"{name}.fx.txt"
    file.write_text("\n".join([*text, f"        return ({returned})"]) + "\n")
    return load(file)


def pair(folder, inputs, lines, kept, returned):
    """BEFORE and AFTER. kept: numbers of lines, or other lines. returned: what both return, or each."""
    returns = returned if isinstance(returned, tuple) else (returned, returned)
    after = [line if isinstance(line, str) else lines[line] for line in kept]
    return [program(folder, "before", inputs, lines, returns[0]), program(folder, "after", inputs, after, returns[1])]
