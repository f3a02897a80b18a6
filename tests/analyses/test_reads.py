"""A table reads what it uses, when it uses it, and the report keeps that."""

import pytest

from kanalyze import catalog
from kanalyze.errors import CannotTellError, DamagedReportError
from kanalyze.readers import read
from support.build import kernel, report as made
from support.command import REPORTS
from support.exports import altered


@pytest.mark.parametrize(
    ("name", "kinds"), [("api", {"api"}), ("kernels", {"kernel", "memcpy", "memset"}), ("steps", {"range"})]
)
def test_a_table_reads_the_kinds_that_it_uses(name, kinds):
    report = read(REPORTS / "nvtx.sqlite", cache=False)
    catalog.make(report, name)
    assert {kind for kind in report.kinds if report.was_read(kind)} - {"graph"} == kinds


def test_damage_does_not_hinder_tables_that_do_not_use_what_is_damaged(tmp_path):
    report = read(altered(tmp_path, REPORTS / "nvtx.sqlite", "UPDATE NVTX_EVENTS SET start = 'soon'"), cache=False)
    assert catalog.make(report, "ledger").height
    with pytest.raises(DamagedReportError):
        catalog.make(report, "ranges")


def test_a_table_that_lacks_a_second_report_reads_nothing_of_the_first():
    report = read(REPORTS / "add.sqlite", cache=False)
    with pytest.raises(CannotTellError):
        catalog.make(report, "agreement")
    assert not report.was_read("kernel")


def test_a_table_is_read_once(monkeypatch):
    report, asked = made([kernel(0, 5)]), []
    events = report.source.events
    monkeypatch.setattr(report.source, "events", lambda kind: asked.append(kind) or events(kind))
    for name in ("gpu", "kernels", "kernels"):
        catalog.make(report, name)
    assert asked.count("kernel") == 1
