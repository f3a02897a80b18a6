"""Device operations with what belongs to each, and the window of each device; occupancy and waves of kernels."""
