"""Text tables: aligned, fitted to a width, the last column cut or its names and paths shortened."""

import pytest
from hypothesis import given, strategies as st

from kanalyze.outlets import short_paths
from kanalyze.renderers.page import Column, Grid, distinct, operation
from kanalyze.renderers.page.time import launch_shape

# Text tables: aligned, fitted to a width, the last column cut or its names shortened.

HEADS = (Column("time"), Column("median", wide=True), Column("count", spare=True), Column("name", left=True))
ROWS = [("1 ms", "5 µs", "1", "short"), ("22 ms", "66 µs", "10", "a name of thirty-six characters here")]


def lines(width, **keys):
    head, rows = Grid(HEADS, ROWS, **keys).lines(width)
    return [head, *rows]


def test_numbers_stand_right_words_left_and_what_is_cut_ends_where_the_line_does():
    assert lines(80) == [
        " time  median  count  name",
        " 1 ms    5 µs      1  short",
        "22 ms   66 µs     10  a name of thirty-six characters here",
    ]
    told = lines(56, cut=True)[1:]
    assert told == [" 1 ms    5 µs      1  short", "22 ms   66 µs     10  a name of thirty-six characters h…"]
    assert lines(25, cut=True) == [" time  name", " 1 ms  short", "22 ms  a name of thirty-…"]  # without spare columns


def test_what_is_broken_goes_on_below_from_its_arrow():
    rows = [("1", "short → new"), ("2", "twenty letters long → quite other")]
    grid = Grid((Column("count"), Column("kernel", left=True)), rows)
    shown = grid._replace(cut=True, broken=True).lines(29)
    assert shown == ("count  kernel", ["    1  short → new", "    2  twenty letters long", "       → quite other"])
    expected = ("count  kernel", ["    1  short → new", "    2  twenty letters…", "       → quite other"])
    assert grid._replace(cut=True, broken=True).lines(22) == expected
    assert grid._replace(cut=True).lines(29)[1] == ["    1  short → new", "    2  twenty letters long →…"]


@pytest.mark.parametrize("keys", [{"cut": True}, {"named": True}, {}])
def test_a_table_without_rows_has_its_heading(keys):
    assert Grid(HEADS, [], **keys).lines(80) == ("time  median  count  name", [])


def test_memory_operations_lose_their_brackets():
    assert [operation(name) for name in ("[CUDA memset]", "f[1]")] == ["memset", "f[1]"]


def test_texts_that_are_cut_do_not_look_alike():
    texts = ["autograd::evaluate_function: AddBackward", "autograd::evaluate_function: MulBackward", "forward"]
    _, lines = Grid((Column("range", left=True),), [(text,) for text in texts], cut=True).lines(24)
    assert lines == ["autograd::e…ddBackward", "autograd::e…ulBackward", "forward"]
    _, lines = Grid((Column("range", left=True),), [(texts[0],), (texts[2],)], cut=True).lines(24)
    assert lines[0] == "autograd::evaluate_fu…"


@pytest.mark.parametrize(
    ("block", "told"), [((8, 1, 1), "grid 4096 × block 8"), ((32, 1, 8), "grid 4096 × block 32,1,8"), (None, "")]
)
def test_a_launch_shape_is_without_trailing_ones(block, told):
    sides = dict(zip(("block_x", "block_y", "block_z"), block or (None,) * 3, strict=True))
    row = {"grid_x": 4096 if block else None, "grid_y": 1, "grid_z": 1, **sides}
    assert launch_shape(row, "grid {} × block {}") == told


@given(st.lists(st.text("ab/", max_size=40), max_size=12), st.integers(8, 40))
def test_texts_fit_and_those_that_differ_still_do(texts, width):
    found = distinct(texts, width)
    assert all(len(text) <= width for text in found)
    assert len({*found}) == len({*texts})
    assert all(new == old for new, old in zip(found, texts, strict=True) if len(old) <= width)
    assert dict(zip(texts, found, strict=True)) == dict(zip(reversed(texts), reversed(found), strict=True))


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["a/b/nsys.sqlite"], ["nsys.sqlite"]),
        (["one/nsys.sqlite", "two/nsys.sqlite"], ["one/nsys.sqlite", "two/nsys.sqlite"]),
        (["x/one/n.sqlite", "x/two/n.sqlite", "other.json"], ["one/n.sqlite", "two/n.sqlite", "other.json"]),
        (["/n.sqlite", "n.sqlite", "n.sqlite"], ["/n.sqlite", "n.sqlite", "n.sqlite"]),
        ([], []),
    ],
)
def test_paths_keep_the_end_that_tells_them_apart(paths, short):
    assert short_paths(paths) == short
