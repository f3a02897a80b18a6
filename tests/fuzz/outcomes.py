"""What became of a damaged report: every table is asked for and compared with that of the report as it was."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

import kanalyze
from kanalyze import catalog
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.page.time_page import summarize, summarize_counters
from kanalyze.analyses.shared.analysis import in_one_thread
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.model import READER_TABLES
from kanalyze.reduction.baselines import SUFFIX
from kanalyze.renderers.formats.json import render as render_json
from kanalyze.renderers.formats.markdown import render as render_markdown
from kanalyze.renderers.formats.terminal import render
from kanalyze.renderers.page import Look
from kanalyze.several import Asked
from kanalyze.several.sides import comparison

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.renderers.page import Shown
    from kanalyze.report import Report

    Tables = dict[str, pl.DataFrame | str]

#: Refused with an error; no different; different, and health or an error of a table says so; different without a word.
ERROR, SAME, WORD, SILENT, TRACEBACK = "error", "same", "word", "silent", "traceback"


def outcome(path: Path, seed: Path) -> tuple[str, str]:
    """What became of the report at `path`, which was made of `seed`; and where, in a few words."""
    try:
        if seed.suffix == SUFFIX:
            return in_one_thread(lambda: _of_baseline(path, seed))
        made = in_one_thread(lambda: _made(path, seed))
    except KanalyzeError as error:
        return (ERROR, error.slug) if _whole(error) else (TRACEBACK, f"an error without a remedy: {error!r}")
    except Exception as error:  # noqa: BLE001 - what is looked for
        return TRACEBACK, _last_lines(error)
    return _compared(made, _base(seed)) if made else (SAME, "")


def _of_baseline(path: Path, seed: Path) -> tuple[str, str]:
    """The same of a baseline, that is compared with the one that it was made of."""
    (made, told), (base, told_of_base) = (_comparison(one, seed) for one in (path, seed))
    differing = [name for name, table in made.items() if not _equal(table, base[name])]
    if not differing:
        return SAME, ""
    return (WORD, "") if told - told_of_base else (SILENT, ", ".join(differing[:4]))


def _comparison(path: Path, seed: Path) -> tuple[Tables, set[str]]:
    """The tables and pages of a comparison, and what it says that keeps the sides from being compared."""
    found = comparison([path], [seed], Asked({}))
    text = render([found], Look(100, colour=False), 8)
    pages = {"json": render_json([found]), "markdown": render_markdown([found], None)}
    assert all(pages.values())
    # the heading and the commands have the names of the files
    lines = text.partition("\nMore: ")[0].partition("\n\n")[2].splitlines()
    return found.tables | {"page": pl.DataFrame({"line": lines})}, {found.reason, *(one.text for one in found.doubts)}


def _made(path: Path, seed: Path) -> Tables:
    """The tables of the report at `path`; none where it is read as the seed is, so that they are its tables."""
    report = kanalyze.read(path, cache=False)
    return {} if _alike(_read(report), _read_base(seed)) else _tables(report)


def _read(report: Report) -> Tables:
    """What the reader gives: its tables, or the slug of the error that stands for one, and what it says of all."""
    meta = {key: str(value) for key, value in vars(report.meta).items() if key not in ("path", "read_from", "capture")}
    read: Tables = {"": pl.DataFrame(meta | {"kinds": " ".join(report.kinds)})}
    for name in READER_TABLES:
        try:
            read[name] = report.table(name)
        except KanalyzeError as error:
            read[name] = error.slug
    return read


def _alike(read: Tables, base: Tables) -> bool:
    return all(_equal(table, base[name]) for name, table in read.items())


def _compared(made: Tables, base: Tables) -> tuple[str, str]:
    differing = [name for name, table in made.items() if not _equal(table, base[name])]
    if not differing:
        return SAME, ""
    refused = sorted({str(made[name]) for name in differing if isinstance(made[name], str)} - {CannotTellError.slug})
    if refused:
        return ERROR, ", ".join(refused)
    if any(isinstance(made[name], str) for name in differing) or _doubts(made) - _doubts(base):
        return WORD, ""
    return SILENT, ", ".join(differing[:4])


def _tables(report: Report) -> Tables:
    """Every table of the report, or the slug of the error that stands for it; and its pages, which are drawn."""
    tables: Tables = {}
    for name in catalog.names():
        try:
            tables[name] = catalog.make(report, name)
        except KanalyzeError as error:
            tables[name] = error.slug if _whole(error) else _bare(error)
    for number, page in enumerate([summarize_counters] if report.meta.timeless else [overview, summarize]):
        tables[f"page {number}"] = _drawn(page, report)
    return tables


def _drawn(page_of: Callable[[Report], Shown], report: Report) -> str | pl.DataFrame:
    try:
        page = page_of(report)
    except KanalyzeError as error:
        return error.slug
    text = render([page], Look(100, colour=False), 8)
    # the first line has the report's name, and so have the commands at the end
    return pl.DataFrame({"line": text.partition("\nMore: ")[0].splitlines()[1:]})


@cache
def _read_base(seed: Path) -> Tables:
    return in_one_thread(lambda: _read(_alone(seed)))


@cache
def _base(seed: Path) -> Tables:
    return in_one_thread(lambda: _tables(_alone(seed)))


@cache
def _alone(seed: Path) -> Report:
    """The report without what lies beside it, as damaged ones are: pages of ncu beside each other are one report."""
    folder = Path(tempfile.mkdtemp(prefix="kanalyze-fuzz-seed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = shutil.copytree if seed.is_dir() else shutil.copyfile
    return kanalyze.read(copy(seed, folder / seed.name), cache=False)


def _equal(one: pl.DataFrame | str, other: pl.DataFrame | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return one.schema == other.schema and one.equals(other)


def _doubts(tables: Tables) -> set[tuple[object, ...]]:
    health = tables["health"]
    return set() if isinstance(health, str) else set(health.filter("doubt").select("check", "count", "ns").iter_rows())


def _bare(error: KanalyzeError) -> str:
    message = f"an error without a remedy: {error!r}"
    raise AssertionError(message)


def _whole(error: KanalyzeError) -> bool:
    return bool(str(error) and error.remedy and error.slug and error.exit_status)


def _last_lines(error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "kanalyze" in frame.filename or "analyzer" in frame.filename
    ]
    at = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {at}: {str(error)[:160]}"
