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
from kanalyze.collectors.run.passes import Found, Pass, PassRecord, StepFailedError, last_words
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import machine, ncu
from kanalyze.collectors.tools.machine import Permission
from kanalyze.collectors.workload import Workload
from kanalyze.errors import CollectError, OutputError
from support.command import ROOT
from support.stand_ins import PROGRAM, left

FILES = {
    *("nsys.nsys-rep", "nsys.sqlite", "ncu.ncu-rep", "ncu.details.csv", "ncu.raw.csv", "ncu.source.csv"),
    *("manifest.json", "logs"),
}


def passes(capture):
    return {one["name"]: one["status"] for one in capture.manifest["passes"]}


def why(capture, name):
    return next(one["why"] for one in capture.manifest["passes"] if one["name"] == name)


@pytest.mark.slow
def test_a_program_is_run_under_every_tool_into_one_folder(stand_ins, program):
    capture = collect(program, ["a b", "it's", "$HOME"], output=Path("cap"))
    assert capture.folder == Path("cap")
    assert left() == {"cap"}
    assert left(Path("cap")) == FILES
    assert capture.reports == [Path("cap/nsys.sqlite")]
    assert (capture.problems, capture.checks) == ((), ["Max error: 0"])
    assert passes(capture) == {"nsys": "done", "ncu": "done"}
    assert (stand_ins.folder / "arguments").read_text() == "a b\nit's\n$HOME\n"
    profiled = next(words for words in stand_ins.called("ncu") if "--export" in words)
    assert profiled[profiled.index("--kernel-id") + 1] == "::regex:^(_Z3addiPfS_)$:2"
    assert profiled[-4:] == [str(program), "a b", "it's", "$HOME"]


