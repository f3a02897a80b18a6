"""Kernels far from their roof, on the pages of captures that ncu measured, too."""

import json

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.page.time_page import PageKernels, slow_kernels
from support.command import SAMPLES, run

CDIST = SAMPLES / "cdist"


def first_things(name: str) -> list[dict]:
    return json.loads(run("summarize", SAMPLES / name, "--format", "json").text)["findings"]


@pytest.fixture(scope="module")
def counters():
    return kanalyze.read(CDIST / "ncu.raw.csv")


@pytest.fixture(scope="module")
def measured(counters):
    """Id of a launch that ncu measured."""
    return counters.kind("kernel").item(0, "event_id")


def joined(rows, longer=1.0) -> pl.DataFrame:
    """The table `joined` as far as it is read; `rows`: name, event_id, ncu_match, exclusive_ns, roof_share."""
    schema = ("name", "event_id", "ncu_match", "exclusive_ns", "roof_share")
    types = (pl.String, pl.Int64, pl.String, pl.Int64, pl.Float64)
    frame = pl.DataFrame(rows, schema=dict(zip(schema, types, strict=True)), orient="row")
    return frame.with_columns(avg_ns=pl.lit(100.0), ncu_dur_ns=pl.lit(100 * longer))


def page(*hot, whole_ns=1000, told=()) -> PageKernels:
    frame = pl.DataFrame(hot, schema={"name": pl.String, "exclusive_ns": pl.Int64}, orient="row")
    return PageKernels(frame, 0, whole_ns, set(told))


def test_the_slow_kernel_of_cdist_is_the_first_thing_to_do():
    found = first_things("cdist")[0]
    rows = kanalyze.joined(kanalyze.read(CDIST / "nsys.sqlite"), kanalyze.read(CDIST / "ncu.raw.csv"))
    row = rows.row(0, named=True)
    assert found["rule"] == "far-from-roof"
    assert found["at_stake_ns"] == int(row["exclusive_ns"] * (1 - row["roof_share"]))
    assert not found["at_most"]


@pytest.mark.parametrize("name", ["square", "gelu", "mlp_train", "add_parallel"])
def test_kernels_near_their_roof_or_with_little_time_are_none(name):
    assert "far-from-roof" not in {one["rule"] for one in first_things(name)}


def test_a_kernel_that_another_finding_names_is_left_to_it():
    assert "far-from-roof" not in {one["rule"] for one in first_things("add")}


def test_its_roof_is_that_of_the_measured_time(counters, measured):
    rows = [("k", measured, "exact", 300, 0.5), ("k", measured, "exact", 100, 0.1), ("k", None, None, 200, None)]
    (one,) = slow_kernels(joined(rows), counters, page(("k", 500)))
    assert one.at_stake_ns == int(500 * (1 - (300 * 0.5 + 100 * 0.1) / 400))
    assert one.names == ("k",)
    assert "500 ns, 50.0 % of the time" in one.text


@pytest.mark.parametrize(
    "row",
    [
        ("k", "exact", 400, 0.6),  # near enough
        ("k", "exact", 400, None),  # no roof
        ("k", "name", 400, 0.1),  # perhaps another kernel
        ("other", "exact", 400, 0.1),
    ],
)
def test_what_is_not_sure_is_not_said(row, counters, measured):
    name, match, ns, roof = row
    assert slow_kernels(joined([(name, measured, match, ns, roof)]), counters, page(("k", 400))) == []


def test_what_takes_little_or_was_hardly_measured_is_not_said(counters, measured):
    slow = joined([("k", measured, "exact", 90, 0.1), ("k", None, None, 100, None)])
    assert slow_kernels(slow, counters, page(("k", 190))) == []
    assert slow_kernels(slow.head(1), counters, page(("k", 99))) == []
    assert len(slow_kernels(slow.head(1), counters, page(("k", 100)))) == 1
    assert slow_kernels(slow.head(1), counters, page(("k", 100), told=["k"])) == []
    assert slow_kernels(slow.head(1), counters, page(("k", 100), whole_ns=0)) == []


@pytest.mark.parametrize(("longer", "told"), [(1.0, 1), (1.4, 1), (0.7, 1), (1.6, 0), (0.6, 0)])
def test_other_launches_of_the_same_shape_count_where_they_took_about_as_long(counters, measured, longer, told):
    slow = joined([("k", measured, "shape", 400, 0.1)], longer)
    assert len(slow_kernels(slow, counters, page(("k", 400)))) == told
    assert len(slow_kernels(joined([("k", measured, "exact", 400, 0.1)], longer), counters, page(("k", 400)))) == 1


def test_counters_prove_causes_of_a_programs_own_kernels(counters, measured):
    """61 % of what this launch touches is uncoalesced."""
    rows = joined([("own", measured, "exact", 400, 0.1)])
    (one,) = slow_kernels(rows, counters, page(("own", 400)))
    assert (one.rule, one.headline) == ("uncoalesced", "61.4 % of a kernel's accesses are uncoalesced: {0}")
    assert one.at_stake_ns == int(400 * 0.6142433234421365)
    name = "void at::native::cat(int)"
    (other,) = slow_kernels(joined([(name, measured, "exact", 400, 0.1)]), counters, page((name, 400)))
    assert other.rule == "far-from-roof"


PLAIN = {"uncoalesced_share": None, "fp64_flop": None, "flop": None, "roof_share": 0.01}


@pytest.fixture
def known(measured, monkeypatch):
    """Sets what the counters of the kernel say."""

    def facts(**said):
        rows = pl.DataFrame([{"event_id": measured, **PLAIN, **said}])
        for name, told in (("kernel_facts", rows), ("bound", "unknown"), ("paragraph", "")):
            monkeypatch.setattr(f"kanalyze.analyses.page.time_page.{name}", lambda _, told=told: told)

    return facts


def test_double_precision_is_told_near_its_roof_too(counters, measured, known):
    known(fp64_flop=8.0, flop=10.0, roof_share=0.9)
    (one,) = slow_kernels(joined([("own", measured, "exact", 400, 0.9)]), counters, page(("own", 400)))
    assert (one.rule, one.at_stake_ns) == ("float64", 200)


@pytest.mark.parametrize(("adds", "rule"), [(1.0, "scatter-atomics"), (0.004, "far-from-roof")])
def test_atomics_of_each_thread_hold_a_kernel_up(counters, measured, known, monkeypatch, adds, rule):  # noqa: PLR0913
    known()
    sass = [("LDG.E.U8 R5, desc[UR4][R4.64]", 1000.0), ("REDG.E.ADD.STRONG.GPU desc[UR4][R2.64], R7", 1000 * adds)]
    rows = pl.DataFrame([{"event_id": measured, "sass": name, "thread_instructions": n} for name, n in sass])
    monkeypatch.setattr(type(counters), "table", lambda *_: rows)
    (one,) = slow_kernels(joined([("own", measured, "exact", 400, 0.01)]), counters, page(("own", 400)))
    assert one.rule == rule
