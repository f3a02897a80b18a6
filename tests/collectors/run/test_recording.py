"""What a recording does around its passes, and two programs whose runs are interleaved, with stand-ins for tools."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kanalyze.collectors import collect, collect_against
from kanalyze.collectors.options import CompileError
from kanalyze.collectors.run import collect as recording
from kanalyze.errors import CollectError, KanalyzeError
from kanalyze.readers.capture.reports import runs_of
from support.stand_ins import PROGRAM, left, told


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/e", "XDG_CACHE_HOME": "/c"}, "/e"),
        ({"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
        ({"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/home/me"}, "/home/me/.cache/torch_extensions"),
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
    assert collect(program, output=Path("cap"), timeout_s=2).notes == (
        f"ncu: {old} is older than this run, which may have waited for it: remove it, unless something is built",
        f"ncu: {new} is left of a build that was stopped: remove it, or later runs wait for it for ever",
    )
    assert json.loads(Path("cap/manifest.json").read_text())["passes"][1]["status"] == "failed"
    assert collect(stand_ins.write("fine", PROGRAM), output=Path("well")).notes == ()


SOURCE = """#include "value.h"
#include <cstdio>
__global__ void kernel(int *x) { *x = VALUE; }
int main() { printf("Max error: %d %s\\n", VALUE, TEXT); }
"""

NVCC = shutil.which("nvcc")
with_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc here")


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "a home"
    home.mkdir()
    (home / "value.h").write_text("#define VALUE 1\n")
    (home / "-x y.cu").write_text(SOURCE)
    monkeypatch.chdir(home)
    return home


@pytest.mark.slow
@with_nvcc
def test_a_source_is_compiled_for_the_gpu_present_into_the_capture(home, stand_ins):
    """The compiled program runs, too: it needs no GPU."""
    captured = collect(home / "-x y.cu", output=Path("cap"), nvcc=NVCC, nvcc_flags=('-DTEXT="a b"', "-O1"))
    build = captured.manifest["build"]
    found = (build["exit_status"], captured.checks, build["command"][1:3])
    assert found == (0, ["Max error: 1 a b"], ["-lineinfo", "-arch=sm_90"])
    binary = Path("cap", "build", "x_y").absolute()
    assert (build["command"][-2:], os.access(binary, os.X_OK)) == ([str(binary), str(home / "-x y.cu")], True)
    assert len(stand_ins.called("nsys")) == 3


@with_nvcc
@pytest.mark.slow
def test_what_does_not_compile_leaves_nothing_and_the_first_error_is_on_top(home):
    (home / "bad.cu").write_text("int main() {\n  int x = y;\n  int z = w;\n}\n")
    with pytest.raises(CompileError, match="nvcc fatal"):
        collect("bad.cu", arch=("10",))
    with pytest.raises(CompileError, match=r'does not compile: .*\(2\): error: identifier "y" is undefined') as caught:
        collect("bad.cu", output=Path("cap"), arch=("90",))
    assert any('identifier "w" is undefined' in line for line in caught.value.details)
    (home / "bad.cu").write_text("int main() {}\n")  # it is compiled first, also where there is no GPU
    with pytest.raises(CollectError, match="no GPU that can be used"):
        collect("bad.cu", arch=("90",))
    assert {entry.name for entry in home.iterdir()} == {"value.h", "-x y.cu", "bad.cu"}


@pytest.mark.skipif(NVCC is not None, reason="nvcc is where every system has its programs")
@pytest.mark.usefixtures("stand_ins")
def test_without_nvcc_a_source_cannot_be_compiled():
    Path("a.cu").write_text("int main() {}\n")
    with pytest.raises(CompileError, match="cannot be compiled: nvcc: not found on PATH"):
        collect("a.cu")


#: A program that fails when it is called for the n-th time with these arguments, and counts that.
FAILS = """#!/bin/sh
count="$(dirname "$0")/count$1"
echo x >> "$count"
if [ "$(wc -l < "$count")" -ge {number} ] && [ "$1" = "new" ]; then echo 'ValueError: no'; exit 3; fi
echo 'Max error: 0'
"""

#: An nsys that fails of one of two programs.
BROKEN = """#!/bin/sh
for last; do :; done; [ "$last" = --fused ] && {{ echo broken; exit 1; }}
exec {folder}/nsys-itself "$@"
"""

NSYS = {"passes": ("nsys",)}

#: By title: both programs, and the options; `fails`: the run of the second one that fails; `stops`: the step, from 1,
#: before which the user interrupts.
CASES = {
    "in turns": ("program", "other -x 'a b'", {"args": ["-n", "1"], "repeat": 4, **NSYS}),
    "every tool": ("program", "--fused", {}),
    "compiled": ("one.cu", "two.cu", NSYS),
    "traces too": ("train.py", "--fused", {"repeat": 3, "passes": ("nsys", "torch")}),
    **{
        f"fails at run {number}": ("program", "program new", {"repeat": 4, "fails": number, **NSYS})
        for number in (1, 2, 3)
    },
    "nothing of one": ("program", "--fused", {"broken": True, **NSYS}),
    **{
        f"interrupted at step {number}": ("program", "--fused", {"repeat": 2, "stops": number, **NSYS})
        for number in (2, 4, 5, 6, 7)
    },
}


def of_side(capture):
    """What is left of a side, and the turns of its runs."""
    text = (capture / "manifest.json").read_text()
    against = json.loads(text)["against"]
    assert ".collecting" not in text
    runs = [f"{run.tool} {run.number} is turn {run.turn.number} of {run.turn.side}" for run in runs_of(capture)]
    return [*told(capture), f"side {against['side']}, turns {against['turns']}", *runs]


def test_what_the_gpu_reaches_is_measured_once_for_both(stand_ins, script, monkeypatch):
    del stand_ins
    asked = []

    def rates(*_):
        asked.append(1)
        return {"name": "Some GPU", "rates": {"fp32": 1e13}}, ""

    monkeypatch.setattr("kanalyze.collectors.run.collect.rates", rates)
    path, python = script
    both = collect_against(path, f"{path} new", ["base"], output=Path("cap"), python=python, **NSYS)
    assert both.base.manifest["roofs"]["name"] == both.new.manifest["roofs"]["name"] == "Some GPU"
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_what_two_programs_leave(stand_ins, script, gold, title):
    program, other, options = CASES[title]
    (fails, stops, broken), begun = (options.get(name) for name in ("fails", "stops", "broken")), []
    stand_ins.make("nvcc")
    stand_ins.write("program", FAILS.format(number=fails) if fails else PROGRAM)
    stand_ins.write("other", PROGRAM)
    for name in ("one.cu", "two.cu"):
        Path(name).write_text("int main() {}\n")
    if broken:
        (stand_ins.folder / "nsys").rename(stand_ins.folder / "nsys-itself")
        stand_ins.write("nsys", BROKEN.format(folder=stand_ins.folder))

    def starter(*arguments, **more):
        if stops and sum(step.startswith(("base", "new")) for step in begun) == stops:
            raise KeyboardInterrupt
        return subprocess.Popen(*arguments, **more)  # noqa: S603 - as the collectors start it

    lines, wanted = [], {name: options[name] for name in options.keys() - {"fails", "stops", "broken"}}
    try:
        both = collect_against(
            *(program, other),
            **{"output": Path("cap"), "python": script[1], **wanted},
            progress=lambda event: begun.append(event.step) if event.kind == "begin" else None,
            starter=starter,
        )
        lines += both.problems
        assert (both.base.folder, both.new.folder) == (Path("cap/base"), Path("cap/new"))
    except KanalyzeError as error:
        lines += [str(error), error.remedy, *error.details]
    kept = sorted(Path("cap").iterdir()) if Path("cap").exists() else []
    assert left() - {"one.cu", "two.cu", "train.py"} == {"cap"} & {path.parent.name for path in kept}
    lines += [f"step {step}" for step in begun] + [line for capture in kept for line in of_side(capture)]
    gold("\n".join([*lines, ""]).replace(str(stand_ins.folder), "BIN"), f"runs/against_{title.replace(' ', '_')}.txt")
