# ruff: noqa: SLF001 - patterns are private
"""Patterns that texts of a report meet: four times the text takes no more than its share of time."""

import re
import time

import pytest

from kanalyze.readers.ncu import module as ncu_module
from kanalyze.readers.torch import columns as trace_loose
from kanalyze.redact import Removed
from kanalyze.redact.names import Names
from kanalyze.redact.texts import Texts
from kanalyze.renderers import page
from kanalyze.renderers.page import kernel_names

TRIED = [
    *((page._FOLDERS, "a"), (page._FOLDERS, "a/"), (page._AROUND, " in a")),
    *((page._AROUND, " in a.py(1): "), (re.compile(kernel_names._PHRASE, re.DOTALL), " on ")),
    *((page.QUANTITY, "1 "), (ncu_module._LINK, "@url:"), (ncu_module._LINK, "@url:\\\\")),
    *((trace_loose._NAME, b"\n"), (trace_loose._NAME, b'\n"name": "a",')),
    *((trace_loose._NAME, b'\n"name": "a",\n\n\n\n'), (trace_loose._NAME, b'", "pid": 1, "tid": ')),
    *((trace_loose._NO_NUMBER, b'"\\'), (trace_loose._HALF, b"\\ud8"), (trace_loose._ESCAPE, b"\\")),
]
REDACTED = (
    *("-", "token-", "--pass ", "eyJ-", "eyJ_", "+a", "a+", "a.", "@a", "a@a.", "/a", "\"'", "-----BEGIN ", "ghp_"),
    *("key=", '\\"', "--", "1.", "a:", "::", " "),
)


def cost(work, text):
    def once():
        begun = time.process_time()
        work(text)
        return time.process_time() - begun

    return min(once() for _ in range(3))


def assert_no_more_than_its_share(work, piece, size):
    size //= len(piece)
    assert cost(work, piece * 4 * size) < 10 * max(cost(work, piece * size), 0.002)


@pytest.mark.parametrize(("pattern", "piece"), TRIED, ids=[f"{of.pattern[:20]!r} {piece!r}" for of, piece in TRIED])
def test_four_times_the_text_takes_no_more_than_its_share(pattern, piece):
    assert_no_more_than_its_share(lambda text: pattern.sub(text[:0], text), piece, 24_000)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("piece", REDACTED)
def test_redaction_of_four_times_the_text_takes_no_more_than_its_share(piece):
    texts = Texts(Names(), Removed())
    assert_no_more_than_its_share(lambda text: (texts.free(text), texts.name(text), Names().text(text)), piece, 40_000)


def test_backslashes_without_an_end_are_no_exponent():
    assert ncu_module._LINK.sub("", "@url:" + "\\" * 60) == "@url:" + "\\" * 60
