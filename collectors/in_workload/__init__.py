"""What runs inside the workload's own Python, 3.9 or later, with the standard library and torch only.

The runner loads these files without their package, so that they import each other relatively.
"""
