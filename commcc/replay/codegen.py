"""A program's steps as one Python function without branches: what an eager step costs besides its ops.

::

    run = GeneratedCode(prepared)
    outputs = run(inputs)                # inputs by name; outputs as the program nests them

The function has a line for each step, and drops a value behind its last use, as the program itself would. Looking up
every operand in a table instead takes longer than many an op.

The text of the function is made of numbers only: ``v7 = fv7(v3, (v4, 2), **{k1: k2})``. Nothing from a graph file is
in it; ops, strings, dtypes and whatever else is not a small literal are handed in as objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.replay.virtual import StepError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.replay.prepare import Prepared, Step

_NAME = "run"


class GeneratedCode:
    """The steps of one prepared program, ready to be called any number of times."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._values = {node: f"v{number}" for number, node in enumerate(prepared.nodes)}
        self._scope: dict[str, Any] = {}
        given = [self._values[node] for node in (*prepared.inputs, *prepared.constants)]
        # The first step is in line 2, so that the line of an error tells the step.
        lines = [f"def {_NAME}({', '.join(given)}):", *map(self._line, prepared.steps)]
        lines.append(f" return {self._text(prepared.output)}")
        self._code = compile("\n".join(lines), "<steps>", "exec")
        # Only names of our own are in there, see above.
        exec(self._code, self._scope)
        self._run = self._scope[_NAME]

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run on these inputs. Raises :class:`StepError` for a step that fails."""
        given = [inputs[node.name] for node in self._prepared.inputs]
        given += [self._prepared.constant(node) for node in self._prepared.constants]
        try:
            return self._run(*given)
        except Exception as error:
            place = error.__traceback__
            while place is not None and place.tb_frame.f_code is not self._run.__code__:
                place = place.tb_next
            if place is None:  # raised before the function's first line
                raise
            raise StepError.of(self._prepared.steps[place.tb_lineno - 2], error) from error

    def _line(self, step: Step) -> str:
        result = self._values[step.node]
        function = f"f{result}"
        self._scope[function] = step.call
        operands = [self._text(arg) for arg in step.args]
        if step.kwargs:
            operands.append(f"**{self._text(step.kwargs)}")
        freed = f"; del {', '.join(self._values[node] for node in step.frees)}" if step.frees else ""
        return f" {result} = {function}({', '.join(operands)}){freed}"

    def _text(self, value: Any) -> str:
        """An operand as source text."""
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, tuple) and type(value) is tuple:
            return f"({''.join(self._text(item) + ', ' for item in value)})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, slice):
            return f"slice({self._text(value.start)}, {self._text(value.stop)}, {self._text(value.step)})"
        if value is None or type(value) in (bool, int):
            return repr(value)
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self._constant(key)}: {self._text(item)}' for key, item in value.items())}}}"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"k{len(self._scope)}"
        self._scope[name] = value
        return name
