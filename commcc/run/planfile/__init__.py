"""Plan files: what passes decided, as YAML that can be reviewed, committed and applied again.

    text = plan_text(result)                       # of a finished run
    jobs = read_plans("plan.yaml")                 # steps for commcc.run.pipeline.run, which plan nothing

::

    commcc_plan: 1
    passes:
    - pass: bucket{bucket_cap_mb=25}
      graph: 1f15a5b3738adc30...                   # fingerprint of the graph before the pass
      buckets:
      - kind: all_gather
        members: [all_gather_into_tensor, all_gather_into_tensor_1]
        reason: 2 members, 21.0 MiB, span 12; closed for bytes
        launch_at: all_gather_into_tensor
    source: {structure: 77b0c1d2..., digests: [...], groups: [{name: dp, ranks: [0, 1]}], names: [...]}
    graphs: [{fingerprint: 1f15a5b3738adc30..., nodes: 8779, digests: [...]}]

Nodes go by name, an order by the nodes that move (:mod:`commcc.run.planfile.moves`), every other part of
a :class:`commcc.plan.Plan` by its annotation (:mod:`commcc.run.planfile.fields`). Equal runs give equal bytes.
A plan is applied to the graph that it was made for and to no other; the digests at the end only serve to
name the first node that differs. Under ``source`` stands what finds that graph again where its nodes have other names,
in a training job (:mod:`commcc.live.plans`). Limits: a plan file is data and is not trusted: its result is verified
like that of a pass.
"""

from __future__ import annotations

from commcc.run.planfile.reading import Source, StoredPlan, read_plan_file, read_plans
from commcc.run.planfile.writing import plan_text

__all__ = ["Source", "StoredPlan", "plan_text", "read_plan_file", "read_plans"]
