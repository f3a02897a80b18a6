"""The critical path: what the end of a window waited for, back to its beginning."""
