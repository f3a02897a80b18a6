"""What a recording does around its passes: `--prepare`, and what Triton compiled without the torch pass."""

import json
import os
from pathlib import Path

import pytest

from kanalyze.collectors import collect, dry_run
from kanalyze.collectors.run import recording
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
        ({"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/someone"}, "/home/someone/.cache/torch_extensions"),
    ],
)
def test_extensions_are_built_where_torch_is_told_to(monkeypatch, chosen, found):
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert recording.extensions_folder() == Path(found)


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


KERNEL = {"target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "num_warps": 4, "num_stages": 3, "shared": 0}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def put(cache, key, name):
    folder = cache / key
    folder.mkdir(parents=True)
    (folder / f"{name}.json").write_text(json.dumps({**KERNEL, "hash": key * 32, "name": name}))
    (folder / f"{name}.ptx").write_text(f"// {name}")


def rows(folder):
    return [
        (row["name"], row["cache_hit"], row["ptx"])
        for row in json.loads((folder / "compiled.json").read_text())["kernels"]
    ]


def test_what_is_new_is_kept_and_what_came_from_the_cache_is_said(cache, tmp_path):
    put(cache, "aa", "old_kernel")
    put(cache, "bb", "of_another_program")
    before = recording.cached_kernels()
    put(cache, "cc", "new_kernel")
    (note,) = recording.keep_compiled(tmp_path, before, {"old_kernel", "new_kernel", "_Z3addiPfS_"})
    assert note == (
        "1 kernel (old_kernel) came from Triton's cache, so that compiled.json does not have it; "
        "the torch pass compiles everything afresh"
    )
    assert rows(tmp_path) == [("new_kernel", False, "triton/new_kernel-cccccccc.ptx")]
    assert (tmp_path / "triton/new_kernel-cccccccc.ptx").read_text() == "// new_kernel"


@pytest.mark.parametrize(
    ("number", "told"), [(3, "3 kernels (a, b, c) came"), (4, "4 kernels (a, b, c, …) came"), (0, None)]
)
def test_of_several_from_the_cache_the_first_are_named(cache, tmp_path, number, told):
    names = "abcd"[:number]
    for name in names:
        put(cache, name * 2, name)
    notes = recording.keep_compiled(tmp_path, recording.cached_kernels(), {*names})
    assert [note.startswith(told) and "does not have them" in note for note in notes] == [True] * bool(told)


def test_what_the_torch_pass_wrote_stays(cache, tmp_path):
    put(cache, "aa", "new_kernel")
    (tmp_path / "compiled.json").write_text("{}")
    assert recording.keep_compiled(tmp_path, frozenset(), set()) == []
    assert (tmp_path / "compiled.json").read_text() == "{}"


@pytest.fixture
def script(stand_ins, cache):
    """A script that lets Triton compile a kernel, and a Python that has torch."""
    path = Path("train.py")
    metadata = json.dumps({**KERNEL, "hash": "dd" * 32, "name": "mine"})
    path.write_text(f"mkdir -p {cache}/dd; echo '{metadata}' > {cache}/dd/mine.json; echo 'check: ok'\n")
    return path.absolute(), stand_ins.make("python3")


@pytest.mark.parametrize("passes", [("nsys",), ("ncu",), ("nsys", "ncu")])
@pytest.mark.one_in(4)
def test_a_run_without_the_torch_pass_keeps_what_it_compiled(script, passes):
    path, python = script
    capture = collect(path, output=Path("cap"), python=python, passes=passes)
    assert rows(Path("cap")) == [("mine", False, None)]
    assert "compiled.json" in capture.manifest["files"]


@pytest.mark.slow
def test_where_the_torch_pass_is_done_its_word_counts(script):
    path, python = script
    collect(path, output=Path("cap"), python=python)
    assert not Path("cap/compiled.json").exists()
    assert not [*Path("cap").glob(".caches*")]


@pytest.mark.slow
def test_where_the_torch_pass_fails_the_cache_is_looked_at(stand_ins, script):
    path, python = script
    stand_ins.mode("python3", "runner fails")
    collect(path, output=Path("cap"), python=python)
    assert rows(Path("cap")) == [("mine", False, None)]
