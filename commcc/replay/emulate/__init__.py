"""One process stands for all ranks: compute is real, communication takes the time that a cost model says.

    streams = make_streams(place)
    transport = Transport(prepared, layout, load_model("h100"), streams)
    transport.prepared                                      # the same steps, without process groups

- :mod:`commcc.replay.emulate.fills`: what a rank receives whose peers send what it sends
- :mod:`commcc.replay.emulate.streams`: queues next to the compute: threads on the CPU, streams of a CUDA device
- :mod:`commcc.replay.emulate.transport`: the steps of a program, with launches and waits on such streams, and how long
  each collective is to take and took
"""
