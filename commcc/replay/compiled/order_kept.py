"""Whether compiled code has launches and waits where the graph has them: data only.

OrderKept.of(rank["graphs"][1]["order"]).text     # 'Inductor puts 1 of 40 launches and waits elsewhere ...: wait_3'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

#: Names that are listed.
_LISTED = 3


@dataclass(frozen=True)
class OrderKept:
    """compared: launches and waits. whole: ops that are left whole, which they are before or behind. moved: names of
    launches and waits that stand elsewhere. missing: names of those that are not called.
    """

    compared: int
    whole: int
    moved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @staticmethod
    def of(data: Mapping[str, Any]) -> OrderKept:
        """What :meth:`to_json` made."""
        return OrderKept(data["compared"], data["whole"], tuple(data["moved"]), tuple(data["missing"]))

    @property
    def text(self) -> str:
        """What is not as in the graph, on one line."""
        told = []
        if self.moved:
            told.append(
                f"puts {len(self.moved)} of {self.compared} launches and waits elsewhere among them and the "
                f"{self.whole} ops that it leaves whole: {_listed(self.moved)}"
            )
        if self.missing:
            told.append(f"leaves out {_listed(self.missing)}")
        return f"Inductor {' and '.join(told) or 'keeps the order'}"

    def to_json(self) -> dict[str, Json]:
        return {
            "compared": self.compared,
            "whole": self.whole,
            "moved": list(self.moved),
            "missing": list(self.missing),
        }


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
