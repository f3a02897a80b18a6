"""`kanalyze collect`, `doctor` and `workloads` as a user calls them, with stand-ins for the tools."""

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from kanalyze.collectors.workload import references
from support.command import REPORTS, command_line, ended, on_terminal, printed, refused, run, started, wait_until
from support.stand_ins import PROGRAM

#: A Python that has kanalyze, as the lines of a dry run call it.
OWN_PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'


def sleepers():
    """Processes of the endless program that still run, of this test, since others have some meanwhile."""
    lines = [line.split(None, 2) for line in ended(["ps", "-eo", "pid=,stat=,args="]).stdout.splitlines()]
    asleep = [pid for pid, stat, args in lines if args == "sleep 1000" and not stat.startswith("Z")]
    return [pid for pid in asleep if Path(os.path.realpath(f"/proc/{pid}/cwd")).is_relative_to(Path.cwd())]


@pytest.mark.slow
def test_a_capture_ends_with_the_summary_and_says_where_it_is(machine):
    del machine
    ran = run("collect", "-o", "cap", "program")
    assert ran.status == 0
    assert ran.lines[0].startswith("cap  ")
    assert "WHERE THE TIME WENT" in ran.text
    *_, said, where, see = ran.error.splitlines()
    assert (said, where) == ("The program says: Max error: 0", "The capture is in cap")
    assert see == "See it: kanalyze html cap -o cap.html --open"
    assert "nsys: done after " in ran.error
    assert "\r" not in ran.error
    again = run("summarize", "cap")
    assert (again.status, again.text) == (0, ran.text)
    # the stand-in's pages of ncu are none: that report is left out, and the page is there
    assert again.error.startswith("kanalyze: left out: cap/ncu.raw.csv: damaged at the raw page")
    assert len(again.error.splitlines()) == 1
    assert again.error in ran.error


@pytest.mark.slow
@pytest.mark.parametrize(("passes", "said"), [([], "with ncu"), (["--with", "ncu"], "ncu")])
def test_the_page_at_its_end_is_that_of_all_tools_or_of_what_there_is(machine, passes, said):
    for page in ("details", "raw", "source"):
        shutil.copy(REPORTS / f"ncu/add.{page}.csv", machine.folder / f"{page}.csv")
    ran = run("collect", *passes, "-o", "cap", "program")
    assert (ran.status, "left out" in ran.error, said in ran.text) == (0, False, True)
    # the stand-in lists several launches, of which ncu was told the second; its nsys report has but one
    assert "shape  add(" in ran.text.partition("\nKERNELS ")[2].partition("\n\n")[0] or passes
    assert run("summarize", "cap").text == ran.text


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["program", "--", "-o", "a b", "--", "--help"], "-o\na b\n--\n--help\n"),
        (["--", "program", "-o", "a b", "--", "--help"], "-o\na b\n--\n--help\n"),
        (["program", "--epochs", "2", "a b", "--", "-x"], "--epochs\n2\na b\n--\n-x\n"),
        (["program", "--repeat=2", "--epochs", "2"], "--repeat=2\n--epochs\n2\n"),
        *((["--", name, name, "a b"], f"{name}\na b\n") for name in ("-x", "--help", "-o")),
    ],
)
@pytest.mark.one_in(7)
def test_what_follows_the_program_is_the_program_s(machine, words, passed):
    for name in ("-x", "--help", "-o"):  # programs that are called like an option
        machine.write(name, PROGRAM)
    ran = run("collect", "--with", "nsys", "-o", "cap", *words)
    assert ran.status == 0
    assert (machine.folder / "arguments").read_text() == passed
    note = "Note: passed on to program: --repeat. Options of kanalyze stand before the program.\n"
    assert ran.error.startswith(note) == ("--repeat=2" in words) == ("passed on" in ran.error)


