"""Texts and paths made short: within the width, and different where they were."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.outlets import short_paths
from kanalyze.renderers.text.grid import distinct

TEXTS = st.lists(st.text("ab/", max_size=40), max_size=12)


@given(TEXTS, st.integers(8, 40))
def test_texts_fit_and_those_that_differ_still_do(texts, width):
    found = distinct(texts, width)
    assert all(len(text) <= width for text in found)
    assert len({*found}) == len({*texts})
    assert all(new == old for new, old in zip(found, texts, strict=True) if len(old) <= width)
    assert dict(zip(texts, found, strict=True)) == dict(zip(reversed(texts), reversed(found), strict=True))


def test_the_middle_is_left_out_unless_it_is_what_differs():
    assert distinct(["autograd::engine::evaluate_function"], 20) == ["autograd::…_function"]
    one, other = "encoder" + "." * 30 + "1", "encoder" + "." * 30 + "2"
    assert distinct([one, other], 12) == ["encode…....1", "encode…....2"]
    one, other = "a" * 20 + "1" + "b" * 20, "a" * 20 + "2" + "b" * 20
    assert len({*distinct([one, other], 12)}) == 2


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["a/b/nsys.sqlite"], ["nsys.sqlite"]),
        (["one/nsys.sqlite", "two/nsys.sqlite"], ["one/nsys.sqlite", "two/nsys.sqlite"]),
        (["x/one/n.sqlite", "x/two/n.sqlite", "other.json"], ["one/n.sqlite", "two/n.sqlite", "other.json"]),
        (["n.sqlite", "a/n.sqlite"], ["n.sqlite", "a/n.sqlite"]),
        (["/n.sqlite", "n.sqlite"], ["/n.sqlite", "n.sqlite"]),
        (["a", "a"], ["a", "a"]),
        ([], []),
    ],
)
def test_paths_keep_the_end_that_tells_them_apart(paths, short):
    assert short_paths(paths) == short


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), max_size=6))
def test_short_paths_differ_where_paths_do(paths):
    found = short_paths(paths)
    assert len({*found}) == len({*paths})
    for short, path in zip(found, paths, strict=True):
        assert PurePosixPath(path).parts[-len(PurePosixPath(short).parts) :] == PurePosixPath(short).parts
