"""Sides without the profiler: where all runs of both are told so, and never with recorded ones in silence."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analyses.comparing.test_matching import digest, plain, slots
from analyses.replay.test_unprofiled import slowed
from kanalyze.analyses.comparing._comparison import compared
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


@pytest.mark.parametrize(("host_ns", "of"), [(3000, "1.560 µs"), (100, None)])
def test_recorded_times_say_what_the_profiler_may_explain(host_ns, of):
    """Of nsys 48 % of the host's time are left at the least."""
    found = compared([made("base", 90)], [made("new", host_ns)], ("base", "new"))
    said = answer(found).partition("Times are as recorded: ")[2]
    assert said == (f"up to {of} of the difference may be what nsys costs the slower side." if of else "")
    sides = ([made(name, ns, unprofiled=True)] for name, ns in (("base", 90), ("new", host_ns)))
    assert "as recorded" not in answer(compared(*sides, ("base", "new")))


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
