"""NVTX ranges, steps and their instances."""
