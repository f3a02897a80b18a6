"""Fusible chains of kernels, and the output of torch.compile."""
