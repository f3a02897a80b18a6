"""The program without its profiler: by runs of a capture without one, or by estimate."""
