"""What ncu measured: counters, stalls, rooflines, advice."""
