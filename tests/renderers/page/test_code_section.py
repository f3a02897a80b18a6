"""WHERE IN YOUR CODE: lines that sum to the step with all that is elsewhere, in text that does nothing."""

import re

import pytest

from kanalyze.analyses.page.overview_page import overview
from kanalyze.renderers.formats import json, markdown, terminal
from kanalyze.renderers.page import Look, page_of_any
from support.build import call, kernel, nvtx, report

US = 1_000
STEP = 2_000 * US


def looped(places, *, steps=10):
    """Steps of 2 ms with a kernel for each place (file, line, text), in which equal parts of the step lie."""
    events, lines, part = [], [], STEP // len(places)
    for step in range(steps):
        events.append(nvtx("step", step * STEP, (step + 1) * STEP - 10))
        for at, (file, number, text) in enumerate(places):
            start, key = step * STEP + at * part, step * len(places) + at + 1
            events.append(call("cudaLaunchKernel", start + 1 * US, start + 3 * US, correlation=key))
            events.append(kernel(start + 5 * US, start + 5 * US + part // 2, correlation=key))
            place = {"file": file, "line": number, "function": "forward", "text": text}
            lines.append({"process_id": 1, "thread_id": 1, "start_ns": start, "dur_ns": part} | place)
    return overview(report(events, source_lines=lines))


def section(found, top=None):
    return next((one for one in page_of_any(found, top).sections if one.title == "WHERE IN YOUR CODE"), None)


PLACES = [(f"layers/model_{number}.py", number, f"x = {number}") for number in range(1, 9)]


def test_the_rows_sum_to_the_step():
    found = section(looped(PLACES))
    rows = found.grid.rows
    assert found.remark == "5 of 8 lines; ms per step"
    assert rows[-1][-2:] == ("elsewhere", "")
    assert [head.title for head in found.grid.heads] == ["time", "host", "GPU work", "launch", "line", "source"]
    assert sum(round(1000 * float(row[0])) for row in rows) == 2_000
    for row in rows:
        assert abs(float(row[0]) - sum(map(float, row[1:-2]))) < 0.003


def test_a_line_with_less_than_half_a_hundredth_has_no_row():
    shares = section(looped([("a.py", 1, "x"), *[("a.py", 2, "y")] * 220]))
    assert [row[-2] for row in shares.grid.rows] == ["a.py:2", "elsewhere"]


def test_where_no_lines_are_known_there_is_no_section():
    events = [
        one
        for at in range(0, 10 * STEP, STEP)
        for one in (
            nvtx("step", at, at + STEP - 10),
            call("cudaLaunchKernel", at + US, at + 2 * US, correlation=at + 1),
            kernel(at + 3 * US, at + 300 * US, correlation=at + 1),
        )
    ]
    assert section(overview(report(events))) is None


@pytest.mark.parametrize("width", [60, 80, 160])
def test_long_places_and_texts_fit_the_width(width):
    text = terminal.render([looped([("d/" * 90 + "m" * 200 + ".py", 123_456, "y = " * 60)] * 2)], Look(width), None)
    assert max(map(len, text.splitlines())) <= width
    assert "mmmmmmmmm.py:123456" in text


HOSTILE = [("e\x1b[2Jvil.py", 7, "\x1b]52;c;aGk=\x07 | <img src=x onerror=1> @all `x`"), ("b.py", 8, "")]


def test_a_text_of_the_program_does_nothing_to_a_terminal_or_an_issue():
    found = looped(HOSTILE)
    text = terminal.render([found], Look(), None)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    made = markdown.render([found], None)
    assert "<img" not in made.replace("`<img", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", made)
    assert "\\u001b" in json.render([found])
    assert "\x1b" not in json.render([found])
