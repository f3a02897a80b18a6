"""Tables as pandas frames: integers and truth values stay such where some are missing."""

import polars as pl
import pytest

import kanalyze
from kanalyze.notebook import NotebookTable
from support.command import TORCH

pd = pytest.importorskip("pandas", reason="comes with `.[pandas]` only")


def test_integers_stay_integers_in_pandas():
    table = kanalyze.gaps(kanalyze.read(TORCH))
    frame = table.to_pandas()
    assert table["thread_id"].null_count()
    assert [str(frame[name].dtype) for name in ("dur_ns", "stream", "thread_id")] == ["int64", "Int64", "Int64"]
    for name in ("dur_ns", "stream", "thread_id"):
        assert [None if value is pd.NA else value for value in frame[name]] == table[name].to_list()
    assert list(frame.columns) == table.columns


def test_large_integers_and_truth_values_with_nulls():
    values = {"at": [(1 << 62) + 1, None], "small": [None, 3], "yes": [None, True], "share": [0.5, None]}
    table = NotebookTable(values, schema_overrides={"small": pl.UInt32})
    frame = table.to_pandas()
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "UInt32", "boolean", "float64"]
    assert frame["at"][0] == (1 << 62) + 1
    assert frame["at"].isna().tolist() == [False, True]
    assert frame["yes"].isna().tolist() == [True, False]
    assert bool(frame["yes"][1])
    frame.loc[1, "at"] = 7  # nothing of it is read-only
    assert frame["at"].tolist() == [(1 << 62) + 1, 7]
