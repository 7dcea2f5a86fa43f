"""Real ranks: N processes on gloo, started and watched by PyTorch's elastic launcher.

- :mod:`commcc.replay.gloo.launch`: the side that starts them and gathers what they found
- :mod:`commcc.replay.gloo.worker`: one rank
- :mod:`commcc.replay.gloo.bench_worker`: one rank that runs graphs in turns and times them
- :mod:`commcc.replay.gloo.groups`: process groups under the names in the graph
- :mod:`commcc.replay.gloo.watch`: nobody outlives the deadline, or whoever started it
"""
