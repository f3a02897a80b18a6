"""The page on a terminal: the busy share over time, and what an old terminal gets instead of blocks."""

from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.formats.terminal import ASCII, _title, render
from kanalyze.renderers.page import Look
from support.build import call, kernel, launched, report, timeline

LOOK = Look(80)


def page(*events, look=LOOK):
    return render([summarize(report(events))], look, 8).splitlines()


def after(title, lines):
    """The line with a title, and the next one."""
    at = next(number for number, line in enumerate(lines) if line.startswith(title))
    return lines[at], lines[at + 1]


def widened(line, parts=60):
    """A line of so many parts, as wide as the page."""
    return "".join(line.ljust(parts)[at * parts // LOOK.width] for at in range(LOOK.width)).rstrip()


def test_a_character_per_part_of_the_window_as_high_as_it_was_busy():
    events = [
        *launched(0, 1, kernel(60, 120, correlation=1)),
        *(kernel(start, start + 5, correlation=1) for start in range(300, 600, 10)),
        call("cudaFree", 596, 600),
    ]
    title, line = after("BUSY OVER TIME", page(*events))
    assert title.endswith("60 parts of 10 ns; full height is 100 %")
    assert line == widened(" " * 6 + "█" * 6 + " " * 18 + "▄" * 30)


def test_little_is_not_nothing_and_nearly_all_is_all():
    events = timeline("0-1 cudaLaunchKernel #1; 1000-1001 kernel #1; 2000-2999 kernel #1; 59999-60000 kernel #1")
    _, line = after("BUSY OVER TIME", page(*events))
    assert line == widened(" ▁█" + " " * 56 + "▁")


def test_what_the_page_prints_has_a_likeness_and_every_level_one_of_its_own():
    levels = " ▁▂▃▄▅▆▇█".translate(ASCII)
    assert len({*levels}) == len(levels)
    assert (levels + "█▓▒░╬≡∷·─→×µ…‹›".translate(ASCII)).isascii()


def test_a_title_and_its_remark_are_apart_where_the_line_is_too_narrow():
    """And what stands behind a semicolon is left out first."""
    assert _title("KERNELS", "of 12", Look(16)) == "KERNELS    of 12"
    assert _title("KERNELS", "of 12", Look(8)) == "KERNELS\nof 12"
    assert _title("KERNELS", "of 12; by time", Look(22)) == "KERNELS          of 12"
    assert _title("KERNELS", "of 12; by time", Look(23)) == "KERNELS  of 12; by time"
    assert _title("KERNELS", "", Look(8)) == "KERNELS"
    assert _title("KERNELS", "of 12", Look(200), ["x" * 90]).index("of 12") == 85
