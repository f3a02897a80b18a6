"""Tables for reading: cells with units, columns that fit a width, names that differ, sentences below their row."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.renderers.tables.frame import Choice, joined, laid_out, terminal

LONG = "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<float, float, MulFunctor<float>>>(int)"


def test_the_long_column_stands_last_and_whole_and_others_are_shortened():
    grid = laid_out(pl.DataFrame({"name": [LONG], "count": [1], "total_ns": [1500], "ended_by": [LONG]}))
    assert [head.title for head in grid.heads] == ["count", "total_ns", "ended_by", "name"]
    (row,) = grid.rows
    assert (*row[:2], row[3], grid.named) == ("1", "1.500 µs", LONG, True)
    assert row[2].startswith("elementwise")
    assert len(row[2]) <= 48


@pytest.mark.parametrize("after", [" on stream 7", " on another stream", " on GPU 1 stream 7", " on process 12"])
def test_a_name_within_a_phrase_is_shortened_alone(after):
    ((_, shown),) = laid_out(pl.DataFrame({"waited_for": [f"after {LONG}{after}"], "ns": [1]})).rows
    assert shown.startswith("after ")
    assert shown.endswith(after)
    assert len(shown) <= 48 + len(f"after {after}")


QUANTITIES = {
    "start_ns": (1_234_567, "1.234567 ms"), "dur_ns": (1_234_567, "1.235 ms"), "size_bytes": (2048, "2.048 kB"),
    "bandwidth_bytes_per_s": (3e9, "3.000 GB/s"), "clock_hz": (1_980_000_000, "1980 MHz"),
    "busy_share": (0.25, "25.0 %"), "count": (12_345, "12,345"), "event_id": (12_345, "12345"), "odd": (True, "yes"),
    "waves": (1.25, "1.25"), "stream": (None, ""),
}  # fmt: skip


def test_quantities_are_in_the_unit_that_suits_them():
    frame = pl.DataFrame({name: [value] for name, (value, _) in QUANTITIES.items()})
    assert laid_out(frame).rows == [tuple(text for _, text in QUANTITIES.values())]


def test_the_tables_of_several_windows_are_one():
    one, two = pl.DataFrame({"ns": [1, 2]}), pl.DataFrame({"ns": [3]})
    assert joined({None: one}) is one
    found = joined({"step#1": one, "step#2": two})
    assert found.rows() == [("step#1", 1), ("step#1", 2), ("step#2", 3)]
    assert found.columns == ["instance", "ns"]


def lines(frame, width, **choice):
    return terminal(frame, width, Choice(**choice)).splitlines()


TIMES = {"start_ns": [1_234_567_890, 2_345_678_901], "dur_ns": [1500, 2_500_000]}
NAMES = {"range": ["a" * 30 + "one", "a" * 30 + "two"], "name": [LONG, LONG.replace("Mul", "Add")]}
FRAME = pl.DataFrame({"device": [0, 0], **TIMES, **NAMES})


def test_what_is_equal_in_all_rows_is_hidden_first():
    assert lines(FRAME, 80) == [
        "     start_ns    dur_ns  name",
        "1.234567890 s  1.500 µs  elementwise_kernel<128, 4, BinaryFunctor<MulFunctor>>",
        "2.345678901 s  2.500 ms  elementwise_kernel<128, 4, BinaryFunctor<AddFunctor>>",
        "2 columns hidden: device, range",
    ]


def test_what_is_asked_for_first_is_shown_first():
    assert lines(FRAME, 80, first=("range",), how="ask")[1:] == [
        "1.234567890 s  aaaaaaaaaaaaaa…aaaaaaaaaaone  elementwise<128, 4, Binary<Mul>>",
        "2.345678901 s  aaaaaaaaaaaaaa…aaaaaaaaaatwo  elementwise<128, 4, Binary<Add>>",
        "2 columns hidden (ask): device, dur_ns",
    ]


def test_names_get_shorter_before_a_first_choice_is_hidden_and_zeros_and_equal_texts_are_none():
    frame = FRAME.with_columns(dur_ns=pl.lit(0), call=pl.lit("launch"), total_ns=pl.lit(5), share=pl.lit(0.5))
    found = lines(frame, 80, first=("call", "total_ns", "share", "dur_ns", "range", "start_ns"))
    assert found[0].split() == ["start_ns", "range", "total_ns", "share", "name"]
    assert found[-1] == "3 columns hidden: device, dur_ns, call"
    assert "over_ns" in lines(frame.with_columns(over_ns=pl.lit(value=False)), 200)[0]  # no number, though of a unit


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


PROSE = pl.DataFrame({"rule": ["one", "two"], "sentence": ["word " * 20 + "end.", "short."]}).with_columns(
    headline=pl.lit("brief"), remedy=pl.Series(["Do this.", ""])
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
