"""Real ranks: N processes, started and watched by PyTorch's elastic launcher.

- :mod:`commcc.replay.ranks.launch`: the side that starts them and gathers what they wrote
- :mod:`commcc.replay.ranks.machines`: one machine or several, and where they meet
- :mod:`commcc.replay.ranks.worker`: one rank: its work, its process groups under the names in the graph
- :mod:`commcc.replay.ranks.watch`: nobody outlives the deadline, or whoever started it
- :mod:`commcc.replay.ranks.failing`: why ranks did not come to an end
- :mod:`commcc.replay.ranks.joined`: a process that torchrun or SLURM has started as one of many ranks
- :mod:`commcc.replay.ranks.launcher_env`: whether this process is one, without importing PyTorch
"""
