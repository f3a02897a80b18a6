"""What launches cost: latency, CUDA graphs, cold starts."""
