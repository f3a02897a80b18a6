"""What is done for large reports, done for those of a few events."""

from kanalyze import frames
from kanalyze.analyses.idle import _attribution
from kanalyze.analyses.shared import cut, lookup, thread_lanes


def as_if_large(patch):
    """Let a monkey patch take away how many rows make it worth while to go along with them, or to slice them."""
    for module, name, value in ((frames, "_WORTH_MERGING", 1), (frames, "_SLICE", 3), (lookup, "_LONG", 1)):
        patch.setattr(module, name, value)


def in_batches(patch, rows):
    """Let a monkey patch have the walk take so many rows at a time.

    If two, all else is done as for large reports; if three, every thread has a line of its own, as in reports whose
    times lie far apart.
    """
    patch.setattr(_attribution, "BATCH", rows)
    if rows == 2:
        as_if_large(patch)
    if rows == 3:
        patch.setattr(thread_lanes, "_LONGEST", 0)
        patch.setattr(cut, "_MANY", 0)
