"""Programs through Inductor and as recorded CUDA graphs, and whether the order is kept."""
