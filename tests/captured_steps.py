"""Training steps of the tiny DeepSeek that are no sample: captured here, in about 4 s each.

::

    captured(ep=4)                 # experts over all four ranks, which also share the parameters
    captured(ep=2, dynamic=True)   # the number of samples is a symbol
    captured(ep=2, folding=True)   # experts get [batch, sequence, dim], and fold it themselves
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from commcc.capture import Layout, capture
from commcc.capture.models.deepseek import TINY_DEEPSEEK, DeepSeekBlock
from commcc.capture.models.routed import RoutedExperts
from commcc.capture.recipes import STEP, deepseek_step


@lru_cache(maxsize=4)
def captured(ep, dynamic=False, folding=False):
    """The step as rank 0 of ``ep`` ranks sees it."""

    def build(world):
        step = deepseek_step(TINY_DEEPSEEK, world)
        for block in step.module.layers.values() if folding else ():
            if not block.dense:
                block.__class__, block.moe.__class__ = _Block, _Experts
        return replace(step, inputs=_with_open_batch(step.inputs)) if dynamic else step

    return capture(build, Layout((("ep", ep),)), STEP)["step"]


class _Block(DeepSeekBlock):
    def forward(self, x, table):
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.moe(self.ffn_norm(x))


class _Experts(RoutedExperts):
    def forward(self, x):
        return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)


def _with_open_batch(inputs):
    """Inputs of the fake mode that is on, whose first size is one symbol."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    with unset_fake_temporarily():
        real = [torch.zeros(tuple(each.shape), dtype=each.dtype) for each in inputs]
    sizes = [DimDynamic.DYNAMIC, DimDynamic.STATIC]
    how = StatelessSymbolicContext(dynamic_sizes=sizes)
    return tuple(mode.from_tensor(each, symbolic_context=how, source=ConstantSource("tokens")) for each in real)
