"""Reductions, read one by one."""

from kanalyze.reduction.tables import load_each


def load(folder):
    """The reduction in a folder; raises what is wrong with it."""
    [(_, found)] = load_each([folder])
    if isinstance(found, Exception):
        raise found
    return found
