"""The passes by name. An explicit table; modules are imported when a pass is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError, closest

if TYPE_CHECKING:
    from commcc.passes.base import Pass

_PASSES = {
    "inline": "commcc.passes.inline:Inline",
    "tag": "commcc.passes.tag:Tag",
    "dedup": "commcc.passes.dedup:Dedup",
    "groups": "commcc.passes.groups:Groups",
    "bucket": "commcc.passes.bucket:Bucket",
    "reorder": "commcc.passes.reorder:Reorder",
    "ep-chunk": "commcc.passes.ep_chunk:EpChunk",
    "ep-schedule": "commcc.passes.ep_schedule:EpSchedule",
    "ep-concretize": "commcc.passes.ep_concretize:EpConcretize",
    "ep-dense": "commcc.passes.ep_dense:EpDense",
    "async-tp": "commcc.passes.async_tp:AsyncTp",
    "split": "commcc.passes.split:Split",
    "cleanup": "commcc.passes.cleanup:Cleanup",
}


def names() -> tuple[str, ...]:
    """Names of all passes, in the order in which a pipeline would usually run them."""
    return tuple(_PASSES)


def get(name: str) -> type[Pass]:
    """The pass class called ``name``; :class:`OptionError` with the nearest name when there is none."""
    if name not in _PASSES:
        raise OptionError(f"no pass '{name}'{closest(name, names())}", hint="see 'commcc passes'")
    module, _, attribute = _PASSES[name].partition(":")
    cls: type[Pass] = getattr(importlib.import_module(module), attribute)
    return cls
