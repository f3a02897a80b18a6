"""Capture folders written by `kanalyze collect`."""
