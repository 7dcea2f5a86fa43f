"""Real ranks: N processes, started and watched by PyTorch's elastic launcher.

- :mod:`commcc.replay.ranks.launch`: the side that starts them and gathers what they found
- :mod:`commcc.replay.ranks.worker`: one rank
- :mod:`commcc.replay.ranks.bench_worker`: one rank that runs graphs in turns and times them
- :mod:`commcc.replay.ranks.turns`: one of these graphs, op by op; ``variants``: compiled, or a recorded CUDA graph
- :mod:`commcc.replay.ranks.node_runs`: repetitions that are recorded node by node
- :mod:`commcc.replay.ranks.team`: all ranks begin together, and rank 0 gets what each has found
- :mod:`commcc.replay.ranks.groups`: process groups under the names in the graph
- :mod:`commcc.replay.ranks.watch`: nobody outlives the deadline, or whoever started it
"""
