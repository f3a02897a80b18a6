"""Activity of the units of a GPU, by its sampled counters."""
