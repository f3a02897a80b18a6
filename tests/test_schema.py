"""A table is what it says it is: declarations are complete, and a frame that differs is refused."""

import polars as pl
import pytest

from kanalyze import catalog
from kanalyze.analyses.page.overview_page import WINDOWS
from kanalyze.analyses.ranges.instances import INSTANCES, SPREAD
from kanalyze.model import NOTES
from kanalyze.schema import UNITS, Column, Table, columns, unit_of

TABLES = [
    *(table for name in catalog.names() for table in (catalog.table(name), *catalog.forms(name))),
    *(WINDOWS, NOTES, INSTANCES, SPREAD),
]
COPIES = Table(
    "copies",
    "One copy.",
    columns("""
        name text?: What it is
            called.
        size_bytes int: Bytes moved.
    """),
)


def of(names, sizes, dtype=pl.Int64):
    return pl.DataFrame({"name": names, "size_bytes": sizes}, schema={"name": pl.String, "size_bytes": dtype})


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("dur_ns", "ns"), ("ns", "ns"), ("size_bytes", "bytes"), ("bandwidth_bytes_per_s", "bytes/s")),
        *(("clock_hz", "Hz"), ("share", "0..1"), ("hidden_share", "0..1"), ("count", ""), ("columns", "")),
        ("bytes_moved", ""),
    ],
)
def test_the_unit_is_the_end_of_the_name(name, unit):
    assert unit_of(name) == unit
    assert Column(name, pl.Int64, "").unit == unit


def test_a_text_declares_a_column_in_each_line():
    name = Column("name", pl.String, "What it is called.", nullable=True)
    assert COPIES.columns == (name, Column("size_bytes", pl.Int64, "Bytes moved."))
    assert columns("ran bool: Whether it ran.") == (Column("ran", pl.Boolean, "Whether it ran."),)


def test_a_frame_that_fits_is_given_back():
    frame = of(["a", None], [1, 2])
    assert COPIES.check(frame) is frame
    assert COPIES.check(COPIES.empty()).is_empty()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (of(["a"], [1.5], pl.Float64), "size_bytes: Float64 is not Int64"),
        (of(["a"], [1]).drop("name"), "name: None is not String"),
        (of(["a"], [1]).with_columns(more=1), "more: Int32 is not None"),
        pytest.param(of(["a"], [1]).select("size_bytes", "name"), "columns are in another order"),
        (of(["a"], [None]), "column size_bytes has nulls"),
    ],
)
def test_a_frame_that_differs_is_refused(frame, message):
    with pytest.raises(TypeError, match=f"table copies: {message}"):
        COPIES.check(frame)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.name} {table.when}".strip())
def test_declarations_are_complete(table):
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert table.doc.endswith(".")
    assert not table.equals.endswith(".")
    for column in table.columns:
        assert column.doc.endswith((".", "…")), column.name


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.name} {table.when}".strip())
def test_every_quantity_says_its_unit_last(table):
    endings = {word for unit in UNITS for word in unit.split("_")} - {"per", "s"}
    for column in table.columns:
        if endings.intersection(column.name.split("_")) and column.name != "local_per_thread_bytes":
            assert column.unit, column.name
        if column.unit in ("ns", "bytes"):
            whole = STATISTICS.isdisjoint(column.name.split("_")) and column.name not in MEANS
            whole = whole and (table.name != "step_laws" or column.name == "slow_ns")
            assert column.dtype == (pl.Int64 if whole else pl.Float64), column.name


#: Means, medians and deviations are not whole; `warm` is a median, `extra` what is beyond it, `each` a mean. Nor are
#: times for a step, a token or a request, and what is of a law.
STATISTICS = {"avg", "median", "stddev", "warm", "extra", "each"}
MEANS = {f"per_{one}_ns" for one in ("step", "token", "request")}
