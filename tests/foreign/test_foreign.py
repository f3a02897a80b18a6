"""Reports of other projects: every command and every table, without a traceback or a hang, and each figure equal.

``KANALYZE_FOREIGN=FOLDER pytest -m slow -n 2 tests/foreign`` looks in FOLDER, at any depth and under any names, for the
files that list.tsv names by their SHA-256. It says where each is public (repository, commit, path; ``!`` goes into
an archive) and what it must give: counts and sums of kernels, copies and memsets and the busy time of each device, as
figures.py tells them without kanalyze. The files themselves are no part of this repository.
"""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from foreign.figures import HEAD, LIST, NO_FIGURES, REFUSED, figures, rows_of
from kanalyze import catalog
from kanalyze.errors import KanalyzeError
from support.command import run

ROOT = Path(__file__).parents[2]
OWN = [
    *sorted((ROOT / "sample_reports").glob("*/nsys.sqlite")),
    *sorted((ROOT / "sample_reports").glob("*/torch.json.gz")),
    *(ROOT / "tests/reports" / name for name in ("two_gpus.sqlite", "graph_graph.sqlite", "visible_devices.sqlite")),
]
FOLDER = os.environ.get("KANALYZE_FOREIGN", "")

#: The command lines to run on a file; a gate may fail, and what is no report of times be refused.
COMMANDS = (
    *("summarize {} --format terminal", "summarize {} --format markdown", "summarize {} --format json"),
    *("summarize {} --window +0.1ms..+50ms", "show tree {}", "show roofline {}", "show source {} kernel"),
    *("verify {} {}", "redact {} -o {place}", "show gaps {} --format csv --top 50", "show health {} --format json"),
)


def there():
    """The files of the list that are in the folder, and what each must give."""
    rows = {row["sha256"]: row for row in rows_of(LIST)}
    for path in sorted(path for path in Path(FOLDER).rglob("*") if path.is_file()) if FOLDER else ():
        with path.open("rb") as file:
            row = rows.get(hashlib.file_digest(file, "sha256").hexdigest())
        if row:
            yield pytest.param(path, row["expected"], id=f"{row['repository']}/{row['path']}")


def figures_of(report):
    """The same of an open report as figures.py tells of its file."""
    sums = {}
    for kind, name in (("kernel", "kernel"), ("memcpy", "copy"), ("memset", "set")):
        lengths = report.kind(kind).get_column("dur_ns")
        sums |= {f"{name}_count": len(lengths), f"{name}_ns": int(lengths.sum())}
    try:
        ledger = kanalyze.ledger(report)
    except KanalyzeError:
        return sums | {"busy_ns": {}}
    busy = ledger.filter(pl.col("bucket").cast(pl.String).is_in(["kernel", "communication", "memcpy", "memset"]))
    by_device = busy.group_by("device").agg(pl.col("ns").sum()).sort("device")
    return sums | {"busy_ns": {str(device): ns for device, ns in by_device.iter_rows()}}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("path", "expected"),
    [*there()] or [pytest.param(None, "", marks=pytest.mark.skip(reason="no file of the list is in KANALYZE_FOREIGN"))],
)
def test_a_report_of_another_project(path, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    places = {"{}": path, "{place}": tmp_path / f"redacted{''.join(path.suffixes[-2:])}"}
    for line in COMMANDS:
        ran = run(*(places.get(word, word) for word in line.split()))
        assert ran.status in (0, 1, 2), line
        assert not re.search("Traceback|panicked", ran.said), line
    if expected == REFUSED:
        with pytest.raises(KanalyzeError):
            kanalyze.read(path)
        return
    report = kanalyze.read(path)
    for name in catalog.names():
        for by in (None, *catalog.table(name).groupings):
            with suppress(KanalyzeError):
                catalog.make(report, name, **({} if by is None else {"by": by}))
    told, given = json.loads(expected) if expected != NO_FIGURES else {}, figures_of(report)
    if "busy_ns" in told and not any(told["busy_ns"].values()):
        del told["busy_ns"]  # nothing ran: no ledger, or one without time
    assert {name: given[name] for name in told} == told


def test_the_list_names_files_by_what_is_in_them():
    rows = rows_of(LIST)
    assert len(rows) >= 150
    assert len({row["repository"] for row in rows}) >= 30
    assert len({row["sha256"] for row in rows}) == len(rows)
    for row in rows:
        assert tuple(row) == HEAD
        assert re.fullmatch(r"[0-9a-f]{64}", row["sha256"])
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert row["expected"] in {NO_FIGURES, REFUSED} or row["expected"].startswith('{"kernel_count":')


@pytest.mark.one_in(6)
@pytest.mark.parametrize("path", OWN, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plain_sql_and_json_tell_what_kanalyze_tells(path):
    told = figures(path)
    assert told["kernel_ns"] > 0
    assert figures_of(kanalyze.read(path)) == told


#: What the one step of a public trace of a serving engine is: engine, kind, requests, tokens, tokens of KV, and how.
STEPS = {
    "sglang_decode/sglang_Qwen3-8B_decode.json.gz": ("SGLang", "decode", 32, 32, 32785, "graph"),
    "sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz": ("SGLang", "prefill", 15, 15360, 15360, "eager"),
    "vllm_decode_full/graph_execution.json.gz": ("vLLM", "decode", 32, 32, 55086, "graph"),
    "vllm_prefilldecode_piecewise/graph_execution.json.gz": ("vLLM", "mixed", 46, 8192, 42919, "graph"),
    "xdit_sd_3.5/profile_trace_rank_0.json.gz": ("xDiT", "diffusion", 1, None, None, "eager"),
    "b200/eager_trace.json.gz": ("vLLM", "prefill", 1, 888, None, "eager"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_public_trace_of_one_step_names_the_step(name):
    paths = [path for path in Path(FOLDER).rglob("*.json.gz") if str(path).endswith(name)] if FOLDER else []
    if not paths:
        pytest.skip("it is not in KANALYZE_FOREIGN")
    with kanalyze.read(paths[0]) as report:
        (step,) = kanalyze.engine_steps(report).to_dicts()
        (iteration,) = kanalyze.iterations(report).to_dicts()
        phases = kanalyze.phases(report)
    told = [step[key] for key in ("engine", "kind", "requests", "tokens", "kv_tokens", "mode")]
    assert tuple(told) == STEPS[name]
    assert (iteration["name"], iteration["kind"]) == (f"{step['kind']} step", "steady")
    assert phases.filter(pl.col("share") >= 0.5).select("phase").rows() == [("steady",)]
