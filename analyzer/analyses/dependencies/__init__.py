"""What each device operation and each CUDA call had to wait for: the graph of the critical path and of replays."""
