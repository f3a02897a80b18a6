"""What is done for large reports, done for those of a few events."""

from kanalyze import columns
from kanalyze.analyses.idle import _idle_parts


def as_if_large(patch):
    """Let a monkey patch have slices of three rows."""
    patch.setattr(columns, "_SLICE", 3)


def in_batches(patch, rows):
    """Let a monkey patch have a batch of idle time take so many rows at a time.

    If two, all else is done as for large reports.
    """
    patch.setattr(_idle_parts, "FEWEST", rows)
    patch.setattr(_idle_parts, "MOST", 1 << 20)
    if rows == 2:
        as_if_large(patch)
