"""`kanalyze show`: one table in full, for reading and for programs; what only some tables take, several windows."""

import csv
import io
import json
import re
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.cli._process import FORMATS
from kanalyze.errors import CannotTellError
from kanalyze.renderers.tables.frame import PROSE, Choice, terminal
from support.command import ADD, REPORTS, SAMPLES, TORCH, printed, refused, run
from support.exports import only
from support.real_reports import EXPORTS, real_report

EVERY = [pytest.param(path, marks=[] if path.stem in ("add", "empty") else pytest.mark.slow) for path in EXPORTS]
TWO_GPUS, NVTX = REPORTS / "two_gpus.sqlite", REPORTS / "nvtx.sqlite"
INSIDE, COMPILED = SAMPLES / "inside_graphs", REPORTS / "torch" / "compile_reduce_overhead.json.gz"


@cache
def shown(*arguments):
    return printed("show", *arguments)


def objects(*arguments):
    return json.loads(shown(*arguments, "--format", "json"))


def objects_of(frame):
    return json.loads(frame.write_json())


def column(name, *arguments):
    return [row[name] for row in csv.DictReader(io.StringIO(shown(*arguments, "--format", "csv")))]


def message(*arguments):
    return refused(run("show", *arguments))


@pytest.mark.parametrize("name", ["kernels", "events", "copy_detail"])
def test_parquet_read_back_is_the_table_with_its_types(tmp_path, name):
    report, path = kanalyze.read(TORCH), tmp_path / "table.parquet"
    assert shown(name, TORCH, "--format", "parquet", "-o", path) == ""
    found = pl.read_parquet(path)
    expected = kanalyze.kernels(report) if name == "kernels" else report.table(name)
    assert found.equals(expected, null_equal=True)
    assert found.schema.names() == expected.schema.names()
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


#: What is recorded only where it was asked for, or used, and the kinds of events that tell.
OPTIONAL = {
    "faults": "fault", "memory": "memory", "ranges": "range", "range_gpu": "range", "range_kernels": "range",
    "libraries": "library, osrt, range", "host_waits": "osrt, samples", "fusion": "op", "gpu_units": "gpu_metrics",
    "ops": "op", "op_kernels": "op", "steps": "range, op", "tree": "op, python", "variants": "range",
    **dict.fromkeys(("work", "roofs", "budget", "mfu"), "op, range"),
}  # fmt: skip

#: The line that says which columns do not fit.
HIDDEN = re.compile(r"\d+ columns? hidden")

#: What only ncu measures.
COUNTERS = ("advice", "counters", "gains", "hot_lines", "roofline", "stalls")


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_table_can_be_read(path):
    report, left_out = real_report(path), {}
    for name in catalog.names():
        try:
            found = catalog.make(report, name)
        except CannotTellError as error:
            left_out[name] = str(error)
            continue
        lines = terminal(found, 80, Choice()).splitlines()
        assert [line for line in lines if len(line) > 80] == [], name
        lines = lines[: -1 if HIDDEN.match(lines[-1]) else None]
        assert len(lines) == 1 + max(found.height, 1) or {*PROSE} & {*found.columns}, name
        assert found.height or lines[1] == "(no rows)"
        read_back = csv.DictReader(io.StringIO(FORMATS["csv"](found).decode()))
        assert len([*read_back]) == found.height, name
        assert read_back.fieldnames == found.columns
    assert [name for name, said in left_out.items() if said not in reasons(name, path)] == []


def reasons(name, path):
    """What may be said of a table that a report cannot give."""
    lacking = [CannotTellError.without_second(name, path)] if name == "agreement" else []
    lacking += [CannotTellError.without_log(path)] if name == "requests" else []
    lacking += [CannotTellError.without_capture(name, path)] if name == "compiled" else []
    lacking += [CannotTellError.without_lines(name, path)] if name == "code" else []
    lacking += [CannotTellError.without_counters(name, path)] if name in COUNTERS else []
    kinds = OPTIONAL.get(name)
    said = [f"{path}: cannot tell {name}, because the report records no events of kind {kinds}."] if kinds else []
    return [*map(str, lacking), *said]


