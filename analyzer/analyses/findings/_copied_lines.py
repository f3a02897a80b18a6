"""Lines of the program that work on what a line before them copied to the host, by the names in their texts."""

import keyword
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import polars as pl

from kanalyze.analyses.findings import on_gpu
from kanalyze.analyses.findings.on_host import SPAN
from kanalyze.analyses.shared.analysis import source_lines
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest, parts_by
from kanalyze.report import Report

_ASSIGNS: Final = re.compile(
    r"\s*(?P<given>[\w.,\s*\[\]\"']+?)\s*(?::[^=]*)?(?<![=!<>])(?:[-+*/|&@%]?|//|\*\*)=(?!=)(?P<taken>.*)"
)
_LOOPS: Final = re.compile(r"\s*for\s+(?P<given>.+?)\s+in\s+(?P<taken>.*)")
_NAME: Final = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*(?!\s*=[^=])(?![\w.])")
_NO_CODE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|#.*")
_LONGEST: Final = 300  # so many characters of a line are read

#: Lines that hand data on, or wait: no GPU does that in their place.
_HANDS_ON: Final = re.compile(
    r"(?i)\b(?:\w*(?:save|write|dump|code|print|send|show|plot|tofile|to_csv|to_parquet)\w*|execute\w*|insert\w*|create_dataset"
    r"|put\w*|post|sleep|wait|join|recv|barrier|fromarray)\(|^\s*del\b"
)


def on_copied(report: Report, gaps: pl.DataFrame) -> pl.DataFrame:
    """When threads ran lines on what they copied before: :data:`SPAN`, of `gaps` between that and the next launch.

    These are lines of functions that the line of the copy calls and that return to it; and later ones of its function
    with a name of what was copied, or of what was made of that, with the functions that they call.
    """
    rows = source_lines(report).filter(pl.col("dur_ns") > 0)
    if gaps.is_empty() or rows.is_empty():
        return gaps.select(SPAN).clear()
    lines = rows.select(
        *(*THREAD, "line"),
        at="start_ns",
        until=pl.col("start_ns") + pl.col("dur_ns"),
        home=pl.concat_str(pl.col("file", "function").cast(pl.String), separator=":"),
        text=pl.col("text").cast(pl.String).fill_null(""),
    )
    gaps = gaps.select(SPAN).with_row_index("gap")
    first = nearest(gaps, lines, ("start", "at"), THREAD).filter(pl.col("until") >= pl.col("start"))
    later = lines.with_columns(gap=on_gpu.span_of(lines.select(*THREAD, "at"), gaps.select(SPAN)))
    later = later.join(gaps.select("gap", "start", "end"), on="gap")
    every = pl.concat([first, later.select(first.columns)]).unique(["gap", "at"], keep="first").sort("gap", "at")
    every = every.filter(pl.col("gap").is_in(first.get_column("gap").implode())).with_columns(
        start=pl.max_horizontal("at", "start"),
        end=pl.min_horizontal("until", "end"),
        whole=pl.col("until") < pl.col("end"),
    )
    made: dict[str, frozenset[str]] = {}
    for home, text in first.select("home", "text").unique().iter_rows():
        made[home] = made.get(home, frozenset()) | _parts(text)[0]
    walks = (part.rows(named=True) for part in parts_by(every, ["gap"]).values())
    spans = [span for walk in walks for span in _counted(walk, made[walk[0]["home"]])]
    return pl.DataFrame(spans, schema=gaps.select(SPAN).schema, orient="row")


@cache
def _parts(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names to which a line gives a value, and those that it reads."""
    text = _NO_CODE.sub("", text.strip()[:_LONGEST])
    match = _ASSIGNS.match(text) or _LOOPS.match(text)
    given, taken = match.group("given", "taken") if match else ("", text)
    names = (_NAME.findall(side) for side in (re.sub(r"\[[^\]]*\]", "", given), taken))
    given_names, taken_names = (frozenset(side) - {*keyword.kwlist} for side in names)
    return given_names, taken_names


def _counted(stretches: list[dict[str, Any]], names: frozenset[str]) -> Iterator[tuple[int, ...]]:
    """The stretches of a gap that count, of which the first one is in the line that copied: rows of :data:`SPAN`."""
    home, line, used = stretches[0]["home"], stretches[0]["line"], True
    inner: list[dict[str, Any]] = []
    for one in stretches:
        if one["home"] != home:
            inner.append(one)  # of a function that the line calls, if that returns to it
            continue
        if one["line"] != line:
            (given, taken), line, inner = _parts(one["text"]), one["line"], []
            used = any(name == of or name.startswith(f"{of}.") for name in taken for of in names)
            names = names | given if used else names - given
        # where it goes on to the next launch, others called it again
        if used and (one["whole"] or not inner):
            called = [] if _HANDS_ON.search(one["text"]) else [*inner, one]
            working = (each for each in called if not _HANDS_ON.search(each["text"]))
            yield from (tuple(each[name] for name in SPAN) for each in working)
        inner = []
