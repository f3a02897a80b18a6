"""Kernels that could be one, and what torch.compile made."""
