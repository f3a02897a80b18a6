"""Sides whose iterations were found in different ways: by ranges in one, by launches in the other."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from unittest.mock import patch

import pytest

from analyses.comparing.test_matching import digest, plain, slots
from kanalyze.analyses.comparing._comparison import compared
from kanalyze.analyses.comparing._pair import found_otherwise, same_launches
from kanalyze.errors import IncomparableError
from kanalyze.reduction.baselines import dumped
from kanalyze.renderers.page.comparison import answer
from kanalyze.several import Asked, sides
from kanalyze.several.sides import comparison, digests
from support.command import REPORTS, SAMPLES, refused, run

MARKED = REPORTS / "findings_clean.sqlite"


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory):
    """The same recording without its ranges."""
    copy = tmp_path_factory.mktemp("ways") / "unmarked.sqlite"
    shutil.copy(MARKED, copy)
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute("DELETE FROM NVTX_EVENTS")
    return copy


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
