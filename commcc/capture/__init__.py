"""Graphs from models, on the CPU, with no accelerator and no cluster.

::

    programs = capture(build, Layout((("dp_shard", 64),)))
    save(programs["forward"], Path("llama_fw.fx.txt"))

See :mod:`commcc.capture.capturing` for ``build``, :mod:`commcc.capture.importing` for graphs that are
in memory already.
"""

from __future__ import annotations

from commcc.capture.capturing import CaptureOptions, Step, capture
from commcc.capture.importing import from_exported_program, from_graph_module
from commcc.capture.sharding import Placing
from commcc.capture.tracing import TraceOptions
from commcc.capture.unsharding import Precision
from commcc.capture.world import Layout, World, fake_world

__all__ = [
    "CaptureOptions",
    "Layout",
    "Placing",
    "Precision",
    "Step",
    "TraceOptions",
    "World",
    "capture",
    "fake_world",
    "from_exported_program",
    "from_graph_module",
]