@pytest.mark.slow
def test_the_manifest_says_what_was_done(program, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("NCCL_API_KEY", "secret")
    monkeypatch.setenv("HOME_ADDRESS", "private")
    collect(program, ["--token", "secret"], output=Path("cap"))
    text = Path("cap/manifest.json").read_text()
    told = json.loads(text)
    assert "secret" not in text
    assert "private" not in text
    assert str(Path.cwd() / "cap" / "nsys") in text
    assert ".collecting" not in text
    assert (told["schema"], told["status"]) == (1, "complete")
    assert told["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert told["workload"]["args"] == ["--token", "(hidden)"]
    assert told["gpus"][0]["name"] == "NVIDIA H200"
    assert told["tools"]["nsys"]["version"] == "2025.3.2.474"
    assert told["passes"][0]["before"][0]["temperature_celsius"] == 31
    assert told["checks"][0] == {"step": "nsys", "line": "Max error: 0", "passed": True}
    assert set(told["files"]) >= {"nsys.sqlite", "ncu.raw.csv", "logs/nsys.log"}


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
    told = collect(program, output=Path("cap"), passes=("nsys",)).manifest
    assert sorted(documented["Manifest"]) == sorted([*told, "build", "prepare", "against"])
    assert documented["Passes"] == list(told["passes"][0])


def test_an_existing_folder_is_never_overwritten(program):
    for make in (Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")):
        path = Path(make.__name__)
        make(path)
        with pytest.raises(OutputError, match="exists already"):
            collect(program, output=path)
    assert left() == {"mkdir", "touch", "<lambda>"}
    with pytest.raises(OutputError, match="No such file or directory"):
        collect(program, output=Path("no/cap"))


# What is missing


def test_a_tool_that_is_missing_is_skipped_with_its_reason_and_torch_is_for_python_only(stand_ins, program):
    (stand_ins.folder / "ncu").unlink()
    capture = collect(program, output=Path("cap"), passes=("nsys", "torch", "ncu"))
    assert passes(capture) == {"nsys": "done", "torch": "skipped", "ncu": "skipped"}
    assert why(capture, "ncu") == "not found on PATH or where its installers put it"
    assert capture.problems == ()


def test_without_nsys_ncu_profiles_the_first_launches_and_never_those_of_nccl(stand_ins, program):
    (stand_ins.folder / "nsys").unlink()
    capture = collect(program, output=Path("cap"), kernels=2, launches=3)
    assert passes(capture) == {"nsys": "skipped", "ncu": "done"}
    words = stand_ins.called("ncu")[0]
    first = words.index("--kernel-name")
    assert words[first + 1 : first + 4] == ["regex:^(?!.*(nccl|nvshmem|mscclpp))", "--launch-count", "6"]


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


# What goes wrong


@pytest.mark.parametrize(
    ("tool", "mode", "told"),
    [
        ("nsys", "fails", "nsys ended with exit status 1, and nsys.nsys-rep was not written"),
        ("nsys", "killed", "nsys was killed by signal 9, and nsys.nsys-rep was not written"),
        pytest.param("nsys", "hangs", "took longer than 2 s, and was stopped", marks=pytest.mark.slow),
        pytest.param("ncu", "hangs", "took longer than 2 s, and was stopped", marks=pytest.mark.slow),
        ("nsys", "no space", "there is no space left on the disk"),
        ("nsys", "empty report", "nsys.nsys-rep is empty"),
        ("nsys", "half export", "nsys.sqlite was written in part"),
        ("ncu", "fails", "ncu ended with exit status 1, and ncu.ncu-rep was not written"),
        ("ncu", "no permission", "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)"),
        ("ncu", "no kernels", "the program launched none of the kernels that were chosen"),
    ],
)
def test_when_a_tool_fails_the_other_goes_on_and_nothing_half_written_stays(stand_ins, program, tool, mode, told):
    stand_ins.mode(tool, mode)
    limits = {"ncu_budget_s": 2} if tool == "ncu" else {"timeout_s": 2}
    capture = collect(program, output=Path("cap"), **limits if mode == "hangs" else {})
    assert passes(capture) == {"nsys": "done", "ncu": "done"} | {tool: "failed"}
    assert told in why(capture, tool)
    assert told in capture.problems[0]
    assert capture.manifest["status"] == "partial"
    whole_step = {"nsys.nsys-rep"} if mode == "half export" else set()
    assert left(Path("cap")) == {name for name in FILES if not name.startswith(f"{tool}.")} | whole_step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "note", "log"),
    [
        ("no clocks", "the clocks cannot be locked here: profiled with --clock-control none", "ncu-locked.log"),
        # as with two processes on one GPU, each of which launches a kernel once
        ("one launch", "the launches that were chosen did not come again: profiled the first ones", "ncu-none.log"),
    ],
)
def test_ncu_does_with_less_where_it_has_to_and_says_so(stand_ins, program, mode, note, log):
    stand_ins.mode("ncu", mode)
    capture = collect(program, output=Path("cap"))
    assert (passes(capture), left(Path("cap"))) == ({"nsys": "done", "ncu": "done"}, FILES)
    assert capture.notes == (f"ncu: {note}",)
    assert Path("cap/logs", log).exists()


def test_where_every_pass_fails_nothing_is_kept(stand_ins, program):
    stand_ins.mode("nsys", "fails")
    stand_ins.mode("ncu", "fails")
    with pytest.raises(CollectError, match="nothing was collected: nsys failed") as caught:
        collect(program, output=Path("cap"))
    assert caught.value.details == ["something went wrong"]
    assert left() == set()


@pytest.mark.slow
def test_a_program_that_says_that_its_result_is_wrong_is_kept_and_told(stand_ins):
    program = stand_ins.write("wrong", "#!/bin/sh\necho 'check: FAILED max_error=2'\nexit 1\n")
    capture = collect(program, output=Path("cap"))
    assert passes(capture) == {"nsys": "done", "ncu": "done"}
    assert capture.problems[0] == "the program says that its result is wrong: check: FAILED max_error=2"


def test_a_program_without_kernels_is_a_result(stand_ins, program):
    (stand_ins.folder / "launches.csv").write_text("SKIPPED: does not contain CUDA trace data.\n")
    capture = collect(program, output=Path("cap"))
    assert passes(capture) == {"nsys": "done", "ncu": "skipped"}
    assert why(capture, "ncu") == "the program launched no kernel"
    assert (capture.problems, capture.notes) == ((), ("nsys: the program launched no kernel",))


def test_with_a_duration_the_end_of_the_program_is_nsys_doing(stand_ins):
    program = stand_ins.write("endless", "#!/bin/sh\nexit 143\n")
    assert passes(collect(program, output=Path("cap"), passes=("nsys",), duration_s=1)) == {"nsys": "done"}


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


# torch.profiler


@pytest.mark.slow
def test_a_script_runs_under_all_three(script):
    path, python = script
    capture = collect(path, ["a b"], output=Path("cap"), python=python)
    assert passes(capture) == {"nsys": "done", "torch": "done", "ncu": "done"}
    assert left(Path("cap")) == FILES | {"torch.json.gz", "torch-run.json"}
    assert capture.notes == ("torch: a remark",)
    assert capture.manifest["tools"]["torch"]["version"] == "2.11.0"
    assert capture.manifest["tools"]["python"] == {"path": str(python), "version": "3.12.3"}
    assert [one["step"] for one in capture.manifest["checks"]] == ["nsys", "torch", "ncu"]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("runner fails", "the workload cannot be profiled: ImportError: no torch"),
        ("killed", "python3 was killed by signal 9"),
        pytest.param("hangs", "took longer than 3 s, and was stopped", marks=pytest.mark.slow),
        ("fails", "the program ended with exit status 1: something went wrong"),
    ],
)
def test_when_torch_s_pass_fails_the_others_go_on_and_nothing_of_it_stays(stand_ins, script, mode, told):
    path, python = script
    stand_ins.mode("python3", mode)
    capture = collect(path, output=Path("cap"), python=python, timeout_s=3)
    assert passes(capture) == {"nsys": "done", "torch": "failed", "ncu": "done"}
    assert why(capture, "torch") == told
    assert left(Path("cap")) == FILES


