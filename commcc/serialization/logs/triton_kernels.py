"""Triton kernels of a repro file: what ``kernel_idx`` and ``constant_args_idx`` of the graph's nodes stand for.

    ...kernel_side_table.reset_table()
    @triton.jit
    def scale_0(x_ptr, n, BLOCK: tl.constexpr): ...
    ...kernel_side_table.add_kernel(scale_0)                          -> kernel 0, with all that stands before it
    ...kernel_side_table.constant_args={0: {'n': 1024}}               -> constants 0

Both are numbers of the process that compiled the graph, so two files may mean different kernels by one number. The
header of the program keeps a digest of each under :data:`KERNELS`, by which :mod:`commcc.verify.kernels` tells them
apart. Nothing is run.

Limits: dumps as text have no kernels; what is no number there is not compared.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commcc.base.terms import Json

#: Key of a program's header: digests of kernels and of constants, by number.
KERNELS = "triton_kernels"
_TABLE = r"^torch\._higher_order_ops\.triton_kernel_wrap\.kernel_side_table\."
_BEGIN = re.compile(_TABLE + r"reset_table\(\)[ \t]*$", re.MULTILINE)
_KERNEL = re.compile(_TABLE + r"add_kernel\(\w+\)[ \t]*$", re.MULTILINE)
_CONSTANTS = re.compile(_TABLE + r"constant_args=\{(.*)\}[ \t]*$", re.MULTILINE)
#: Where the constants of one call begin: the entries are dictionaries, whatever stands in them.
_ENTRY = re.compile(r"(?:^|(?<=\}, ))(\d{1,9}): (?=\{)")


def kernels_of(text: str) -> dict[str, Json]:
    """What the header keeps of the kernels in a repro file; nothing where it has none."""
    begin = _BEGIN.search(text)
    if begin is None:
        return {}
    start, kernels = begin.end(), {}
    for number, end in enumerate(_KERNEL.finditer(text, start)):
        kernels[str(number)] = _digest(text[start : end.start()])
        start = end.end()
    constants = {}
    table = _CONSTANTS.search(text, start)
    if table is not None:
        entries = [*_ENTRY.finditer(table[1])]
        ends = [*(entry.start() for entry in entries[1:]), len(table[1])]
        constants = {
            entry[1]: _digest(table[1][entry.end() : stop].rstrip(", "))
            for entry, stop in zip(entries, ends, strict=True)
        }
    return {KERNELS: {"kernel_idx": {**kernels}, "constant_args_idx": {**constants}}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]
