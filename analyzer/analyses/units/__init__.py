"""What the units of a GPU did, by its sampled counters."""
