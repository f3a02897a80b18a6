"""Sides without the profiler: where all runs of both are told so, and never with recorded ones in silence."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses.comparing.test_matching import digest, plain, slots
from analyses.replay.test_unprofiled import slowed
from kanalyze.analyses.comparing._comparison import compared, gate_of
from kanalyze.errors import IncomparableError
from kanalyze.reduction.baselines import dumped, loaded
from kanalyze.renderers.page.comparison import answer, comparison_page
from kanalyze.several import Asked
from kanalyze.several.sides import _alike, comparison
from support.command import run

SAYS = "without the profiler"


def made(name, host_ns=500, **about):
    return digest(slots(plain("a b")), host_ns, name=name, **about)


def test_sides_are_alike_where_all_runs_of_both_are_told():
    one, other = made("one"), made("other")
    both = [one, replace(one, about=replace(one.about, unprofiled=True))]
    alone = [replace(other, about=replace(other.about, unprofiled=True))]
    assert _alike(both, alone) == [both[1:], alone]
    assert _alike(both, [other]) == [[one], [other]]
    assert _alike([*both, other], both) == [[one, other], [one]]
    assert _alike(alone, [one]) == [alone, [one]]  # which no page tells in silence
    told = compared(alone, [one], ("base", "new"))
    assert [(doubt.kind, doubt.text) for doubt in told.doubts] == [
        ("profiler", f"times: {SAYS} in base, as recorded in new")
    ]


def said_of(base, new, **more):
    """What the answer says of the profilers' cost, the last sentence of it."""
    return answer(compared([base], [new], ("base", "new"), **more)).rpartition(" sure. ")[2]


@pytest.mark.parametrize(("host_ns", "of"), [(3000, "all"), (100, None)])
def test_without_an_estimate_all_but_the_gpu_s_work_may_be_what_the_profiler_costs(host_ns, of):
    said = said_of(made("base", 90), made("new", host_ns))
    assert said == f"Up to {of} of the difference may be what nsys costs." if of else "may be" not in said
    sides = ([made(name, ns, unprofiled=True)] for name, ns in (("base", 90), ("new", host_ns)))
    assert "may be" not in answer(compared(*sides, ("base", "new")))


def estimated(name, ns, least_ns, most_ns, **about):
    return made(name, ns - 2000, least_ns=least_ns, most_ns=most_ns, **about)


@pytest.mark.parametrize(
    ("base", "new", "says"),
    [
        ((4000, 2500, 3500), (8000, 3000, 6000), "alone could explain the difference"),
        ((4000, 3500, 4000), (8000, 5000, 6000), "explains at most 3.000 µs of the difference"),
        ((8000, 5000, 6000), (4000, 3500, 4000), "explains at most 3.000 µs of the difference"),
        ((4000, 2100, 2500), (8000, 8000, 8200), "explains nothing of the difference"),
        ((4000, 3900, 4000), (8000, 3000, 3500), "alone explains the difference, and more"),
    ],
)
def test_estimates_say_what_the_profilers_cost_explains(base, new, says):
    said = said_of(estimated("base", *base), estimated("new", *new))
    times = " in base and ".join(f"{one[1] / 1000:.3f} µs to {one[2] / 1000:.3f} µs" for one in (base, new))
    assert said == f"Without nsys it takes {times} in new, by estimate: what nsys costs {says}."


RANGES = st.tuples(st.integers(2001, 9000), st.integers(1, 9000), st.integers(0, 9000))


@given(RANGES, RANGES, st.floats(0, 1), st.floats(0, 1))
def test_no_times_within_the_ranges_have_the_profilers_explain_more(base, new, at, other):
    """Of all steps without the profiler within both ranges the difference is what the claim leaves of it, or more."""
    sides = [(ns, least, least + wide) for ns, least, wide in (base, new)]
    found = compared(*([estimated(str(at), *one)] for at, one in enumerate(sides)), ("base", "new"))
    before, after = (least + part * (most - least) for (_, least, most), part in zip(sides, (at, other), strict=True))
    recorded = found.pair.new_ns - found.pair.base_ns
    explained = recorded - (after - before) if recorded >= 0 else (after - before) - recorded
    least, most = found.profiled.explains_ns
    assert least - 1 <= explained <= most + 1


def test_two_tools_are_compared_by_what_they_tell_alike():
    base, new = estimated("base", 4000, 2500, 3500), estimated("new", 8000, 3000, 6000)
    trace = replace(new, about=replace(new.about, tool="torch.profiler"))
    found = compared([base], [trace], ("base", "new"))
    assert [doubt.kind for doubt in found.doubts] == ["tool"]
    assert "what the profilers cost alone could explain" in answer(found)
    assert found.table("compare_kernels").is_empty()
    assert (
        found.table("compare").get_column("delta_ns").sum() == found.table("compare_families")["delta_ns"].sum() + 4000
    )
    assert gate_of(found, 0.05, "step", ["runs"]).reason.startswith("tool: nsys in base, torch.profiler in new")


@pytest.mark.slow
def test_real_reports_of_two_tools_are_compared_and_those_without_times_refused():
    folder = Path("sample_reports/launch_bound_plain")
    found = comparison([folder / "nsys.sqlite"], [folder / "torch.json.gz"], Asked())
    assert found.tools == ["nsys", "torch.profiler"]
    assert "alone could explain the difference" in answer(found)  # they are of one program
    with pytest.raises(IncomparableError, match="Base is of nsys, new of ncu"):
        comparison([folder / "nsys.sqlite"], [Path("sample_reports/add/ncu.raw.csv")], Asked())


@pytest.mark.parametrize(("unprofiled", "times"), [(False, "as recorded"), (True, "without the profiler")])
def test_a_gate_says_by_which_times_it_is(unprofiled, times):
    both = [[made(f"{side}{at}", unprofiled=unprofiled) for at in range(2)] for side in "ab"]
    gate = gate_of(compared(*both, ("base", "new")), 0.05, "step", [])
    assert gate.sentence.startswith(f"held: step {times} +0.0 %")
    assert gate.times == times


def without_other_tools(folder):
    for path in folder.iterdir():
        if path.name not in ("manifest.json", "nsys.sqlite", "bare.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.mark.slow
def test_captures_with_runs_without_the_profiler_are_compared_by_these(tmp_path):
    slow, quick = (without_other_tools(slowed(tmp_path / str(ns), ns)) for ns in (900_000, 600_000))
    # a baseline has both, so that it is compared with either
    stored = tmp_path / "base.kz"
    assert run("compare", "--save", stored, slow).status == 0
    assert [one.about.unprofiled for one in loaded(stored.read_bytes(), stored)] == [False, True]
    found = comparison([stored], [quick], Asked())
    assert found.verdict.base_ns == pytest.approx(900_000, rel=0.01)
    assert found.verdict.new_ns == pytest.approx(600_000, rel=0.01)
    assert found.table("compare").get_column("new_ns").sum() == found.verdict.new_ns
    assert sum(SAYS in line for line in comparison_page(found, 5).heading) == 1
    # a run is told by its own run without the profiler: several, each by all of these, would seem not to vary
    (quick / "bare.json").rename(quick / "bare-2.json")
    recorded = comparison([stored], [quick], Asked())
    assert not any(side.about.unprofiled for side in (recorded.base, recorded.new))
    assert not recorded.doubts


def test_baselines_of_the_first_layout_are_as_recorded():
    path = Path("sample_reports/loop_base.kz")
    first = loaded(path.read_bytes(), path)
    assert not any(one.about.unprofiled for one in first)
    assert [one.about for one in loaded(dumped(first), path)] == [one.about for one in first]