def profiled(machine):
    commands = [words for words in machine.called("nsys") if words[0] == "profile"]
    return [words[next(at for at, word in enumerate(words[1:], 1) if not word.startswith("-")) :] for words in commands]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["program", "--repeat", "2", "--against", "--fused", "--epochs", "2"],
        ["--against", "program --fused", "--repeat", "2", "--", "program", "--epochs", "2"],
    ],
)
def test_two_programs_and_the_arguments_of_both(machine, words):
    ran = run("collect", "--with", "nsys", "-o", "cap", *words)
    assert (ran.status, "passed on" in ran.error) == (0, False)
    base = [str(machine.folder / "program"), "--epochs", "2"]
    assert profiled(machine) == [base, [*base, "--fused"], [*base, "--fused"], base]
    assert ran.error.splitlines()[-5:] == [
        *("The program says: base: Max error: 0", "The program says: new: Max error: 0", "The captures are in cap"),
        *("Compare them: kanalyze compare cap/base cap/new", "See it: kanalyze html cap -o cap.html --open"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["program", "--epochs", "2"], ["program", "--"], ["--", "program"]])
def test_an_option_of_that_name_is_the_program_s_where_it_stands_among_its_own(machine, words):
    assert run("collect", "--with", "nsys", "-o", "cap", *words, "--against", "--fused").status == 0
    own = [word for word in words if word not in ("program", "--")]
    assert [words[1:] for words in profiled(machine)] == [[*own, "--against", "--fused"]]


@pytest.mark.slow
def test_the_command_at_the_end_compares_them_pair_by_pair(machine):
    del machine
    ran = run("collect", "--with", "nsys", "--repeat", "3", "program", "--against", "--fused", "-o", "cap")
    assert ran.lines[0].startswith("kanalyze compare   base cap/base   new cap/new   nsys 2025.3.2")
    command = shlex.split(ran.error.splitlines()[-2].partition(": ")[2])
    assert command[:2] == ["kanalyze", "compare"]
    told = run(*command[1:], "--format", "json").text
    assert run(*command[1:]).text == ran.text
    found = json.loads(told)
    assert [len(side["used"]) for side in found["runs"].values()] == [3, 3]
    assert (found["verdict"], found["basis"]) == ("same", "paired runs")
    assert run("compare", "cap", "--format", "json").text == told
    Path("cap/new/nsys-2.sqlite").unlink()
    assert json.loads(run("compare", "cap", "--format", "json").text)["basis"] == "runs"


@pytest.mark.slow
def test_two_programs_that_cannot_be_compared_are_recorded_even_so(machine):
    """nsys fails of one of them, and ncu of the other."""
    for page in ("details", "raw", "source"):
        shutil.copy(REPORTS / f"ncu/add.{page}.csv", machine.folder / f"{page}.csv")
    for tool, fails in (("nsys", "="), ("ncu", "!=")):
        (machine.folder / tool).rename(machine.folder / f"{tool}-itself")
        fail = f'for last; do :; done; case "$*" in *profile*|*--export*) [ "$last" {fails} --fused ] && exit 1;; esac'
        machine.write(tool, f'#!/bin/sh\n{fail}\nexec {machine.folder}/{tool}-itself "$@"\n')
    ran = run("collect", "-o", "cap", "program", "--against", "--fused")
    assert (ran.status, ran.text) == (1, "")
    told = ran.error.splitlines()
    assert "Note: not compared: Base is of nsys, new of ncu." in told
    assert "The captures are in cap" in told
    assert told[-2].startswith("kanalyze: cap: base: ncu failed")


@pytest.mark.slow
def test_the_commands_of_a_dry_run_of_two_programs_do_what_the_run_does(machine):
    """In the same order, with the same reports."""
    machine.write("python3", OWN_PYTHON)
    words = ["program", "--repeat", "3", "--against", "program 'a b'"]
    ran = run("collect", "--dry-run", *words, "-o", "my pasted")
    assert (ran.status, ran.error, machine.called("nsys")) == (0, "", [])
    done = ended(["/bin/sh", "-eu"], input=ran.text)
    assert done.returncode == 0, done.stderr
    pasted = profiled(machine), machine.called("ncu")
    assert run("collect", *words, "-o", "run").status == 0
    files = [{path.relative_to(top) for path in Path(top).rglob("*.sqlite")} for top in ("run", "my pasted")]
    assert files[0] == files[1]
    assert len(files[0]) == 6
    program = str(machine.folder / "program")
    named = [["program" if word == program else word for word in words] for words in profiled(machine)[6:]]
    assert named == pasted[0]
    assert [words[1:] for words in named] == [[], ["a b"], ["a b"], [], [], ["a b"]]
    assert len(machine.called("ncu")) == 2 * len(pasted[1])


