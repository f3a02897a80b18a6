"""What tables declare that they read: nothing else is used, nothing is read while they compute, nothing is idle."""

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from hypothesis import Phase, given, settings

from kanalyze import catalog, read_all
from kanalyze.analyses import homes
from kanalyze.analyses.device.gpu import gpu
from kanalyze.analyses.page._reading_plan import LATER
from kanalyze.analyses.page.time_page import READS, summarize
from kanalyze.analyses.shared import workers
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.model import KINDS, READER_TABLES
from kanalyze.readers import read
from kanalyze.schema import flag
from kanalyze.source import Kept, UndeclaredReadError
from support.build import kernel
from support.build import report as made
from support.strategies import EVENTS

ROOT = Path(__file__).parents[2]

#: Reports that together call for everything that any table declares.
FEW = (
    "tests/reports/torch/with_modules.json.gz",
    "tests/reports/add_um.sqlite",
    "tests/reports/torch_node.sqlite",
    "tests/reports/torch_versions/torch-1.9.json",
    "tests/reports/old/marks_2022_4.sqlite",
    "sample_reports/add_parallel/ncu.details.csv",
    "sample_reports/launch_bound_graph/torch.json.gz",
    "sample_reports/streams",
    "sample_reports/cdist",
    "tests/reports/communicators.sqlite",
    "tests/reports/sampled_lock.sqlite",
    "tests/reports/sampled_python.sqlite",
    "tests/reports/gpu_metrics.sqlite",
)

#: Kinds of events that no report here has: calls of cuBLAS and cuDNN, which nsys records where asked to.
NOT_RECORDED = {"library"}

#: What the options of tables are tried with.
TRIED = {
    "segments": True,
    "as_nsys": True,
    "as_torch": True,
    "chunks": 3,
    "graphs": True,
    "threshold_ns": 1,
    "threshold_share": 0.5,
    "trace": True,
}


@cache
def every_report():
    folders = (ROOT / "sample_reports", ROOT / "tests" / "reports")
    found = [path for folder in folders for path in sorted(folder.rglob("*")) if _is_report(path)]
    return [str(path.relative_to(ROOT)) for path in found]


def _is_report(path):
    if path.is_dir():
        return (path / "manifest.json").exists()
    return path.name.endswith((".sqlite", ".json.gz", ".csv", ".json", ".ncu-rep")) and path.stat().st_size < 12 << 20


def forms():
    """Every table with each of its groupings and options: name, keywords, and the declaration that counts."""
    for name in homes():
        table = catalog.table(name)
        yield name, {}, table
        for by in table.groupings:
            yield name, {"by": by}, _declared(table, f"--by {by}")
        for option in table.options:
            yield name, {option: TRIED[option]}, _declared(table, flag(option))


def _declared(table, when):
    return next((form for form in catalog.forms(table.name) if form.when == when and form.reads), table)


def afresh(report):
    """The same report, of which nothing was asked yet, and nothing read."""
    return replace(report, _whole=WeakValueDictionary(), _kept=Kept())


def used_by(reports, name, options, table):
    """What a table uses of a report, or of several where it joins them, sealed; empty if it cannot tell."""
    fresh = [afresh(report) for report in (reports if table.together else reports[:1])]
    with ExitStack() as seals:
        used = [seals.enter_context(report.sealed(table.reads, table.may_read)) for report in fresh]
        try:
            catalog.make(fresh[0], name, *fresh[1:], **options)
        except KanalyzeError:
            return set()
    return set().union(*used)


def opened(path):
    """The report at a path, and in a capture those of the other tools after it."""
    return read_all(path, cache=False) if path.is_dir() else [read(path, cache=False)]


