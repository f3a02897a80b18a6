"""Slices: all events of a report on tracks in which they nest, for programs that draw timelines and stacks."""
