"""Pipelines by name, one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError, closest
from commcc.passes.options import parse_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.passes.base import Pass


@dataclass(frozen=True)
class Preset:
    """A pipeline with a name. text: as in ``--passes``. summary: what it is for, in a line."""

    name: str
    text: str
    summary: str


PRESETS = (
    Preset("pre-overlap", "tag,bucket,reorder", "merge under the usual caps first, then schedule for overlap"),
    Preset(
        "autoparallel",
        "bucket{groups=primary,bucket_cap_mb=200,max_topo_span=1500},reorder",
        "merge on the primary group only, under caps of bytes and span, then schedule for overlap",
    ),
    Preset(
        "overlap-preserving",
        "reorder,bucket{strategy=overlap,memory_budget=own}",
        "schedule for overlap first, then merge what leaves every hidden collective hidden",
    ),
    Preset(
        "simple-fsdp",
        "bucket{strategy=module,modules=transformer_block}",
        "one bucket for each transformer block, gathered for while the block before runs",
    ),
    Preset(
        "ep-overlap",
        "inline,ep-concretize{symbols=known},tag,ep-chunk,dedup{memory_budget=own},groups,"
        "bucket{strategy=module,modules=transformer_block,memory_budget=own},ep-schedule",
        "cut the tokens of expert-parallel layers in chunks, and run exchanges while other chunks compute",
    ),
    Preset(
        "auto",
        "inline,cleanup{metadata=keep},dedup{when=shorter},bucket{strategy=auto},reorder",
        "drop what nothing needs, gather once and merge where the cost model says it pays, then schedule for overlap",
    ),
    Preset(
        "auto-split",
        "inline,cleanup{metadata=keep},dedup{when=shorter},bucket{strategy=auto},split,reorder",
        "as auto, with large exposed collectives in parts where that pays; the last bits may differ",
    ),
)


def preset_names() -> tuple[str, ...]:
    """All presets, in the order of the table."""
    return tuple(preset.name for preset in PRESETS)


def from_preset(name: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> list[Pass]:
    """The passes of a preset; defaults as in :func:`commcc.passes.options.parse_pipeline`.

    Raises :class:`OptionError` with the nearest name when there is none.
    """
    for preset in PRESETS:
        if preset.name == name:
            return parse_pipeline(preset.text, defaults)
    names = preset_names()
    raise OptionError(f"no preset '{name}'{closest(name, names)}", hint=f"presets: {', '.join(names)}")
