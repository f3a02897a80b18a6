"""The run without a profiler: first, of every program, and left out where asked for or where nothing would end it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.options import Options
from kanalyze.collectors.run import passes
from kanalyze.collectors.run import plan as planning
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import found
from kanalyze.collectors.tools.found import find_tools
from kanalyze.collectors.workload import resolve
from kanalyze.readers.capture.read_capture import _reached
from support.stand_ins import WANTED

#: Headers of NVTX, of CUDA's toolkit.
HEADERS = sorted(Path("/usr/local").glob("cuda*/include/nvtx3/nvToolsExt.h"))


@pytest.mark.parametrize(("version", "hooked"), [("3.8.10", False), ("2.7.18", False), ("3.9.0", True), (None, True)])
def test_an_old_python_runs_the_script_itself(stand_ins, version, hooked):
    del stand_ins
    Path("train.py").write_text("")
    tools = find_tools(Options(), torch=False)._replace(python_version=version)
    assert ("--bare" in Plan(resolve("train.py", []), Options(), tools, Path()).runs("bare", 1)[0].argv) == hooked


def test_the_marks_of_a_script_are_kept(stand_ins, monkeypatch):
    del stand_ins
    for module in (found, planning):
        monkeypatch.setattr(module, "wanted_passes", WANTED)
    Path("train.py").write_text("import sys\nprint('check: ok', sys.argv[1:], 'torch' in sys.modules)\n")
    capture = collect("train.py", ["-m", "x"], output=Path("cap"), passes=("nsys",), python=sys.executable)
    assert capture.checks == ["check: ok ['-m', 'x'] False"]
    told = json.loads(Path("cap/bare.json").read_text())
    assert (told["schema"], told["starts_ns"]) == (1, {})
    assert 0 < told["duration_ns"] < capture.manifest["passes"][0]["steps"][0]["duration_ns"]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ((0, '{"name": "Some GPU", "rates": {"fp32": 1e13}}\n'), ("Some GPU", {"fp32": 1e13})),
        ((1, "No module named 'torch'\n"), ("", {})),
    ],
)
def test_roofs_are_measured_where_asked_for(stand_ins, monkeypatch, answer, kept):
    del stand_ins
    monkeypatch.setattr(found, "answer", lambda *words, **_: answer if "measured_peaks" in str(words[-1]) else (1, ""))
    monkeypatch.setattr(found, "wanted_passes", WANTED)
    monkeypatch.setattr(planning, "wanted_passes", WANTED)
    Path("train.py").write_text("")
    notes = []
    capture = collect(
        "train.py", [], output=Path("cap"), passes=("nsys",), python=sys.executable, measure=True, progress=notes.append
    )
    assert [event.text for event in notes if event.step == "roofs"] == [
        "measured" if kept[0] else "not measured: No module named 'torch'"
    ]
    assert capture.manifest["roofs"] == ({"name": kept[0], "rates": kept[1]} if kept[0] else {})
    assert _reached(Path("cap")) == kept


NVTX = """
#include <nvtx3/nvToolsExt.h>
int main(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
    nvtxEventAttributes_t registered = {0};
    registered.version = NVTX_VERSION;
    registered.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    registered.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    registered.message.registered = nvtxDomainRegisterStringA(domain, "a \\"name\\"");
    for (int number = 0; number < 7; number++) {
        nvtxRangePushA("step");
        nvtxDomainRangePushEx(domain, &registered);
        nvtxRangeEnd(nvtxRangeStartA("elsewhere"));
        nvtxRangePop();  /* before that of the domain, which is another stack */
        nvtxDomainRangePop(domain);
    }
    nvtxRangePop();
    nvtxRangePushA("never ends");
}
"""


@pytest.mark.skipif(shutil.which("cc") is None or not HEADERS, reason="needs a C compiler and NVTX's headers")
def test_the_nvtx_ranges_of_a_program_are_marked(tmp_path):
    source, program, file = tmp_path / "program.c", tmp_path / "program", tmp_path / "bare.json"
    source.write_text(NVTX)
    compile_it = ["cc", f"-I{HEADERS[0].parents[1]}", "-o", program, source, "-ldl"]
    subprocess.run(compile_it, check=True)  # noqa: S603 - a program of the test
    with passes.marking(file) as added:
        subprocess.run([program], check=True, env=os.environ | added)  # noqa: S603 - as above
        first = file.read_bytes()
        subprocess.run([program], check=True, env=os.environ | added)  # noqa: S603 - as above
    starts = json.loads(first)["starts_ns"]
    counts = {name: len(times) for name, times in starts.items()}
    assert counts == {"step": 7, 'a "name"': 7, "elsewhere": 7, "never ends": 1}
    assert starts["step"] == sorted(starts["step"])
    assert file.read_bytes() == first
    assert [*tmp_path.glob("*.part")] == []


def test_a_library_that_the_user_has_nvtx_load_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "other.so")
    with passes.marking(tmp_path / "bare.json") as added:
        assert added == {}
