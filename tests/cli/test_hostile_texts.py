"""Hostile texts at every place of a report that holds one, through every table and page, in every format."""

import csv
import gzip
import io
import json
import re
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from itertools import chain, cycle
from types import SimpleNamespace

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.page.time_page import summarize, summarize_counters
from kanalyze.cli._process import FORMATS
from kanalyze.errors import CannotTellError
from kanalyze.renderers import page as pages
from kanalyze.renderers.formats import document as html, markdown, terminal
from kanalyze.renderers.page import Block, Chapter
from kanalyze.renderers.tables import frame as frames
from support.command import ADD, REPORTS, run
from support.exports import altered
from support.hostile import ALL, WHOLE, Tags, active_in_markdown, obeyed_by_terminal
from support.real_reports import real_report

pytestmark = pytest.mark.slow

#: Columns of an nsys export that hold what somebody wrote, and more than a number or a word of nsys' own.
_PLACES = (
    *(("StringIds", "value"), ("NVTX_EVENTS", "text"), ("DIAGNOSTIC_EVENT", "text"), ("TARGET_INFO_GPU", "name")),
    *(("TARGET_INFO_SYSTEM_ENV", "value"), ("PROCESSES", "name")),
)


def each_then_the_short_ones():
    """Every hostile text, and those of them that are short again and again."""
    return chain(WHOLE, cycle([text for text in WHOLE if len(text) < 1000]))


def exported(folder, name):
    """An nsys export with a hostile text behind every text in it."""
    path = folder / f"{name}.sqlite"
    shutil.copyfile(REPORTS / path.name, path)
    texts = each_then_the_short_ones()
    with closing(sqlite3.connect(path)) as database:
        database.create_function("hostile", 1, lambda text: f"{text}{next(texts)}")
        have = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, column in _PLACES:
            if table in have:
                database.execute(f"UPDATE {table} SET {column} = hostile({column}) WHERE {column} IS NOT NULL")
        if "DIAGNOSTIC_EVENT" in have:
            database.execute("UPDATE DIAGNOSTIC_EVENT SET severity = 3")
        database.commit()
    return path


