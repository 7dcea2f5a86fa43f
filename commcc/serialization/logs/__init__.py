"""Graphs in what PyTorch logs: TORCH_LOGS output, TORCH_TRACE folders, tlparse pages, repro files."""
