"""What is said of a run: the program's own words, each note once, what was stopped, and what printed very much."""

from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.base import process
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.base.process import Step
from kanalyze.collectors.base.workload import Workload
from kanalyze.collectors.run.passes import Found, Pass, PassRecord, StepFailedError, last_words
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import ncu
from kanalyze.errors import CollectError
from support.stand_ins import left

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
    ],
)
def test_the_program_s_words_are_told_from_its_tool_s(tmp_path, name, text, words):
    assert last_words(step(tmp_path, name, text), of_program=True) == words


def test_where_the_program_said_nothing_the_tool_s_words_are_shown_without_the_folder(tmp_path):
    silent = NSYS_LOG.partition("\n")[2]
    assert last_words(step(tmp_path, "nsys", silent), of_program=True) == [
        "Collecting data...",
        "Generating '/tmp/nsys-report-b956.qdstrm'",
        "[1/1] [========================100%] nsys.nsys-rep",
        "Generated:",
        "\tnsys.nsys-rep",
    ]


def test_a_program_that_fails_is_told_with_its_own_words_and_nothing_is_kept(stand_ins):
    program = stand_ins.write("bad", "#!/bin/sh\necho first\necho 'ValueError: no' >&2\nexit 3\n")
    with pytest.raises(CollectError) as caught:
        collect(program, output=Path("cap"))
    assert str(caught.value) == "bad: the program ended with exit status 3: ValueError: no."
    assert (caught.value.details, left(), stand_ins.called("ncu")) == (["first", "ValueError: no"], set(), [])


def test_a_program_that_fails_under_a_later_tool_only_is_told_with_its_words(stand_ins):
    program = stand_ins.write(
        "bad", '#!/bin/sh\nif [ -e "$0.ran" ]; then echo "no luck"; exit 3; fi\ntouch "$0.ran"\necho "Max error: 0"\n'
    )
    capture = collect(program, output=Path("cap"))
    assert capture.problems == ("ncu failed: the program ended with exit status 3: no luck",)


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


@pytest.mark.slow
def test_what_several_runs_of_ncu_warn_of_is_said_once(stand_ins):
    program = stand_ins.write("program", "#!/bin/sh\necho 'Max error: 0'\n")
    rows = (stand_ins.folder / "launches.csv").read_text()
    once = rows.splitlines()[-1].replace("_Z3addiPfS_", "_Z4oncev").replace("6000", "7000")
    (stand_ins.folder / "launches.csv").write_text(f"{rows}{once}\n")
    stand_ins.mode("ncu", "warns")
    capture = collect(program, output=Path("cap"))
    assert (Path("cap") / "ncu-2.ncu-rep").exists()
    assert capture.notes == (f"ncu: {NO_SOURCES}", f"ncu: {UNHEARD}")


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
