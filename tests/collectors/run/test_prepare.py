"""`--prepare`: the program runs once without a profiler first."""

import json
import os
from pathlib import Path

import pytest

from kanalyze.collectors import collect, dry_run
from kanalyze.collectors.run import compiled_after
from kanalyze.errors import CollectError

COUNTING = '#!/bin/sh\necho "$KANALYZE_TOOL" >> "$(dirname "$0")/runs"\necho "Max error: 0"\n'


@pytest.mark.slow
def test_it_runs_first_and_the_manifest_says_how_long_it_took(stand_ins):
    program = stand_ins.write("program", COUNTING)
    capture = collect(program, ["a b"], output=Path("cap"), prepare=True)
    assert len((stand_ins.folder / "runs").read_text().splitlines()) == 3
    told = capture.manifest["prepare"]
    assert (told["command"], told["exit_status"]) == ([str(program), "a b"], 0)
    assert told["duration_ns"] > 0
    assert capture.manifest["checks"][0] == {"step": "prepare", "line": "Max error: 0", "passed": True}
    assert Path("cap/logs/prepare.log").read_text() == "Max error: 0\n"
    assert "prepare" not in collect(program, output=Path("without")).manifest


def test_a_program_that_fails_without_a_profiler_is_not_run_under_one(stand_ins):
    program = stand_ins.write("bad", "#!/bin/sh\necho no luck\nexit 3\n")
    with pytest.raises(CollectError, match="bad: the program ended with exit status 3: no luck"):
        collect(program, output=Path("cap"), prepare=True)
    assert stand_ins.called("nsys") == []
    assert [*Path().iterdir()] == []


@pytest.mark.slow
def test_one_that_takes_too_long_is_told(stand_ins):
    program = stand_ins.write("slow", "#!/bin/sh\necho started\nexec sleep 900\n")
    with pytest.raises(CollectError, match="without a profiler it took longer than 1 s, and was stopped") as caught:
        collect(program, output=Path("cap"), prepare=True, timeout_s=1)
    assert caught.value.details == ["started"]


def test_a_dry_run_has_it_before_the_passes(stand_ins):
    program = stand_ins.write("program", COUNTING)
    lines = dry_run(program, ["a b"], output="cap", prepare=True)
    at = lines.index("# to build what it needs")
    assert lines[at + 1] == f"{program} 'a b'"
    assert lines[at + 2] == "# nsys"


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/e", "XDG_CACHE_HOME": "/c"}, "/e"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/torch_extensions"),
    ],
)
def test_extensions_are_built_where_torch_is_told_to(monkeypatch, chosen, found):
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert compiled_after.folder() == Path(found)


@pytest.mark.slow
def test_locks_of_builds_that_were_stopped_are_told(stand_ins, monkeypatch):
    """torch waits for the lock file of a build for ever, and a build that is killed leaves it."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(Path("extensions").absolute()))
    old, new = Path("extensions/gelu/lock").absolute(), Path("extensions/py312_cu130/add/lock").absolute()
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    build = f'#!/bin/sh\necho "Max error: 0"\nif [ -e "$0.ran" ]; then mkdir -p {new.parent}; touch {new}; sleep 900; fi\ntouch "$0.ran"\n'  # noqa: E501
    program = stand_ins.write("program", build)
    capture = collect(program, output=Path("cap"), timeout_s=2)
    assert capture.notes == (
        f"ncu: {old} is older than this run, which may have waited for it: remove it, unless something is built",
        f"ncu: {new} is left of a build that was stopped: remove it, or later runs wait for it for ever",
    )
    assert json.loads(Path("cap/manifest.json").read_text())["passes"][1]["status"] == "failed"
    assert collect(stand_ins.write("fine", COUNTING), output=Path("well")).notes == ()