def walk(paths, *, thorough=True):
    """What each form of each table, and the page, use of some reports; and what went wrong.

    Unless `thorough`, only the first two reports are asked for forms that declare nothing of their own.
    """
    used, wrong = defaultdict(set), []
    for number, path in enumerate(paths):
        try:
            reports = opened(ROOT / path)
        except KanalyzeError:
            continue
        for name, options, table in forms():
            if options and table is catalog.table(name) and not (thorough or number < len(FEW[:2])):
                continue
            try:
                used[name, str(options)] |= used_by(reports, name, options, table)
            except UndeclaredReadError as error:
                wrong.append(f"{name} {options} of {path}: {error}")
        try:
            with (view := afresh(reports[0])).sealed(READS, LATER) as names:
                summarize(view)
            used["page", ""] |= names
        except UndeclaredReadError as error:
            wrong.append(f"page of {path}: {error}")
    return used, wrong


@pytest.mark.slow
@pytest.mark.timeout(600)  # every table of ten reports
def test_tables_use_what_they_declare_and_declare_what_they_use():
    used, wrong = walk(FEW, thorough=False)
    assert wrong == []
    of_table = defaultdict(set)
    for (name, _), names in used.items():
        of_table[name] |= names
    for name in homes():
        own = (catalog.table(name), *catalog.forms(name))
        declared = {one for form in own for one in (*form.reads, *form.may_read)}
        assert declared - of_table[name] - NOT_RECORDED == set(), name
    assert {*READS} - of_table["page"] - NOT_RECORDED == set()


def test_a_table_that_lacks_a_second_report_reads_nothing_of_the_first():
    report = read(ROOT / "tests/reports/add.sqlite", cache=False)
    with pytest.raises(CannotTellError):
        catalog.make(report, "agreement")
    assert not report.was_read("kernel")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2))
def test_of_other_reports_tables_use_what_they_declare(first):
    assert walk(every_report()[first * 8 :: 16])[1] == []


@pytest.mark.parametrize("path", ["tests/reports/torch_node.sqlite", "tests/reports/torch/with_modules.json.gz"])
@pytest.mark.one_in(4)
def test_the_page_of_a_large_report_uses_what_it_declares(path, monkeypatch):
    monkeypatch.setattr(workers, "_MANY", 0)
    monkeypatch.setattr(workers, "_MANY_ON_HOST", 0)
    report = read(ROOT / path, cache=False)
    with report.sealed((), (*READS, *LATER)) as used:
        summarize(report)
    assert {"kernel", "api", "kernel_config"} <= used


@pytest.mark.slow
@pytest.mark.timeout(600)  # every table of 10 reports, each alone
@settings(max_examples=10, phases=[Phase.generate])
@given(EVENTS)
def test_any_events_are_used_as_declared(events):
    report = made(events)
    for name, options, table in forms():
        used_by([report], name, options, table)


def test_names_are_those_of_the_reader():
    for name in homes():
        for form in (catalog.table(name), *catalog.forms(name)):
            assert {*form.reads, *form.may_read} <= {*KINDS, *READER_TABLES}
            assert not {*form.reads} & {*form.may_read}
            assert len({*form.reads}) == len(form.reads)


def test_a_table_that_was_not_declared():
    report = made([kernel(0, 5)])
    with (
        report.sealed(("kernel",)),
        pytest.raises(UndeclaredReadError, match="'graph events' is used and not declared"),
    ):
        gpu(report)


def test_a_table_that_is_read_late():
    report = made([kernel(0, 5)])
    with report.sealed(("kernel",)), pytest.raises(UndeclaredReadError, match="read while the analysis computes"):
        report.kind("kernel")
    with report.sealed(("kernel",)) as used:
        report.read_ahead(("kernel",))
        assert report.kind("kernel").height == 1
    assert used == {"kernel"}
    with report.sealed((), ("kernel",)):
        assert report.kind("kernel").height == 1


def test_what_was_released_is_not_read_ahead():
    report = made([kernel(0, 5)])
    report.table("kernel_config")
    report.release("kernel_config")
    report.read_ahead(("kernel_config",))
    assert not report.holds("kernel_config")
    assert report.table("kernel_config").height == 1
