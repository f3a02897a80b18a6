"""Lines of source and what warps did there: summed by hand of the instructions that were made of each."""

from dataclasses import replace

import pytest

from kanalyze.analyses.counters.hot_lines import hot_lines
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import kernel, report
from support.counters import measured

#: What an instruction says of itself.
FIGURES = ("samples", "stalled_samples", "instructions", "thread_instructions", "sectors", "ideal_sectors")


def instruction(number, file, line, *figures, event_id=0, live=None):
    """One instruction of a line, with the first of :data:`FIGURES`; the others are null."""
    told = dict(zip(FIGURES, figures, strict=False))
    where = {"event_id": event_id, "number": number, "sass": "NOP", "file": file, "line": line}
    return {**where, **told, "live_registers": live}


def of_ncu(*instructions, files=(), names=("f", "g")):
    kernels = [kernel(0, 1, name=name) for name in names]
    sources = [{"file": file, "text": text} for file, text in files]
    made = report(kernels, kinds=("kernel",), instructions=instructions, source_files=sources)
    return replace(made, meta=replace(made.meta, tool="ncu"))


def rows(*instructions, columns=("event_id", "file", "line", "samples", "share"), **how):
    return hot_lines(of_ncu(*instructions, **how)).select(columns).rows()


def test_every_column_of_a_line_of_two_instructions():
    made = [
        instruction(0, "a.cu", 2, 5, 3, 10, 320, 40, 8, live=20),
        instruction(1, "a.cu", 2, 1, 1, 10, 160, 0, 2, live=24),
        instruction(2, "a.cu", 1, 2),
    ]
    row, _ = hot_lines(of_ncu(*made, files=[("a.cu", "one\ntwo\nthree")])).to_dicts()
    assert row == {
        "event_id": 0,
        "name": "f",
        "file": "a.cu",
        "line": 2,
        "samples": 6,
        "share": 0.75,
        "stalled_samples": 4,
        "sass_count": 2,
        "instructions": 20,
        "thread_instructions": 480,
        "threads_per_instruction": 24.0,
        "sectors": 40,
        "ideal_sectors": 10,
        "ideal_share": 0.25,
        "live_registers": 24,
        "text": "two",
    }


def test_lines_with_most_samples_first_kernel_by_kernel():
    made = [
        *(instruction(0, "b.cu", 1, 1), instruction(1, "a.cu", 9, 1), instruction(2, "a.cu", 3, 1)),
        *(instruction(3, "a.cu", 4, 7), instruction(0, "a.cu", 3, 40, event_id=1)),
    ]
    assert rows(*made) == [
        (0, "a.cu", 4, 7, 0.7),
        (0, "a.cu", 3, 1, 0.1),
        (0, "a.cu", 9, 1, 0.1),
        (0, "b.cu", 1, 1, 0.1),
        (1, "a.cu", 3, 40, 1.0),
    ]


def test_instructions_of_no_known_line_are_one_row_of_their_kernel():
    made = [instruction(0, None, None, 3), instruction(1, None, None, 4), instruction(0, None, None, 1, event_id=1)]
    columns = ("event_id", "name", "file", "line", "samples", "sass_count", "text")
    assert rows(*made, columns=columns, files=[("a.cu", "one")]) == [
        (0, "f", None, None, 7, 2, None),
        (1, "g", None, None, 1, 1, None),
    ]


def test_what_was_not_counted_is_null_and_what_was_counted_as_nothing_is_0():
    columns = ("samples", "share", "instructions", "threads_per_instruction", "sectors", "ideal_share")
    nothing = instruction(0, "a.cu", 1)
    assert rows(nothing, columns=columns) == [(None, None, None, None, None, None)]
    zero = instruction(0, "a.cu", 1, 0, 0, 0, 0, 0, 0)
    assert rows(zero, columns=columns) == [(0, None, 0, None, 0, None)]
    assert rows(nothing, instruction(1, "a.cu", 1, 2, 0, 3, 96), columns=columns) == [(2, 1.0, 3, 32.0, None, None)]


def test_a_line_has_the_text_of_its_own_file():
    made = [instruction(0, "a.cu", 1, 3), instruction(1, "b.cu", 1, 2), instruction(2, "b.cu", 3, 1)]
    files = [("b.cu", "of b\n\n"), ("a.cu", "of a")]
    assert rows(*made, columns=("file", "line", "text"), files=files) == [
        ("a.cu", 1, "of a"),
        ("b.cu", 1, "of b"),
        ("b.cu", 3, ""),
    ]
    assert rows(*made[:1], columns=("text",)) == [(None,)]


def test_a_kernel_without_a_name_keeps_its_lines():
    assert rows(instruction(0, "a.cu", 1, 3), columns=("name", "line"), names=(None,)) == [(None, 1)]


def test_no_instructions_are_an_empty_table_and_no_counters_are_an_error():
    assert hot_lines(measured({})).is_empty()
    with pytest.raises(CannotTellError, match="cannot tell hot_lines, because the report has no counters"):
        hot_lines(report([kernel(0, 10)]))
    with pytest.raises(CannotTellError, match="cannot tell hot_lines of a window"):
        hot_lines(of_ncu(instruction(0, "a.cu", 1, 3)), window=Window(0, 10))
