"""Rules for texts: what is removed, and its replacement."""


def words(text: str) -> frozenset[str]:
    """The words of `text`, as lists of words are written."""
    return frozenset(text.split())
