"""`kanalyze show source`: figures beside lines where the module can read the report, beside SASS of any page."""

import json
import shutil

import polars as pl
import pytest

import kanalyze
from support.command import REPORTS, SAMPLES, run
from support.counters import needs_module

PAGE = REPORTS / "ncu" / "add.details.csv"
REPORT = SAMPLES / "add_parallel" / "ncu.ncu-rep"


def test_sass_has_its_figures_beside_it():
    ran = run("show", "source", PAGE, "add", "--sass")
    assert (ran.status, ran.error) == (0, "")
    assert ran.lines[:4] == [
        "add(int, float *, float *)",
        " samples  executed thr.   coal.  sass",
        "   3.6 %    32.8 k 32.0          LDC R1, c[0x0][0x28]",
        "            32.8 k 32.0          S2R R3, SR_CTAID.X",
    ]
    executed = [line for line in ran.lines if "32.8 k" in line and ("LDG.E" in line or "STG.E" in line)]
    assert len(executed) == 3
    assert all("100.0 %" in line for line in executed)
    assert all(len(line) <= 80 for line in ran.lines)


def test_registers_in_use_are_shown_where_the_page_has_them(tmp_path):
    """Pages of some versions have a column Live Registers; ncu 2025.3 prints none."""
    for ending in ("details", "raw"):
        shutil.copy(REPORTS / "ncu" / f"add.{ending}.csv", tmp_path)
    first, head, *rows = (REPORTS / "ncu" / "add.source.csv").read_text().splitlines()
    live = [f'{row},"{number}"' for number, row in enumerate(rows)]
    (tmp_path / "add.source.csv").write_text("\n".join([first, f'{head},"Live Registers"', *live, ""]))
    found = kanalyze.read(tmp_path / "add.details.csv")
    assert found.table("instructions").get_column("live_registers").to_list() == list(range(96))
    assert kanalyze.hot_lines(found).get_column("live_registers").to_list() == [95]
    ran = run("show", "source", tmp_path / "add.details.csv", "add", "--sass")
    assert ran.lines[1:4] == [
        " samples  executed thr.   coal. live  sass",
        "   3.6 %    32.8 k 32.0            0  LDC R1, c[0x0][0x28]",
        "            32.8 k 32.0            1  S2R R3, SR_CTAID.X",
    ]
    assert ran.lines[-1].endswith("; live: registers in use")
    without = kanalyze.read(PAGE).table("instructions").get_column("live_registers")
    assert without.null_count() == len(without)


@pytest.mark.slow
def test_of_several_kernels_the_longest_is_shown_and_a_number_is_that_of_one():
    page = SAMPLES / "square" / "ncu.details.csv"
    by_time = kanalyze.counters(kanalyze.read(page)).sort("dur_ns")
    shortest, longest = by_time.row(0, named=True), by_time.row(-1, named=True)
    for kernel, expected in (("a", longest), (shortest["event_id"], shortest)):
        told = json.loads(run("show", "source", page, kernel, "--sass", "--format", "json").text)
        assert told["kernel"] == expected["name"]


@pytest.mark.slow
@needs_module
def test_lines_have_their_figures_beside_them():
    ran = run("show", "source", REPORT, "add", columns=100)
    assert (ran.status, ran.error) == (0, "")
    (line,) = [line for line in ran.lines if line.endswith("y[i] = x[i] + y[i];")]
    assert line.split()[:2] == ["51.3", "%"]
    assert "100.0 %" in line
    assert "mov.u32" in run("show", "source", REPORT, "add", "--ptx").text


@needs_module
def test_the_module_and_the_page_count_the_same_at_each_instruction():
    ours = kanalyze.read(REPORT).table("instructions")
    theirs = kanalyze.read(REPORT.with_name("ncu.details.csv")).table("instructions")
    same = [name for name in ours.columns if name not in ("sass", "ptx", "file", "line")]
    assert ours.select(same).equals(theirs.select(same))
    # another version of the disassembler names labels, and nothing else here
    assert ours.select(pl.col("sass").str.replace(r"`\(\.L_x_\d+\) ", "")).equals(theirs.select("sass"))


@pytest.mark.slow
@needs_module
def test_lines_add_up_to_the_kernel():
    report = kanalyze.read(REPORT)
    lines, every = kanalyze.hot_lines(report), report.table("instructions")
    for column in ("samples", "instructions", "sectors"):
        assert lines.get_column(column).sum() == every.get_column(column).sum()
    assert lines.get_column("share").sum() == pytest.approx(1)
    assert lines.item(0, "text") == "    y[i] = x[i] + y[i];"
