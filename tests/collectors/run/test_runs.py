"""Whole runs with stand-ins for the tools: what is left and what is said when all goes well, and when it does not."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from kanalyze.collectors import collect, process
from kanalyze.collectors.options import Options
from kanalyze.collectors.process import Step
from kanalyze.collectors.run.passes import Passes, PassRecord, StepFailedError, last_words
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import machine, ncu
from kanalyze.collectors.tools.machine import COUNTERS, Permission
from kanalyze.collectors.tools.ncu import NONE_PROFILED
from kanalyze.collectors.workload import Workload
from kanalyze.errors import CollectError, OutputError
from support.command import ROOT
from support.stand_ins import PROGRAM, left

#: What each pass leaves that is done.
NSYS, NCU = {"nsys.nsys-rep", "nsys.sqlite"}, {"ncu.ncu-rep", "ncu.details.csv", "ncu.raw.csv", "ncu.source.csv"}
TORCH, SAMPLES = {"torch.json.gz", "torch-run.json"}, {"samples.nsys-rep", "samples.sqlite"}
FILES = {"nsys": NSYS, "ncu": NCU, "torch": TORCH, "samples": SAMPLES}

WRONG = "#!/bin/sh\necho 'check: FAILED max_error=2'\nexit 1\n"
STARTS_PYTHON = "#!/bin/sh\nfalse && python train.py\necho 'Max error: 0'\n"


def told(capture):
    """What is said of each pass, and the notes."""
    passes = [(one["name"], one["status"], one["why"]) for one in capture.manifest["passes"]]
    return [*(f"{name} {status}{': ' * bool(why)}{why}" for name, status, why in passes), *capture.notes]


def test_a_program_is_run_under_every_tool_into_one_folder_and_the_manifest_says_so(stand_ins, program, monkeypatch):
    for name, value in {"CUDA_VISIBLE_DEVICES": "0", "NCCL_API_KEY": "secret", "HOME_ADDRESS": "private"}.items():
        monkeypatch.setenv(name, value)
    given = ["a b", "it's", "$HOME", "--token", "secret"]
    capture = collect(program, given, output=Path("cap"))
    assert (capture.folder, left()) == (Path("cap"), {"cap"})
    assert left(Path("cap")) == {*NSYS, *NCU, "manifest.json", "logs"}
    assert capture.reports == [Path("cap/nsys.sqlite")]
    assert (capture.problems, capture.checks) == ((), ["Max error: 0"])
    assert (stand_ins.folder / "arguments").read_text() == "".join(f"{word}\n" for word in given)
    profiled = next(words for words in stand_ins.called("ncu") if "--export" in words)
    assert profiled[profiled.index("--kernel-id") + 1] == "::regex:^(_Z3addiPfS_)$:2"
    assert profiled[-6:] == [str(program), *given]
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
    assert sorted(documented["Manifest"]) == sorted([*manifest, "build", "prepare", "against"])
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


# What goes wrong, and what there is less of

FIRST = "ncu: no nsys pass says which kernels are heavy: these are the program's first launches"
NO_NCU = "ncu skipped: not found on PATH or where its installers put it"
NOT_PYTHON = "torch skipped: torch.profiler records Python workloads only"
UNTOLD = (
    "torch skipped: the script that this program starts cannot be told, and torch.profiler runs in the script's own "
    "process"
)
OF_NSYS = "torch skipped: the recipe nvtx is a part of the nsys pass"
UNLOCKED = "the clocks cannot be locked here: profiled with --clock-control none"
ANEW = "the launches that were chosen did not come again: profiled the first ones"
LONG, NOT_WRITTEN = "took longer than 2 s, and was stopped", "and {0}.{0}-rep was not written"
NO_BACKTRACE = "nsys 2025.3.2.474 has no --backtrace: without what that records"
WARNED = "WARNING: CPU IP/backtrace sampling not supported, disabling."
NO_METRICS = "without GPU metrics: nsys cannot sample them here; `kanalyze doctor` says what it says of that"
HELP = "--trace=\n--cuda-graph-trace=\n--sample=\n--cpuctxsw=\n"

#: What is special of a run: modes of stand-ins, which are not there without one, or texts of files; the options; what
#: is told of nsys, ncu and all else.
CASES = [
    # tools that are missing, fail, or do half
    ({"ncu": ""}, {"passes": ("nsys", "torch", "ncu")}, ["nsys done", NOT_PYTHON, NO_NCU]),
    ({"nsys": ""}, {}, [NO_NCU.replace("ncu", "nsys"), "ncu done", FIRST]),
    *(
        ({"nsys": mode}, {"timeout_s": 2} if mode == "hangs" else {}, [f"nsys failed: {why}", "ncu done", FIRST])
        for mode, why in {
            "fails": f"nsys ended with exit status 1, {NOT_WRITTEN.format('nsys')}",
            "killed": f"nsys was killed by signal 9, {NOT_WRITTEN.format('nsys')}",
            "hangs": LONG,
            "no space": "there is no space left on the disk",
            "empty report": "nsys.nsys-rep is empty",
            "half export": "nsys-export: nsys.sqlite was written in part",
        }.items()
    ),
    *(
        ({"ncu": mode}, {"ncu_budget_s": 2} if mode == "hangs" else {}, ["nsys done", f"ncu failed: {why}"])
        for mode, why in {
            "fails": f"ncu ended with exit status 1, {NOT_WRITTEN.format('ncu')}",
            "hangs": LONG,
            "no permission": f"this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): {COUNTERS}",
            "no kernels": NONE_PROFILED,
        }.items()
    ),
    ({"ncu": "no clocks"}, {}, ["nsys done", "ncu done", f"ncu: {UNLOCKED}"]),
    ({"ncu": "one launch"}, {}, ["nsys done", "ncu done", f"ncu: {ANEW}"]),  # as with two processes on one GPU
    # programs
    ({"program": WRONG}, {}, ["nsys done", "ncu done"]),
    ({"program": "#!/bin/sh\nexit 143\n"}, {"passes": ("nsys",), "duration_s": 1}, ["nsys done"]),
    ({"program": STARTS_PYTHON}, {}, ["nsys done", UNTOLD, "ncu done"]),
    # torch.profiler
    ({"python3": "any"}, {}, ["nsys done", "torch done", "ncu done", "torch: a remark"]),
    ({"python3": "any"}, {"recipe": "nvtx"}, ["nsys done", OF_NSYS, "ncu done", "nsys: a remark"]),
    *(
        (
            {"python3": mode},
            {"timeout_s": 2} if mode == "hangs" else {},
            ["nsys done", f"torch failed: {why}", "ncu done"],
        )
        for mode, why in {
            "runner fails": "the workload cannot be profiled: ImportError: no torch",
            "killed": "python3 was killed by signal 9",
            "hangs": LONG,
            "fails": "the program ended with exit status 1: something went wrong",
        }.items()
    ),
    # samples
    ({}, {"passes": (), "samples": True}, ["samples done"]),
    ({}, {"samples": True, "metrics": True, "repeat": 2}, ["nsys done", "samples done", "ncu done"]),
    (
        {"nsys": "no metrics"},
        {"passes": ("nsys",), "samples": True, "metrics": True},
        ["nsys done", "samples done", f"samples: {NO_METRICS}"],
    ),
    (
        {"nsys": "no metrics"},
        {"passes": ("nsys",), "metrics": True},
        ["nsys done", "samples failed: nsys ended with exit status 1, and samples.nsys-rep was not written"],
    ),
    (
        {"nsys": "warns", "nsys.help": HELP},
        {"passes": ("nsys",), "samples": True},
        ["nsys done", "samples done", f"samples: {NO_BACKTRACE}", f"samples: {WARNED}"],
    ),
]


def odd(modes, options):
    """What is left of a run beside the files of passes that were done."""
    half = {"nsys.nsys-rep"} if modes.get("nsys") == "half export" else set()
    second = {"nsys-2.nsys-rep", "nsys-2.sqlite"} if "repeat" in options else set()
    return {"manifest.json", "logs", *half, *second, *(TORCH if "recipe" in options else ())}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("modes", "options", "said"), CASES)
def test_what_is_done_is_kept_and_the_rest_is_told(stand_ins, script, modes, options, said):
    path, python = script
    for name, mode in {"program": PROGRAM, **modes}.items():
        if not mode:
            (stand_ins.folder / name).unlink()
        elif name in ("nsys.help", "program"):
            stand_ins.write(name, mode)
        else:
            stand_ins.mode(name, mode)
    work = {"workload": path, "python": python} if "python3" in modes else {"workload": "program"}
    capture = collect(**work, output=Path("cap"), **options)
    assert told(capture) == said
    wrong = (
        {"the program says that its result is wrong: check: FAILED max_error=2"} if WRONG in modes.values() else set()
    )
    assert {*capture.problems} == {line for line in said if " failed: " in line} | wrong
    assert capture.manifest["status"] == ("partial" if capture.problems else "complete")
    done = [FILES[line.partition(" ")[0]] for line in said if line.endswith(" done")]
    assert left(Path("cap")) == odd(modes, options).union(*done)


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


def test_where_every_pass_fails_nothing_is_kept(stand_ins, program):
    stand_ins.mode("nsys", "fails")
    stand_ins.mode("ncu", "fails")
    with pytest.raises(CollectError, match="nothing was collected: nsys failed") as caught:
        collect(program, output=Path("cap"))
    assert caught.value.details == ["something went wrong"]
    assert left() == set()


def test_a_program_without_kernels_is_a_result(stand_ins, program):
    (stand_ins.folder / "launches.csv").write_text("SKIPPED: does not contain CUDA trace data.\n")
    capture = collect(program, output=Path("cap"))
    no = "the program launched no kernel"
    assert (told(capture), capture.problems) == (["nsys done", f"ncu skipped: {no}", f"nsys: {no}"], ())


@pytest.mark.slow
def test_launches_that_need_several_runs_of_ncu_have_a_report_each_and_warnings_are_said_once(stand_ins, program):
    rows = (stand_ins.folder / "launches.csv").read_text()
    once = rows.splitlines()[-1].replace("_Z3addiPfS_", "_Z4oncev").replace("6000", "7000")
    (stand_ins.folder / "launches.csv").write_text(f"{rows}{once}\n")
    stand_ins.mode("ncu", "warns")
    capture = collect(program, output=Path("cap"))
    assert left(Path("cap")) >= {"ncu.ncu-rep", "ncu-2.ncu-rep", "ncu-2.raw.csv"}
    ran = next(one for one in capture.manifest["passes"] if one["name"] == "ncu")
    assert ran["chosen"] == ["_Z3addiPfS_", "_Z4oncev"]
    assert [note.partition(". ")[0] for note in capture.notes] == [
        "ncu: No source files were imported",
        "ncu: Something that nobody has heard of.",
    ]


def test_ranges_of_operators_need_torch(stand_ins, script):
    path, python = script
    stand_ins.write("python3", "#!/bin/sh\necho 'No module named torch'\nexit 1\n")
    with pytest.raises(CollectError, match="cannot import it"):
        collect(path, output=Path("cap"), python=python, recipe="nvtx", passes=("nsys",))


# No space left


def test_little_space_is_told_before_it_begins_and_without_any_nothing_is_begun(stand_ins, program, monkeypatch):
    monkeypatch.setattr("kanalyze.collectors.process.ENOUGH_BYTES", 10**18)
    told = []
    collect(program, output=Path("cap"), passes=("nsys",), progress=told.append)
    assert (told[0].kind, told[0].step) == ("note", "disk")
    assert " are free; a longer program takes " in told[0].text
    begun = stand_ins.called("nsys")
    monkeypatch.setattr("kanalyze.collectors.process._LEAST_BYTES", 10**18)
    with pytest.raises(OutputError, match="are free there"):
        collect(program, output=Path("other"))
    assert (left(), stand_ins.called("nsys")) == ({"cap"}, begun)


def test_a_pass_that_ends_when_the_disk_is_full_is_told_so(stand_ins, program, monkeypatch):
    stand_ins.mode("ncu", "fails")
    monkeypatch.setattr("kanalyze.collectors.process._NOTHING_BYTES", 10**18)
    capture = collect(program, output=Path("cap"))
    assert told(capture) == ["nsys done", "ncu failed: there is no space left on the disk"]


def test_when_the_space_ends_while_the_manifest_is_written_nothing_half_written_stays(program, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kanalyze.collectors.run.collect.write_manifest", full)
    with pytest.raises(OutputError, match="No space left on device"):
        collect(program, output=Path("cap"))
    assert left() == set()


# What is permitted


def sampled(stand_ins):
    return [words for words in stand_ins.called("nsys") if words[0] == "profile" and "--duration=60" in words]


@pytest.mark.parametrize(("name", "lost"), [("cpu_samples", "--sample=none"), ("counters", "--cpuctxsw=process-tree")])
@pytest.mark.one_in(4)
def test_what_is_not_permitted_is_left_out_with_the_way_to_get_it(stand_ins, program, monkeypatch, name, lost):
    monkeypatch.setattr(machine, name, lambda: Permission(ok=False, found="denied", remedy="ask"))
    capture = collect(program, output=Path("cap"), passes=("nsys",), samples=True, metrics=True)
    what = "CPU samples" if name == "cpu_samples" else "GPU metrics"
    assert capture.notes == (f"samples: without {what}: denied. To get them: ask",)
    (words,) = sampled(stand_ins)
    assert lost in words
    assert ("--gpu-metrics-devices=cuda-visible" in words) == (name == "cpu_samples")


def test_metrics_that_are_not_permitted_are_no_pass(program, monkeypatch):
    monkeypatch.setattr(machine, "counters", lambda: Permission(ok=False, found="denied", remedy="ask"))
    capture = collect(program, output=Path("cap"), passes=("nsys",), metrics=True)
    assert told(capture) == ["nsys done", "samples skipped: this user may not read the GPU's counters"]


# What is said of a run


#: What nsys 2025.3 writes when the program ends with an error, as it was recorded.
NSYS_LOG = """usage: add [SIZE]
Collecting data...
Generating '/tmp/nsys-report-b956.qdstrm'
[1/1] [0%                          ] nsys.nsys-rep\r[1/1] [========================100%] nsys.nsys-rep
Generated:
\t{folder}/nsys.nsys-rep
"""

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
        ("nsys", NSYS_LOG, ["usage: add [SIZE]"]),
        ("nsys-2", NSYS_LOG, ["usage: add [SIZE]"]),
        ("ncu", NCU_LOG, ["RuntimeError: no"]),
        ("torch", "ValueError: no\n", ["ValueError: no"]),
        # where the program said nothing, the tool's words without the folder
        ("nsys", "Generated:\n\t{folder}/nsys.nsys-rep\n", ["Generated:", "\tnsys.nsys-rep"]),
    ],
)
def test_the_program_s_words_are_told_from_its_tool_s(tmp_path, name, text, words):
    assert last_words(step(tmp_path, name, text), of_program=True) == words


WARNINGS = """==WARNING== Unable to access the following 6 metrics: ctc__rx_bytes_data_user.sum, and so on.
==WARNING== Launching the workload is taking more time than expected. If this continues to hang, and so on.
==WARNING== No source files were imported. Check that the target application was compiled with -lineinfo.
==WARNING== Something that nobody has heard of.
==WARNING== Something that nobody has heard of.
"""
NO_SOURCES = "No source files were imported. Check that the target application was compiled with -lineinfo."
UNHEARD = "Something that nobody has heard of."


def test_warnings_of_ncu_are_those_that_one_can_do_something_about():
    assert ncu.warnings(WARNINGS) == [NO_SOURCES, UNHEARD]
    assert ncu.warnings(WARNINGS, python=True) == [UNHEARD]


KEPT = "logs/nsys.log keeps the first and the last 1 MiB of what was printed, and leaves out the rest"


def begun(timeout_s, spent_s=0.0):
    plan = Plan(Workload("x", "executable", Path("x")), Options(timeout_s=timeout_s), None, Path())
    return Passes(plan, lambda _: None), PassRecord("nsys", duration_ns=int(spent_s * 1e9))


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
