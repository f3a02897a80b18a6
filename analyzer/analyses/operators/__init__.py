"""Operators of torch: their events, call tree, key_averages and chains that could fuse; names of host time by them."""