@pytest.mark.parametrize(
    ("table", "path", "needed"),
    [
        ("captured", INSIDE / "decoder.sqlite", {"range", "operator", "total_ns", "share"}),
        ("range_kernels", INSIDE / "decoder.sqlite", {"range", "via", "total_ns"}),
        ("ops", COMPILED, {"exclusive_device_ns", "exclusive_share"}),
        ("ops", INSIDE / "decode.json.gz", {"exclusive_device_ns", "self_cpu_ns"}),
        ("op_kernels", COMPILED, {"name", "total_ns", "share"}),
        ("roofs", COMPILED, {"name", "distance_ns", "roof_share"}),
    ],
)
def test_a_terminal_shows_what_a_table_is_sorted_by_and_what_rows_are_told_apart_by(table, path, needed):
    rows = catalog.make(real_report(path), table)
    assert needed < {*terminal(rows, 80, Choice(catalog.telling(table, rows))).split("\n")[0].split()}


@pytest.mark.parametrize(("table", "name"), [("kernels", "count"), ("launches", "queue_ns")])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_ascending_with_a_minus_descending_and_missing_values_are_last(table, name, descending):
    found = column(name, table, TORCH, "--sort", "-" * descending + name)
    numbers = [int(text) for text in found if text]
    assert [text for text in found[len(numbers) :] if text] == []
    assert (len(numbers) < len(found)) == (table == "launches")
    assert numbers == sorted(numbers, reverse=descending) != [int(text) for text in column(name, table, TORCH) if text]


@pytest.mark.slow
def test_a_window_a_device_and_a_process_narrow_every_table():
    whole = kanalyze.read(TWO_GPUS)
    where = {"window": "1000ms..1002ms", "device": 1, "process": whole.processes["process_id"][0]}
    options = [text for name, value in where.items() for text in (f"--{name}", value)]
    for name in ("kernels", "ledger", "api", "health"):
        assert objects(name, TWO_GPUS, *options) == objects_of(getattr(kanalyze, name)(whole, **where))


GROUPINGS = ", ".join(catalog.table("kernels").groupings)
NEAR = "Nearest: kernels, op_kernels, hot_kernels, range_kernels, kernel_config"
NO_FILE = "Say where it goes: -o FILE.  [output-failed]"
NO_UNIT = "--window '1..2s': '1' is not a time with a unit (ns, us, ms or s)."
MEANT = f"Did you mean launch-shape? There are: {GROUPINGS}.  [unknown-name]"


@pytest.mark.parametrize(
    ("arguments", "said", "remedy"),
    [
        (["kernal", TORCH], "no table 'kernal'.", f"Did you mean kernels? {NEAR}.  [unknown-name]"),
        *(([name, "nowhere.sqlite"], f"no table {name!r}.", "") for name in ("summary", "_walk", "", "Kernels")),
        (["kernels", TORCH, "--sort", "-totl_ns"], "no column 'totl_ns'.", "Did you mean total_ns? There are: name, "),
        (["kernels", TORCH, "--by", "launch_shape"], "no grouping of kernels 'launch_shape'.", MEANT),
        (["api", TORCH, "--by", "launch-shape"], "no grouping of api 'launch-shape'.", "There are: none.  ["),
        (["kernels", TWO_GPUS, "--device", "2"], "no device '2'.", "There are: 0, 1.  [unknown-name]"),
        (["kernels", TWO_GPUS, "--process", "-1"], "no process '-1'.", ""),
        (["kernels", TORCH, "--window", "1..2s"], NO_UNIT, "Write start..end with units, as in 120ms..250ms ("),
        (["kernels", TORCH, "--format", "parquet"], "--format parquet is binary and is not printed.", NO_FILE),
    ],
)
def test_what_there_is_not_is_told_with_the_nearest(arguments, said, remedy):
    found = message(*arguments)
    assert found[0] == said
    assert found[1].startswith(remedy)


