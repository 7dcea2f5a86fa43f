"""Attention as the kernel that a GPU takes for it, where there is none.

    with attention_of("flash"):
        ...                     # scaled_dot_product_attention is traced as aten._scaled_dot_product_flash_attention

``flex_attention`` is traced as for a GPU: that of a CPU has no backward, and keeps nothing for one.

PyTorch chooses the kernel by the device of the tensors, which are on the CPU here; each kernel has other results and
keeps other tensors for the backward. Which one a GPU takes depends on its kind and on settings of the job, so that the
user says it. Limits: with a mask, or where the kernel does not take the type or the sizes, it is that of the CPU.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_16_BITS = (torch.bfloat16, torch.float16)


@contextmanager
def attention_of(kernel: str) -> Iterator[None]:
    """Inside, ``torch.nn.functional.scaled_dot_product_attention`` is that of ``kernel``, one of
    :data:`commcc.capture.request.KERNELS`."""
    if kernel == "cpu":
        yield
        return
    functional: Any = torch.nn.functional
    usual = functional.scaled_dot_product_attention
    op = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")

    def attention(  # noqa: PLR0913 the signature is PyTorch's
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        fits = query.dtype in _16_BITS or (kernel == "efficient" and not enable_gqa)
        if attn_mask is not None or not fits or query.size(-1) % 8 != 0 or query.dim() != 4:
            return usual(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if kernel == "flash":
            # It is always given as a number.
            number = query.size(-1) ** -0.5 if scale is None else scale
            return op(query, key, value, dropout_p, is_causal, scale=number)[0]
        return op(query, key, value, None, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]

    from torch.nn.attention import flex_attention as flex

    given: Any = flex._apply_kernel_options

    def options(*args: Any, **named: Any) -> Any:
        made = given(*args, **named)
        # That of a CPU is never told to.
        made["OUTPUT_LOGSUMEXP"] = made["OUTPUT_LOGSUMEXP"] or torch.is_grad_enabled()
        return made

    with (
        patch.object(functional, "scaled_dot_product_attention", attention),
        patch.object(flex, "_validate_device", lambda *_: None),
        patch.object(flex, "_apply_kernel_options", options),
    ):
        yield
