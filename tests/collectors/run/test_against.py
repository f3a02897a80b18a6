"""Two programs whose runs are interleaved, with stand-ins for the tools: their order, and what is left of failures."""

import json
import subprocess
from pathlib import Path

import pytest

from kanalyze.collectors import collect, collect_against
from kanalyze.collectors.options import InterruptedCaptureError
from kanalyze.errors import CollectError
from kanalyze.readers.capture.reports import runs_of, sides_in
from kanalyze.tools import interleaved
from support.stand_ins import PROGRAM, left

#: A program that fails when it is called for the n-th time with these arguments, and counts that.
FAILS = """#!/bin/sh
count="$(dirname "$0")/count$1"
echo x >> "$count"
if [ "$(wc -l < "$count")" -ge {number} ] && [ "$1" = "{side}" ]; then echo 'ValueError: no'; exit 3; fi
echo 'Max error: 0'
"""

#: The reports of four runs of nsys.
REPORTS = ["nsys.sqlite", "nsys-2.sqlite", "nsys-3.sqlite", "nsys-4.sqlite"]


def order(stand_ins):
    """The reports that nsys wrote, in order of time."""
    profiled = [words for words in stand_ins.called("nsys") if words[0] == "profile"]
    outputs = [next(word for word in words if word.startswith("--output=")) for words in profiled]
    return ["/".join(Path(word.partition("=")[2]).parts[-2:]) for word in outputs]


def passes(capture):
    return {one["name"]: (one["status"], one["why"]) for one in capture.manifest["passes"]}


@pytest.mark.slow
def test_two_programs_run_in_turns(stand_ins, program):
    stand_ins.write("other", PROGRAM)
    both = collect_against(program, "other -x 'a b'", ["-n", "1"], output=Path("cap"), repeat=4, passes=("nsys",))
    assert (left(), left(Path("cap")), both.problems) == ({"cap"}, {"base", "new"}, ())
    assert order(stand_ins) == [
        *("base/nsys", "new/nsys", "new/nsys-2", "base/nsys-2"),
        *("base/nsys-3", "new/nsys-3", "new/nsys-4", "base/nsys-4"),
    ]
    words = [words[words.index(next(word for word in words if word.startswith("/"))) :] for words in ran(stand_ins)]
    assert words[:2] == [[str(program), "-n", "1"], [str(stand_ins.folder / "other"), "-n", "1", "-x", "a b"]]
    assert [path.name for path in both.new.reports] == REPORTS
    assert [(run.turn.side, run.turn.number) for run in runs_of(Path("cap/base"))] == [
        ("base", number) for number in (1, 4, 5, 8)
    ]
    base, new = map(runs_of, sides_in(Path("cap")))
    assert interleaved([run.turn for run in base], [run.turn for run in new])
    assert ".collecting" not in Path("cap/new/manifest.json").read_text()
    assert str(Path.cwd() / "cap" / "new" / "nsys-2") in Path("cap/new/manifest.json").read_text()


def ran(stand_ins):
    """The commands that nsys profiled."""
    return [words for words in stand_ins.called("nsys") if words[0] == "profile"]


@pytest.mark.slow
def test_each_side_is_a_capture_as_of_one_program(program):
    both = collect_against(program, "--fused", output=Path("cap"))
    alone = collect(program, output=Path("alone"))
    for capture, side, turns, args in (
        (both.base, "base", {"nsys": 1, "ncu": 3}, []),
        (both.new, "new", {"nsys": 2, "ncu": 4}, ["--fused"]),
    ):
        told = json.loads((Path("cap") / side / "manifest.json").read_text())
        assert (capture.folder, left(capture.folder)) == (Path("cap", side), left(Path("alone")))
        assert {*told} == {*alone.manifest, "against"}
        assert (told["against"]["side"], told["against"]["turns"], told["workload"]["args"]) == (side, turns, args)
    assert both.base.manifest["against"]["collection"] == both.new.manifest["against"]["collection"]


@pytest.mark.slow
def test_both_are_compiled_and_prepared_before_anything_is_recorded(stand_ins):
    stand_ins.make("nvcc")
    (stand_ins.folder / "program").write_text("#!/bin/sh\necho 'Max error: 0'\n")
    for name in ("one.cu", "two.cu"):
        Path(name).write_text("int main() {}\n")
    heard = []
    collect_against("one.cu", "two.cu", output=Path("cap"), passes=("nsys",), prepare=True, progress=heard.append)
    begun = [event.step for event in heard if event.kind == "begin"]
    ready = ["base compile", "new compile", "base prepare", "new prepare"]
    assert begun[:4] == ready
    assert begun[4:8] == ["base nsys", "base nsys-export", "new nsys", "new nsys-export"]


# The torch pass


@pytest.mark.slow
def test_traces_are_repeated_too_and_each_has_a_folder(script):
    path, python = script
    both = collect_against(path, "--fused", output=Path("cap"), python=python, repeat=3, passes=("nsys", "torch"))
    assert both.problems == ()
    assert left(Path("cap/new")) >= {"torch.json.gz", "torch-run.json", "torch-2", "torch-3"}
    assert left(Path("cap/new/torch-2")) == {"torch.json.gz", "torch-run.json"}
    told = both.new.manifest
    names = [f"{tool}{number}" for tool in ("nsys", "torch") for number in ("", "-2", "-3")]
    assert told["against"]["turns"] == dict(zip(names, (2, 3, 6, 8, 9, 12), strict=True))
    assert list(told["passes"][1]["torch"]) == ["torch-run", "torch-2/torch-run", "torch-3/torch-run"]
    traced = [run for run in runs_of(Path("cap/base")) if run.tool == "torch"]
    assert [(run.number, run.turn.number) for run in traced] == [(1, 7), (2, 10), (3, 11)]


