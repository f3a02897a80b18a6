"""Readers of torch.profiler traces (Chrome trace JSON)."""
