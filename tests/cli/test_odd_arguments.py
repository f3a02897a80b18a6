"""Windows, numbers and file names at their ends: refused with the limits, or answered."""

import os
import shutil

import pytest

from support.command import ADD, REPORTS, refused, run
from support.exports import altered

pytestmark = pytest.mark.slow

LIMITS = {ADD: "0.000 ms to 1.309239 s", REPORTS / "torch" / "ddp.json.gz": "+0.000 ms to +27.145 ms"}


@pytest.mark.parametrize("command", [("summarize",), ("show", "kernels"), ("show", "ledger"), ("show", "events")])
@pytest.mark.parametrize("path", LIMITS, ids=str)
@pytest.mark.parametrize("window", ["100s..200s", "+100s..", "..-1s", "-2s..-1ns"])
def test_a_window_outside_is_refused_with_the_limits(command, path, window):
    message, remedy = refused(run(*command, path, "--window", window))
    assert message == f"--window {window!r}: {path} has nothing then, it was recorded from {LIMITS[path]}."
    assert remedy.endswith("[bad-window]")


def test_of_instances_without_duration_it_is_said_that_they_are_left_out(tmp_path):
    first = "SELECT rowid FROM NVTX_EVENTS WHERE text = 'step' ORDER BY start LIMIT 2"
    emptied = f"UPDATE NVTX_EVENTS SET end = start WHERE rowid IN ({first}) OR text = 'sibling'"
    result = run("summarize", altered(tmp_path, REPORTS / "nvtx.sqlite", emptied), "--window", "step#*")
    assert (result.status, result.error) == (0, "kanalyze: --window 'step#*': left out 2 ranges without duration.\n")
    assert "18 instances of step" in result.text


HUGE = "1" + 30 * "0"


@pytest.mark.parametrize(
    "line",
    [
        f"show utilisation {{}} --chunks {HUGE}",
        f"show collectives {{}} --one {HUGE}",
        f"show gaps {{}} --threshold {HUGE}s",
        f"show gaps {{}} --threshold {5000 * '1'}s",
        f"summarize {{}} --window 0s..{HUGE}s",
        "whatif {} --faster *=1e-15",
        "whatif {} --faster host=1e-15",
        "whatif {} --faster copies=1e-300",
        "whatif {} --faster calls=1e-4 --each",
        f"whatif {{}} --copies 0.{HUGE}GB/s".replace("0.1", "0.0"),
        f"whatif {{}} --copies {400 * '9'}GB/s",
        f"whatif {{}} --measured {HUGE}s",
        *(f"show tree {{}} --min-share={share}" for share in ("1", "much", "-1%")),
    ],
    ids=lambda line: line[:30],
)
def test_what_is_too_large_or_small_is_refused(line):
    ran = run(*(ADD if word == "{}" else word for word in line.split()))
    assert (ran.status, ran.raw) == (2, b"")


@pytest.mark.parametrize(
    "line",
    [
        *("show|kernels|{0}|{1}|--format|json", "show|joined|{0}|{2}", "sql|{0}|{1}|SELECT report FROM kernels"),
        *("compare|{0}|--save|x.kz", "compare|--noise|{0}|{1}|-o|n.json", "reduce|{0}|{2}|-o|out"),
        *("ranks|{2}|{0}|--format|json", "export|{0}|{1}|--tables|kernels|--to|parquet|-o|out"),
        *("plot|{2}|ranks|-o|p.svg", "html|{0}|-o|{1}.html"),
    ],
)
def test_a_command(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    names = (b"a\xff.sqlite", b"b\xfe.sqlite", b"t\xff.json.gz")
    for name, report in zip(names, (ADD, ADD, REPORTS / "torch" / "ddp.json.gz"), strict=True):
        shutil.copy(report, name)
    ran = run(*(word.format(*map(os.fsdecode, names)) for word in line.split("|")))
    assert ran.status in (0, 1, 2), ran
    assert "UnicodeEncodeError" not in ran.error
