"""Occupancy and waves of kernels."""
