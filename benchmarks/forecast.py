"""How well a profile of one graph predicts what a pass gains: measured and predicted ratios of step times.

    python benchmarks/forecast.py [--repeat R] [--passes TEXT] [SAMPLE...]

For every sample graph: a profile is made of the graph as it is, with ``commcc profile``; the graph is rewritten; both
are timed in turns, on ranks of this machine; and both are predicted, with the device alone and with the profile. The
rewritten graph has collectives of sizes that the profile has not seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from commcc.passes.options import parse_pipeline
from commcc.replay.bench.benchmark import bench
from commcc.replay.bench.demo import demo_pair
from commcc.replay.bench.graph_set import BenchSettings
from commcc.replay.bench.profiling import profile
from commcc.run import pipeline
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.predict import predict

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
DEFAULT = ("demo", "tiny_llama_fsdp2_bw", "tiny_llama_fsdp2_fw", "tiny_llama_ddp_bw", "tiny_moe_ep2_fw")
PASSES = "bucket{groups=all},reorder"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", nargs="*", default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--passes", default=PASSES)
    given = parser.parse_args()
    print(f"{'':22} {'step, ms':>20} {'ratio':>22} {'predicted: device':>18} {'with profile':>13}")
    for name in given.samples:
        one(name, given)


def one(name: str, given: argparse.Namespace) -> None:
    """A line about one sample."""
    before = demo_pair(2)[0] if name == "demo" else load(next(SAMPLES.glob(f"{name}.fx.txt*")))
    plain = load_model("laptop-cpu,fused=no" if given.device == "cpu" else "h100,fused=no")
    after = pipeline.run(before, parse_pipeline(given.passes), model=plain).program
    settings = BenchSettings(device=given.device, repeat=given.repeat, recorded=5)
    profiled = profile([(name, before)], settings)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "costs.yaml"
        file.write_text(profiled.text, encoding="utf-8")
        calibrated = load_model(profiled.cost.replace("{}", str(file)))
    found = bench([("before", before), ("after", after)], BenchSettings(device=given.device, repeat=given.repeat))
    times, compared = found.graphs, found.others[0].times
    ratios = []
    for model in (plain, calibrated):
        old, new = (predict(graph.index, model).timeline.step_ns for graph in times)
        ratios.append(f"{new / old:.3f}")
    step = f"{times[0].wall.median / 1e6:.2f} -> {times[1].wall.median / 1e6:.2f}"
    interval = f"{compared.ratio:.3f} ({compared.low:.3f} to {compared.high:.3f})"
    print(f"{name:22} {step:>20} {interval:>22} {ratios[0]:>18} {ratios[1]:>13}", flush=True)


if __name__ == "__main__":
    main()
