"""The critical path: what the end of a window, and each operation, waited for. And replays with other durations."""
