"""Where two runs part: the first node of AFTER whose value is another one than BEFORE's node of that name.

    first_difference(pair, seed)
    # "'mm_7' (aten.mm) is the first that differs, on rank 1; its operands are the same"

Both programs run once more on virtual ranks, and a digest of every value is kept.

Limits: nodes are told by name; what a rewrite renamed or made new is seen where it meets an old name again.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import op_name
from commcc.replay.values import bits, is_freed, leaves, tensors_in
from commcc.replay.virtual import StepError, VirtualRun

if TYPE_CHECKING:
    from commcc.replay.numeric.pair import Pair
    from commcc.replay.prepare import Prepared, Step

#: Digests of one node's value, one for each rank.
_Digests = dict[str, list[bytes]]


def first_difference(pair: Pair, seed: int) -> str | None:
    """Where values part, as a sentence; None when no node of the same name has another value."""
    old, new = _digests(pair, pair.old, seed), _digests(pair, pair.new, seed)
    for step in pair.new.steps:
        if step.name in new and step.name in old and new[step.name] != old[step.name]:
            rank = next(i for i, digest in enumerate(new[step.name]) if digest != old[step.name][i])
            op = op_name(step.node.target)
            return f"'{step.name}' ({op}) is the first that differs, on rank {rank}; {_why(pair, step)}"
    return None


def _why(pair: Pair, step: Step) -> str:
    """What a node uses that its namesake in BEFORE does not use."""
    namesake = next(each.node for each in pair.old.steps if each.name == step.name)
    there = [node.name for node in namesake.all_input_nodes]
    other = [(new.name, old) for new, old in zip(step.node.all_input_nodes, there, strict=False) if new.name != old]
    if other:
        return f"it uses '{other[0][0]}' where BEFORE uses '{other[0][1]}'"
    if op_name(namesake.target) != op_name(step.node.target):
        return f"BEFORE has {op_name(namesake.target)} there"
    return "it uses the same nodes as in BEFORE"


def _digests(pair: Pair, prepared: Prepared, seed: int) -> _Digests:
    found: _Digests = {}

    def keep(step: Step, results: list[Any]) -> None:
        if step.fact is None:
            found[step.name] = [_digest(result) for result in results]

    world = range(pair.layout.world)
    given = [pair.inputs(of=prepared, made=pair.maker.of_rank(rank)) for rank in world]
    with suppress(StepError):  # what came before it is what we are after
        VirtualRun(prepared, pair.layout, seed, pair.blocking, watch=keep)(given)
    return found


def _digest(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors_in(value):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if not is_freed(tensor):
            digest.update(bits(tensor).numpy().tobytes())
    plain = [leaf for leaf in leaves(value) if not isinstance(leaf, torch.Tensor)]
    digest.update(repr(plain).encode())
    return digest.digest()
