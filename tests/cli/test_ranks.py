"""``kanalyze ranks``, and what leads there."""

import gzip
import sqlite3
from contextlib import closing

import pytest

from support.command import REPORTS, SAMPLES, run

pytestmark = pytest.mark.slow

JOB = SAMPLES / "ddp_late"


def test_a_page_per_rank_points_to_the_ranks_together():
    assert "kanalyze ranks" in run("summarize", JOB).error
    assert "kanalyze ranks" not in run("summarize", JOB / "rank0.json.gz").error


@pytest.mark.parametrize(("report", "said"), [("nccl", True), ("two_gpus", False), ("add", False)])
def test_a_page_of_gpus_that_wait_for_each_other_points_there(report, said):
    path = REPORTS / f"{report}.sqlite"
    ran = run("summarize", path)
    assert ran.status == 0
    assert (f"`kanalyze ranks {path}` says who for whom" in ran.error) is said


def test_a_damaged_rank_is_named_and_the_rest_goes_on(tmp_path):
    for name in ("rank0.json.gz", "rank1.json.gz"):
        (tmp_path / name).write_bytes((JOB / name).read_bytes())
    (tmp_path / "rank1.json.gz").write_bytes(b"{")
    ran = run("ranks", tmp_path)
    assert ran.status == 0
    assert "rank1.json.gz" in ran.error
    assert "missing: rank 1" in ran.text


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (("ranks", "runs"), 0, "2 ranks   nsys"),
        (("show", "collectives", "runs"), 0, "all_reduce"),
        (("reduce", "runs", "-o", "out"), 1, "1 report reduced, 3 left out"),
    ],
)
@pytest.mark.one_in(4)
def test_json_that_is_no_trace_is_named_and_the_reports_of_nsys_are_read(command, status, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "job.sqlite").write_bytes((REPORTS / "nccl.sqlite").read_bytes())
    names = ["config.json", "losses.json", "settings.json.gz"]  # no traces, and more than there are reports
    contents = (b'{"batch": 4, "note": ["ph"]}', b"[1.5, 0.5]", gzip.compress(b'[{"lr": 0.1}]'))
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    ran = run(*command)
    assert ran.status == status
    assert said in ran.text + ran.error
    told = [line for line in ran.error.splitlines() if "left out: " in line]
    assert [name for name in names if any(name in line for line in told)] == names


@pytest.mark.parametrize(("traces", "reports", "read", "left"), [(2, 1, "torch.profiler", 1), (1, 3, "nsys", 1)])
def test_reports_of_another_tool_in_the_folder_are_said_to_be_left_out(traces, reports, read, left, tmp_path):
    for number in range(traces):
        (tmp_path / f"rank{number}.json.gz").write_bytes((JOB / f"rank{number}.json.gz").read_bytes())
    for number in range(reports):
        (tmp_path / f"node{number}.sqlite").write_bytes((REPORTS / "nccl.sqlite").read_bytes())
    ran = run("ranks", tmp_path)
    assert read in ran.text.splitlines()[0]
    assert f"reports of another tool: {left}; they are left out" in " ".join(ran.text.split())


def _of_process(path, process):
    """Writes the part of a nsys report of two ranks that one of its processes recorded."""
    path.write_bytes((REPORTS / "nccl.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = {row[1] for row in file.execute(f'PRAGMA table_info("{table}")')}
            for column in columns & {"globalPid", "globalTid"}:
                file.execute(f'DELETE FROM "{table}" WHERE ("{column}" >> 24) & 0xFFFFFF != ?', (process,))
        file.commit()
    return path


def test_of_a_report_of_nsys_for_each_rank_the_file_has_both(tmp_path):
    path, folder = tmp_path / "job.html", tmp_path / "runs"
    folder.mkdir()
    for number, process in enumerate((1866, 1867)):
        _of_process(folder / f"{number}.sqlite", process)
    ran = run("html", folder, "-o", path)
    assert ran.status == 0, ran.error
    text = path.read_text()
    assert "2 ranks" in text
    head = "kanalyze ranks   2 ranks   nsys   NVIDIA H200   times as recorded"
    assert run("ranks", folder).text.splitlines()[0] == head
    assert text.count("0.sqlite") >= 1 <= text.count("1.sqlite")
