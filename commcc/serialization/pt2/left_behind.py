"""What a ``.pt2`` file holds that no text does.

    left_behind(program)     # (Note("weights and constants (4 entries, 404 bytes) stay in model.pt2"), ...)

Limits: says it, and keeps nothing; the ``.pt2`` is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph.program import Note
from commcc.serialization.pt2.carrier import Pt2Carrier

if TYPE_CHECKING:
    from commcc.graph.program import Program

_PLAIN = frozenset({"user_input", "user_output"})


def left_behind(program: Program) -> tuple[Note, ...]:
    """Notes on weights, constants, signature and calling convention; () for a program from elsewhere."""
    carrier = program.carrier
    if not isinstance(carrier, Pt2Carrier):
        return ()
    notes = []
    payload = [
        entry.size
        for entry in carrier.entries.values()
        if "data/weights/" in entry.name or "data/constants/" in entry.name
        if not entry.name.endswith("_config.json")
    ]
    if payload:
        size = f"{len(payload)} entries, {sum(payload)} bytes"
        notes.append(Note(f"a text holds no tensor values: weights and constants ({size}) stay in {carrier.path.name}"))
    signature = carrier.document["graph_module"]["signature"]
    kinds = sorted({kind for key in ("input_specs", "output_specs") for spec in signature[key] for kind in spec})
    special = [kind.replace("_", " ") for kind in kinds if kind not in _PLAIN]
    if special:
        told = ", ".join(special)
        notes.append(Note(f"a text holds no signature or calling convention: {told} become plain inputs and outputs"))
    return tuple(notes)
