"""The sample graphs: which model, on which layout, captured how.

::

    for recipe in RECIPES:
        programs = capture(recipe.build, recipe.layout, recipe.options)
        recipe.files        # {"llama3_8b_fsdp64_fw.fx.txt.gz": "forward", ...}

Every production-size recipe has small twins, of two layers and tiny widths, that real ranks can run:
they differ in the sizes, and in attention, which is matmul and softmax instead of a CUDA kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from commcc.capture.capturing import CaptureOptions, Step
from commcc.capture.models.deepseek import DEEPSEEK_16B, TINY_DEEPSEEK, DeepSeek, DeepSeekConfig
from commcc.capture.models.llama import LLAMA3_8B, TINY_LLAMA, Llama, LlamaConfig
from commcc.capture.models.moe import MOE_16B, TINY_MOE, ExpertParallel, MoEConfig, MoETransformer
from commcc.capture.models.routed import ExpertGroup
from commcc.capture.models.tensor_parallel import NO_TENSOR_PARALLEL, TensorParallel
from commcc.capture.sharding import Placing
from commcc.capture.tracing import TraceOptions
from commcc.capture.world import Layout, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: As torch.compile makes graphs by default, and as trainers that keep ATen ops make them.
COMPILED = CaptureOptions()
ATEN = CaptureOptions(TraceOptions(decompose=False), annotate=True)
JOINT = CaptureOptions(TraceOptions(joint=True, decompose=False), plain=True)
STEP = CaptureOptions(TraceOptions(step=True), plain=True)


@dataclass(frozen=True)
class Recipe:
    """``graphs`` maps the end of a file's stem to the graph it holds; ``formats`` the extensions by that end."""

    name: str
    build: Callable[[World], Step]
    layout: Layout
    options: CaptureOptions = COMPILED
    graphs: dict[str, str] = field(default_factory=lambda: {"_fw": "forward", "_bw": "backward"})
    formats: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        """Whether real ranks can run it on a laptop."""
        return self.name.startswith("tiny_")

    @property
    def files(self) -> dict[str, str]:
        """Names of the files, each with the name of its graph."""
        return {
            f"{self.name}{end}{extension}": graph
            for end, graph in self.graphs.items()
            for extension in self.formats.get(end, (".fx.txt.gz",))
        }


def _tokens(config: LlamaConfig | DeepSeekConfig) -> tuple[Tensor, Tensor]:
    shape = (config.batch, config.sequence)
    return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)


def llama_step(config: LlamaConfig, world: World) -> Step:
    """Llama on any layout made of ``dp_replicate``, ``dp_shard`` and ``tp``."""
    parallel = NO_TENSOR_PARALLEL
    if world.has("tp"):
        parallel = TensorParallel(world.layout.size("tp"), 0, world.group_name("tp"))
    shard, replicate = (tuple(filter(world.has, (axis,))) for axis in ("dp_shard", "dp_replicate"))
    shared = tuple(filter(world.has, ("tp",)))

    def place(path: str) -> Placing:
        return Placing(shard, replicate, shared if "norm" in path else ())

    return Step(Llama(config, parallel), _tokens(config), place)


def moe_step(config: MoEConfig, world: World) -> Step:
    """Mixture of experts: experts over ``ep``, then ``efsdp`` if there is one; all else over all ranks."""
    model = MoETransformer(config, ExpertParallel(world.layout.size("ep"), world.group_name("ep")))
    return Step(model, _tokens(config.base), _place_experts(world))


def deepseek_step(config: DeepSeekConfig, world: World) -> Step:
    """DeepSeek's kind of model, laid out like :func:`moe_step`."""
    model = DeepSeek(config, ExpertGroup(world.layout.size("ep"), world.group_name("ep")))
    return Step(model, _tokens(config), _place_experts(world))


def _place_experts(world: World) -> Callable[[str], Placing]:
    whole = "dp_shard" if world.has("dp_shard") else "ep"
    experts = Placing(tuple(filter(world.has, ("efsdp",))), gradient_scale=1.0 / world.layout.size("ep"))

    def place(path: str) -> Placing:
        return experts if ".experts." in path else Placing((whole,))

    return place


def expert_layout(efsdp: int, ep: int) -> Layout:
    """Experts over ``ep`` ranks and sharded over ``efsdp``, all else over all."""
    return Layout((("efsdp", efsdp), ("ep", ep)), (("dp_shard", ("efsdp", "ep")),))


_big = partial(llama_step, LLAMA3_8B)
_tiny = partial(llama_step, TINY_LLAMA)
_BACKWARD = {"_bw": "backward"}
_WHOLE = {"": "joint"}
_STEP = {"": "step"}
#: In a graph of its own, since it needs a description of its op, or the library.
LIBRARY_DEEPSEEK = replace(TINY_DEEPSEEK, library=True, layers=2)

RECIPES: tuple[Recipe, ...] = (
    Recipe("llama3_8b_fsdp64", _big, Layout((("dp_shard", 64),))),
    Recipe("llama3_8b_fsdp8_tp8", _big, Layout((("dp_shard", 8), ("tp", 8)))),
    Recipe("llama3_8b_hsdp", _big, Layout((("dp_replicate", 8), ("dp_shard", 8))), graphs=_BACKWARD),
    Recipe("llama3_8b_ddp", _big, Layout((("dp_replicate", 8),)), graphs=_BACKWARD),
    Recipe("llama3_8b_joint", _big, Layout((("dp_shard", 64),)), JOINT, _WHOLE),
    Recipe("moe_ep8", partial(moe_step, MOE_16B), expert_layout(8, 8), ATEN),
    Recipe("deepseek_16b_ep8", partial(deepseek_step, DEEPSEEK_16B), expert_layout(8, 8), STEP, _STEP),
    Recipe("tiny_llama_fsdp2", _tiny, Layout((("dp_shard", 2),)), formats={"_fw": (".fx.txt", ".pt2")}),
    Recipe("tiny_llama_fsdp4", _tiny, Layout((("dp_shard", 4),))),
    Recipe("tiny_llama_fsdp2_tp2", _tiny, Layout((("dp_shard", 2), ("tp", 2)))),
    Recipe("tiny_llama_hsdp", _tiny, Layout((("dp_replicate", 2), ("dp_shard", 2)))),
    Recipe("tiny_llama_ddp", _tiny, Layout((("dp_replicate", 2),))),
    Recipe("tiny_llama_joint", _tiny, Layout((("dp_shard", 4),)), JOINT, _WHOLE),
    Recipe("tiny_moe_ep2", partial(moe_step, TINY_MOE), Layout((("ep", 2),)), ATEN),
    Recipe("tiny_moe_fsdp4_ep2", partial(moe_step, TINY_MOE), expert_layout(2, 2), ATEN),
    Recipe("library_deepseek_fsdp4_ep2", partial(deepseek_step, LIBRARY_DEEPSEEK), expert_layout(2, 2), STEP, _STEP),
    Recipe("tiny_deepseek_ep2", partial(deepseek_step, TINY_DEEPSEEK), Layout((("ep", 2),)), STEP, _STEP),
    Recipe("tiny_deepseek_fsdp4_ep2", partial(deepseek_step, TINY_DEEPSEEK), expert_layout(2, 2), STEP, _STEP),
)