def traced(folder, name):
    """A trace with a hostile text behind every name in it."""
    path = folder / "trace.json"
    texts = each_then_the_short_ones()
    trace = json.loads(gzip.decompress((REPORTS / "torch" / name).read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            event["name"] += next(texts)
    for device in trace.get("deviceProperties", ()):
        device["name"] += next(texts)
    path.write_text(json.dumps(trace))
    return path


def counted(folder, name):
    """A page of ncu with a hostile text behind every name and message in it."""
    path = folder / name
    texts = each_then_the_short_ones()
    rows = list(csv.reader(io.StringIO((REPORTS / "ncu" / name).read_text())))
    made_of = {}
    head = rows[0]
    for row in rows[1:]:
        for place, column in enumerate(head[: len(row)]):
            if column in ("Kernel Name", "Rule Description", "Rule Name", "Device", "Process Name") and row[place]:
                row[place] = made_of.setdefault(row[place], row[place] + next(texts))
    made = io.StringIO()
    csv.writer(made, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    path.write_text(made.getvalue())
    return path


csv.field_size_limit(1 << 30)

#: Formats that give values as they are, for programs.
RAW = {"csv", "parquet"}

REPORTS_MADE = {
    "nvtx": lambda folder: exported(folder, "nvtx"),
    "add_um": lambda folder: exported(folder, "add_um"),
    "torch": lambda folder: traced(folder, "gc_pauses.json.gz"),
    "ncu": lambda folder: counted(folder, "add.details.csv"),
}


@pytest.fixture(scope="module", params=REPORTS_MADE)
def path(request, tmp_path_factory):
    return REPORTS_MADE[request.param](tmp_path_factory.mktemp("hostile"))


@cache
def opened(path):
    return kanalyze.read(path, cache=False)


def tables(path):
    for name in catalog.names():
        if not catalog.table(name).together:
            try:
                yield name, catalog.make(opened(path), name)
            except CannotTellError:
                continue


def held_by_html(text):
    found = Tags(text)
    known = {"style", "div", "b", "p", "span", "table", "tr", "th", "td", "h4", "ul", "li"}
    assert found.tags <= known
    assert found.attributes <= {"class", "style", "title"}
    assert obeyed_by_terminal(text) == ""


def test_every_table_in_every_format(path):
    count = 0
    for name, table in tables(path):
        count += 1
        for choice in (frames.Choice(), frames.Choice(every=True)):
            assert obeyed_by_terminal(text := frames.terminal(table, 100, choice)) == "", name
            if not {*table.columns} & {*frames.PROSE}:
                assert len(text.splitlines()) - (" hidden: " in text.splitlines()[-1]) == max(table.height, 1) + 1, name
        for form in FORMATS.keys() - RAW:
            assert obeyed_by_terminal(FORMATS[form](table).decode()) == "", (name, form)
        assert len(json.loads(FORMATS["json"](table))) == table.height, name
        held_by_html(html.table(table))
        columns = [pl.String if kind in (pl.Categorical, pl.Enum) else kind for kind in table.dtypes]
        rows = list(csv.reader(io.StringIO(FORMATS["csv"](table).decode(), newline="")))
        assert [len(row) for row in rows] == [table.width] * (table.height + 1), name
        for place, kind in enumerate(columns):
            if kind == pl.String:
                assert [row[place] for row in rows[1:]] == [text or "" for text in table.to_series(place)], name
    assert count > 5


def test_the_page_in_every_format(path):
    report = opened(path)
    shown = summarize_counters(report) if report.meta.timeless else summarize(report)
    page(shown)


def page(shown, widths=(60, 100, 160)):
    for width in widths:
        assert obeyed_by_terminal(terminal.render([shown], terminal.Look(width), 50)) == ""
        coloured = terminal.render([shown], terminal.Look(width, colour=True), 9)
        assert obeyed_by_terminal(re.sub("\x1b\\[[0-9;]*m", "", coloured)) == ""
    made = markdown.render([shown], 50)
    assert obeyed_by_terminal(made) == ""
    for line in made.splitlines():
        inner = line.strip("| ") if line.startswith("|") else re.sub("^(#+|-) ", "", line)
        assert active_in_markdown(inner) == [], line
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert rows
    held_by_html(html.page(shown, 50))
    assert len(made) < 400_000


class _Spoilt:
    """Hostile texts, the next one for each string of a page."""

    def __init__(self):
        self.texts = cycle(ALL)

    def __call__(self, value):
        if isinstance(value, str):
            return next(self.texts) if value else value
        if isinstance(value, list):
            return [self(one) for one in value]
        if isinstance(value, tuple):
            made = [self(one) for one in value]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        return value


def _spoilt_ledger(ledger, spoilt):
    shares = [one._replace(detail=spoilt("detail"), plain=spoilt("plain")) for one in ledger.shares]
    return ledger._replace(heading=spoilt("heading"), shares=shares)


def _spoilt_section(section, spoilt):
    grid = section.grid._replace(rows=spoilt(section.grid.rows))
    return section._replace(remark=spoilt("remark"), foot=spoilt("foot"), grid=grid)


def _spoilt_point(point, spoilt):
    headline, names = f"{{0}} {literal(spoilt('text'))}", (spoilt("name"),)
    return point._replace(finding=point.finding._replace(names=names), headline=headline, action=spoilt("remedy"))


@pytest.mark.parametrize("shift", range(len(ALL)))
def test_a_page_of_nothing_but_hostile_texts(shift, monkeypatch):
    """Each text of a page is each hostile text once, in one of the widths."""
    shown = summarize(real_report(ADD))
    whole = pages.page_of_any(shown, 4)
    spoilt = _Spoilt()
    for _ in range(shift):
        next(spoilt.texts)
    chapter = Chapter("kernel", "launch", "conclusion", [Block("label", "text")], [Block("worth", "sentence")], "more")
    made = whole._replace(
        heading=spoilt(whole.heading),
        answer=spoilt("answer"),
        ledgers=[_spoilt_ledger(one, spoilt) for one in whole.ledgers],
        sections=[_spoilt_section(one, spoilt) for one in whole.sections],
        points=[_spoilt_point(one, spoilt) for one in whole.points],
        cannot_tell=spoilt(["one", "two"]),
        more=spoilt("more"),
        chapters=[spoilt(chapter)._replace(facts=[Block("label", spoilt("text"))])],
    )
    monkeypatch.setattr(pages, "import_module", lambda _: SimpleNamespace(page_of=lambda *_: made))
    page(shown, [(60, 100, 160)[shift % 3]])


def test_an_error_says_what_it_says_and_no_more(tmp_path):
    path = tmp_path / "a\x1b[2J\u202e\nb.sqlite"
    ran = run("summarize", path)
    assert ran.status == 2
    assert obeyed_by_terminal(ran.error) == ""
    for arguments in (
        ["show", "\x1b[2J", ADD],
        ["\x1b[2J"],
        ["show", "kernels", ADD, "--\x9b"],
        ["summarize", ADD, "--window", "\x1b[2J"],
    ):
        ran = run(*arguments)
        assert ran.status == 2
        assert obeyed_by_terminal(ran.error + ran.text) == ""


def test_a_spreadsheet_is_asked_for(tmp_path):
    changed = (
        "UPDATE NVTX_EVENTS SET text = '=1+1' WHERE text IS NOT NULL",
        "UPDATE StringIds SET value = '=1+1' WHERE id IN (SELECT textId FROM NVTX_EVENTS)",
        "UPDATE StringIds SET value = '=cmd' WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)",
    )
    path = altered(tmp_path, REPORTS / "nvtx.sqlite", *changed)
    exact = run("show", "kernels", path, "--format", "csv").text
    assert "\n=cmd," in exact or ",=cmd," in exact
    tame = run("show", "kernels", path, "--format", "csv", "--no-formulas").text
    assert tame == exact.replace("=cmd", "'=cmd")