@pytest.mark.slow
def test_what_each_program_compiled_is_told_apart(script, monkeypatch, tmp_path):
    """Neither has a torch pass, both fill one cache."""
    path, python = script
    cache = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    metadata = {"target": {"backend": "cuda", "arch": 90}, "num_warps": 4, "num_stages": 3, "shared": 0}
    lines = ["for last; do :; done"]
    for name, key in (("base", "bb"), ("new", "cc")):
        text = json.dumps({**metadata, "hash": key * 32, "name": name})
        lines.append(f"[ $last = {name} ] && mkdir -p {cache}/{key} && echo '{text}' > {cache}/{key}/{name}.json")
    path.write_text("\n".join([*lines, "echo 'check: ok'"]))
    collect_against(path, f"{path} new", ["base"], output=Path("cap"), python=python, passes=("nsys",), repeat=2)
    found = [json.loads(Path("cap", side, "compiled.json").read_text())["kernels"] for side in ("base", "new")]
    assert [[row["name"] for row in rows] for rows in found] == [["base"], ["new"]]


# What goes wrong


def test_a_program_that_fails_at_once_leaves_nothing(stand_ins):
    program = stand_ins.write("program", FAILS.format(number=1, side="new"))
    with pytest.raises(CollectError) as caught:
        collect_against(program, "program new", output=Path("cap"), repeat=3)
    assert str(caught.value) == "new (program): the program ended with exit status 3: ValueError: no."
    assert left() == set()
    assert order(stand_ins) == ["base/nsys", "new/nsys"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "runs"), [(2, (2, 1)), (3, (3, 2))])
def test_a_program_that_fails_later_ends_the_pass_and_keeps_the_runs_before(stand_ins, number, runs):
    """Of the second runs it is the first, of the third ones the second; the other one has its turn in any case."""
    program = stand_ins.write("program", FAILS.format(number=number, side="new"))
    both = collect_against(program, "program new", output=Path("cap"), repeat=4, passes=("nsys",))
    assert (len(both.base.reports), len(both.new.reports)) == runs
    why = f"nsys-{number}: the program ended with exit status 3: ValueError: no"
    assert both.problems == (f"new: nsys failed: {why}",)
    assert (passes(both.base), passes(both.new)) == ({"nsys": ("done", "")}, {"nsys": ("failed", why)})
    assert both.base.notes == (f"nsys: ended after {number} of 4 runs, as the other program's failed",)
    assert [capture.manifest["status"] for capture in (both.base, both.new)] == ["complete", "partial"]
    assert left(Path("cap/new")) == {"manifest.json", "logs"} | {
        f"{name}.{ending}" for name in ("nsys", "nsys-2")[: runs[1]] for ending in ("nsys-rep", "sqlite")
    }
    assert [run.turn.number for run in runs_of(Path("cap/new"))] == [2, 3][: runs[1]]
    assert Path("cap/new/logs/launches.csv").exists()


def test_where_nothing_is_recorded_of_one_program_nothing_is_kept(stand_ins, program):
    """nsys fails of one of them, and there is no other pass."""
    (stand_ins.folder / "nsys").rename(stand_ins.folder / "nsys-itself")
    lines = ["#!/bin/sh", 'for last; do :; done; [ "$last" = --fused ] && { echo broken; exit 1; }']
    stand_ins.write("nsys", "\n".join([*lines, f'exec {stand_ins.folder}/nsys-itself "$@"', ""]))
    with pytest.raises(CollectError) as caught:
        collect_against(program, "--fused", output=Path("cap"), passes=("nsys",))
    told = "nsys ended with exit status 1, and nsys.nsys-rep was not written"
    assert str(caught.value) == f"nothing was collected: new: nsys failed: {told}."
    assert (caught.value.details, left()) == (["broken"], set())


@pytest.mark.slow
@pytest.mark.parametrize(("starts", "kept"), [(2, None), (4, None), (5, (1, 1)), (6, (1, 1)), (7, (1, 2))])
def test_ctrl_c_keeps_the_runs_that_are_finished_if_there_are_some_of_both(program, starts, kept):
    """Of two runs each, with the export of each a step of its own: base, new, new, base."""
    begun = []

    def starter(*arguments, **more):
        begun.append(arguments)
        if len(begun) == starts:
            raise KeyboardInterrupt
        return subprocess.Popen(*arguments, **more)  # noqa: S603 - as the collectors start it

    with pytest.raises(InterruptedCaptureError) as caught:
        collect_against(program, "--fused", output=Path("cap"), passes=("nsys",), repeat=2, starter=starter)
    side = "base" if starts in (2, 7, 8) else "new"
    assert str(caught.value) == f"stopped during nsys of {side}."
    if kept is None:
        assert (left(), caught.value.remedy) == (set(), "Nothing was finished, and nothing was kept.")
        return
    assert caught.value.remedy == "What was finished before is in cap."
    assert tuple(len(runs_of(Path("cap", side))) for side in ("base", "new")) == kept
    for side, count in zip(("base", "new"), kept, strict=True):
        told = json.loads(Path("cap", side, "manifest.json").read_text())
        assert (told["status"], told["passes"][0]["status"]) == ("interrupted", "interrupted")
        assert len(told["against"]["turns"]) == count
