"""Which cost model predicts a replay, and which one emulated communication takes its times from.

    model_text("", device="cpu")                     # 'laptop-cpu,fused=no'
    model_text("h100,skew=1.2", device="cuda")       # 'h100,skew=1.2,fused=no'

An eager replay calls ops one by one, so nothing is fused unless the text says so.

Limits: without a text a CUDA device is told by the name that it has; one that is not known counts as an H100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commcc.replay.place import CUDA
from commcc.timing.cost import load_model
from commcc.timing.cost.devices import device_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.timing.cost import CostModel

#: Processes on one machine's CPU that talk through gloo.
_CPU_MODEL = "laptop-cpu"
_CUDA_MODEL = "h100-sxm"


def model_text(text: str, *, device: str, compiled: bool = False) -> str:
    """The cost text that counts for a replay; text: what was asked for, may be empty."""
    chosen = text or (_cuda_model() if device == CUDA else _CPU_MODEL)
    return chosen if compiled else with_settings(chosen, {"fused": "no"})


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """A cost text with these settings, unless it has them already."""
    keys = {part.partition("=")[0].strip() for part in text.split(",")}
    return ",".join([text, *(f"{key}={value}" for key, value in settings.items() if key not in keys)])


def replay_model(text: str, *, device: str, compiled: bool = False) -> CostModel:
    """The model of :func:`model_text`. Raises :class:`CommccError` for a wrong text or file."""
    return load_model(model_text(text, device=device, compiled=compiled))


def _cuda_model() -> str:
    """The device file whose name is in what the driver calls the device (``NVIDIA H200``)."""
    name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else ""
    known = [each for each in device_names() if each.partition("-")[0] in name.replace(" ", "-").split("-")]
    return known[0] if known else _CUDA_MODEL
