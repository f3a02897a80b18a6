"""Dependencies of device operations and CUDA calls: the graph of the critical path and of replays."""
