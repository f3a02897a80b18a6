"""Several reports, folders of reports, captures with reports of several tools, and all instances of a range."""

import csv
import io
import json
import re
import shutil
from functools import cache

import pytest

from kanalyze.readers.capture.reports import reports_below, reports_in_folder
from support.command import ADD, ADD_UM, REPORTS, SAMPLES, TORCH, capture, captured, html_of, printed, refused, run

pytestmark = pytest.mark.slow

NVTX, EMPTY = REPORTS / "nvtx.sqlite", REPORTS / "empty.sqlite"


@cache
def page(*arguments, **keys):
    return printed("summarize", "--full", *arguments, **keys)


def content(*arguments):
    return json.loads(page(*arguments, "--format", "json"))


def one_line(text):
    return " ".join(text.replace("\\\n", " ").split())


@pytest.mark.parametrize("columns", [60, 130])
def test_each_report_has_its_page_and_nothing_else(columns):
    pages = re.split(r"^\n─+\n\n", page(ADD, ADD_UM, EMPTY, columns=columns), flags=re.MULTILINE)
    assert pages == [page(path, columns=columns) for path in (ADD, ADD_UM, EMPTY)]


NO_KERNELS, COUNTERS = REPORTS / "torch" / "cpu_only.json.gz", REPORTS / "ncu" / "add.details.csv"


def test_so_it_is_of_a_capture(tmp_path):
    both = captured(tmp_path / "both", torch_json_gz=NO_KERNELS, ncu_details_csv=COUNTERS)
    time, counters = content(both)["reports"]
    assert time["answer"] == content(NO_KERNELS)["answer"]
    assert counters["answer"] == content(shutil.copy(COUNTERS, tmp_path / "ncu.details.csv"))["answer"]


def test_instances_look_as_they_should(gold):
    gold(page(NVTX, "--window", "step"), "summarize_nvtx_step_80.txt")
    gold(page(NVTX, "--window", "step", "--top", "3", "--format", "markdown"), "summarize_nvtx_step.md")


def test_all_instances_by_name_or_with_a_star():
    assert page(NVTX, "--window", "step#*") == page(NVTX, "--window", "step")
    named, told = (page(NVTX, "--window", name) for name in ("step", ":step"))
    named = named.replace(" step", " :step").replace("'step#1'", "':step#1'")
    assert one_line(told) == one_line(named)  # where the command at the end breaks depends on the report's folder


TRAINING = SAMPLES / "mlp_train"
TRACE = REPORTS / "torch" / "with_modules.json.gz"


def rows(*arguments, said=()):
    ran = run("show", *arguments, "--format", "csv")
    assert ran.status == 0, ran.said
    assert ran.error.splitlines() == [f"kanalyze: {line}" for line in said]
    return list(csv.DictReader(io.StringIO(ran.text)))


def of_one(table, path):
    return [{"report": str(path), **row} for row in rows(table, path)]


@pytest.mark.parametrize("table", ["kernels", "ledger", "health", "events", "copies", "devices"])
def test_the_tables_of_several_reports_are_one_below_the_other(table):
    assert rows(table, ADD, TORCH, ADD_UM) == [*of_one(table, ADD), *of_one(table, TORCH), *of_one(table, ADD_UM)]


def test_one_that_cannot_tell_is_left_out_with_a_word_and_one_that_is_not_there_ends_it(tmp_path):
    said = [f"left out: {ADD}: cannot tell ops, because the report records no events of kind op."]
    assert {row["report"] for row in rows("ops", ADD, TRACE, said=said)} == {str(TRACE)}
    assert refused(run("show", "kernels", ADD, tmp_path / "none.sqlite"))[1].endswith("[report-not-found]")


@pytest.fixture
def folder(tmp_path):
    """A folder with reports, a capture, and what is no report."""
    made = tmp_path / "my reports"
    made.mkdir()
    for path in (ADD, ADD_UM):
        shutil.copyfile(path, made / path.name)
    (made / "damaged.sqlite").write_bytes(NVTX.read_bytes()[:3000])
    (made / "settings.json").write_text("{}")
    (made / "notes.txt").write_text("nothing")
    (made / "add.nsys-rep").write_bytes(b"the report that was exported")
    shutil.copytree(capture(), made / "capture")
    (made / "empty").mkdir()
    return made


