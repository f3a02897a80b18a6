"""Sampled counters of a GPU against those that ncu counted of the same kernel."""

import shutil
import sqlite3
from contextlib import closing

import pytest

import kanalyze
from kanalyze.analyses.joining._reasons import EXPLANATIONS, FIGURES, why_apart
from support.command import REPORTS, run

SAMPLED, COUNTED = REPORTS / "metrics_matmul.sqlite", REPORTS / "ncu" / "matmul.raw.csv"


def rows(*reports):
    found = kanalyze.agreement(*map(kanalyze.read, reports))
    return {row["figure"]: row for row in found.iter_rows(named=True) if row["figure"] in FIGURES}


def test_a_product_of_an_h200_was_sampled_and_counted_alike():
    found = rows(SAMPLED, COUNTED)
    assert list(found) == [*FIGURES]
    read, written, active, tensor = found.values()
    assert (read["first"], read["second"]) == (pytest.approx(1.2505e9, rel=0.005), 1_250_500_096)
    assert abs(written["first"] - written["second"]) < 0.025e9
    assert (active["first"], tensor["first"]) == (pytest.approx(0.967, abs=0.002), pytest.approx(0.938, abs=0.002))
    assert tensor["second"] == pytest.approx(0.9345)
    assert {(row["verdict"], row["reason"]) for row in found.values()} == {("explained", "samples")}
    assert {(row["first_tool"], row["second_tool"]) for row in found.values()} == {("nsys", "ncu")}


def test_what_is_further_apart_is_told_and_fails_the_gate(tmp_path):
    other = tmp_path / "other.raw.csv"
    text = COUNTED.read_text()
    assert "1,250,500,096" in text
    other.write_text(text.replace("1,250,500,096", "2,250,500,096"))
    assert {name for name, row in rows(SAMPLED, other).items() if row["verdict"] == "unexplained"} == {"DRAM read"}
    ran = run("verify", SAMPLED, other)
    assert (ran.status, "DRAM read" in ran.text) == (1, True)


def test_of_a_capture_the_samples_are_those_of_their_own_pass(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"schema": 1}')
    shutil.copyfile(SAMPLED, folder / "samples.sqlite")
    shutil.copyfile(COUNTED, folder / "ncu.raw.csv")
    shutil.copyfile(SAMPLED, folder / "nsys.sqlite")
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as plain:
        plain.execute("DROP TABLE GPU_METRICS")
        plain.commit()
    ran = run("verify", "--all", folder)
    assert ran.status == 0
    assert "tensor cores active    93.8 %    93.5 %" in ran.text
    assert "samples: as near as samples of another run tell" in ran.text


ROW = {"unit": "bytes", "first": 1e6, "second": 1e6, "step": 1e4, "samples": 30, "l2_bytes": 10**6, "crowded": False}
SHARE = {**ROW, "unit": "share", "first": 0.5, "second": 0.5, "step": 0.01, "clock_hz": 1e9, "ncu_clock_hz": 1e9}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "second": 1.12e6}, "samples"),
        ({**ROW, "second": 2.1e6}, "caches"),
        ({**ROW, "second": 0.5e6}, "caches"),
        ({**ROW, "second": 2.6e6}, None),
        ({**ROW, "second": 2.6e6, "crowded": True}, "beside others"),
        ({**ROW, "second": 2.1e6, "l2_bytes": None}, None),
        ({**SHARE, "second": 0.55}, "samples"),
        ({**SHARE, "second": 0.7}, None),
        ({**SHARE, "second": 0.7, "ncu_clock_hz": 1.5e9}, "clocks"),
        ({**SHARE, "second": 0.7, "ncu_clock_hz": None}, None),
        ({**SHARE, "first": 0.0, "second": 0.01}, "samples"),
    ],
)
def test_what_explains_a_difference(row, reason):
    found = why_apart(row)
    assert (found[0] if found else None) == reason
    assert found is None or found[0] in EXPLANATIONS
