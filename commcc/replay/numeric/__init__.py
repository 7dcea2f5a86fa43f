"""Numeric verification: two programs on the same inputs, and what their results say."""

from commcc.replay.numeric.pair import Settings
from commcc.replay.numeric.verdict import Numeric, ValueVerdict
from commcc.replay.numeric.verification import verify_numeric

__all__ = ["Numeric", "Settings", "ValueVerdict", "verify_numeric"]
