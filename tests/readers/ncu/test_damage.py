"""Damaged reports of ncu: what cannot be read is told, what cannot be is left out, and nothing ends in a traceback."""

import re
import sys

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.page.time_page import summarize_counters
from kanalyze.errors import DamagedReportError, ExportError
from kanalyze.files import fields
from kanalyze.readers import read
from kanalyze.readers.ncu import module as ncu_module
from support.command import REPORTS, SAMPLES
from support.counters import measured, needs_module

SAMPLE = SAMPLES / "add_parallel" / "ncu.ncu-rep"
WHOLE = SAMPLE.read_bytes()


def looked_at(path) -> set[str]:
    """The checks of health that have doubts, once every table was made."""
    report = read(path)
    summarize_counters(report)
    for table in (kanalyze.kernels, kanalyze.occupancy, kanalyze.hot_lines):
        table(report)
    return set(kanalyze.health(report).filter("doubt").get_column("check"))


def patched(place: bytes, by: bytes) -> bytes:
    """The sample with other bytes at the end of all that match."""
    assert re.search(place, WHOLE)
    return re.sub(place, lambda match: match[0][: -len(by)] + by, WHOLE)


@pytest.mark.slow
@needs_module
@pytest.mark.parametrize(
    ("place", "by"),
    [
        (rb"lts__t_requests_srcunit_tex_op_red", b"\0\0\0"),  # the module gives nothing for it
        (rb"maximum_texture1d_layered_layers", b"\xf4\0"),  # and fails here
    ],
)
def test_metrics_without_a_name_are_left_out_and_counted(tmp_path, place, by):
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(patched(place, by))
    assert looked_at(path) == {"parts of a report that make no sense"}
    assert read(path).table("metrics").height >= read(SAMPLE).table("metrics").height - 2


@pytest.mark.slow
@needs_module
def test_texts_that_are_none_are_mended(tmp_path):
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(patched(rb"SOLFPRoo", b"\xff\xff"))
    rules = read(path).table("rule_results").get_column("rule").to_list()
    assert any(rule.startswith("SOLFPR??") for rule in rules)
    assert looked_at(path) == {"parts of a report that make no sense"}


@needs_module
@pytest.mark.parametrize("size", [b"\xfb\xff\xff\xff", b"\xff\xff\xff\x7f"])
def test_sizes_that_end_the_module_are_not_given_to_it(tmp_path, size):
    """It checks them, and ends the process where they are negative."""
    path = tmp_path / "k.ncu-rep"
    head = 8 + int.from_bytes(WHOLE[4:8], "little")
    path.write_bytes(WHOLE[:head] + size + WHOLE[head + 4 :])
    with pytest.raises(ExportError, match="it is damaged: a block of it has no beginning, or an impossible size"):
        read(path)


def payload_fields() -> list[int]:
    """Where the heads of the sample tell the sizes of their payloads, if they have any."""
    found, at = [], 8 + int.from_bytes(WHOLE[4:8], "little")
    while at < len(WHOLE):
        begin = at + 4
        at = begin + int.from_bytes(WHOLE[at:begin], "little")
        (told,) = [one for one in fields(WHOLE, begin, at) if one.key == 5]
        found += [told.begin - 1] * bool(told.number)
        at += told.number
    return found


@needs_module
@pytest.mark.parametrize("at", payload_fields())
def test_a_head_that_lost_the_size_of_its_payload(tmp_path, at):
    """What follows is no head: the module goes backwards there, and ends the process."""
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(WHOLE[:at] + bytes([7 << 3]) + WHOLE[at + 1 :])
    with pytest.raises(ExportError, match="it is damaged: a block of it has no beginning"):
        read(path)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        *(("gpu__time_duration.sum", -5.0), ("gpu__time_duration.sum", 1e300), ("launch__sm_count", 0.0)),
        *(("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1e9), ("launch__registers_per_thread", 70_000.0)),
        *(("dram__bytes_read.sum", -1e6), ("anything__at_all.sum", 1e19)),
    ],
)
def test_values_that_cannot_be_are_left_out_and_told(metric, value):
    report = measured({"sm__cycles_active.avg": 5.0, metric: value})
    (left,) = report.table("metrics").filter(pl.col("metric") == metric).to_dicts()
    assert (left["value"], float(left["text"])) == (None, value)
    (row,) = kanalyze.health(report).filter(pl.col("check") == "metrics with values that cannot be").to_dicts()
    assert (row["count"], row["doubt"]) == (1, True)
    assert f"{metric} = {value:g} of kernel 0" in row["effect"]


