"""Operators of torch: their events, their call tree, and key_averages."""
