"""``kanalyze reduce``, and what `ranks` and `show` make of what it left."""

import json
import os
import shutil
import signal
from functools import cache

import pytest

from kanalyze.reduction.tables import MANIFEST
from support.command import REPORTS, command_line, run, started, wait_until

pytestmark = pytest.mark.slow

DDP, FSDP, NCCL = (REPORTS / name for name in ("torch/ddp.json.gz", "torch/fsdp.json.gz", "nccl.sqlite"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """What is left of two reports, for tests to copy."""
    folder = tmp_path_factory.mktemp("reduced") / "out"
    run("reduce", NCCL, DDP, "-j", 1, "-o", folder)
    return folder


def told_of(ran, path):
    """What was printed, whatever the path, and wherever that made a line break."""
    return " ".join(ran.text.replace("\\\n", "").replace(str(path), "PATH").split())


@cache
def usual(*words):
    """What a command prints of the report of nsys by itself."""
    return told_of(run(*words, NCCL), NCCL)


def test_the_page_and_tables_are_those_of_the_report(out):
    run("reduce", NCCL, "-o", out)
    for words in (("ranks",), ("show", "collectives"), ("show", "clocks", "--format", "csv")):
        kept = run(*words, out)
        assert (kept.status, kept.error) == (0, "")
        assert told_of(kept, out) == usual(*words)


def test_what_is_left_out_is_named_and_the_status_says_so(out, tmp_path):
    (tmp_path / "broken.json").write_text('{"traceEvents": [')
    told = run("reduce", NCCL, tmp_path / "broken.json", tmp_path / "none.json", "-j", 1, "-o", out)
    assert told.status == 1
    assert told.text.startswith("1 report reduced, 2 left out.")
    found = [line.split(": ")[1:3] for line in told.error.splitlines()]
    assert found == [["left out", str(tmp_path / "none.json")], ["left out", str(tmp_path / "broken.json")]]


@pytest.mark.parametrize("damage", ["table", "manifest", "version"])
@pytest.mark.parametrize("words", [("ranks",), ("show", "collectives")])
def test_a_damaged_reduction_is_named_and_the_rest_goes_on(out, damage, words, reduced):
    shutil.copytree(reduced, out)
    folder = next(one for one in out.iterdir() if one.name.startswith("ddp"))
    if damage == "table":
        (folder / "pieces.parquet").write_bytes(b"PAR1")
    elif damage == "manifest":
        (folder / MANIFEST).write_bytes(b"{")
    else:
        (folder / MANIFEST).write_text(json.dumps({"reduction": 99, "tables": {}}))
    told = run(*words, out)
    assert told.status == 0
    (line,) = told.error.splitlines()
    assert line.startswith(f"kanalyze: left out: {folder}: a ")
    assert ("version 99" if damage == "version" else "damaged reduction") in line
    assert told_of(told, out) == usual(*words)


def has_ended(group):
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_leaves_what_is_finished(out, tmp_path):
    for number in range(8):
        shutil.copy(DDP, tmp_path / f"{number}.json.gz")
    with started(command_line("reduce", tmp_path, "-o", out, "-j", 2), start_new_session=True) as working:
        wait_until(lambda: out.exists() and len([*out.glob("*.reduced")]) >= 2)
        os.killpg(working.pid, signal.SIGINT)
        _, said = working.communicate(timeout=30)
    assert working.returncode == 130
    assert said.decode().strip() == "Aborted!"
    made = len([*out.iterdir()])
    assert 2 <= made < 8
    assert not [*out.glob(".*")]
    wait_until(lambda: has_ended(working.pid), 20)
    told = run("reduce", tmp_path, "-o", out, "-j", 1)
    assert told.text.startswith(f"{8 - made} reports reduced, {made} there already.")
