"""What a recording does around its passes: compiling, and locks of builds that were stopped."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.options import CompileError
from kanalyze.collectors.run import collect as recording
from kanalyze.errors import CollectError
from support.stand_ins import PROGRAM


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/e", "XDG_CACHE_HOME": "/c"}, "/e"),
        ({"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
        (
            {"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/home/someone"},
            "/home/someone/.cache/torch_extensions",
        ),
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
