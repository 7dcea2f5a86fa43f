"""Views of tensors that are conjugated or negated only when they are read.

::

    minds_lazy(torch.ops.aten.view.dtype)          # PyTorch refuses it
    minds_lazy(torch.ops.aten.unsafe_split.Tensor) # PyTorch hands it a copy, so that its results are views of that

An op that PyTorch registers nothing for is handed a copy, unless its schema says that its results are views.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from commcc.graph.ops.names import op_name
from commcc.graph.ops.undeclared import VIEWS
from commcc.graph.ops.views import BITWISE


@lru_cache(maxsize=4096)
def minds_lazy(target: Any) -> bool:
    """Whether an op may not give a view of such a tensor, though it gives one of any other."""
    if isinstance(target, OpOverload) and str(target) in BITWISE:
        return True
    if op_name(target) not in VIEWS:
        return False
    name = target._name if isinstance(target, OpOverload) else ""
    keys = ("Conjugate", "Negative")
    return not (name and all(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys))
