"""What a user is told of a run: the program's own words, each note once, and no name that is gone afterwards."""

from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.base.step import Step
from kanalyze.collectors.run.runner import last_words
from kanalyze.collectors.tools import ncu
from kanalyze.errors import CollectError

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


def step(folder, name, text):
    (folder / "logs").mkdir()
    log = folder / "logs" / f"{name}.log"
    log.write_text(text.format(folder=folder))
    return Step(name, ("tool",), log)


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


def test_a_program_that_fails_under_nsys_is_told_with_its_own_words(stand_ins):
    program = stand_ins.write("bad", "#!/bin/sh\necho 'usage: bad N' >&2\nexit 2\n")
    with pytest.raises(CollectError) as caught:
        collect(program, output=Path("cap"), passes=("nsys",))
    assert str(caught.value) == "bad: the program ended with exit status 2: usage: bad N."
    assert caught.value.details == ["usage: bad N"]


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


def test_nothing_that_is_told_names_the_folder_that_is_gone(stand_ins):
    program = stand_ins.write("program", "#!/bin/sh\necho 'Max error: 0'\n")
    for name in ("nsys", "ncu"):
        stand_ins.mode(name, "fails")
    with pytest.raises(CollectError) as caught:
        collect(program, output=Path("cap"))
    assert ".collecting" not in "\n".join([str(caught.value), *caught.value.details])
