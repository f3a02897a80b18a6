"""Tables for the terminal: the columns that fit, names that differ, sentences below their row."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.renderers.tables.frame import Choice, terminal

KERNEL = "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<float, float, MulFunctor<float>>>(int)"


def lines(frame, width, **choice):
    return terminal(frame, width, Choice(**choice)).splitlines()


def test_a_table_without_rows_says_so():
    frame = pl.DataFrame(schema={"count": pl.Int64, "name": pl.String})
    assert lines(frame, 80) == ["count  name", "(no rows)"]


FRAME = pl.DataFrame(
    {
        "device": [0, 0],
        "start_ns": [1_234_567_890, 2_345_678_901],
        "dur_ns": [1500, 2_500_000],
        "range": ["a" * 30 + "one", "a" * 30 + "two"],
        "name": [KERNEL, KERNEL.replace("Mul", "Add")],
    }
)


def test_what_is_equal_in_all_rows_is_hidden_first():
    assert lines(FRAME, 80) == [
        "      start_ns    dur_ns  name",
        "1234.567890 ms  1.500 µs  elementwise_kernel<128, 4, BinaryFunctor<MulFunctor>>",
        "2345.678901 ms  2.500 ms  elementwise_kernel<128, 4, BinaryFunctor<AddFunctor>>",
        "2 columns hidden: device, range",
    ]


def test_what_is_asked_for_first_is_shown_first():
    assert lines(FRAME, 80, first=("range",), how="ask") == [
        "      start_ns  range                         name",
        "1234.567890 ms  aaaaaaaaaaaaaa…aaaaaaaaaaone  elementwise<128, 4, Binary<Mul>>",
        "2345.678901 ms  aaaaaaaaaaaaaa…aaaaaaaaaatwo  elementwise<128, 4, Binary<Add>>",
        "2 columns hidden (ask): device, dur_ns",
    ]


def test_every_column_is_shown_with_the_names_last():
    frame = FRAME.select("name", "range", "start_ns", "device", "dur_ns")
    assert lines(frame, 60, every=True)[0].split() == ["range", "start_ns", "device", "dur_ns", "name"]
    assert len(lines(frame, 60, every=True)) == 3


def test_given_columns_keep_their_order_and_fit_if_they_can():
    assert lines(FRAME.select("name", "dur_ns"), 48, given=True) == [
        "name                                dur_ns",
        "elementwise<128, 4, Binary<Mul>>  1.500 µs",
        "elementwise<128, 4, Binary<Add>>  2.500 ms",
    ]


PROSE = pl.DataFrame(
    {
        "rule": ["one", "two"],
        "sentence": ["word " * 20 + "end.", "short."],
        "headline": ["brief", "brief"],
        "remedy": ["Do this.", ""],
    }
)


def test_sentences_are_wrapped_below_their_row():
    assert lines(PROSE, 60) == [
        "rule",
        "one",
        "    word word word word word word word word word word word",
        "    word word word word word word word word word end.",
        "    remedy: Do this.",
        "two",
        "    short.",
        "1 column hidden: headline",
    ]


def test_a_sentence_that_fits_stands_in_its_row():
    frame = PROSE.select("rule", "sentence")
    assert lines(frame.tail(1), 60) == ["rule  sentence", "two   short."]
    assert lines(frame, 60)[1:3] == ["one", "    word word word word word word word word word word word"]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
@given(data=st.data())
def test_lines_fit_and_texts_that_differ_look_different(width, data):
    """Whatever columns there are, and however long their texts: times whole, no two names alike."""
    rows = data.draw(st.integers(1, 5))
    letters = st.text("abc:/ ", min_size=1, max_size=70).map(str.strip).filter(bool)

    def column(values):
        return data.draw(st.lists(values, min_size=rows, max_size=rows))

    frame = pl.DataFrame(
        {f"n{number}_ns": column(st.integers(0, 10**12)) for number in range(data.draw(st.integers(0, 6)))}
        | {name: column(letters) for name in data.draw(st.sets(st.sampled_from(["range", "api", "path"])))}
        | {"name": column(letters)}
    )
    head, *shown = lines(frame, width)
    assert [line for line in (head, *shown) if len(line) > width] == []
    begin = head.rindex("name")
    names = dict(zip(frame["name"].to_list(), (line[begin:] for line in shown), strict=False))
    assert len({*names.values()}) == len(names)
    for name in head.split():
        if name.endswith("_ns"):
            told = terminal(frame.select(name), 999, Choice(given=True)).split("\n")[1:-1]
            assert [text.strip() in line for text, line in zip(told, shown, strict=False)] == [True] * rows
