"""Code that runs inside the workload's Python, 3.9 or later; uses only the standard library and torch.

The runner loads these files without their package, so that they import each other relatively.
"""
