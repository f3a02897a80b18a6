"""Launch costs: latency, CUDA graphs, cold starts."""
