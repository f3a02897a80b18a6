"""The command line as people guess it: words in any order, no command, windows by pattern."""

import json
import re

import pytest

from kanalyze.cli import _GROUPS
from support.command import REPORTS, SAMPLES, printed, refused, run

pytestmark = pytest.mark.slow

SQUARE, MLP, NVTX = SAMPLES / "square", SAMPLES / "mlp_train", REPORTS / "nvtx.sqlite"
GEMM = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
ADD, TRACE = SAMPLES / "add" / "nsys.sqlite", SQUARE / "torch.json.gz"


@pytest.mark.parametrize(
    ("guessed", "meant"),
    [
        *(([NVTX], ["summarize", NVTX]), ([NVTX, "--top", "2"], ["summarize", NVTX, "--top", "2"])),
        (["show", NVTX, "ledger"], ["show", "ledger", NVTX]),
        *((["sql", *words], ["sql", ADD, "SHOW TABLES"]) for words in (["SHOW TABLES", ADD], [ADD, "show  tables;"])),
        (["explain", MLP / "nsys.sqlite", "no-tf32"], ["explain", "no-tf32", MLP / "nsys.sqlite"]),
        (["show", "source", "MUL", SQUARE, "--sass"], ["source", SQUARE, "Mul", "--sass"]),
        (["show", "tree", TRACE, "--depth", "2"], ["tree", TRACE, "--depth", "2"]),
        *((["show"], ["tables"]), (["show", "ledger"], ["tables", "ledger"]), (["explain", GEMM], ["name", GEMM])),
        *((["show", "roofline", SQUARE], ["roofline", SQUARE]), (["collect", "--list"], ["workloads"])),
    ],
    ids=lambda words: " ".join(getattr(word, "stem", word) for word in words),
)
def test_what_people_guess_is_what_it_stands_for(guessed, meant):
    assert printed(*guessed) == printed(*meant)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        *((["plot", ADD], "Choose from:\n  ledger"), (["sql", ADD], "Missing argument 'STATEMENT'")),
        *((["show", ADD], "Missing argument 'TABLE'"), (["explain", ADD], "Missing argument 'NAME'")),
        (["sql", "show tables"], "Missing argument 'REPORTS...'"),
    ],
)
def test_what_is_missing_is_named_and_not_the_report(words, missing):
    ran = run(*words)
    assert (ran.status, missing in ran.error) == (2, True)


