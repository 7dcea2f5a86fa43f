"""Replay: programs run on ranks, virtual ones in one process or real ones on gloo, and compared.

::

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
- :mod:`commcc.replay.compare`: what is different, where, and which changed sum explains it
- :mod:`commcc.replay.bench`: graphs timed beside each other on real ranks
- :mod:`commcc.replay.timing`: statistics of such times
"""

from commcc.replay.layout import Layout, make_layout, read_groups
from commcc.replay.numeric import verify_numeric
from commcc.replay.pair import Settings
from commcc.replay.verdict import Numeric, ValueVerdict

__all__ = ["Layout", "Numeric", "Settings", "ValueVerdict", "make_layout", "read_groups", "verify_numeric"]
