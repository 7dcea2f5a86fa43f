"""Replay: programs run on ranks, virtual ones in one process or real ones on gloo, and compared.

::

    from commcc.replay.numeric import Settings, verify_numeric
    settings = Settings(ranks=4, seed=0)
    numeric = verify_numeric(before, after, settings)
    numeric.status            # 'equal', 'within tolerance', 'different', 'inconclusive'
    numeric.outputs[0]        # OutputVerdict(name='output[0]', status='equal', ...)

- :mod:`commcc.replay.layout`: which ranks are in which group
- :mod:`commcc.replay.inputs`: inputs that a graph can be run with
- :mod:`commcc.replay.prepare`: a program as steps to run
- :mod:`commcc.replay.virtual`: all ranks in one process, in lock step
- :mod:`commcc.replay.place`: the device that a rank runs on, its clock and memory
- :mod:`commcc.replay.ranks`: real ranks, started by PyTorch's elastic launcher
- :mod:`commcc.replay.numeric.compare`: what is different, where, and which changed sum explains it
- :mod:`commcc.replay.bench.benchmark`: graphs timed beside each other on real ranks
- :mod:`commcc.replay.bench.statistics`: statistics of such times
"""
