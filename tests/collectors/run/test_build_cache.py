"""Compiling for real, where there is an nvcc: what is kept, when it serves again, and what is said of errors."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.base.errors import CompileError
from kanalyze.collectors.base.programs import find
from kanalyze.collectors.tools import nvcc
from kanalyze.errors import CollectError

SOURCE = """#include "value.h"
#include <cstdio>
__global__ void kernel(int *x) { *x = VALUE; }
int main() { printf("%d %s\\n", VALUE, TEXT); }
"""

NVCC = shutil.which("nvcc")
with_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc here")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a source and its header, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "a home"
    home.mkdir()
    (home / "value.h").write_text("#define VALUE 1\n")
    (home / "-x y.cu").write_text(SOURCE)
    monkeypatch.chdir(home)
    return home


def built(home, *flags, arch=("sm_90",), runs=None):
    def compile_with(command):
        ended = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - nvcc
        assert ended.returncode == 0, ended.stdout + ended.stderr
        if runs is not None:
            runs.append(command)
        return 1.5

    return nvcc.build(
        find("nvcc", "--nvcc-path", None, nvcc.FOLDERS, nvcc.REMEDY),
        home / "-x y.cu",
        arch,
        ['-DTEXT="a b"', *flags],
        compile_with,
    )


def output(build):
    return subprocess.run([build.binary], check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own


@pytest.mark.slow
@with_nvcc
def test_a_source_is_compiled_once_and_again_when_anything_changes(home):
    first = built(home)
    assert (first.cached, first.seconds, output(first)) == (False, 1.5, "1 a b\n")
    again = built(home)
    assert (again.cached, again.seconds, again.binary) == (True, 0.0, first.binary)
    (home / "value.h").write_text("#define VALUE 2\n")
    changed = built(home)
    assert (changed.cached, output(changed)) == (False, "2 a b\n")
    other = built(home, "-O1")
    assert (other.cached, other.key != first.key) == (False, True)
    assert [entry.name for entry in nvcc.folder().glob(".*")] == []


@with_nvcc
@pytest.mark.slow
def test_what_does_not_compile_leaves_nothing_and_the_first_error_is_on_top(home):
    (home / "bad.cu").write_text("int main() {\n  int x = y;\n  int z = w;\n}\n")
    with pytest.raises(CompileError) as caught:
        collect("bad.cu", output=Path("cap"), arch=("90",))
    message = str(caught.value)
    assert "does not compile: " in message
    assert '(2): error: identifier "y" is undefined' in message
    assert any('identifier "w" is undefined' in line for line in caught.value.details)
    assert {entry.name for entry in home.iterdir()} == {"value.h", "-x y.cu", "bad.cu"}
    assert list(nvcc.folder().glob(".*")) == []


@with_nvcc
def test_an_architecture_that_nvcc_does_not_know_is_nvcc_s_error(home):
    (home / "good.cu").write_text("int main() {}\n")
    with pytest.raises(CompileError, match="nvcc fatal"):
        collect("good.cu", arch=("10",))


@pytest.mark.slow
def test_an_nvcc_that_takes_too_long_is_told(stand_ins, monkeypatch):
    monkeypatch.setattr("kanalyze.collectors.base.process._GRACE_S", 0.3)
    stand_ins.make("nvcc")
    stand_ins.mode("nvcc", "hangs")
    Path("x.cu").write_text("int main() {}\n")
    told = []
    with pytest.raises(CompileError, match=r"does not compile: nvcc took longer than 1 s, and was stopped"):
        collect("x.cu", output=Path("cap"), timeout_s=1, progress=told.append)
    steps = [(event.kind, event.step, event.text) for event in told if event.kind != "tick"]
    assert steps == [("begin", "compile", ""), ("end", "compile", "failed")]


def test_without_nvcc_a_source_cannot_be_compiled(stand_ins):
    if shutil.which("nvcc"):
        pytest.skip("nvcc is where every system has its programs")
    del stand_ins
    Path("a.cu").write_text("int main() {}\n")
    with pytest.raises(CompileError, match="cannot be compiled: nvcc: not found on PATH"):
        collect("a.cu")


@pytest.mark.slow
@with_nvcc
def test_a_source_is_compiled_for_the_gpu_present_and_run(stand_ins, monkeypatch):
    """The compiled program runs, too: it needs no GPU."""
    compiler = Path(NVCC)
    Path("-x.cu").write_text('#include <cstdio>\nint main() { printf("Max error: 0\\n"); }\n')
    capture = collect("-x.cu", output=Path("cap"), nvcc=compiler, nvcc_flags=("-O1",))
    assert capture.checks == ["Max error: 0"]
    built = capture.manifest["build"]
    assert built["command"][1:4] == ["-lineinfo", "-arch=sm_90", "-O1"]
    again = collect("-x.cu", output=Path("again"), nvcc=compiler, nvcc_flags=("-O1",))
    assert (built["cached"], again.manifest["build"]["cached"]) == (False, True)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")
    assert not collect("-x.cu", output=Path("other"), nvcc=compiler, nvcc_flags=("-O1",)).manifest["build"]["cached"]
    assert len(stand_ins.called("nsys")) == 9


@pytest.mark.slow
@with_nvcc
def test_without_a_gpu_the_source_is_still_compiled_first(bare):
    Path("good.cu").write_text("int main() {}\n")
    with pytest.raises(CollectError, match="no GPU that can be used"):
        collect("good.cu", nvcc=Path(NVCC), arch=("90",))
    assert [entry.name for entry in Path().iterdir()] == ["good.cu"]
    del bare
