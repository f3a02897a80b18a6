"""Sides whose iterations were found in different ways, and sides that were recorded with different slowdowns."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from analyses.comparing.test_matching import digest, plain, slots
from analyses.replay.test_unprofiled import slowed
from kanalyze.analyses.comparing._comparison import compared, gate_of
from kanalyze.analyses.comparing._pair import found_otherwise, same_launches
from kanalyze.errors import IncomparableError
from kanalyze.reduction.baselines import dumped, loaded
from kanalyze.renderers.page.comparison import answer, comparison_page
from kanalyze.several import Asked, sides
from kanalyze.several.sides import _alike, comparison, digests
from support.command import REPORTS, SAMPLES, refused, run
from support.exports import altered

MARKED = REPORTS / "findings_clean.sqlite"


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory):
    return altered(tmp_path_factory.mktemp("unmarked"), MARKED, "DELETE FROM NVTX_EVENTS")


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_launches_are_what_both_sides_have(unmarked, swapped):
    sides = [MARKED, unmarked][:: -1 if swapped else 1]
    found = comparison(sides[:1], sides[1:], Asked({}))
    assert {one.about.found_by for one in (found.base.digests[0], found.new.digests[0])} == {"launches"}
    assert found.verdict.base_ns == found.verdict.new_ns
    assert not found.reason
    assert "; here by launches in both. " in answer(found)
    assert found.table("compare_ranges").is_empty()  # which one side alone has


@pytest.mark.slow
def test_a_baseline_by_ranges_is_compared_where_the_launches_are_the_same(unmarked, tmp_path):
    saved = tmp_path / "base.kz"
    saved.write_bytes(dumped(digests([MARKED], Asked({}))["nsys"]))
    found = comparison([saved], [unmarked], Asked({}))
    assert [side.about.found_by for side in (found.base, found.new)] == ["ranges", "launches"]
    assert "of mostly the same launches" in found.note
    assert found.verdict.new_ns == pytest.approx(found.verdict.base_ns, rel=0.05)


@pytest.mark.slow
def test_a_baseline_by_ranges_of_another_iteration_is_refused(unmarked, tmp_path):
    (run,) = digests([MARKED], Asked({}))["nsys"]
    twice = replace(run, slots=run.slots.with_columns(count=2 * run.slots.get_column("count")))
    saved = tmp_path / "base.kz"
    saved.write_bytes(dumped([twice]))
    with pytest.raises(IncomparableError, match="found by ranges in base, by launches in new"):
        comparison([saved], [unmarked], Asked({}))


@pytest.mark.slow
def test_a_baseline_of_no_window_is_not_compared_with_one(tmp_path):
    """Its iterations would be compared with the window, or with all of new."""
    saved = {}
    for name, window in (("steps", None), ("window", "step#2")):
        saved[name] = tmp_path / f"{name}.kz"
        saved[name].write_bytes(dumped(digests([MARKED], Asked({"window": window}))["nsys"]))
    with pytest.raises(IncomparableError, match=r"steps\.kz was made without --window 'step#2'"):
        comparison([saved["steps"]], [MARKED], Asked({"window": "step#2"}))
    with pytest.raises(IncomparableError, match="A baseline holds its iterations alone"):
        comparison([saved["window"]], [MARKED], Asked({}))
    found = comparison([saved["window"]], [MARKED], Asked({"window": "step#2"}))
    assert found.verdict.base_ns == found.verdict.new_ns


@pytest.mark.slow
def test_of_several_windows_each_is_compared_and_judged():
    """Each report is opened once for all of them."""
    words = [*[SAMPLES / "launch_bound_plain" / "nsys.sqlite"] * 2, "--window", "step#*", "--format"]
    with patch.object(sides, "opened_of", wraps=sides.opened_of) as opened:
        rows = run("compare", *words, "csv").lines
    assert opened.call_count == 2
    assert rows[0].startswith("instance,bucket,")
    assert {row.partition(",")[0] for row in rows[1:]} == {f"step#{number}" for number in range(1, 6)}
    judged = run("compare", *words, "junit", "--fail-above", "3%")
    assert judged.status == 3
    assert {f'name="step in step#{number}"' in judged.text for number in range(1, 6)} == {True}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--base", MARKED, "--base", MARKED, SAMPLES], f"{MARKED} is given twice."),
        (["--noise", MARKED, MARKED], f"{MARKED} is given twice."),
        ([], "0 reports: which of them are base, and which new?"),
        (["--least", "2", "a", "b"], "--least '2': not a share between 0 and 100 %."),
        (["--fail-above", "0", SAMPLES / "loop_base.kz", SAMPLES / "loop_fuse.kz"], "--fail-above '0': not a share"),
        (["--allow", "nosuch", SAMPLES / "loop_base.kz", SAMPLES / "loop_fuse.kz"], "no kind of doubt 'nosuch'"),
    ],
)
def test_what_is_wrong_is_called_by_its_name(words, told):
    assert refused(run("compare", *words))[0].startswith(told)


def test_one_rank_is_compared_with_another_where_that_is_asked_for(tmp_path):
    ranks = [tmp_path / f"rank{number}.kz" for number in (1, 3)]
    for path, number in zip(ranks, (1, 3), strict=True):
        one = digest(slots(plain("a b"), 100), name=path.name)
        path.write_bytes(dumped([replace(one, about=replace(one.about, rank=number))]))
    assert "--allow ranks" in refused(run("compare", *ranks))[1]
    assert "Rank 1 of base is compared with rank 3 of new." in run("compare", *ranks, "--allow", "ranks").text


@pytest.mark.parametrize(("names", "said"), [("c d", True), ("b c", False)])
def test_programs_without_a_kernel_in_common_are_said_to_be_different(names, said):
    sides = [[digest(slots(plain(some), 100))] for some in ("a b", names)]
    assert ("these are different programs" in answer(compared(*sides, ("base", "new")))) is said


@pytest.mark.parametrize(
    ("base", "new", "same"),
    [
        ("a b c d", "a b c d", True),
        ("a b c d", "a b c e", True),
        ("a b c d", "a b e f", False),
        ("a b", "a b a b", False),
    ],
)
def test_iterations_of_mostly_the_same_launches_are_the_same_thing(base, new, same):
    sides = [[digest(slots(plain(names), 100))] for names in (base, new)]
    assert same_launches(*sides) is same
    assert same_launches(*sides[::-1]) is same


def test_ways_differ_only_where_both_sides_have_some():
    def runs_by(found_by):
        one = digest(slots(plain("a"), 100))
        return replace(one, about=replace(one.about, found_by=found_by))

    assert not found_otherwise([runs_by("launches")], [runs_by("launches")])
    assert not found_otherwise([runs_by("ranges forward to optimizer")], [runs_by("ranges")])
    assert not found_otherwise([runs_by("")], [runs_by("ranges")])
    assert "by ranges in base, by profiler" in found_otherwise([runs_by("ranges")], [runs_by("profiler steps")])


def test_a_baseline_has_a_name_that_says_so(tmp_path):
    message, _ = refused(run("compare", SAMPLES / "loop_base.kz", "--save", tmp_path / "base.json"))
    assert "the name of a baseline ends in .kz" in message
    assert run("compare", SAMPLES / "loop_base.kz", "--save", tmp_path / "base.kz").status == 0
    assert (tmp_path / "base.kz").stat().st_size > 0


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
    assert [(doubt.kind, doubt.text) for doubt in compared(alone, [one], ("base", "new")).doubts] == [
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
    recorded = found.pair.ns[1] - found.pair.ns[0]
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


@pytest.mark.slow
def test_captures_with_runs_without_the_profiler_are_compared_by_these(tmp_path):
    slow, quick = (slowed(tmp_path / str(ns), ns) for ns in (900_000, 600_000))
    for path in (*slow.iterdir(), *quick.iterdir()):
        if path.name not in ("manifest.json", "nsys.sqlite", "bare.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
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


def test_a_few_of_the_iterations_are_averaged_that_are_not_like_the_others():
    eager, graphs = (SAMPLES / "inside_graphs" / f"{name}.json.gz" for name in ("capture", "decode"))
    found = comparison([eager], [graphs], Asked())
    assert [one.kind for one in found.doubts] == ["steps"]
    assert "by 3 of 12 and 11 of it" in answer(found)
    assert not comparison([eager], [eager], Asked()).doubts


@pytest.mark.parametrize("window", ["tidy", "step#9", "step#*"])
def test_a_trace_without_the_window_of_its_capture_is_left_out(window):
    ran = run("compare", *[SAMPLES / "mlp_train"] * 2, "--window", window)
    assert ran.error.count("left out: ") == ran.error.count("torch.json.gz: no ") == 2
    assert len(re.findall("^kanalyze compare ", ran.text, re.MULTILINE)) == (42 if "*" in window else 1)
