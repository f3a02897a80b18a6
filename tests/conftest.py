"""Options and fixtures of all tests.

hypothesis draws the same examples in every run, so that a change that fails is the change's doing. The quick tests draw
few, and .ci/run draws `more` of them once, with the slow tests, and none where only Python or a library is another.
`pytest --hypothesis-profile=longer -o timeout=0` draws others, many more of them, and `hunt` far more.
`pytest --update-gold` writes tests/gold anew instead of comparing with it; look at the difference before you commit it.
"""

import gc
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine

settings.register_profile("quick", deadline=None, max_examples=12, derandomize=True)
settings.register_profile("more", settings.get_profile("quick"), max_examples=24)
settings.register_profile("longer", deadline=None, max_examples=500)
settings.register_profile("hunt", deadline=None, max_examples=20_000)
# whether something fails, and not how simply: tests/mutation asks no more
settings.register_profile("mutants", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("quick")

# Of a property that fails, the simplest example is looked for no longer than this, rather than for five minutes.
engine.MAX_SHRINKING_SECONDS = 45


def pytest_addoption(parser):
    parser.addoption("--update-gold", action="store_true", help="write what is rendered to tests/gold")


#: Of a test with more cases than these, the first and every fourth one are quick where `one_in` says nothing else.
MANY_CASES, ONE_IN = 5, 4


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks cases of a test with many, or with `one_in(n)`, as slow, but for the first and every nth."""
    tests = [(item.path, item.originalname) for item in items]
    cases, seen = Counter(tests), Counter()
    for item, test in zip(items, tests, strict=True):
        marker = item.get_closest_marker("one_in")
        each = marker.args[0] if marker else ONE_IN if cases[test] > MANY_CASES else 1
        if seen[test] % each:
            item.add_marker(pytest.mark.slow)
        seen[test] += 1


def pytest_collection_finish():
    """Keeps thousands of tests, which stay, out of what Python looks through for garbage again and again."""
    gc.freeze()


@pytest.fixture
def gold(request):
    """A check that a text is that of a file in tests/gold, without its commands, which name the checkout's folder."""

    def check(text, name):
        path, text = Path(__file__).parent / "gold" / name, re.sub(r"\nMore: (?:.+\n)+", "\nMore: …\n", text)
        if request.config.getoption("--update-gold"):
            path.write_text(text, encoding="utf-8", newline="\n")
        assert text == path.read_text(encoding="utf-8")

    return check
