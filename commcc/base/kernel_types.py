"""Types of what kernels work on, their LLVM parts, and functions that kernels call.

See :mod:`commcc.base.kernel_code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import update_wrapper
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Bytes of a number.
WORD = 8


@dataclass(frozen=True)
class Type:
    """What a value is known to be."""

    @property
    def parts(self) -> tuple[str, ...]:
        """LLVM types of what a value of it consists of."""
        return ("ptr",)

    @property
    def words(self) -> int:
        """What a value takes as an argument, or in a named tuple."""
        return len(self.parts)


@dataclass(frozen=True)
class Scalar(Type):
    """An integer or a truth value."""

    llvm: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.llvm,)


@dataclass(frozen=True)
class Array(Type):
    """Integers, ``step`` bytes apart; an address and a length."""

    step: int

    @property
    def parts(self) -> tuple[str, ...]:
        return ("ptr", "i64")


@dataclass(frozen=True)
class Table(Type):
    """Rows of integers; an address, the number of rows and that of columns."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("ptr", "i64", "i64")


@dataclass(frozen=True)
class Record(Type):
    """A reference to a record of integers."""

    fields: tuple[str, ...]


@dataclass(frozen=True)
class Records(Record):
    """An array of such records; an address and a length."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("ptr", "i64")


@dataclass(frozen=True)
class Group(Type):
    """A named tuple that is an argument: the address of its fields' parts, one after another."""

    fields: tuple[tuple[str, Type], ...]

    @property
    def words(self) -> int:
        return sum(kind.words for _, kind in self.fields)


@dataclass(frozen=True)
class Several(Type):
    """What a function returns: a tuple, named where it has a class."""

    items: tuple[Type, ...]
    named: type | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for item in self.items for part in item.parts)


INT, BOOL, NOTHING = Scalar("i64"), Scalar("i1"), Several(())


@dataclass(frozen=True)
class Value:
    """What an expression gives. parts: as LLVM writes them."""

    type: Type
    parts: tuple[str, ...]

    @property
    def part(self) -> str:
        return self.parts[0]

    def __str__(self) -> str:
        return ", ".join(f"{kind} {part}" for kind, part in zip(self.type.parts, self.parts, strict=True))


def places(types: Iterable[Type]) -> list[int]:
    """Where arguments, or fields, of these types begin, in words."""
    return list(accumulate((kind.words for kind in types), initial=0))[:-1]


def load(kind: Type, address: str, begin: int, name: str) -> tuple[list[str], Value]:
    """Lines that read a value from words that nothing changes."""
    if isinstance(kind, Group):
        return [f"  {name} = getelementptr i64, ptr {address}, i64 {begin}"], Value(kind, (name,))
    lines, parts = [], []
    for place, part in enumerate(kind.parts):
        lines.append(f"  {name}.{place}.at = getelementptr i64, ptr {address}, i64 {begin + place}")
        lines.append(f"  {name}.{place} = load {part}, ptr {name}.{place}.at, !invariant.load !0")
        parts.append(f"{name}.{place}")
    return lines, Value(kind, tuple(parts))


def llvm_of(kind: Type) -> str:
    """The LLVM type of a result."""
    parts = kind.parts
    return "void" if not parts else parts[0] if len(parts) == 1 else f"{{{', '.join(parts)}}}"


def lowest_bit(number: int) -> int:
    """The place of the lowest bit that is set in a number that is not 0; one instruction in a kernel."""
    return (int(number) & -int(number)).bit_length() - 1


class Compiled:
    """A function that kernels call; from Python it runs as it is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)
