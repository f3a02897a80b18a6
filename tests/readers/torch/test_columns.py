"""A piece of a trace becomes columns: exact times, odd numbers, every category, and what the counts say."""

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from kanalyze.readers.torch import events as of
from kanalyze.readers.torch.columns import Decoder
from kanalyze.readers.torch.events import MISSING, number
from kanalyze.readers.torch.frames import frames_of
from kanalyze.readers.torch.pieces import Part
from support.made_traces import decimals, dumps, x


def nanoseconds(text: str) -> list[tuple[int, int | None]]:
    """Start and duration of the operators in a piece, the first one of its decoder."""
    decoder = Decoder()
    frames = frames_of([Part(decoder.columns(text.encode()), decoder.texts.known, b"")])
    return frames.events["Op"].select("start_ns", "dur_ns").rows()


def piece(*events) -> str:
    return ", ".join(map(dumps, events))


NEAR_LIMITS = st.builds(
    lambda limit, off: Decimal(limit) + Decimal(off).scaleb(-3),
    st.sampled_from([0, 1 << 42, 1 << 43, -(1 << 43), 1 << 52, 1_700_000_000_000_000]),
    st.integers(-3000, 3000),
)
TIMES = decimals(wide=True) | NEAR_LIMITS


@given(times=st.lists(st.tuples(TIMES, st.none() | decimals() | TIMES), min_size=1, max_size=6), odd=st.booleans())
def test_times_are_exact_to_the_nanosecond(times, odd):
    events = [x("cpu_op", "a", start, length) for start, length in times]
    others = [x("of another tool", "b", 1, 1)] if odd else []
    expected = [(int(start * 1000), None if length is None else int(length * 1000)) for start, length in times]
    assert sorted(nanoseconds(piece(*events, *others)), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_length_that_a_float_would_round_is_exact_beside_times_of_an_epoch(sign):
    written = f'{{"cat": "cpu_op", "ts": 1700000000000000.001, "dur": {sign}8796093022208.0009}}'
    assert nanoseconds(written) == [(1_700_000_000_000_000_001, int(f"{sign}8796093022208001"))]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *(("1e3", 1_000_000), ("1.5e3", 1_500_000), ("15e-1", 1500), ("-0.001", -1), ('"12.5"', 12_500)),
        ("1.712195495941799906e15", 1_712_195_495_941_799_906),
    ],
)
def test_times_are_read_however_they_are_written(written, expected):
    assert nanoseconds(f'{{"cat": "cpu_op", "ts": {written}}}') == [(expected, None)]


@pytest.mark.parametrize(
    "written",
    [
        "1e400",
        "1e300",
        "-1e300",
        "4611686018427387.904",
        "4611686018427388",
        '"NaN"',
        '"inf"',
        "true",
        "[]",
        '"9e99999999"',
    ],
)
def test_what_is_no_time_is_counted(written):
    found = Decoder().columns(f'{{"cat": "cpu_op", "ts": {written}}}, {{"cat": "cpu_op", "ts": 5}}'.encode())
    assert dict(found.counts) == {"entries": 2, "no time": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((5, 5), (-5, -5), ("5", 5), (" 5 ", 5), ("stream 7", 7), ("0x7f", 127), ("0X7F", 127)),
        ((1 << 63) - 1, (1 << 63) - 1),
        *((odd, MISSING) for odd in (1 << 63, str(1 << 63), "9" * 5000, "seven", "", "\u0665", "1_0", None)),
    ],
)
def test_numbers_of_64_bits_and_nothing_else(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize("category", of.KIND_OF)
def test_every_category_is_decoded_by_its_type_as_it_is_of_any(category):
    event = x(category, "a", 1, 2, {"correlation": 3, "External id": 4, "device": 0, "Input Dims": [[2]]})
    # beside an event of no kind, a piece is decoded as of any
    each = [
        (decoder, decoder.columns(piece(*more, event).encode()))
        for decoder, more in ((Decoder(), ()), (Decoder(), (x("nothing", "b", 0, 0),)))
    ]
    typed, loose = (frames_of([Part(columns, decoder.texts.known, b"")]) for decoder, columns in each)
    assert {kind: frame.to_dicts() for kind, frame in typed.events.items()} == {
        kind: frame.to_dicts() for kind, frame in loose.events.items()
    }
    assert {*loose.counts} - {*typed.counts} == {"category nothing"}
