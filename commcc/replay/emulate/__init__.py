"""One process stands for all ranks: compute is real, communication takes the time that a cost model says.

    lanes = make_lanes(place)
    transport = Transport(prepared, layout, load_model("h100"), lanes)
    steps = tuple(map(transport.step, prepared.steps))      # the same steps, without process groups

- :mod:`commcc.replay.emulate.fills`: what a rank receives whose peers send what it sends
- :mod:`commcc.replay.emulate.lanes`: queues beside the compute, as threads on the CPU
- :mod:`commcc.replay.emulate.cuda_lanes`: the same as streams of a CUDA device
- :mod:`commcc.replay.emulate.durations`: how long each collective takes
- :mod:`commcc.replay.emulate.crossing`: what communication took, beside what it was to take
- :mod:`commcc.replay.emulate.preflight`: what is refused before
- :mod:`commcc.replay.emulate.transport`: the steps of a program, with launches and waits on lanes
"""
