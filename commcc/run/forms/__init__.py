"""Pipelines by file and by name; as text they are read by :mod:`commcc.passes.options`.

    read_pipeline("p.yaml")             # [Tag(), Bucket(bucket_cap_mb=25.0)]
    from_preset("pre-overlap")          # [Tag(), Bucket(), Reorder()]
    pipeline_text(passes)               # 'tag,bucket{bucket_cap_mb=25}', which reads back to the same
    pipeline_yaml(passes)               # the same as YAML

All three forms have the same names and values, and each prints back to the same text.
"""

from __future__ import annotations

from commcc.run.forms.presets import PRESETS, Preset, from_preset, preset_names
from commcc.run.forms.yaml_form import pipeline_text, pipeline_yaml, read_pipeline

__all__ = ["PRESETS", "Preset", "from_preset", "pipeline_text", "pipeline_yaml", "preset_names", "read_pipeline"]
