"""What operations had to do, in FLOPs and bytes, and how far they are from what their GPU could do."""
