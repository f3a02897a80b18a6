"""Replay: the recording computed anew along its dependencies, with other durations."""
