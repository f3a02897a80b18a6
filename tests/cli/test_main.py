"""What all commands share: help, version, errors, pipes and terminals."""

import os
import sys
from pathlib import Path

import click
import pytest

from support.command import ADD, ADD_UM, SAMPLES, TORCH, command_line, ended, on_terminal, refused, run, spawn, started

COMMANDS = {
    "Look": ["summarize", "show", "plot"],
    "Ask": ["explain", "whatif", "sql"],
    "Compare": ["compare", "ranks", "verify"],
    "Record": ["collect", "doctor", "cache"],
    "Share": ["html", "export", "redact", "reduce", "mcp"],
}
ESCAPE = "\x1b["


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_a_line_for_each_command_by_what_it_is_for(flag):
    ran = run(flag, columns=80)
    assert (ran.status, ran.error) == (0, "")
    assert "Usage: kanalyze" in ran.text
    groups = [group.splitlines() for group in ran.text.split("\n\n")[3:]]
    assert {head.rstrip(":"): [line.split()[0] for line in lines] for head, *lines in groups} == COMMANDS
    assert all(len(line) <= 70 and "..." not in line for _, *lines in groups for line in lines)


def test_version_is_that_of_the_installed_package(tmp_path, monkeypatch):
    metadata = tmp_path / "kanalyze-12.34.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: kanalyze\nVersion: 12.34\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run("--version") == run("--version", "summarize")
    assert run("--version").text == "kanalyze 12.34\n"


def test_an_error_is_a_message_and_a_remedy_and_its_name_in_the_docs():
    ran = spawn("summarize", "nowhere/report.sqlite")
    expected = "kanalyze: nowhere/report.sqlite: no such file.\nCheck the path.  [report-not-found]\n"
    assert (ran.status, ran.text, ran.error) == (2, "", expected)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["summarise", ADD], "No such command 'summarise'. Did you mean summarize?"),
        (["ledger", ADD], "No such command 'ledger'. Did you mean show ledger?"),
        (["summarize"], "Missing argument 'REPORTS...'"),
        (["show", "kernels", "--format", "csv"], "--format csv is of rows: give a report."),
        (["export", ADD], "Choose from:\n  parquet,\n  arrow,"),
        (["show", "utilisation", ADD, "--chunks", "0"], "0 is not in the range x>=1"),
        (["summarize", ADD, "--windows", "..1ms"], "No such option"),
        (["summarize", ADD, "--format", "yaml"], "'yaml' is not one of 'terminal', 'markdown', 'json'"),
        (["show", "kernels", ADD, "--format", "yaml"], "'yaml' is not one of"),
        (["summarize", ADD, "--top", "0"], "0 is not in the range x>=1"),
        (["summarize", ADD, "--top", "many"], "'many' is not a valid integer"),
        (["summarize", ADD, "--device", "first"], "'first' is not a valid integer"),
        (["summarize", ADD, "-o", Path(__file__).parent], "is a directory"),
    ],
    ids=lambda value: " ".join(map(str, value[:1] + value[2:])) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_told_with_its_usage(arguments, told):
    ran = run(*arguments)
    assert (ran.status, ran.text) == (2, "")
    assert ran.error.startswith("Usage: kanalyze ")
    assert told in ran.error


def test_an_interrupt_ends_it_without_traceback(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kanalyze.cli._process.emit", interrupted)
    ran = run("show")
    assert (ran.status, ran.text) == (130, "")
    assert ran.error.strip() == "Aborted!"


def test_help_does_not_wait_for_polars():
    code = "import sys; from kanalyze.cli import kanalyze as k; k(['--help'], standalone_mode=False); "
    done = ended([sys.executable, "-c", code + "print('polars' in sys.modules)"])
    assert done.stdout.splitlines()[-1] == "False"


#: Ends with 40 when polars is imported, and with 41 if the options of its allocator are not set then.
WATCHED = """
import os, sys
from pathlib import Path
from click import Command, Context
from kanalyze import cli
from kanalyze.cli import collect, main
class Watch:
    def find_spec(self, name, *_):
        if name == "polars":
            sys.exit(40 if "_RJEM_MALLOC_CONF" in os.environ else 41)
sys.meta_path.insert(0, Watch())
cli._ONE_THREAD_BYTES = 0
"""
SQUARE = SAMPLES / "square"


@pytest.mark.parametrize(
    "arguments",
    [
        *(("show", "roofline", SQUARE), ("show", "kernels", ADD), ("show", "joined", SQUARE)),
        ("show", "source", SQUARE, "0"),
        *(("summarize", ADD), ("summarize", ADD, ADD_UM), ("summarize", SQUARE)),
        *(("show", "tree", SQUARE / "torch.json.gz"), ("verify", SQUARE)),
    ],
)
def test_what_reads_a_large_report_tells_the_allocator_before_it_is_loaded(arguments):
    assert watched("main()", *arguments) == 40


def test_so_does_the_page_of_what_was_collected():
    assert watched("with Context(Command('collect')): collect.summarize.shown([Path(sys.argv[1])])", SQUARE) == 40


def watched(call, *arguments):
    return ended([sys.executable, "-c", WATCHED + call, *arguments]).returncode


@pytest.mark.parametrize("form", ["csv", "json", "terminal"])
@pytest.mark.one_in(4)
def test_a_reader_that_leaves_ends_it_quietly(form):
    with started(command_line("show", "events", TORCH, "--format", form)) as process:
        assert process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(100) in (0, 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "arguments", [["summarize", ADD], ["show", "kernels", ADD, "--format", "csv"]], ids=["page", "csv"]
)
def test_a_reader_that_never_was_ends_it_quietly(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ran = spawn(*arguments, stdout=pipe)
    assert (ran.status, ran.error) == (1, "")


@pytest.mark.one_in(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("form", ["terminal", "csv"])
def test_a_full_disk_behind_standard_output_is_told(form):
    with Path("/dev/full").open("wb") as full:
        ran = spawn("show", "kernels", ADD, "--format", form, stdout=full)
    message, remedy = refused(ran)
    assert "No space left on device" in message
    assert remedy.endswith("[output-failed]")


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [
        pytest.param("ascii", ["summarize", "--full", ADD_UM], id="page-ascii"),
        pytest.param("latin-1", ["summarize", "--full", ADD_UM], id="page-latin-1"),
        pytest.param("ascii", ["show", "launches", TORCH], id="table-ascii"),
        pytest.param("cp1252", ["show"], id="show-cp1252"),
    ],
)
@pytest.mark.slow
def test_old_terminals_get_what_they_can_print(encoding, arguments):
    plain = run(*arguments)
    ran = spawn(*arguments, PYTHONIOENCODING=encoding, COLUMNS="80")
    assert (ran.status, ran.error) == (0, "")
    text = ran.raw.decode(encoding)
    assert len(text.splitlines()) == len(plain.lines)
    assert text.count("?") == plain.text.count("?")


@pytest.mark.slow
def test_a_terminal_gets_colour_and_its_own_width():
    shown = on_terminal(100, "summarize", ADD)
    assert ESCAPE in shown
    assert click.unstyle(shown) == run("summarize", ADD, columns=100).text


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"NO_COLOR": "no"}])
@pytest.mark.slow
def test_a_terminal_gets_no_colour_where_it_is_not_wanted(changes):
    assert on_terminal(80, "summarize", ADD, **changes) == run("summarize", ADD).text