def test_a_table_that_the_report_cannot_give_is_told_and_nothing_is_written(tmp_path):
    report, path = only(tmp_path, ADD, "NVTX_EVENTS", "StringIds"), tmp_path / "out.csv"
    told, remedy = message("kernels", report, "--format", "csv", "-o", path)
    assert told == f"{report}: cannot tell kernels, because the report records no events of kind kernel."
    assert remedy.endswith("[cannot-tell]")
    assert not path.exists()


def test_top_is_of_each_report_and_with_sort_of_all():
    reports = [SAMPLES / name for name in ("square", "gelu")]
    assert column("report", "kernels", *reports, "--top", "2") == [str(path) for path in reports for _ in range(2)]
    times = [*map(int, column("total_ns", "kernels", *reports, "--sort", "-total_ns", "--top", "3"))]
    assert times == sorted(times, reverse=True)
    assert len(times) == 3


@pytest.mark.parametrize(("text", "ns"), [("10us", 10_000), ("0.05 ms", 50_000), ("0ns", 0)])
@pytest.mark.one_in(4)
def test_a_time_leaves_out_shorter_gaps(text, ns):
    expected = objects_of(kanalyze.gaps(kanalyze.read(NVTX), threshold_ns=ns))
    assert objects("gaps", NVTX, "--threshold", text) == expected
    assert all(row["dur_ns"] > ns for row in expected)
    assert 0 < len(expected) < len(objects("gaps", NVTX, "--threshold", "0ns")) or ns == 0


@pytest.mark.parametrize(
    ("table", "text", "what", "example"),
    [
        *(("gaps", "10", "a time", "10us"), ("gaps", "10%", "a time", "10us"), ("gaps", "soon", "a time", "10us")),
        *(("utilisation", "10us", "a share", "50%"), ("utilisation", "0.5", "a share", "50%")),
        ("utilisation", "", "a share", "50%"),
    ],
)
def test_what_is_no_threshold_of_the_table_is_told(table, text, what, example):
    remedy = f"Write a number with its unit, as in {example}.  [bad-threshold]"
    assert message(table, NVTX, "--threshold", text) == (f"--threshold {text!r}: not {what}.", remedy)


@pytest.mark.parametrize(
    ("option", "table", "known"),
    [
        (["--trace"], "ranges", "none"),
        (["--graphs"], "utilisation", "--chunks, --as-nsys, --threshold"),
        (["--as-nsys"], "range_gpu", "--trace, --graphs"),
        (["--chunks", "3"], "events", "none"),
        (["--threshold", "none"], "kernels", "none"),
    ],
)
def test_an_option_of_another_table_is_told_with_its_own(option, table, known):
    what, remedy = message(table, NVTX, *option)
    assert what == f"no option of {table} {option[0]!r}."
    assert f"There are: {known}." in remedy


@pytest.mark.slow
def test_all_instances_are_one_table_with_a_column_that_names_them():
    found = objects("ledger", NVTX, "--window", "step#*")
    assert found == objects("ledger", NVTX, "--window", "step")
    names = [f"step#{number}" for number in range(1, 21)]
    assert list(dict.fromkeys(row["instance"] for row in found)) == names
    report = kanalyze.read(NVTX)
    for name in names:
        own = [row for row in found if row["instance"] == name]
        assert own == [{"instance": name, **row} for row in objects_of(kanalyze.ledger(report, window=name))]


def test_what_ranges_captured_is_shown_where_they_did():
    paths = (SAMPLES / "inside_graphs" / "decoder.sqlite", SAMPLES / "mlp_train" / "nsys.sqlite")
    heads = [run("show", "range_gpu", path).text.splitlines()[0] for path in paths]
    assert ["captured_busy_ns" in head for head in heads] == [True, False]
