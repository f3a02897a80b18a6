"""`kanalyze show` without reports: every table's columns, which are those that `kanalyze show` gives."""

import json
from functools import cache

import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.cli._process import FORMATS
from kanalyze.errors import CannotTellError
from kanalyze.tools import NAMES
from support.command import REPORTS, SAMPLES, printed, report_with, run
from support.real_reports import real_capture, real_report


@cache
def declared():
    return {table["table"]: table for table in json.loads(printed("show", "--format", "json"))}


def listed(**keys):
    lines = printed("show", **keys).splitlines()
    return {line.split()[0]: line for line in lines if line.startswith("  ") and line[2] != " "}


def test_a_line_says_what_has_the_table_and_what_it_is_for():
    assert listed()["ledger"] == "  ledger              nsys torch  where each GPU's time went, to the nanosecond"
    assert listed()["joined"].split(maxsplit=2)[1] == "several"


def test_every_table_says_its_purpose_in_one_line():
    """At 80 columns; one that says none would be listed by the sentence that declares its rows."""
    lines = listed()
    for name in catalog.every_name():
        purpose = catalog.table(name).purpose
        assert purpose, name
        assert lines[name].endswith(f"  {purpose}"), name


#: Reports that have, of each tool, what it can record.
RICH = {
    "nsys": [f"{name}.sqlite" for name in ("add_um", "nvtx", "libraries", "graph_node", "graph_graph", "two_gpus")]
    + ["memory.sqlite", "communicators.sqlite"]
    + [f"{name}.sqlite" for name in ("sampled_lock", "sampled_python", "gpu_metrics", "network")]
    + ["../../sample_reports/serving/vllm.sqlite"],
    "torch": [f"torch/{name}.json.gz" for name in ("with_modules", "ddp", "cuda_graph", "sync_events", "memory")]
    + [f"../../sample_reports/{name}.json.gz" for name in ("mlp_train/torch", "gelu/torch", "serving/sglang")],
    "ncu": ["ncu/add.details.csv"],
}

#: What PyTorch 2.15 records, of which no report is here: tests/readers/torch/test_counters.py makes a trace of it;
#: and what needs the lines that `collect` records beside nsys.
NEWER = {"torch": {"gpu_metrics", "gpu_units"}, "nsys": {"code"}}


@pytest.mark.slow
@pytest.mark.parametrize("tool", RICH)
def test_the_tools_of_a_table_are_those_whose_reports_have_rows_of_it(tool):
    reports = [real_report((REPORTS / path).resolve()) for path in RICH[tool]]
    for name in catalog.every_name():
        if catalog.table(name).inputs not in ("several", "capture") and name not in NEWER.get(tool, ()):
            said = tool in catalog.table(name).inputs.replace("any", " ".join(NAMES)).split()
            assert any(has_rows(report, name) for report in reports) == said, name


#: Clients' logs by tool, for the table that needs one.
LOGS = {"nsys": SAMPLES / "serving" / "vllm.jsonl", "torch.profiler": SAMPLES / "serving" / "sglang.jsonl"}
LOG = LOGS["nsys"]


def log_for(name, tool="nsys"):
    return {"log": kanalyze.read_requests(LOGS.get(tool, LOG))} if "log" in catalog.table(name).options else {}


def has_rows(report, name):
    try:
        return catalog.make(report, name, **log_for(name, report.meta.tool)).height > 0
    except CannotTellError:
        return False


@pytest.mark.parametrize("form", ["markdown", "json"])
def test_one_table_is_a_part_of_all(form):
    one, every = printed("show", "kernels", "--format", form), printed("show", "--format", form)
    assert "launch-shape" in one
    assert len(one) < len(every) / 8
    if form == "json":
        assert json.loads(one) == [declared()["kernels"]]
    else:
        assert one in every


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", catalog.every_name())
def test_a_table_has_the_columns_declared_and_what_python_gives(name):
    path = report_with(name)
    paths, log = [path] * (2 if catalog.table(name).sides else 1), ["--log", LOG] if log_for(name) else []
    text = run("show", name, *paths, *log, "--format", "csv").text
    columns = declared()[name]["columns"]
    assert text.partition("\n")[0] == ",".join(column["name"] for column in columns)
    assert all(column["doc"].endswith((".", "…")) for column in columns)
    if name in catalog.names():  # the others are of jobs and of two sides
        report, *others = real_capture(path) if catalog.table(name).together else [real_report(path)]
        make = getattr(kanalyze, name) if name in kanalyze.__all__ else lambda of: of.table(name)
        frame = make(report, *others, **log_for(name))
        assert text == frame.write_csv()
        assert json.loads(FORMATS["json"](frame)) == json.loads(frame.write_json())  # what any table is printed by
        assert frame.height > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kernels", ["--by", "launch-shape"]),
        ("occupancy", ["--by", "kernel"]),
        ("gaps", ["--by", "culprit"]),
        ("cold", ["--by", "kernel"]),
        ("graphs", ["--by", "kernel"]),
        ("range_gpu", ["--trace"]),
        *(("ops", ["--by", grouping]) for grouping in ("shape", "module", "phase", "stack")),
        ("ops", ["--as-torch"]),
    ],
)
def test_columns_of_another_form_are_those_declared_for_it(name, options):
    header = run("show", name, report_with(name), *options, "--format", "csv").lines[0]
    (form,) = (form for form in declared()[name]["forms"] if form["when"] == " ".join(options))
    assert header == ",".join(column["name"] for column in form["columns"])


def test_groupings_and_equals_are_told():
    assert declared()["kernels"]["by"] == list(catalog.table("kernels").groupings)
    assert "cuda_gpu_kern_sum" in declared()["kernels"]["equals"]
    assert "  --by launch-shape, family, " in printed("show", "kernels")
    assert "Equals nsys stats cuda_api_sum.\n" in printed("show", "api")


def test_options_are_told():
    assert "--threshold" in declared()["gaps"]["options"]
    assert "  --by culprit\n  --threshold\n" in printed("show", "gaps")
    assert "  --trace: " in printed("show", "range_gpu")