@pytest.mark.parametrize("dashes", [[], ["--"]])
@pytest.mark.one_in(4)
def test_a_module_and_its_arguments(machine, dashes):
    Path("package").mkdir()
    Path("package/train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    python = ["--with", "nsys", "-o", "cap", "--python", sys.executable]
    assert run("collect", *python, "-m", "package.train", *dashes, "--lr", "0.1").status == 0
    command = machine.called("nsys")[0]
    python, runner, option, file, *rest = command[command.index(sys.executable) :]
    assert (python, Path(runner).name, option) == (sys.executable, "torch_runner.py", "--lines")
    assert (Path(file).name, rest) == ("lines-nsys.json.gz", ["--", "-m", "package.train", "--lr", "0.1"])
    assert json.loads(Path("cap/manifest.json").read_text())["workload"]["name"] == "train"


@pytest.mark.slow
def test_the_lines_of_a_dry_run_name_nothing_of_this_machine(machine):
    machine.write("python3", OWN_PYTHON)
    machine.make("nvcc")
    Path("train.py").write_text("")
    for words in (["train.py"], ["square"], ["add"], ["-m", "package.train"], ["program"]):
        text = run("collect", "--dry-run", "-o", "my cap", *words).text
        absolute = [word for word in shlex.split(text, comments=True) if word.startswith("/")]
        assert absolute == [], words
        assert sys.executable not in text
        assert str(Path.cwd()) not in text
        assert "'my cap/" in text
    given = run("collect", "--dry-run", "--python", sys.executable, "train.py").text
    assert f"{sys.executable} train.py" in given


def test_a_dry_run_prints_commands_and_runs_nothing(machine):
    flags = ("--nsys-flag=--stats=true", "--nsys-flag", "--trace=cuda,osrt", "--ncu-flag=--cache-control=none")
    ran = run("collect", "program", "--dry-run", "-o", "cap", *flags, "--", "a b")
    assert (ran.status, ran.error) == (0, "")
    assert "--stats=true --trace=cuda,osrt program" in ran.text
    assert ran.text.count("program 'a b'") == 2
    assert "--cache-control=none program" in ran.text
    assert not Path("cap").exists()
    machine.write("python3", OWN_PYTHON)
    Path("train.py").write_text("")
    with_lines, without = (run("collect", "--dry-run", *option, "train.py").text for option in ([], ["--no-lines"]))
    assert "--lines" in with_lines
    assert "lines" not in without.replace("--no-lines", "")
    assert "--no-lines" in without  # for the pass of torch, which would note them by itself
    assert [*machine.called("nsys"), *machine.called("ncu")] == []


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["square", "add.cu"])
def test_every_line_of_a_dry_run_of_a_reference_workload_can_be_pasted(machine, workload):
    """A .cu file and a script, through bash; the lines print nothing of their own to standard error."""
    machine.make("nvcc")
    machine.make("python3")
    machine.mode("python3", "any script")
    python = (machine.folder / "python3").rename(machine.folder / "python")
    machine.write("python3", OWN_PYTHON)
    Path("add.cu").write_text("int main() {}\n")
    machine.write("program", "#!/bin/sh\necho 'Max error: 0'\n")
    ran = run("collect", "--dry-run", "-o", "pasted it", "--python", python, workload)
    Path("lines.sh").write_text(ran.text)
    done = ended(["/bin/bash", "-eu", "lines.sh"])
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.called("ncu")[0][machine.called("ncu")[0].index("--kernel-id") + 1] == "::regex:^(_Z3addiPfS_)$:2"
    left = {str(path.relative_to("pasted it")) for path in Path("pasted it").rglob("*.*")}
    of_torch = {"torch.json.gz", "torch-run.json", ".caches"} if workload == "square" else set()
    assert left == of_torch | {
        *("nsys.nsys-rep", "nsys.sqlite", "logs/launches.csv"),
        *("ncu.ncu-rep", "ncu.details.csv", "ncu.raw.csv", "ncu.source.csv"),
    }


