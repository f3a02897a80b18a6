"""Shared by all passes: workload, options, programs, processes, files."""
