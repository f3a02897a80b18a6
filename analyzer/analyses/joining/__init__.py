"""One program in several reports: nsys, torch.profiler and ncu together."""
