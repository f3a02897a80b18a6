"""`kanalyze summarize`: the page in its forms, its options, and where it is written."""

import errno
import os
import shlex
from functools import cache
from pathlib import Path

import pytest

from support.command import ADD, ADD_UM, REPORTS, SAMPLES, TORCH, printed, refused, run
from support.stand_ins import left

INSIDE = SAMPLES / "inside_graphs"


@cache
def page(*arguments, **keys):
    return printed("summarize", "--full", *arguments, **keys)


@pytest.mark.parametrize(("name", "columns"), [("add", 80), ("add_um", 80), ("torch", 80), ("torch", 130)])
@pytest.mark.one_in(4)
def test_page_looks_as_it_should(gold, name, columns):
    gold(page(REPORTS / f"{name}.sqlite", columns=columns), f"summarize_{name}_{columns}.txt")


def test_markdown_looks_as_it_should(gold):
    gold(page(ADD_UM, "--format", "markdown"), "summarize_add_um.md")


@pytest.mark.slow
def test_output_replaces_what_was_there_and_has_the_usual_permissions(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("old" * 10_000)
    mask = os.umask(0o027)
    try:
        page(ADD, "--output", path)
    finally:
        os.umask(mask)
    assert path.read_text(encoding="utf-8") == page(ADD)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("folder", "reason"), [("nowhere", "No such file or directory"), ("file", "Not a directory")])
def test_output_where_none_can_be_is_refused(tmp_path, folder, reason):
    (tmp_path / "file").write_text("as it was")
    path = tmp_path / folder / "page.txt"
    assert refused(run("summarize", ADD, "-o", path)) == (
        f"{path}: cannot be written ({reason}).",
        "Choose another place with -o, or free some space.  [output-failed]",
    )
    assert left(tmp_path) == {"file"}
    assert (tmp_path / "file").read_text() == "as it was"


FULL, STOPPED = OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("step", ["touch", "replace"])
@pytest.mark.parametrize(("error", "said"), [(FULL, "(No space left on device)"), (STOPPED, "Aborted!")])
def test_output_that_fails_midway_leaves_what_was_there(tmp_path, monkeypatch, step, error, said):
    def fail(*_, **__):
        raise error

    path = tmp_path / "page.txt"
    path.write_text("as it was")
    monkeypatch.setattr(Path, step, fail)
    ran = run("summarize", ADD, "-o", path)
    assert (ran.status, said in ran.error) == (2 if error is FULL else 130, True)
    assert left(tmp_path) == {"page.txt"}
    assert path.read_text() == "as it was"


@pytest.mark.slow
def test_output_through_a_link_is_written_where_it_points(tmp_path):
    (tmp_path / "link").symlink_to("page.txt")
    page(ADD, "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.txt").read_text(encoding="utf-8") == page(ADD)


def test_output_to_what_is_no_file_does_not_replace_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ran = run("summarize", "--full", ADD, "-o", pipe)
        assert pipe.is_fifo()
        assert ran.status == 2 or os.read(reader, 1 << 16).decode() == page(ADD)
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("report", "arguments", "columns"),
    [(ADD, [], 160), *((TORCH, ["--window", of], 60) for of in ("train#3", "train")), (SAMPLES / "square", [], 60)],
)
@pytest.mark.one_in(4)
def test_the_commands_that_a_page_ends_with_run_as_they_stand(tmp_path, report, arguments, columns):
    path = tmp_path / "it's my $HOME" / report.name
    path.parent.mkdir()
    path.symlink_to(report)
    text = run("summarize", path, *arguments, "--top", "1", columns=columns).text
    lines = text.partition("\nMore: ")[2].replace(" \\\n", " ").splitlines()
    commands = [shlex.split(line[line.index("kanalyze ") :]) for line in lines]
    assert commands
    for command in commands:
        assert command[1] == "explain" or command == ["kanalyze", "show"] or str(path) in command
        assert command[1] == "explain" or command == ["kanalyze", "show"] or not arguments or "--window" in command
        assert run(*command[1:]).status == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["whatif", INSIDE / "decoder.sqlite", "--measured", "1ms"], "--window 'graph b=8'"),
        (["compare", *[INSIDE / "decoder.sqlite"] * 2], "--window 'graph b=8' --device 0"),
        (["explain", "host-computes", SAMPLES / "mlp_train"], "--window tidy"),
        (["summarize", INSIDE / "decode.json.gz"], f"--capture {INSIDE / 'capture.json.gz'}"),
        (["summarize", INSIDE / "decoder.sqlite"], "--steps 'graph b={batch}' --steps 'eager b={batch}'"),
    ],
)
def test_the_commands_that_a_page_ends_with_are_of_its_part(words, part):
    more = run(*words, *shlex.split(part)).text.partition("\nMore: ")[2]
    assert all(part in line for line in more.splitlines() if "explain" not in line)
    assert part in more
