"""What became of a damaged report: every table is asked for and compared with that of the report as it was."""

import atexit
import shutil
import tempfile
import traceback
from functools import cache
from pathlib import Path

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

#: Refused with an error; no different; different, and health or an error of a table says so; different without a word.
ERROR, SAME, WORD, SILENT, TRACEBACK = "error", "same", "word", "silent", "traceback"


def outcome(path, seed):
    """What became of the report at `path`, which was made of `seed`; and where, in a few words."""
    try:
        of = _of_baseline if seed.suffix == SUFFIX else _of_report
        return in_one_thread(lambda: of(path, seed))
    except KanalyzeError as error:
        return ERROR, _slug(error)
    except Exception as error:  # noqa: BLE001 - what is looked for
        return TRACEBACK, _last_lines(error)


def _of_report(path, seed):
    report = kanalyze.read(path, cache=False)
    if not _differing(_read(report), _read_base(seed)):
        return SAME, ""  # it is read as the seed is: its tables are those
    made, base = _tables(report), _base(seed)
    differing = _differing(made, base)
    refused = sorted({made[name] for name in differing if isinstance(made[name], str)} - {CannotTellError.slug})
    if refused:
        return ERROR, ", ".join(refused)
    if any(isinstance(made[name], str) for name in differing) or _doubts(made) - _doubts(base):
        return WORD, ""
    return (SILENT, ", ".join(differing[:4])) if differing else (SAME, "")


def _of_baseline(path, seed):
    """The same of a baseline, that is compared with the one that it was made of."""
    (made, told), (base, told_of_base) = (_comparison(one, seed) for one in (path, seed))
    differing = _differing(made, base)
    if not differing:
        return SAME, ""
    return (WORD, "") if told - told_of_base else (SILENT, ", ".join(differing[:4]))


def _comparison(path, seed):
    """The tables and pages of a comparison, and what it says that keeps the sides from being compared."""
    found = comparison([path], [seed], Asked({}))
    text = render([found], Look(100, colour=False), 8)
    pages = {"json": render_json([found]), "markdown": render_markdown([found], None)}
    assert all(pages.values())
    # the heading and the commands have the names of the files
    lines = text.partition("\nMore: ")[0].partition("\n\n")[2].splitlines()
    return found.tables | {"page": pl.DataFrame({"line": lines})}, {found.reason, *(one.text for one in found.doubts)}


def _read(report):
    """What the reader gives: its tables, and what it says of all."""
    meta = {key: str(value) for key, value in vars(report.meta).items() if key not in ("path", "read_from", "capture")}
    kept = {"": pl.DataFrame(meta | {"kinds": " ".join(report.kinds)})}
    return kept | {name: _or_slug(report.table, name) for name in READER_TABLES}


def _tables(report):
    """Every table of the report, and its pages, which are drawn."""
    tables = {name: _or_slug(catalog.make, report, name) for name in catalog.names()}
    for number, page in enumerate([summarize_counters] if report.meta.timeless else [overview, summarize]):
        tables[f"page {number}"] = _or_slug(_drawn, page, report)
    return tables


def _drawn(page_of, report):
    text = render([page_of(report)], Look(100, colour=False), 8)
    # the first line has the report's name, and so have the commands at the end
    return pl.DataFrame({"line": text.partition("\nMore: ")[0].splitlines()[1:]})


def _or_slug(make, *arguments):
    """A table, or the slug of the error that stands for it."""
    try:
        return make(*arguments)
    except KanalyzeError as error:
        return _slug(error)


def _slug(error):
    assert str(error), error
    assert error.remedy, error
    assert error.exit_status, error
    return error.slug


@cache
def _read_base(seed):
    return _read(_alone(seed))


@cache
def _base(seed):
    return _tables(_alone(seed))


@cache
def _alone(seed):
    """The report without what lies beside it, as damaged ones are: pages of ncu beside each other are one report."""
    folder = Path(tempfile.mkdtemp(prefix="kanalyze-fuzz-seed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = shutil.copytree if seed.is_dir() else shutil.copyfile
    return kanalyze.read(copy(seed, folder / seed.name), cache=False)


def _differing(made, base):
    """The names of the tables that are not those of the seed."""
    return [name for name, table in made.items() if not _equal(table, base[name])]


def _equal(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return one.schema == other.schema and one.equals(other)


def _doubts(tables):
    health = tables["health"]
    return set() if isinstance(health, str) else set(health.filter("doubt").select("check", "count", "ns").iter_rows())


def _last_lines(error):
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if "kanalyze" in frame.filename or "analyzer" in frame.filename]
    at = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {at}: {str(error)[:160]}"
