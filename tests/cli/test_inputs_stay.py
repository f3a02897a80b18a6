"""No command writes over what it reads, waits for a pipe, or leaves what is half written."""

import os
import shutil

import click
import pytest

from kanalyze.cli import kanalyze
from kanalyze.cli._process import InputPath, OutputPath
from support.command import ADD, SAMPLES, refused, run

WRITE = (
    *(("html",), ("html", "--base", SAMPLES / "loop_base.kz"), ("summarize",), ("verify",), ("ranks",)),
    *(("whatif",), ("compare", SAMPLES / "loop_base.kz"), ("reduce",), ("show", "kernels"), ("show", "tree")),
    *(("export", "--to", "perfetto"), ("export", "--to", "csv")),
)


@pytest.fixture
def capture(tmp_path):
    return shutil.copytree(SAMPLES / "add", tmp_path / "add")


@pytest.mark.parametrize("command", WRITE, ids=lambda some: " ".join(map(str, some))[:20])
def test_a_file_of_a_folder_is_not_written_over(capture, command):
    before = {path: path.read_bytes() for path in capture.rglob("*") if path.is_file()}
    for file in ("manifest.json", "logs/../nsys.sqlite", "none/../nsys.sqlite"):
        assert "which is read" in refused(run(*command, capture, "-o", capture / file))[0]
    assert {path: path.read_bytes() for path in capture.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "line",
    [
        *("plot {0} ledger -o {1}.svg", "plot roofline {0} -o {1}.svg", "show source {0} add -o {1}"),
        *("sql {0} SELECT -o {1}", "compare {0} --save {1}.kz", "compare --save {1}.kz {0}", "html -o {1} {0}"),
    ],
)
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_nor_by_a_link_to_it(capture, line, link):
    words = [word.format(capture, capture.parent / "link") for word in line.split()]
    link(capture / "nsys.sqlite", next(word for word in words if word.startswith(str(capture.parent / "link"))))
    assert "which is read" in refused(run(*words))[0]


def test_nor_what_a_link_in_the_folder_leads_to(capture):
    outside = (capture / "nsys.sqlite").rename(capture.parent / "outside.sqlite")
    (capture / "nsys.sqlite").symlink_to(outside)
    (capture / "loop").symlink_to(capture)
    assert "which is read" in refused(run("summarize", capture, "-o", outside))[0]


def test_nor_a_baseline_a_floor_and_a_journal(tmp_path):
    for option in ("--baseline", "--floor"):
        file = shutil.copy(SAMPLES / "loop_base.kz", tmp_path)
        assert "the report itself" in refused(run("compare", option, file, ADD, "-o", file))[0]
    report, journal = shutil.copy(ADD, tmp_path), tmp_path / "add.sqlite-wal"
    journal.touch()
    assert "which is read" in refused(run("summarize", report, "-o", journal))[0]


def test_every_path_is_told_apart_as_read_or_written():
    context = click.Context(kanalyze)
    commands = {name: kanalyze.get_command(context, name) for name in kanalyze.list_commands(context)}
    for name in commands.keys() - {"collect", "doctor", "mcp"}:
        for param in commands[name].params:
            if isinstance(param.type, click.Path) and (name, param.name) != ("redact", "output"):  # never overwrites
                assert isinstance(param.type, InputPath | OutputPath), (name, param.name)


@pytest.mark.slow
def test_a_link_to_itself_is_no_output(tmp_path):
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop)
    for command in (("html", ADD), ("summarize", ADD)):
        assert "symbolic links" in refused(run(*command, "-o", loop))[0]
    assert loop.is_symlink()


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "line",
    [
        *("compare {0} {1}", "compare {1} {0}", "compare --baseline {0} {1}", "compare --floor {0} {1} {1}"),
        *("compare --noise {0} {1}", "compare {0} --save {2}.kz", "html --base {0} {1}"),
        *("plot {0} {1} compare -o {2}.svg", "redact {0} -o {2}", "reduce {0} -o {2}", "ranks {0}"),
        "summarize {0}",
    ],
)
@pytest.mark.parametrize("name", ["pipe.kz", "pipe.sqlite", "pipe.json.gz"])
def test_a_pipe_is_no_report(tmp_path, line, name):
    words = [word.format(pipe(tmp_path / name), SAMPLES / "loop_base.kz", tmp_path / "out") for word in line.split()]
    assert run(*words).status in (1, 2)


#: Each command with two of the files of a capture, and each file with commands of every kind.
FILES = ("manifest.json", "nsys.sqlite", "ncu.raw.csv", "torch.json.gz")
READING = ("summarize", "ranks", "verify", "compare", "reduce", "plot", "redact")
PIPES = [(command, FILES[(place + more) % 4]) for place, command in enumerate(READING) for more in (0, 1)]


@pytest.mark.parametrize(("command", "name"), PIPES)
@pytest.mark.slow
def test_nor_is_one_in_a_folder(capture, command, name):
    pipe(capture / name)
    further = {
        "compare": [SAMPLES / "add"],
        "reduce": ["-o", capture.parent / "out"],
        "plot": ["ranks", "-o", capture.parent / "out.svg"],
        "redact": ["-o", capture.parent / "out"],
    }
    assert "Traceback" not in run(command, capture, *further.get(command, [])).error
