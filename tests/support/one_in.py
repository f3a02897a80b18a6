"""Of many similar cases of a test, few are quick: `@pytest.mark.one_in(3)` keeps every third."""

from collections import Counter

import pytest


def mark_most_slow(items):
    """Marks all collected cases of a test with `one_in(n)` as slow, but for the first and every nth after it."""
    seen = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is not None:
            of_test = (item.path, item.originalname)
            if seen[of_test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[of_test] += 1
