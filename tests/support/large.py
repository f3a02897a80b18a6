"""What is done for large reports, done for those of a few events."""

from kanalyze import frames
from kanalyze.analyses import _lookup


def as_if_large(patch):
    """Let a monkey patch take away how many rows make it worth while to go along with them, or to slice them."""
    for module, name, value in ((frames, "_WORTH_MERGING", 1), (frames, "_SLICE", 3), (_lookup, "_LONG", 1)):
        patch.setattr(module, name, value)
