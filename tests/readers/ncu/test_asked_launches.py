"""What commands of ncu and nsys say of the launches in their reports, and what they do not say."""

import json

import pytest

from kanalyze.collectors.options import Options
from kanalyze.collectors.tools.ncu import Launch, profile as ncu_profile, select
from kanalyze.collectors.tools.nsys import profile as nsys_profile
from kanalyze.readers.capture.read_capture import commands, recorded_all, selections
from kanalyze.readers.ncu.read_csv_rep import Selection, chooses, counts_from_call, selection

BY_ID = ("--kernel-name-base", "mangled", "--kernel-id")
A = ("_Z1av",)
BY_NAME = ("--kernel-name-base", "mangled", "--kernel-name")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([*BY_ID, "::regex:^(_Z1av|_Z1bv)$:2"], Selection((2,), symbols=(*A, "_Z1bv"))),
        ([*BY_ID, r"::regex:^(_Z1a\.v)$:7"], Selection((7,), symbols=("_Z1a.v",))),
        ([*BY_ID, "::regex:^_Z1.v$:7"], Selection((7,))),  # any letter
        ([*BY_ID, "::regex:^_Z1av|_Z1bv$:7"], Selection((7,))),  # whatever begins, or ends, so
        ([*BY_ID, "::regex:^(_Z1a$|_Z1bv)$:7"], Selection((7,))),
        ([*BY_ID, "::regex:^_Z1a\\$:7"], Selection((7,))),  # no end
        ([*BY_ID, r"::regex:^(_Z1a\$v)$:7"], Selection((7,), symbols=("_Z1a$v",))),
        ([*BY_ID, "::_Z1a.v$:7"], Selection((7,), symbols=("_Z1a.v$",))),  # no expression
        ([*BY_ID[:2], "--kernel-id=::_Z1av:3", "--nvtx"], Selection((3,), symbols=A)),
        ([*BY_ID, "::_Z1av:3", "--profile-from-start", "off"], Selection((3,), from_call=True, symbols=A)),
        ([*BY_NAME, "regex:^(_Z1av|_Z1bv)$", "--launch-count", "3"], Selection(None, symbols=(*A, "_Z1bv"))),
        (["-k", "add", "-c", "3"], Selection(None)),
        ([*BY_NAME, "regex:^(_Z1av)$", "-s", "4", "-c", "3"], Selection(None, skip=4, symbols=A)),
        ([*BY_NAME, "_Z1av", "--launch-skip=4"], Selection(None, skip=4, symbols=A)),
        ([], Selection(None)),
        # what does not say which launches these are
        (["--kernel-id", "::add:2"], None),  # by a name that templates share
        ([*BY_ID, "1::_Z1av:2"], None),  # of one context
        ([*BY_ID, "::_Z1av:[24]"], None),  # another expression
        ([*BY_ID, "::_Z1av:0"], None),
        ([*BY_ID, "::_Z1av:2", "--launch-count", "1"], None),
        ([*BY_NAME, "regex:^(_Z1av|_Z1bv)$", "--launch-skip", "1"], None),  # the other one's were skipped, too
        (["--kernel-name", "a", "--launch-skip", "1"], None),
        ([*BY_NAME, "_Z1av", "--launch-count", "some"], None),
        ([*BY_NAME, "regex:^k.$", "--launch-skip", "2", "--launch-count", "1"], None),  # of whatever functions
        *((flags, None) for flags in (["--nvtx", "--nvtx-include", "step/"], ["-k", "a", "--kernel-name", "b"])),
        *(([flag, of], None) for flag, of in (("--replay-mode", "range"), ("--profile-from-start", "maybe"))),
        (["--some-flag-of-the-future"], None),
    ],
)
def test_what_a_command_selects(flags, expected):
    command = ["/usr/bin/ncu", "--set", "full", *flags, "--export", "ncu", "program", "--kernel-id", "x"]
    assert selection(command) == expected


@pytest.mark.parametrize("command", [[], ["ncu"], ["ncu", "--set", "full"], ["nsys"], ["nsys", "profile"]])
def test_what_is_no_run_of_ncu_and_no_recording(command):
    assert selection(command) is None
    assert not counts_from_call(command)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], False),
        (["--kernel-name-base", "mangled", "--profile-from-start", "on"], False),
        (["--profile-from-start", "off"], True),
        (["--profile-from-start", "maybe"], None),
        (["--profile-from-start", "maybe", "--launch-count", "3"], True),
        (["-k", "add"], True),
        (["--some-flag-of-the-future"], None),
    ],
)
def test_whether_a_command_chooses_launches(flags, expected):
    assert chooses(["ncu", *flags, "program"]) is expected


