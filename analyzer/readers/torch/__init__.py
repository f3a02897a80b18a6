"""Traces of torch.profiler."""