@pytest.mark.slow
def test_the_recipe_of_ranges_is_a_part_of_the_nsys_pass(stand_ins, script):
    path, python = script
    capture = collect(path, output=Path("cap"), python=python, recipe="nvtx")
    assert passes(capture) == {"nsys": "done", "torch": "skipped", "ncu": "done"}
    assert capture.manifest["passes"][0]["torch"]["torch-run"]["workload"] == {"ended": "return"}
    assert (capture.notes, left(Path("cap"))) == (("nsys: a remark",), FILES | {"torch.json.gz", "torch-run.json"})
    assert ["--recipe" in stand_ins.called(tool)[0] for tool in ("nsys", "ncu")] == [True, False]


def test_ranges_of_operators_need_torch(stand_ins, script):
    path, python = script
    stand_ins.write("python3", "#!/bin/sh\necho 'No module named torch'\nexit 1\n")
    with pytest.raises(CollectError, match="cannot import it"):
        collect(path, output=Path("cap"), python=python, recipe="nvtx", passes=("nsys",))


# No space left


def test_little_space_is_told_before_it_begins_and_without_any_nothing_is_begun(stand_ins, program, monkeypatch):
    monkeypatch.setattr("kanalyze.collectors.files.ENOUGH_BYTES", 10**18)
    told = []
    collect(program, output=Path("cap"), passes=("nsys",), progress=told.append)
    assert (told[0].kind, told[0].step) == ("note", "disk")
    assert " are free; a longer program takes " in told[0].text
    begun = stand_ins.called("nsys")
    monkeypatch.setattr("kanalyze.collectors.files._LEAST_BYTES", 10**18)
    with pytest.raises(OutputError, match="are free there"):
        collect(program, output=Path("other"))
    assert (left(), stand_ins.called("nsys")) == ({"cap"}, begun)


def test_a_pass_that_ends_when_the_disk_is_full_is_told_so(stand_ins, program, monkeypatch):
    stand_ins.mode("ncu", "fails")
    monkeypatch.setattr("kanalyze.collectors.files._NOTHING_BYTES", 10**18)
    assert why(collect(program, output=Path("cap")), "ncu") == "there is no space left on the disk"