@pytest.mark.parametrize(
    ("one", "names", "expected"),
    [
        (Selection((2,)), ["a", "b"], [2, 2]),
        (Selection((2, 11)), ["a", "b", "a", "b"], [2, 2, 11, 11]),
        (Selection((2, 11)), ["a", "b", "a"], [2, None, 11]),  # which of both b is cannot be told
        (Selection((2,)), ["a", "a"], [None, None]),  # two functions of one name, or two processes
        (Selection(None), ["a", "b", "a"], [1, 1, 2]),
        (Selection(None, skip=3), ["a", "a"], [4, 5]),
        (Selection(None, skip=3), ["a", "b"], [None, None]),
        (Selection(None), [None, "b"], [None, 1]),
    ],
)
def test_numbers_of_a_report(one, names, expected):
    assert one.numbers_of(names) == expected


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (Options(), 2),
        (Options(launches=2), 2),
        (Options(cuda_profiler_api=True), 1),
        (Options(range_name="step"), None),  # ncu takes the launches of one thread
        (Options(delay_s=3), None),
        (Options(ncu_flags=("--nvtx-include", "a/")), None),
        (Options(nsys_flags=("--cuda-graph-trace=graph",)), None),
        (Options(nsys_flags=("--kill=none",)), None),
    ],
)
def test_a_capture_s_own_commands(tmp_path, options, number):
    """What the collector writes is read, for whatever it was asked."""
    launched = [Launch("_Z1av", ("1",), ("0", "1"), start, 10) for start in range(5)]
    (chosen,) = select(launched, options)
    passes = {
        "nsys": nsys_profile("/opt/nsys", tmp_path / "nsys", options, ["./program", "--delay"]),
        "ncu": ncu_profile("/opt/ncu", tmp_path / "ncu", options, chosen, ["./program"]),
    }
    write(tmp_path, **passes)
    found = selections(commands(tmp_path))
    assert bool(found) == (number is not None)
    if found:
        assert found["ncu"].numbers_of(["a()"] * options.launches)[0] == number


def write(folder, **steps):
    done = [{"name": name, "command": [*command], "exit_status": 0} for name, command in steps.items()]
    (folder / "manifest.json").write_text(json.dumps({"passes": [{"steps": done}]}))


def test_without_a_recording_from_the_same_moment_on_numbers_say_nothing(tmp_path):
    run = ["ncu", *BY_ID, "::_Z1av:2", "program"]
    for nsys in ([], ["nsys", "profile", "--capture-range=cudaProfilerApi", "program"], ["nsys", "launch", "program"]):
        write(tmp_path, nsys=nsys, ncu=run)
        assert selections(commands(tmp_path)) == {}
    write(tmp_path, nsys=["nsys", "profile", "--trace=nvtx", "program"], ncu=run)
    assert selections(commands(tmp_path)) == {}
    write(tmp_path, nsys=["nsys", "profile", "--trace=cuda,nvtx", "program"], ncu=run)
    assert selections(commands(tmp_path)) == {"ncu": Selection((2,), symbols=A)}


def test_where_a_step_was_done_again_the_last_one_counts(tmp_path):
    again = [
        {"name": "ncu", "command": ["ncu", *BY_ID, f"::_Z1av:{number}", "program"], "exit_status": status}
        for number, status in ((3, 0), (1, 0), (2, 1))
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"passes": [{"steps": again}]}))
    assert selection(commands(tmp_path)["ncu"]) == Selection((1,), symbols=A)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"passes": 1}', '{"passes": [{"steps": [{}]}]}', '{"passes": [1]}'])
def test_a_manifest_that_says_nothing(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    assert commands(tmp_path) == {}
    assert selections(commands(tmp_path)) == {}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], True),
        (["--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none"], True),
        (["--cuda-graph-trace=graph"], False),
        (["--delay=1"], False),
        (["--duration=10"], False),
        (["--capture-range=cudaProfilerApi"], False),
        (["--capture-range=nvtx", "--nvtx-capture=step"], False),
        (["--some-flag-of-the-future"], False),
    ],
)
def test_what_records_the_whole_run(flags, expected):
    assert recorded_all({"nsys": ["nsys", "profile", *flags, "program", "--duration=1"]}) is expected
    assert not recorded_all({"nsys": ["nsys", "launch", *flags, "program"]})