def test_a_folder_is_its_reports(folder):
    names = ["add.sqlite", "add_um.sqlite", "capture", "damaged.sqlite", "settings.json"]
    assert reports_in_folder(folder) == [folder / name for name in names]
    said = [
        f"left out: {folder}/damaged.sqlite: damaged at page 1 of 72: the file ends after 3,000 of 294,912 bytes.",
        f"left out: {folder}/settings.json: JSON without traceEvents, not a trace that kanalyze reads.",
    ]
    found = rows("kernels", folder, said=said)
    assert found == [row for name in names[:3] for row in of_one("kernels", folder / name)]


def test_below_a_folder_are_its_reports_and_captures_not_what_is_hidden_or_no_report(folder):
    shutil.copytree(folder / "capture", folder / ".venv" / "capture")
    (folder / "empty" / "direct_url.json").write_text('{"url": "https://example.org"}')
    found = [path.name for path, _ in reports_below(folder, 9)]
    assert sorted(found) == ["add.nsys-rep", "add.sqlite", "add_um.sqlite", "capture", "damaged.sqlite"]


def test_a_folder_of_which_nothing_can_be_read_is_an_error(tmp_path):
    (tmp_path / "a.sqlite").write_bytes(b"SQLite format 3\0")
    (tmp_path / "b.json").write_text("{}")
    for command in (["summarize"], ["show", "kernels"], ["show", "joined"]):
        ran = run(*command, tmp_path)
        assert (ran.status, ran.raw) == (2, b"")
        assert ran.error.count("left out") == 2
        assert ran.error.splitlines()[-2].startswith(f"kanalyze: {tmp_path}/a.sqlite: ")


@pytest.mark.parametrize("table", ["ops", "tree", "steps", "op_kernels", "op_detail", "fusion"])
def test_a_capture_has_from_its_trace_what_nsys_does_not_record(table):
    path = SAMPLES / "gelu" if table == "fusion" else TRAINING
    said = [f"{table} is from {path}/torch.json.gz; nsys.sqlite does not record it."]
    assert rows(table, path, said=said) == rows(table, path / "torch.json.gz")


def test_of_several_traces_it_is_the_first(tmp_path):
    shutil.copytree(TRAINING, tmp_path / "capture")
    shutil.copyfile(TRACE, tmp_path / "capture" / "torch-2.json.gz")
    said = [f"ops is from {tmp_path}/capture/torch.json.gz, the first of 2 traces; nsys.sqlite does not record it."]
    assert rows("ops", tmp_path / "capture", said=said) == rows("ops", TRAINING / "torch.json.gz")


def test_a_table_that_nsys_was_not_asked_for_is_from_the_trace(tmp_path):
    """Not by a list of tables: both tools record ranges, here only torch did."""
    made = captured(tmp_path / "capture", nsys_sqlite=ADD, torch_json_gz=TRACE)
    said = [f"ranges is from {made}/torch.json.gz; nsys.sqlite does not record it."]
    assert rows("ranges", made, said=said) == rows("ranges", TRACE)


DECODE, CAPTURE = (SAMPLES / "inside_graphs" / f"{name}.json.gz" for name in ("decode", "capture"))
NONE_OF_THEM = SAMPLES / "mlp_train" / "torch.json.gz"


@pytest.fixture
def pair(tmp_path):
    """A folder with both."""
    for path in (DECODE, CAPTURE):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_a_folder_of_both_has_the_names(pair):
    words = ("captured", "--columns", "range,operator,count")
    assert run("show", *words, pair).lines == run("show", *words, DECODE, "--capture", CAPTURE).lines
    assert "layers.#.mlp.down" in run("summarize", pair).text
    assert html_of(pair, pair) == html_of(pair, DECODE, "--capture", CAPTURE)
    asked = "SELECT * FROM captured WHERE range LIKE '%mlp.down'"
    assert len(run("sql", DECODE, asked, "--capture", CAPTURE).lines) > 1


def test_what_if_knows_the_ranges_of_another_trace(pair):
    words = ("whatif", DECODE, "--faster", "range:layers.0.mlp.up=2")
    assert "no range 'layers.0.mlp.up'" in refused(run(*words))[0]
    assert "less" in printed(*words, "--capture", pair / CAPTURE.name)


def test_of_two_sides_those_without_such_captures_are_named(pair):
    words = ("compare", DECODE, pair / DECODE.name, "--capture")
    told = [run(*words, path).error.count("without names of captures: ") for path in (CAPTURE, NONE_OF_THEM)]
    assert told == [0, 2]


@pytest.mark.slow
def test_a_trace_is_on_the_page_of_its_own_program_alone():
    pages = json.loads(run("summarize", "--full", "--format", "json", SAMPLES / "inside_graphs").text)["reports"]
    beside = {page["report"]["path"]: len(page.get("joined_with", ())) for page in pages}
    assert [*beside.values()] == [2, 0]
