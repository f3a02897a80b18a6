"""Files of baselines that are damaged in ways that keep their sums, or are of another version: each a clear word."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from fuzz.damage import archive
from kanalyze.analyses.comparing._comparison import compared
from kanalyze.errors import BadBaselineError
from kanalyze.reduction.baselines import ENGINE, VERSION, dumped, loaded
from support.command import SAMPLES, refused, run

PATH = SAMPLES / "loop_base.kz"
WHOLE = PATH.read_bytes()
HEAD = "kanalyze-baseline.json"


def members(data=WHOLE):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def with_head(change):
    """The baseline with another head."""
    head = json.loads(dict(members())[HEAD])
    change(head)
    return archive((name, json.dumps(head) if name == HEAD else content) for name, content in members())


def with_table(name, *columns):
    """The baseline with other columns in a table."""
    made = io.BytesIO()
    pl.read_parquet(dict(members())[name]).with_columns(*columns).write_parquet(made)
    return archive((of, made.getvalue() if of == name else content) for of, content in members())


def why(data):
    with pytest.raises(BadBaselineError) as caught:
        loaded(data, Path("base.kz"))
    return str(caught.value).removeprefix("base.kz: no baseline (").removesuffix(").")


def test_it_is_read_as_it_was_written():
    runs = loaded(WHOLE, PATH)
    assert (len(runs), loaded(archive(members()), PATH)[0].about) == (4, runs[0].about)
    assert loaded(dumped(runs), PATH)[0].about == runs[0].about
    assert dumped(loaded(dumped(runs), PATH)) == dumped(runs)


def test_a_column_that_an_earlier_layout_had_not_is_unknown():
    engine = pl.DataFrame([("decode", 4, 3, 3, 90, 50, 40)], ENGINE.schema, orient="row")
    (run, *_) = loaded(WHOLE, PATH)
    data = dumped([replace(run, engine=engine)])
    earlier = io.BytesIO()
    pl.read_parquet(dict(members(data))["engine.parquet"]).drop("requests").write_parquet(earlier)
    parts = ((name, earlier.getvalue() if name == "engine.parquet" else content) for name, content in members(data))
    assert loaded(archive(parts), PATH)[0].engine.equals(engine.with_columns(requests=pl.lit(None, pl.Int64)))


@pytest.mark.parametrize("place", ["central", "local"])
def test_a_flag_or_a_method_that_is_none_of_ours_is_no_traceback(place):
    """Encrypted, or compressed in a way that nobody knows, or in one that this is not."""
    at = WHOLE.rindex(b"PK\x01\x02") + 8 if place == "central" else 6
    for offset, value in ((0, 1), (2, 8), (2, 12), (2, 14), (2, 99)):
        data = bytearray(WHOLE)
        data[at + offset] = value
        if place == "central":
            assert why(bytes(data))
        else:  # where the archive's directory rules
            try:
                loaded(bytes(data), PATH)
            except BadBaselineError:
                continue


def test_a_name_that_is_damaged_is_no_table_less():
    data = WHOLE[:-400] + WHOLE[-400:].replace(b"steps.parquet", b"stepz.parquet")
    assert data != WHOLE
    assert why(data) == "it holds 'stepz.parquet'"
    assert why(archive([*members(), members()[1]])) == "it holds a table twice"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda head: head["runs"][1].pop("tool"), "Object missing required field `tool` - at `$[1]`"),
        (lambda head: head["runs"][1].update(ns=10**400), f"Expected `int` <= {2**53} - at `$[1].ns`"),
        (lambda head: head["runs"][1].update(rank=-1), "Expected `int` >= 0 - at `$[1].rank`"),
        (lambda head: head["runs"][1].update(iterations=0), "Expected `int` >= 1 - at `$[1].iterations`"),
        (lambda head: head["runs"][1].update(iterations=True), "Expected `int`, got `bool` - at `$[1].iterations`"),
        (lambda head: head["runs"][1].update(turn=1), "a run has a turn of ''"),
        (lambda head: head["runs"].pop(), "buckets has rows of no run"),
        (lambda head: head["runs"].reverse(), "its buckets do not add up to the time of its runs"),
    ],
)
def test_a_head_that_says_what_cannot_be_is_refused(change, told):
    assert why(with_head(change)) == told


def test_times_that_do_not_add_up_are_refused():
    told = "its buckets do not add up to the time of its runs"
    assert why(archive((name, content) for name, content in members() if name != "buckets.parquet")) == told
    assert why(with_table("buckets.parquet", pl.col("ns") + 1)) == told
    assert why(with_table("slots.parquet", pl.col("exclusive_ns") + 1)) == told


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (pl.lit(None).alias("run"), "table digest_slots: run: Null is not Int32"),
        (pl.lit("0").alias("run"), "table digest_slots: run: String is not Int32"),
        (pl.col("place") * float("nan"), "slots has a number out of range"),
        (-pl.col("count"), "slots has a number out of range"),
        (pl.lit(2**62).alias("bytes"), "slots has a number out of range"),
        (pl.lit(None, dtype=pl.String).alias("kind"), "table digest_slots: column kind has nulls"),
    ],
)
def test_a_table_that_says_what_cannot_be_is_refused(columns, told):
    assert why(with_table("slots.parquet", columns)) == told


def test_a_bucket_that_is_not_known_stands_last():
    other = loaded(with_table("buckets.parquet", pl.col("bucket").replace("launch", "a new one")), PATH)
    table = compared(other, other, ("base", "new")).table("compare")
    assert table.get_column("bucket").to_list()[-1] == "a new one"


def test_a_baseline_of_another_version_is_refused_with_a_remedy(tmp_path):
    path = tmp_path / "base.kz"
    path.write_bytes(with_head(lambda head: head.update(baseline=VERSION + 1)))
    message, remedy = refused(run("compare", path, PATH))
    assert message == f"{path}: a baseline of version {VERSION + 1}; this kanalyze reads version {VERSION}."
    assert remedy.startswith("Make it again from its reports with `kanalyze compare --save FILE REPORT…`.")
