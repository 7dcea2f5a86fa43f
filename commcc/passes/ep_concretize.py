"""ep-concretize: symbols that stand for tokens become numbers.

    x: f32[u0, 8]                                        x: f32[160, 8]
    s = sym_size(x, 0)   h = floordiv(s, 2)      ->      (gone)
    v = view(y, [h, -1])                                 v = view(y, [80, -1])

Chunking a graph may need to know which size is that of the tokens; graphs that were traced for it carry a symbol
there, and say which number it stands for (``torchtitan_chunk_symbol_hints`` on inputs). Afterwards the symbol only
costs: this pass puts the number in, into arguments, shapes, strides and sub-graphs.

1. A size that is known then is a number; one that also depends on other symbols a shorter expression of those.
2. Nodes that compute with known sizes only are gone, and so are asserts that hold. One that does not is an error.
3. Strides are rewritten, not computed again; nothing is run.
4. A graph without such symbols is left as it is.

``symbols=known`` takes all symbols of inputs whose number is on record: marked, in the header of the file, or kept
with a symbol that was traced from an example. Numbers of ``--hint`` change estimates only, and are not taken.

The result fits inputs of that size only, and says so (``fixed`` in the header of the file); ``commcc verify`` then
compares it with the graph before for inputs of that size.

Limits: only symbols that callers choose: a whole size of an input, or an input. What the device decides (the splits
of a token exchange) stays symbolic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from commcc.base.errors import InputError, closest
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import FixedSize, Fixing, PassReport, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.ep.concrete import Sizes
    from commcc.graph.program import Program

MARKED, KNOWN = "marked", "known"


@dataclass(frozen=True)
class EpConcretizeReport(PassReport):
    """fixed: in words. symbols: numbers by symbol. sizes_gone: nodes whose value is known now."""

    fixed: str
    symbols: Mapping[str, int]
    values_rewritten: int
    sizes_gone: int
    guards_gone: int


@dataclass(frozen=True)
class EpConcretize(Pass):
    """Which symbols; see the module docstring."""

    name: ClassVar[str] = "ep-concretize"
    summary: ClassVar[str] = "replace symbols that stand for tokens by numbers"

    symbols: str | tuple[str, ...] = option(
        MARKED,
        "symbols and their numbers, u0=160:u3=32; marked: those that inputs mark, with the numbers given there; known: "
        "all sizes of inputs whose number when the graph was made is on record",
        choices=(MARKED, KNOWN),
    )

    def problems(self) -> Iterator[str]:
        """Texts that are no symbol with a number."""
        if self.symbols in (MARKED, KNOWN):
            return
        texts = (self.symbols,) if isinstance(self.symbols, str) else self.symbols
        for text in texts:
            name, _, number = text.partition("=")
            if not name.strip() or not number.strip().isdecimal() or not 0 < int(number) <= 2**62:
                yield f"symbols: '{text}' is not a symbol and its number, as in u0=160"
        names = [text.partition("=")[0].strip() for text in texts]
        yield from (f"symbols: '{name}' is given twice" for name in sorted({n for n in names if names.count(n) > 1}))

    def plan(self, context: PlanContext) -> Plan:
        """The numbers; :class:`InputError` for those that the graph contradicts."""
        from commcc.ep.concrete import Sizes, told

        program = context.program
        numbers, source = self._numbers(program)
        sizes = Sizes(program.graph, numbers)
        counts = _checked(program, sizes) if numbers else {"values": 0, "known": 0, "guards": 0}
        reason = Reason.of("fixed", source=source, values=counts["values"])
        return Plan(
            pass_text=to_text(self),
            fingerprint=context.index.fingerprint,
            rewrite=Fixing(tuple(FixedSize(name, number, reason) for name, number in numbers.items())),
            report=EpConcretizeReport(
                fixed=told(numbers) or "none: no size is to be fixed",
                symbols=numbers,
                values_rewritten=counts["values"],
                sizes_gone=counts["known"],
                guards_gone=counts["guards"],
            ),
        )

    def _numbers(self, program: Program) -> tuple[dict[str, int], str]:
        from commcc.ep.concrete import marked_sizes, recorded_sizes
        from commcc.serialization.shapes import bounds_of, input_sizes

        if self.symbols == MARKED:
            numbers, source = marked_sizes(program), "marked at an input"
        elif self.symbols == KNOWN:
            # What people marked wins over what the file has on record.
            numbers, source = {**recorded_sizes(program), **marked_sizes(program)}, "on record"
        else:
            texts = (self.symbols,) if isinstance(self.symbols, str) else self.symbols
            pairs = (text.partition("=") for text in texts)
            numbers, source = {name.strip(): int(number) for name, _, number in pairs}, "given"
        there = dict(input_sizes(program.graph)) if numbers else {}
        declared = program.header.get("symbols")
        for name, number in numbers.items():
            if name not in there:
                fit = ", ".join(sorted(there)[:10]) or "there are none"
                what = f"'{name}' is no size of an input{closest(name, sorted(there))}"
                raise InputError(what, hint=f"only those can be fixed: {fit}")
            # Bounds are null where there are none.
            entry = declared.get(name) if isinstance(declared, dict) else None
            of_file = tuple(entry[:2]) if isinstance(entry, (list, tuple)) and len(entry) == 3 else None
            low, high = of_file or bounds_of(there[name])
            if (type(low) is int and number < low) or (type(high) is int and number > high):
                bounds = f"from {'?' if low is None else low} to {'?' if high is None else high}"
                raise InputError(f"'{name}' cannot be {number}: the graph says that it is {bounds}")
        return {name: numbers[name] for name in sorted(numbers)}, source


def _checked(program: Program, sizes: Sizes) -> dict[str, int]:
    """How many values change and guards go; raises for a shape that cannot be and a guard that does not hold."""
    from commcc.ep.concrete import holds, is_guard, only_sizes, told

    counts = {"values": 0, "known": 0, "guards": 0}

    def value_of(operand: Any) -> Any:
        return sizes.value(operand.meta.get("val") if hasattr(operand, "meta") else operand)

    for node in program.graph.nodes:
        val = node.meta.get("val")
        if sizes.concerns(val):
            counts["values"] += 1
            try:
                value = sizes.value(val)
            except InputError as error:
                raise InputError(f"for {told(sizes.numbers)}: {error.what}", where=f"node '{node.name}'") from None
            # Arithmetic on sizes goes once its result is a number.
            plain = isinstance(value, (int, float)) and node.op == "call_function" and only_sizes(node.target)
            counts["known"] += plain
        if node.op == "call_function" and is_guard(node.target):
            # Guards about other symbols stay, whether they hold or not.
            concerned = any(sizes.concerns(operand.meta.get("val")) for operand in node.all_input_nodes)
            verdict = holds(node, value_of) if concerned else None
            counts["guards"] += verdict is True
            if verdict is False:
                said = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], str) else "it checks a size"
                what = f"this does not hold for {told(sizes.numbers)}: {said:.200}"
                raise InputError(what, where=f"node '{node.name}'", hint="give other numbers, or mark other sizes")
    return counts
