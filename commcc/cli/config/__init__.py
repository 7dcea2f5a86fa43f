"""Project configuration: defaults for commands, from the folder that one works in or one above it.

    config = find_config(Path.cwd())        # None when there is none
    config.path, config.cost, config.options["bucket"]

``commcc.yaml``, or ``[tool.commcc]`` in ``pyproject.toml``, in the nearest folder that has one; in one
folder ``commcc.yaml`` counts. The keys::

    cost: h100,table=coll.yaml        # paths are relative to this file, here and in pipeline
    hints: {"u*": 512}
    preset: pre-overlap               # or passes: (text or list), or pipeline: FILE; what 'commcc run' runs
    options:                          # of passes, wherever they are built
      bucket: {bucket_cap_mb: 25}
    lint:                             # settings of the gate, see commcc.lint.reading
      rules: {peak-memory: {max: 60 GiB}}

All mistakes of a file are named in one error, with their lines. Limits: files above the nearest one are
not read; nothing in a file is ever run.
"""

from __future__ import annotations

from commcc.cli.config.reading import find_config
from commcc.cli.config.types import Config, Named

__all__ = ["Config", "Named", "find_config"]
