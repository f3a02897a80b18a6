"""Operators of torch: their events, their call tree, key_averages."""
