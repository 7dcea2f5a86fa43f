"""Sizes and names as tables write them.

    read_size("4 MiB"), read_size("4MB"), read_size("4194304")      # 4194304 each
    read_kind("All-Gather"), read_kind("_c10d_functional.all_gather_into_tensor")

``MB`` is 1,048,576 bytes here, as in nccl-tests (``-b 1M``) and in what benchmark scripts print for
``1 << 20``; so are ``M`` and ``MiB``, and K and G likewise. A script that meant 1,000,000 is read with
sizes 5 % too large; write the bytes to be exact.
"""

from __future__ import annotations

import re

from commcc.base.terms import Kind
from commcc.base.yaml_file import to_number
from commcc.timing.cost.profiles.collectives import kind_of

MOST_BYTES = 1 << 62
LONGEST_US = 1e12
MOST_RANKS = 1 << 31
_SIZE = re.compile(r"([0-9][0-9_.]{0,30})\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def read_size(text: str) -> int | None:
    """Bytes; None for what is no whole number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    number = to_number(match[1]) if match is not None else None
    if match is None or number is None:
        return None
    size = number * 1024 ** _POWERS[(match[2] or "").lower()]
    return int(size) if size.is_integer() and size <= MOST_BYTES else None


def read_kind(text: str) -> Kind | None:
    """A collective by any of its usual spellings; None for those that graphs do not hold."""
    name = text.strip().rpartition(".")[2].replace("-", "_").replace(" ", "_").lower()
    return {"all2all": Kind.ALL_TO_ALL, "bcast": Kind.BROADCAST}.get(name) or kind_of(name)
