"""What a report holds of its file: until it is closed, or nobody holds it; of many reports, few files."""

import gc
import shutil
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
from click.exceptions import Exit

import kanalyze
from kanalyze import catalog
from kanalyze.cli import kanalyze as command
from kanalyze.errors import ClosedReportError, KanalyzeError, UnreadableReportError
from kanalyze.readers.capture.reports import every_report
from kanalyze.readers.nsys.read_sqlite_folder import NsysTables
from kanalyze.readers.storage import table_files
from support.command import ADD, ADD_UM, MLP, SAMPLES, TORCH


def open_files(folder):
    """The files in `folder` that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own is closed by now
            target = entry.readlink()
            found += [target.name] if target.is_relative_to(folder) else []
    return sorted(found)


@pytest.fixture
def export(tmp_path):
    return Path(shutil.copy(ADD_UM, tmp_path / "run.sqlite"))


@pytest.fixture
def _no_collector():
    """Nothing but counting of references: a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_report_is_closed_at_the_end_of_its_block(export):
    with kanalyze.read(export) as report:
        assert kanalyze.kernels(report).height
        assert open_files(export.parent) == ["run.sqlite"]
    assert open_files(export.parent) == []


def test_what_was_read_stays_after_closing(export):
    with kanalyze.read(export) as report:
        before = kanalyze.kernels(report)
        part = report.narrow(window="400ms..480ms")
    assert kanalyze.kernels(report).equals(before)
    assert part.kind("kernel").height == report.kind("kernel").height
    assert report.kinds


@pytest.mark.parametrize(
    "ask",
    [
        *(lambda report: report.kinds, lambda report: report.kind("kernel"), lambda report: report.table("streams")),
        *(kanalyze.kernels, kanalyze.summarize, lambda report: report.narrow(device=0)),
        lambda report: report.narrow(window="..1s").kind("kernel"),
    ],
)
@pytest.mark.parametrize("path", [ADD, SAMPLES / "add", TORCH, SAMPLES / "add" / "ncu.details.csv"])
def test_to_ask_for_more_after_closing_is_an_error_that_says_so(path, ask):
    report = kanalyze.read(path)
    report.close()
    with pytest.raises(ClosedReportError) as caught:
        ask(report)
    assert str(caught.value).startswith(f"{path}: the report is closed, and '")
    assert caught.value.remedy == "Ask before, or read it again."


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("narrow", [{}, {"window": "400ms..480ms"}, {"device": 0, "window": "..1s"}])
@pytest.mark.one_in(4)
def test_a_report_that_nobody_holds_is_closed_without_the_collector(export, narrow):
    report = kanalyze.read(export)
    part = report.narrow(**narrow)
    page = kanalyze.summarize(part)
    assert open_files(export.parent) == ["run.sqlite"]
    del report
    assert kanalyze.ledger(part).equals(page.tables["ledger"])
    del part
    assert open_files(export.parent) == []


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(
    "path", [ADD_UM, *(pytest.param(path, marks=pytest.mark.slow) for path in (MLP, TORCH))], ids=lambda path: path.stem
)
def test_no_table_holds_a_report_that_nobody_else_holds(path):
    """Eight reports, of which each has an eighth of the tables asked."""
    made, every = set(), catalog.names()
    for names in (every[first::8] for first in range(8)):
        report = kanalyze.read(path)
        for name in names:
            with suppress(KanalyzeError):
                catalog.make(report, name)
                made.add(name)
        held = weakref.ref(report.source)
        del report
        assert held() is None, names
    assert len(made) > 20


@pytest.mark.parametrize("folder", ["add", pytest.param("mlp_train", marks=pytest.mark.slow)])
def test_what_joins_reports_lets_go_of_them(folder):
    reports = every_report(SAMPLES / folder)
    assert len(reports) > 1
    for name in (name for name in catalog.names() if catalog.table(name).together):
        catalog.make(reports[0], name, *reports[1:])
    kanalyze.summarize(*reports)
    held = [weakref.ref(report) for report in reports]
    del reports
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)


@pytest.mark.slow
def test_a_hundred_reports_that_are_held_keep_few_files_open(export):
    reports = []
    for number in range(100):
        reports.append(kanalyze.read(shutil.copy(export, export.with_name(f"run{number}.sqlite"))))
        assert reports[-1].kinds
    assert len(open_files(export.parent)) == table_files.MOST_OPEN
    expected = kanalyze.kernels(kanalyze.read(export))
    assert all(kanalyze.kernels(report).equals(expected) for report in reports)
    assert len(open_files(export.parent)) == table_files.MOST_OPEN
    reports.clear()
    assert open_files(export.parent) == []


def test_another_file_under_the_same_name_is_not_read_on_in(export, monkeypatch):
    monkeypatch.setattr(table_files, "MOST_OPEN", 1)
    first = kanalyze.read(export)
    other = kanalyze.read(ADD)
    assert other.kinds
    assert open_files(export.parent) == []
    shutil.copy(ADD, export)
    with pytest.raises(UnreadableReportError, match="it changed since it was first read"):
        kanalyze.kernels(first)
    export.unlink()
    with pytest.raises(UnreadableReportError, match="No such file"):
        kanalyze.kernels(first)


@pytest.mark.parametrize(
    "line",
    [
        *("summarize {0}", "summarize {0} {1}", "show kernels {0}", "show kernels {0} --window step#*"),
        *("show joined {0} {1}", "verify {0} {1}", "show roofline {0}", "show tree {0}", "show source {0} 1"),
    ],
)
def test_a_command_closes_what_it_opens(export, line, monkeypatch):
    opened, begin = [], NsysTables.__init__
    monkeypatch.setattr(NsysTables, "__init__", lambda self, database: opened.append(self) or begin(self, database))
    paths = (export, Path(shutil.copy(ADD, export.with_name("add.sqlite"))))
    with suppress(KanalyzeError, Exit):
        command([word.format(*paths) for word in line.split()], standalone_mode=False)
    assert len(opened) == line.count("{")
    assert open_files(export.parent) == []
