"""How many bytes a bucket may hold: the option ``bucket_cap_mb``.

    caps = byte_caps(25.0, index, None, collectives, multi_dtype=False)
    caps.of(key, 0)                       # 26214400: of the first bucket of this kind, group, reduction and dtype
    byte_caps("auto", index, model, collectives, multi_dtype=False).by_key

``auto`` is the size at which the group's bandwidth saturates (:func:`commcc.timing.cost.alphabeta.saturation_bytes`): a
larger bucket moves its bytes hardly any faster. It differs by kind and group, and takes a cost model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.terms import MIB
from commcc.planning.bucket_model import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.planning.bucket_model import Key
    from commcc.timing.cost import CostModel


@dataclass(frozen=True)
class ByteCaps:
    """Bytes by a bucket's number among those of its key, of which the last repeats. by_key: whatever the number."""

    by_number: tuple[float, ...] = (float("inf"),)
    by_key: Mapping[Key, float] = field(default_factory=dict)

    def of(self, key: Key, number: int) -> float:
        """The cap of the ``number``-th bucket of a key, counted from 0."""
        cap = self.by_key.get(key)
        return self.by_number[min(number, len(self.by_number) - 1)] if cap is None else cap

    @property
    def in_words(self) -> dict[str, float] | None:
        """The caps in MiB by key in words; None where they are the same for all keys."""
        return {" ".join(filter(None, key)): round(cap / MIB, 3) for key, cap in self.by_key.items()} or None


def byte_caps(
    option: float | str | Sequence[float] | None,
    index: GraphIndex,
    model: CostModel | None,
    collectives: Sequence[Collective],
    *,
    multi_dtype: bool,
) -> ByteCaps:
    """Caps for these collectives. option: MiB, one or several, ``auto``, or None for no limit.

    Raises :class:`OptionError` for ``auto`` without a cost model.
    """
    if option != "auto":
        several = option if isinstance(option, (tuple, list)) else (option,)
        return ByteCaps(tuple(float("inf") if cap is None else float(cap) * MIB for cap in several))
    if model is None:
        raise OptionError(
            "bucket_cap_mb=auto needs a cost model", where="pass 'bucket'", hint="name one: --cost h100; or give MiB"
        )
    by_key: dict[Key, float] = {}
    for collective in collectives:
        key = key_of(collective, multi_dtype)
        if key not in by_key:
            transfer, _ = model.transfer_of(index, collective.launch)
            by_key[key] = model.saturation_bytes(transfer)
    return ByteCaps(by_key=by_key)