@pytest.mark.parametrize(("duration", "odd"), [(1000, 0), (1050, 0), (2000, 1), (0, 1)])
def test_durations_are_held_against_cycles_and_clock(duration, odd):
    cycles = {"gpc__cycles_elapsed.max": 1500, "gpc__cycles_elapsed.avg.per_second": 1.5e9}
    report = measured({"gpu__time_duration.sum": duration, **cycles})
    told = kanalyze.health(report).filter(pl.col("check") == "durations that contradict cycles and clock")
    assert told.get_column("count").to_list() == [1] * odd


@pytest.mark.parametrize(("grid", "block"), [((0, 1, 1), (32, 1, 1)), ((1, 1, 1), (1024, 2, 1))])
def test_shapes_that_no_gpu_takes_are_left_out_and_told(grid, block):
    report = measured({"launch__registers_per_thread": 32}, grid=grid, block=block)
    assert report.kernel_config.is_empty()
    assert "launch shapes that cannot be" in set(kanalyze.health(report).get_column("check"))


def test_estimates_that_are_no_part_are_left_out_and_told():
    rules = [(0, None, name, "optimization", "much", "global", share) for name, share in (("A", 66.0), ("B", 0.5))]
    report = measured({"gpu__time_duration.sum": 10}, rules=rules)
    assert kanalyze.advice(report).select("rule", "speedup_share").rows() == [("B", 0.5), ("A", None)]
    assert "estimates that cannot be" in set(kanalyze.health(report).get_column("check"))


@pytest.mark.parametrize(
    "path", sorted([*SAMPLES.glob("*/ncu*.raw.csv"), *(REPORTS / "ncu").glob("*.raw.csv")]), ids=str
)
def test_whole_reports_are_sound(path):
    checks = set(read(path).table("notes").get_column("check"))
    assert not [check for check in checks if "cannot be" in check or "contradict" in check]


def test_an_instruction_without_text_is_one(tmp_path):
    for kind in ("details", "raw", "source"):
        text = (REPORTS / "ncu" / f"add.{kind}.csv").read_text()
        (tmp_path / f"k.{kind}.csv").write_text(text.replace('"      S2R R3, SR_CTAID.X"', ""))
    found = read(tmp_path).table("instructions").get_column("sass").to_list()
    assert (found[0], found[1]) == ("LDC R1, c[0x0][0x28]", "")


@pytest.mark.slow
@needs_module
@pytest.mark.parametrize(
    ("table", "text"), [("instructions", "the instructions of a kernel"), ("source_files", "its sources")]
)
def test_what_ends_the_module_is_refused(table, text, tmp_path, monkeypatch):
    """It is read in a process of its own."""
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(WHOLE)
    whole = read(path).table(table)
    assert whole.equals(read(SAMPLE).table(table))
    monkeypatch.setattr(ncu_module, "_CHILD", ("-c", "import os; os.abort()"))
    with pytest.raises(DamagedReportError, match=f"damaged at {text}: what reads them ended"):
        read(path).table(table)
    monkeypatch.setattr("sys.executable", "")
    assert read(path).table(table).equals(whole)


@pytest.mark.slow
@needs_module
def test_modules_of_the_current_folder_do_not_stand_in_for_ours(tmp_path, monkeypatch):
    for name in ("polars", "struct", "kanalyze"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert read(SAMPLE).table("instructions").height


@pytest.mark.parametrize("name", ["instructions", "files"])
def test_what_may_end_the_module_is_read_in_a_process_of_its_own(tmp_path, monkeypatch, name):
    monkeypatch.setattr(ncu_module, "_CHILD", ("-c", "raise SystemExit(3)"))
    with pytest.raises(DamagedReportError, match="what reads them fails"):
        ncu_module.read_apart(name, tmp_path / "x.ncu-rep", ())
