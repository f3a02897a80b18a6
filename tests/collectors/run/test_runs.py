"""Whole runs with stand-ins for the tools, and the run without a profiler: what is left and said, well or not."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kanalyze.collectors import collect, process
from kanalyze.collectors.options import Options
from kanalyze.collectors.process import Step
from kanalyze.collectors.run import passes
from kanalyze.collectors.run.passes import Passes, PassRecord, StepFailedError, last_words
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import found, machine
from kanalyze.collectors.tools.found import find_tools
from kanalyze.collectors.tools.machine import Permission
from kanalyze.collectors.workload import Workload, resolve
from kanalyze.errors import CollectError, KanalyzeError, OutputError
from kanalyze.readers.capture.read_capture import _reached
from support.command import ROOT
from support.stand_ins import LAUNCHES, PROGRAM, WANTED, left, told


def test_a_program_is_run_under_every_tool_into_one_folder_and_the_manifest_says_so(stand_ins, program, monkeypatch):
    """What is left, and each command, is told of the case "all of it" below."""
    for name, value in {"CUDA_VISIBLE_DEVICES": "0", "NCCL_API_KEY": "secret", "HOME_ADDRESS": "private"}.items():
        monkeypatch.setenv(name, value)
    given = ["a b", "it's", "$HOME", "--token", "secret"]
    capture = collect(program, given, output=Path("cap"))
    assert (capture.folder, left()) == (Path("cap"), {"cap"})
    assert (stand_ins.folder / "arguments").read_text() == "".join(f"{word}\n" for word in given)
    text = Path("cap/manifest.json").read_text()
    assert not [word for word in ("secret", "private", ".collecting") if word in text]
    assert str(Path.cwd() / "cap" / "nsys") in text
    manifest = json.loads(text)
    assert (manifest["schema"], manifest["status"]) == (1, "complete")
    assert manifest["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert manifest["workload"]["args"] == [*given[:-1], "(hidden)"]
    assert manifest["gpus"][0]["name"] == "NVIDIA H200"
    assert manifest["tools"]["nsys"]["version"] == "2025.3.2.474"
    assert manifest["passes"][0]["before"][0]["temperature_celsius"] == 31
    assert manifest["checks"][0] == {"step": "nsys", "line": "Max error: 0", "passed": True}
    assert set(manifest["files"]) >= {"nsys.sqlite", "ncu.raw.csv", "logs/nsys.log"}


def test_without_a_name_folders_are_called_after_the_program_and_an_argument_may_be_no_unicode(stand_ins, program):
    word = os.fsdecode(b"caf\xe9")
    captures = [collect(program, [word], passes=("nsys",)) for _ in range(2)]
    assert len({capture.folder for capture in captures}) == 2
    assert all(capture.folder.name.startswith("my_program-") for capture in captures)
    assert (stand_ins.folder / "arguments").read_bytes() == b"caf\xe9\n"
    assert captures[0].manifest["workload"]["args"] == [word]


def test_every_key_of_the_manifest_is_documented_and_no_other(program):
    page = (ROOT / "docs/collect.md").read_text()
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    documented = {
        name: re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    manifest = collect(program, output=Path("cap"), passes=("nsys",)).manifest
    assert sorted(documented["Manifest"]) == sorted([*manifest, "build", "against"])
    assert documented["Passes"] == list(manifest["passes"][0])


def test_an_existing_folder_is_never_overwritten(program):
    for make in (Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")):
        path = Path(make.__name__)
        make(path)
        with pytest.raises(OutputError, match="exists already"):
            collect(program, output=path)
    assert left() == {"mkdir", "touch", "<lambda>"}
    with pytest.raises(OutputError, match="No such file or directory"):
        collect(program, output=Path("no/cap"))


WRONG = "#!/bin/sh\necho 'check: FAILED max_error=2'\nexit 1\n"
ONCE = '#!/bin/sh\nif [ ! -e "$0.ran" ]; then touch "$0.ran"; echo "no luck"; exit 3; fi\necho "Max error: 0"\n'
SLOW = "#!/bin/sh\necho started\nexec sleep 900\n"
NO_TORCH = "#!/bin/sh\necho 'No module named torch'\nexit 1\n"
LIMIT = {"timeout_s": 2}
BOTH = {"samples": True, "metrics": True}
NSYS = {"passes": ("nsys",)}
TWICE = LAUNCHES + LAUNCHES.splitlines()[-1].replace("_Z3addiPfS_", "_Z4oncev").replace("6000", "7000")

#: By title what is special of a run: modes of stand-ins, which are not there without one, texts of files, and functions
#: of the machine that deny; the options.
CASES = {
    "all of it": ({}, {}),
    "without a profiler first": ({"bare": "wanted"}, {"args": ["a b"], **NSYS}),
    "without a profiler first, unless asked": ({"bare": "wanted"}, {"bare": False, **NSYS}),
    "without a profiler first, but for a time": ({"bare": "wanted"}, {"duration_s": 2.0, **NSYS}),
    "fails without a profiler": ({"bare": "wanted", "program": ONCE}, NSYS),
    "fails": ({"program": "#!/bin/sh\necho no luck\nexit 3\n"}, {}),
    "slow": ({"program": SLOW}, LIMIT),
    "compiled, but slow": ({"nvcc": "hangs"}, LIMIT),
    "no ncu": ({"ncu": ""}, {"passes": ("nsys", "torch", "ncu")}),
    "no nsys": ({"nsys": ""}, {"kernels": 2, "launches": 3}),
    "both fail": ({"nsys": "fails", "ncu": "fails"}, {}),
    **{f"nsys {mode}": ({"nsys": mode}, {}) for mode in ("fails", "killed", "no space", "empty report", "half export")},
    "nsys hangs": ({"nsys": "hangs"}, LIMIT),
    **{f"ncu {mode}": ({"ncu": mode}, {}) for mode in ("fails", "no permission", "no kernels", "no clocks")},
    "ncu hangs": ({"ncu": "hangs"}, {"ncu_budget_s": 2}),
    "ncu one launch": ({"ncu": "one launch"}, {}),  # as with two processes on one GPU, each of which launches once
    "ncu in two runs": ({"ncu": "warns", "launches.csv": TWICE}, {}),
    "no kernel": ({"launches.csv": "SKIPPED: does not contain CUDA trace data.\n"}, {}),
    "a wrong result": ({"program": WRONG}, {}),
    "ended by nsys": ({"program": "#!/bin/sh\nexit 143\n"}, {"duration_s": 1, **NSYS}),
    "starts Python": ({"program": "#!/bin/sh\nfalse && python train.py\necho 'Max error: 0'\n"}, {}),
    "a full disk": ({"ncu": "fails", "full": "NOTHING_BYTES"}, {}),
    "little space": ({"full": "ENOUGH_BYTES"}, NSYS),
    "no space": ({"full": "_LEAST_BYTES"}, NSYS),
    # torch.profiler
    "a script": ({"python3": "any", "ncu": "warns"}, {"args": ["a b"]}),
    "a script with ranges": ({"python3": "any"}, {"recipe": "nvtx"}),
    "ranges without torch": ({"python3": NO_TORCH}, {"recipe": "nvtx", **NSYS}),
    **{f"torch {mode}": ({"python3": mode}, {}) for mode in ("runner fails", "killed", "fails")},
    "torch hangs": ({"python3": "hangs"}, LIMIT),
    # names
    "names of operators": ({"python3": "any"}, {"names": True, **NSYS}),
    "names of no script": ({}, {"names": True, **NSYS}),
    # samples
    "samples": ({}, {"passes": (), "samples": True}),
    "samples and metrics": ({}, {"repeat": 2, **BOTH}),
    "no metrics": ({"nsys": "no metrics"}, {**NSYS, **BOTH}),
    "no metrics alone": ({"nsys": "no metrics"}, {"metrics": True, **NSYS}),
    "an older nsys": ({"nsys": "warns", "nsys.help": "--trace=\n--cuda-graph-trace=\n--sample=\n"}, {**NSYS, **BOTH}),
    "no CPU samples permitted": ({"denied": "cpu_samples"}, {**NSYS, **BOTH}),
    "no metrics permitted": ({"denied": "counters"}, {**NSYS, **BOTH}),
    "no metrics permitted alone": ({"denied": "counters"}, {"metrics": True, **NSYS}),
}


def be(stand_ins, modes, monkeypatch):
    for name, mode in {"program": PROGRAM, **modes}.items():
        if name == "bare":
            monkeypatch.setattr(found, "wanted_passes", WANTED)
        elif name == "full":
            monkeypatch.setattr(process, mode, 10**18)
        elif name == "denied":
            monkeypatch.setattr(machine, mode, lambda: Permission(ok=False, found="denied", remedy="ask"))
        elif not mode:
            (stand_ins.folder / name).unlink()
        elif name == "program" or "." in name or mode.startswith("#!"):
            stand_ins.write(name, mode)
        else:
            stand_ins.mode(name, mode)


#: Cases that wait for a limit, or tell little beside others.
LATER = (
    "hangs", "slow", "two runs", "and metrics", "ranges", "older", "no metrics", "killed", "clocks", "one launch",
    "all",
)  # fmt: skip


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=[pytest.mark.slow] * any(word in title for word in LATER)) for title in CASES]
)
def test_what_is_done_is_kept_and_the_rest_is_told(stand_ins, script, monkeypatch, gold, title):
    modes, options = CASES[title]
    stand_ins.make("nvcc")
    Path("x.cu").write_text("int main() {}\n")
    be(stand_ins, modes, monkeypatch)
    work = script[0] if "python3" in modes else "x.cu" if "nvcc" in modes else "program"
    events, lines = [], []
    try:
        capture = collect(work, output=Path("cap"), python=script[1], progress=events.append, measure=False, **options)
        lines += [*capture.problems, *(path.name for path in capture.reports), *capture.notes, *told(Path("cap"))]
    except KanalyzeError as error:
        lines += [str(error), *error.details]
    assert left() - {"x.cu", "train.py"} == ({"cap"} if any(line.startswith("## cap") for line in lines) else set())
    begun = [f"{event.kind} {event.step}: {event.text}" for event in events if event.kind != "tick"]
    text = re.sub(r"[\d.]+ [KMGT]?B are free", "SIZE are free", "\n".join([*lines, "", *begun, ""]))
    text = text.replace(str(stand_ins.folder), "BIN").replace(str(Path.cwd()), "HOME")
    gold(text, f"runs/{title.replace(',', '').replace(' ', '_')}.txt")


def test_where_no_pass_can_run_nothing_is_begun(bare):
    program = bare.write("program", PROGRAM)
    with pytest.raises(CollectError) as caught:
        collect(program)
    assert str(caught.value) == (
        "nothing can be collected here (nsys: this machine has no GPU that can be used; "
        "ncu: this machine has no GPU that can be used)."
    )
    assert left() == set()
    assert not (bare.folder / "arguments").exists()


def test_when_the_space_ends_while_the_manifest_is_written_nothing_half_written_stays(program, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kanalyze.collectors.run.collect._write_manifest", full)
    with pytest.raises(OutputError, match="No space left on device"):
        collect(program, output=Path("cap"))
    assert left() == set()


NCU_LOG = """==PROF== Connected to process 5610 (/usr/bin/python3.12)
RuntimeError: no
==PROF== Disconnected from process 5610
==WARNING== No kernels were profiled.
"""


def step(folder, name="nsys", text="", argv=("tool",)):
    (folder / "logs").mkdir()
    log = folder / "logs" / f"{name}.log"
    log.write_text(text.format(folder=folder))
    return Step(name, argv, log)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nsys-2", "usage: add [SIZE]\nCollecting data...\n", ["usage: add [SIZE]"]),
        ("ncu", NCU_LOG, ["RuntimeError: no"]),
        # where the program said nothing, the tool's words without the folder
        ("nsys", "Generated:\n\t{folder}/nsys.nsys-rep\n", ["Generated:", "\tnsys.nsys-rep"]),
    ],
)
def test_the_program_s_words_are_told_from_its_tool_s(tmp_path, name, text, words):
    assert last_words(step(tmp_path, name, text), of_program=True) == words


KEPT = "logs/nsys.log keeps the first and the last 1 MiB of what was printed, and leaves out the rest"


def begun(timeout_s, spent_s=0.0):
    of_program = Plan(Workload("x", "executable", Path("x")), Options(timeout_s=timeout_s), None, Path())
    return Passes(of_program, lambda _: None), PassRecord("nsys", duration_ns=int(spent_s * 1e9))


@pytest.mark.parametrize(
    ("spent_s", "limit_s", "said"),
    [
        (0.0, None, "took longer than 4 s, and was stopped"),
        (2.5, None, "took longer than 1.5 s that were left of 4 s, and was stopped"),
        (2.5, 1.0, "took longer than 1 s, and was stopped"),
        (0.0, 9.0, "took longer than 4 s, and was stopped"),
    ],
)
def test_the_limit_is_said_and_not_how_long_stopping_took(tmp_path, monkeypatch, spent_s, limit_s, said):
    monkeypatch.setattr(process, "run", lambda *_, **__: process.Ended(None, 9.0))
    work, record = begun(4.0, spent_s)
    with pytest.raises(StepFailedError) as caught:
        work.step(record, step(tmp_path), limit_s)
    assert caught.value.why == said


@pytest.mark.parametrize(("printed", "notes"), [(100, []), (3 << 20, [KEPT])])
def test_output_that_is_left_out_is_said(tmp_path, monkeypatch, printed, notes):
    monkeypatch.setattr(process, "KEPT_BYTES", 1 << 20)
    work, record = begun(60.0)
    work.step(record, step(tmp_path, argv=("sh", "-c", f"head -c {printed} /dev/zero | tr '\\0' x")))
    assert record.notes == notes


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
    monkeypatch.setattr(found, "wanted_passes", WANTED)
    Path("train.py").write_text("import sys\nprint('check: ok', sys.argv[1:], 'torch' in sys.modules)\n")
    capture = collect("train.py", ["-m", "x"], output=Path("cap"), passes=("nsys",), python=sys.executable)
    assert capture.checks == ["check: ok ['-m', 'x'] False"]
    told = json.loads(Path("cap/bare.json").read_text())
    assert told == {"schema": 1, "starts_ns": {}}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ((0, '{"name": "Some GPU", "rates": {"fp32": 1e13}}\n'), ("Some GPU", {"fp32": 1e13})),
        ((1, "No module named 'torch'\n"), ("", {})),
    ],
)
def test_roofs_are_measured_where_torch_can(stand_ins, monkeypatch, answer, kept):
    del stand_ins
    monkeypatch.setattr(found, "answer", lambda *words, **_: answer if "measured_peaks" in str(words[-1]) else (1, ""))
    monkeypatch.setattr(found, "wanted_passes", WANTED)
    Path("train.py").write_text("")
    notes = []
    capture = collect(
        "train.py", [], output=Path("cap"), passes=("nsys",), python=sys.executable, progress=notes.append
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