@pytest.mark.slow
def test_a_failed_pass_is_an_exit_status_of_its_own_and_keeps_the_rest(machine):
    machine.mode("ncu", "no permission")
    ran = run("collect", "-o", "cap", "program")
    assert ran.status == 1
    assert "WHERE THE TIME WENT" in ran.text
    *_, message, remedy = ran.error.splitlines()
    assert message.startswith("kanalyze: cap: ncu failed: this user may not read the GPU's performance counters")
    assert remedy.endswith("[capture-incomplete]")


def test_a_program_that_fails_is_told_with_what_it_said(machine):
    machine.write("bad", "#!/bin/sh\necho 'Traceback (most recent call last):'\necho 'ValueError: no'\nexit 1\n")
    ran = run("collect", "-o", "cap", "bad")
    assert ran.status == 2
    assert ran.error.splitlines()[-4:] == [
        "kanalyze: bad: the program ended with exit status 1: ValueError: no.",
        "    Traceback (most recent call last):",
        "    ValueError: no",
        "Run it without a profiler first; nothing of it was kept.  [nothing-collected]",
    ]
    assert not Path("cap").exists()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_finished_passes_and_leaves_no_process(machine, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as nohup does")
    machine.write("program", PROGRAM)
    machine.mode("ncu", "hangs")
    with started(command_line("collect", "--no-bare", "-o", "cap", "program")) as process:
        called = Path("../bin/called")
        wait_until(lambda: called.exists() and "['ncu'" in called.read_text())
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    rows = error.decode().splitlines()[-2:]
    assert rows == ["kanalyze: stopped during ncu.", "What was finished before is in cap.  [interrupted]"]
    told = json.loads(Path("cap/manifest.json").read_text())
    assert told["status"] == "interrupted"
    assert {one["name"]: one["status"] for one in told["passes"]} == {"nsys": "done", "ncu": "interrupted"}
    assert {entry.name for entry in Path("cap").iterdir()} == {"nsys.nsys-rep", "nsys.sqlite", "manifest.json", "logs"}
    assert [entry.name for entry in Path().iterdir()] == ["cap"]
    assert sleepers() == []


@pytest.mark.slow
def test_on_a_terminal_progress_is_one_line_that_changes(machine):
    machine.write("program", "#!/bin/sh\nfor n in 1 2 3 4 5 6; do echo step $n; sleep 0.3; done\n")
    shown = on_terminal(80, "collect", "-o", "cap", "--with", "nsys", "program")
    assert "\r\x1b[2Knsys  " in shown
    assert "s  step " in shown
    assert "\r\x1b[2Knsys: done after " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.cu"], "nowhere.cu: no such file, program on PATH or reference workload."),
        (["--with", "nsys,nvprof", "program"], "no pass 'nvprof'."),
        (["--nvcc", "'open", "program"], '--nvcc "\'open": not flags with closed quotes.'),
        (["--nsys", "nowhere", "program"], "--nsys 'nowhere': not a program that can be run."),
    ],
)
def test_a_wrong_call_is_told(machine, arguments, message):
    assert refused(run("collect", *arguments))[0] == message
    assert machine.called("nsys") == []


def test_the_doctor_says_what_is_missing_ends_with_1_and_fits(machine):
    (machine.folder / "ncu").unlink()
    words = ("doctor", "--python", sys.executable, "--nsys", machine.folder / "nsys")
    ran = run(*words, columns=200)
    assert (ran.status, ran.error) == (1, "")
    assert "GPU             found    NVIDIA H200 (compute capability 9.0)" in ran.text
    assert "nsys            found    2025.3.2.474" in ran.text
    assert [line for line in run(*words).lines if len(line) > 80 and " " in line.strip()] == []


def test_workloads_are_listed_with_what_they_teach_and_shown_with_all_that_they_say():
    lines, first = printed("collect", "--list", columns=400).splitlines(), references()[0]
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if not line.startswith(" ")}
    assert listed == {one.name: one.teaches for one in references()}
    assert printed("collect", "--list", first.name) == f"{first.path}\n\n{first.doc}\n"
    assert refused(run("collect", "--list", "ad"))[0] == "no workload 'ad'."
