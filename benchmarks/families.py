"""Graphs of other models than the samples, so that nothing is judged only by what it was tuned on.

    python benchmarks/families.py [NAME...] [--out out/families] [--list]
    python benchmarks/against_overlap.py out/families/*.gz --passes reorder --passes 'bucket{strategy=auto},reorder'

Each is captured like the samples (``sample_graphs/README.md``), on other layouts and with other sizes: few and many
layers, short and long sequences, a small and a large vocabulary, communication that compute can and cannot hide. One
takes 20 to 60 seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from commcc.capture.models.deepseek import DEEPSEEK_16B
from commcc.capture.models.llama import LLAMA3_8B, LlamaConfig
from commcc.capture.models.moe import MOE_16B, MoEConfig
from commcc.capture.recipes import ATEN, STEP, Recipe, deepseek_step, expert_layout, llama_step, moe_step
from commcc.capture.samples import write
from commcc.capture.world import Layout

LLAMA_1B = LlamaConfig(dim=2048, layers=16, heads=32, kv_heads=8, hidden=8192, vocabulary=128256, sequence=8192)
LLAMA_3B = LlamaConfig(dim=3072, layers=28, heads=24, kv_heads=8, hidden=8192, vocabulary=128256, sequence=4096)
LLAMA_13B = LlamaConfig(dim=5120, layers=40, heads=40, kv_heads=40, hidden=13824, vocabulary=32000, sequence=4096)
MOE_SMALL = MoEConfig(replace(MOE_16B.base, layers=24, sequence=2048), experts=128, top_k=8, width=768)

BACKWARD, WHOLE = {"_bw": "backward"}, {"": "step"}

FAMILIES = (
    Recipe("llama1b_hsdp4x16", partial(llama_step, LLAMA_1B), Layout((("dp_replicate", 4), ("dp_shard", 16)))),
    Recipe("llama3b_fsdp256", partial(llama_step, LLAMA_3B), Layout((("dp_shard", 256),))),
    Recipe("llama13b_fsdp16_tp4", partial(llama_step, LLAMA_13B), Layout((("dp_shard", 16), ("tp", 4)))),
    Recipe(
        "llama8b_short_fsdp32_tp2",
        partial(llama_step, replace(LLAMA3_8B, sequence=2048)),
        Layout((("dp_shard", 32), ("tp", 2))),
        graphs=BACKWARD,
    ),
    Recipe("moe24_ep16", partial(moe_step, MOE_SMALL), expert_layout(4, 16), ATEN),
    Recipe(
        "deepseek10_ep16",
        partial(deepseek_step, replace(DEEPSEEK_16B, layers=10, batch=1)),
        expert_layout(2, 16),
        STEP,
        WHOLE,
    ),
    Recipe(
        "llama70b_fsdp64_tp8",
        partial(llama_step, replace(LLAMA3_8B, dim=8192, layers=40, heads=64, hidden=28672, vocabulary=131072)),
        Layout((("dp_shard", 64), ("tp", 8))),
        graphs=BACKWARD,
    ),
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="which families; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/families"), metavar="DIR")
    parser.add_argument("--list", action="store_true", help="only name them")
    options = parser.parse_args()
    lost = set(options.names) - {recipe.name for recipe in FAMILIES}
    if lost:
        parser.error(f"no family is called {', '.join(sorted(lost))}")
    options.out.mkdir(parents=True, exist_ok=True)
    for recipe in FAMILIES:
        if options.names and recipe.name not in options.names:
            continue
        if options.list:
            print("\n".join(recipe.files))
        else:
            write(recipe, list(recipe.files), options.out)


if __name__ == "__main__":
    main()
