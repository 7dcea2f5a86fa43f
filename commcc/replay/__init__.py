"""Replay: programs run on ranks, virtual ones in one process or real ones on gloo, and compared.

::

    from commcc.replay.numeric import Settings, verify_numeric
    settings = Settings(ranks=4, seed=0)
    numeric = verify_numeric(before, after, settings)
    numeric.status            # 'equal', 'within tolerance', 'different', 'inconclusive'
    numeric.values[0]         # ValueVerdict(name='output[0]', status='within tolerance', ...), where not equal

- :mod:`commcc.replay.layout`: which ranks are in which group
- :mod:`commcc.replay.prepare`: a program as steps to run
- :mod:`commcc.replay.inputs`: inputs that a graph can be run with
- :mod:`commcc.replay.virtual`: all ranks in one process, in lock step
- :mod:`commcc.replay.rank_run`: one rank of a real process group; :mod:`commcc.replay.compiled`: the same through
  Inductor, and as a recorded CUDA graph
- :mod:`commcc.replay.place`: the device that a rank runs on, its clock and memory
- :mod:`commcc.replay.numeric`: what is different, where, and which changed sum explains it
- :mod:`commcc.replay.ranks`: real ranks, started by PyTorch's elastic launcher
- :mod:`commcc.replay.emulate`: one process for all ranks, whose communication takes the time of a cost model
- :mod:`commcc.replay.bench`: graphs timed alongside each other on ranks
"""