def test_when_the_space_ends_while_the_manifest_is_written_nothing_half_written_stays(program, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kanalyze.collectors.run.recording.write_manifest", full)
    with pytest.raises(OutputError, match="No space left on device"):
        collect(program, output=Path("cap"))
    assert left() == set()


# The pass of samples


def notes(capture):
    return next(one["notes"] for one in capture.manifest["passes"] if one["name"] == "samples")


def sampled(stand_ins):
    return [words for words in stand_ins.called("nsys") if words[0] == "profile" and "--duration=60" in words]


@pytest.mark.slow
def test_samples_are_off_unless_asked_for_and_then_a_pass_of_their_own(stand_ins, program):
    assert "samples" not in passes(collect(program, output=Path("cap")))
    capture = collect(program, output=Path("sampled"), samples=True, metrics=True, repeat=2)
    assert left(Path("sampled")) == {*FILES, "nsys-2.nsys-rep", "nsys-2.sqlite", "samples.nsys-rep", "samples.sqlite"}
    assert passes(capture) == {"nsys": "done", "samples": "done", "ncu": "done"}
    assert [path.name for path in capture.reports] == ["nsys.sqlite", "nsys-2.sqlite"]
    (words,) = sampled(stand_ins)
    assert {"--sample=process-tree", "--gpu-metrics-devices=cuda-visible"} <= set(words)
    assert notes(capture) == []


@pytest.mark.parametrize(("name", "lost"), [("cpu_samples", "--sample=none"), ("counters", "--cpuctxsw=process-tree")])
@pytest.mark.one_in(4)
def test_what_is_not_permitted_is_left_out_with_the_way_to_get_it(stand_ins, program, monkeypatch, name, lost):
    monkeypatch.setattr(machine, name, lambda: Permission(ok=False, found="denied", remedy="ask"))
    capture = collect(program, output=Path("cap"), passes=("nsys",), samples=True, metrics=True)
    what = "CPU samples" if name == "cpu_samples" else "GPU metrics"
    assert notes(capture) == [f"without {what}: denied. To get them: ask"]
    (words,) = sampled(stand_ins)
    assert lost in words
    assert ("--gpu-metrics-devices=cuda-visible" in words) == (name == "cpu_samples")


def test_samples_alone_are_a_capture_and_metrics_that_are_not_permitted_are_no_pass(program, monkeypatch):
    assert passes(collect(program, output=Path("alone"), passes=(), samples=True)) == {"samples": "done"}
    monkeypatch.setattr(machine, "counters", lambda: Permission(ok=False, found="denied", remedy="ask"))
    capture = collect(program, output=Path("cap"), passes=("nsys",), metrics=True)
    assert passes(capture) == {"nsys": "done", "samples": "skipped"}


@pytest.mark.slow
def test_metrics_that_nsys_refuses_are_left_out(stand_ins, program):
    stand_ins.mode("nsys", "no metrics")
    capture = collect(program, output=Path("cap"), passes=("nsys",), samples=True, metrics=True)
    assert passes(capture) == {"nsys": "done", "samples": "done"}
    assert [note.partition(":")[0] for note in notes(capture)] == ["without GPU metrics"]
    assert len(sampled(stand_ins)) == 2
    alone = collect(program, output=Path("alone"), passes=("nsys",), metrics=True)
    assert passes(alone) == {"nsys": "done", "samples": "failed"}


@pytest.mark.slow
def test_an_older_nsys_lacks_options_and_warns(stand_ins, program):
    known = "--trace=\n--cuda-graph-trace=\n--sample=\n--cpuctxsw=\n"
    (stand_ins.folder / "nsys.help").write_text(known)
    stand_ins.mode("nsys", "warns")
    capture = collect(program, output=Path("cap"), passes=("nsys",), samples=True)
    assert notes(capture) == [
        "nsys 2025.3.2.474 has no --backtrace: without what that records",
        "WARNING: CPU IP/backtrace sampling not supported, disabling.",
    ]


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
    return Pass(plan, PassRecord("nsys"), Found(), lambda _: None, spent_s=spent_s)


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
    with pytest.raises(StepFailedError) as caught:
        begun(4.0, spent_s).run(step(tmp_path), limit_s)
    assert caught.value.why == said


@pytest.mark.parametrize(("printed", "notes"), [(100, []), (3 << 20, [KEPT])])
def test_output_that_is_left_out_is_said(tmp_path, monkeypatch, printed, notes):
    monkeypatch.setattr(process, "KEPT_BYTES", 1 << 20)
    work = begun(60.0)
    work.run(step(tmp_path, argv=("sh", "-c", f"head -c {printed} /dev/zero | tr '\\0' x")))
    assert work.record.notes == notes