def test_a_table_is_meant_where_a_folder_is_called_so_too(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    expected = printed("show", "kernels", ADD)
    monkeypatch.chdir(tmp_path)
    assert printed("show", "kernels", ADD) == printed("show", ADD, "kernels") == expected
    assert refused(run("show", "kernels", "none.sqlite"))[0] == "none.sqlite: no such file."
    assert refused(run("none.sqlite"))[0] == "none.sqlite: no such file."


def test_rows_of_a_tree_are_those_of_its_table():
    rows = json.loads(printed("show", "tree", TRACE, "--format", "json"))
    assert {"node", "parent", "depth"} <= {*rows[0]}
    for option in (["--depth", "2"], ["--min-share", "1%"]):
        assert run("show", "kernels", TRACE, *option).status == 2


@pytest.mark.parametrize("name", [name for group in _GROUPS.values() for name in group])
def test_every_command_of_the_help_has_a_help(name):
    text = printed(name, "--help")
    assert f"Usage: kanalyze {name}" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["show", "ledger", NVTX, "--columns", "instance", "--format", "csv"], "cross-thread"),
        (["show", "joined", SQUARE, "--columns", "instance", "--format", "csv"], "timed"),
        (["verify", SQUARE, "--format", "csv", "--all"], "timed"),
        (["sql", NVTX, "SELECT DISTINCT instance FROM ledger", "--format", "csv"], "cross-thread"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("pattern", ["{}#*", "{:.3}*"])
def test_a_table_has_the_rows_of_each_window(arguments, name, pattern):
    lines = printed(*arguments, "--window", pattern.format(name)).splitlines()[1:]
    assert {line.split(",")[0] for line in lines} == {f"{name}#{number}" for number in (1, 2, 3)}


@pytest.mark.parametrize(
    ("arguments", "mark", "count"),
    [
        (["whatif", NVTX, "--faster", "copies=2"], r"--window cross-thread#\d+", 3),
        (["compare", NVTX, NVTX], r"The window 'cross-thread#\d+'", 3),
        (["explain", "host-computes", NVTX], r"window cross-thread#\d+", 3),
        (["summarize", NVTX], "INSTANCES", 1),
    ],
)
def test_a_page_is_of_each_window_or_of_all(arguments, mark, count):
    assert len(set(re.findall(mark, printed(*arguments, "--window", "cross*")))) == count


def test_ranges_of_several_names_are_told_by_name():
    page = printed("summarize", MLP / "nsys.sqlite", "--window", "*ward")
    assert "84 instances of *ward" in page
    assert "forward#1 takes" in page
    assert refused(run("summarize", NVTX, "--window", "nothing*"))[0] == "no range 'nothing*'."


def test_culprits_are_sorted_by_time_and_stalls_have_figures():
    times = [row["ns"] for row in json.loads(printed("show", "culprits", MLP / "nsys.sqlite", "--format", "json"))]
    assert times == sorted(times, reverse=True)
    head, first = printed("show", "stalls", SQUARE).splitlines()[:2]
    assert head.split() == ["reason", "cycles_per_instruction", "share", "name"]
    assert first.split()[:4] == ["long_scoreboard", "143.46", "80.0", "%"]


def test_why_there_are_no_variants_and_which_kernels_match():
    assert (
        "variants has no rows: no range of the program stands in several others" in run("show", "variants", ADD).error
    )
    ran = run("show", "source", SQUARE, "VECTORIZED", "--sass")
    found = "2 kernels match, the first is shown: 0 vectorized_elementwise_kernel<4, pow_tensor_scalar> 188.0 µs; 3 "
    assert found in ran.error


def test_reports_that_share_no_kernel_have_pages_of_their_own():
    pages = printed("summarize", ADD, TRACE).split("─" * 80)
    assert [page.split()[0] for page in pages] == ["nsys.sqlite", "torch.json.gz"]
    assert "with" not in pages[0].partition("health")[0]
    assert "with torch.json.gz" in printed("summarize", SQUARE / "nsys.sqlite", TRACE)


def test_a_trace_without_the_gpu_says_how_to_record_it():
    page = " ".join(printed("summarize", REPORTS / "torch" / "cpu_only.json.gz").split())
    assert "nothing that ran on a GPU" in page
    assert "ProfilerActivity.CUDA" in page


@pytest.mark.parametrize("columns", [60, 200])
def test_headings_fit_and_remarks_stand_by_their_columns(columns):
    lines = printed("summarize", SQUARE, columns=columns).splitlines()
    assert max(len(line) for line in lines if "  GPU 0, " in line or line.startswith(("GPU 0, ", "WHERE"))) <= columns
    at = next(number for number, line in enumerate(lines) if line.startswith("KERNELS"))
    assert len(lines[at]) <= max(80, *map(len, lines[at + 1 : lines.index("", at)]))


@pytest.mark.parametrize("form", ["terminal", "markdown", "json"])
def test_what_tools_say_is_explained(form):
    text = printed("explain", "ERR_NVGPUCTRPERM", "--format", form)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in text


def test_markdown_has_the_rows_of_a_table_with_units():
    head, rules, first, *_ = printed(
        "show", "kernels", SQUARE, "--columns", "count,total_ns,name", "--format", "markdown"
    ).splitlines()
    assert (head, rules) == ("| count | total_ns | name |", "| --: | --: | :-- |")
    assert first == "| 32 | 6.053 ms | `vectorized_elementwise_kernel<4, pow_tensor_scalar>` |"


def test_the_cache_is_shown_and_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "kanalyze"
    assert printed("cache") == f"{folder}: 0 reports, 0 B of at most 8.590 GB.\n"
    folder.mkdir(mode=0o700)
    (folder / "a-b.c.sqlite").write_bytes(b"x" * 2000)
    (folder / "builds").mkdir()
    assert printed("cache") == f"{folder}: 1 report, 2.000 kB of at most 8.590 GB.\n"
    assert printed("cache", "--clear") == f"{folder}: 1 report, 2.000 kB removed.\n"
    assert [place.name for place in folder.iterdir()] == ["builds"]
