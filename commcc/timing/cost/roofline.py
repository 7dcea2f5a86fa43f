"""Time of an op on the compute stream by its FLOPs and its bytes, from a device's figures (a roofline).

    operation_price(load_device("h100"), operation)      # Price(ns=178_640, how='compute', latency_ns=2000)

    compute   ramp_us + FLOPs / (peak of the dtype * fraction that the family achieves)
    memory    bytes read and written / (bandwidth * fraction that a large copy achieves)
    kernel    kernels * kernel_us
    host      bytes between host and device / host bandwidth, and sync_us when the host waits for the result

The longest of the first three decides, and the host comes on top: Williams, Waterman and Patterson,
"Roofline" (2009), with a floor. ``ramp_us`` is how small matmuls fall short: filling and draining the
device costs the same for every size, so the rate halves where the FLOPs alone would take ``ramp_us``.

Limits: nothing of tiles, waves and layouts; caches count as nothing; what pointwise ops calculate is
free next to the bytes they move; every op has the device to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.timing.cost.types import Price

if TYPE_CHECKING:
    from commcc.timing.cost.device import Compute, Device
    from commcc.timing.cost.types import Operation

#: Where to look when a device states no peak for a dtype: every wider float, nearest first.
_WIDER = {
    "float4": ("float8", "float16", "bfloat16", "float32", "float64"),
    "float8": ("float16", "bfloat16", "float32", "float64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": ("float32",),
    "int4": ("int8", "float16", "float32"),
    "int8": ("float16", "float32"),
}
#: Dtypes that are computed as pairs or in the units of another one.
_COMPUTED_AS = {
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
    "uint8": "int8",
    "int16": "float32",
    "int32": "float32",
    "int64": "float64",
    "bool": "int8",
}


def operation_price(device: Device, operation: Operation) -> Price:
    """Time of one op; ``latency_ns`` is the time of its kernels, which it takes whatever its size."""
    floor = operation.kernels * device.compute.kernel_us
    moved = operation.read_bytes + operation.written_bytes
    memory = moved / (1e3 * device.memory.gb_per_s * device.memory.achievable)
    compute, note = _compute(device.compute, operation)
    host = operation.host_bytes / (1e3 * device.host.gb_per_s)
    host += device.host.sync_us if operation.host_sync else 0.0
    busy = max(compute, memory, floor)
    # On a tie the cause that people can act on is named, so a kernel floor comes last.
    how = "compute" if busy == compute and compute else "memory" if busy == memory and memory else "kernel"
    return Price(
        ns=round(1000 * (busy + host)),
        how="host" if host > busy else how,
        latency_ns=round(1000 * floor),
        note=note,
    )


def _compute(compute: Compute, operation: Operation) -> tuple[float, str | None]:
    """Microseconds of the FLOPs, and what had to be assumed."""
    if operation.flops is None:
        name = operation.op
        if operation.compute and any(tensor.numel is None for tensor in (*operation.inputs, *operation.outputs)):
            return 0.0, f"a size of {name} is known only at run time: priced by the bytes that are known; give --hint"
        if operation.compute and not operation.outputs:
            return 0.0, f"the shapes of {name} are not in the graph: priced as a kernel of the least size"
        return 0.0, f"no FLOP formula for {name}: priced by the bytes it moves" if operation.compute else None
    if not operation.flops:
        return 0.0, None
    kind = family(operation.op)
    peak, note = _peak(compute, _dtype(operation), kind)
    share = compute.attention_share if kind == "attention" and not operation.unmasked else 1.0
    rate = 1e6 * peak * compute.achievable[kind]
    return compute.ramp_us + operation.flops * share / rate, note


def family(op: str) -> str:
    """Family of a compute node by its name: what ``achievable`` of a device file is stated for."""
    name = op.rpartition(".")[2].lower()
    if "grouped_mm" in name:
        return "grouped_matmul"
    if "attention" in name or "flash_attn" in name:
        return "attention"
    return "convolution" if "conv" in name else "matmul"


def _dtype(operation: Operation) -> str:
    """Dtype that the op computes in: that of its first floating input, else of what it returns."""
    tensors = (*operation.inputs, *operation.outputs)
    floating = [tensor.dtype for tensor in tensors if tensor.dtype.startswith(("float", "bfloat", "complex"))]
    dtype = floating[0] if floating else tensors[0].dtype if tensors else "float32"
    dtype = _COMPUTED_AS.get(dtype, dtype)
    return next((short for short in ("float8", "float4") if dtype.startswith(short)), dtype)


def _peak(compute: Compute, dtype: str, kind: str) -> tuple[float, str | None]:
    """TFLOPS, by the device's choice for float32, else by the next wider float that it has."""
    chosen = compute.float32_convolution if kind == "convolution" else compute.float32_matmul
    wanted = chosen if dtype == "float32" else dtype
    if wanted in compute.peak_tflops:
        return compute.peak_tflops[wanted], None
    used = next((name for name in _WIDER.get(dtype, ()) if name in compute.peak_tflops), "float32")
    return compute.peak_tflops[used], f"the device states no peak for {dtype}: that of {used} is taken"
