"""What a replay says that a finding's remedy gains: beside the time at stake, and never more than `at_most`."""

from functools import reduce
from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings._claims import _joined, _replayed, with_replays
from kanalyze.analyses.findings.findings import findings, ranked
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.iterations.phases import known_steady_part
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.replay._changes import Mending
from kanalyze.errors import KanalyzeError
from kanalyze.readers import read
from support.build import kernel, report

SAMPLES = Path("sample_reports")
REPORTS = sorted(
    path
    for pattern in (
        "sample_reports/*/*.sqlite",
        "sample_reports/*/*.json.gz",
        "tests/reports/**/*.sqlite",
        "tests/reports/**/*.gz",
    )
    for path in Path().glob(pattern)
)


def by_rule(path, window="steady"):
    return {row["rule"]: row for row in findings(read(path, cache=False), window=window).to_dicts()}


@pytest.mark.slow
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: "-".join(path.parts[1:]))
def test_no_replay_gains_more_than_can_be_gained(path):
    try:
        rows = findings(read(path, cache=False)).to_dicts()
    except KanalyzeError:
        return
    for row in rows:
        if row["replayed_ns"] is not None:
            assert row["replayed_ns"] >= 0
            assert not row["at_most"] or row["replayed_ns"] <= row["at_stake_ns"], row["rule"]


def test_a_kernel_that_nothing_runs_beside_gains_what_it_is_shortened_by():
    """One block on 132 SMs: 131 of 132 parts of the kernel, and nothing else is behind it."""
    row = by_rule(SAMPLES / "add" / "nsys.sqlite", window=None)["small-grid"]
    assert row["replayed_ns"] == pytest.approx(row["at_stake_ns"], rel=0.01)


def test_shorter_kernels_gain_nothing_where_the_host_is_the_limit():
    found = by_rule(SAMPLES / "mlp_train" / "nsys.sqlite")
    assert found["no-tf32"]["at_stake_ns"] > 0
    assert found["no-tf32"]["replayed_ns"] == 0
    assert found["graph-candidate"]["replayed_ns"] > found["graph-candidate"]["at_stake_ns"]


def test_what_gains_most_by_a_replay_comes_first():
    rows = findings(read(SAMPLES / "mlp_train" / "nsys.sqlite", cache=False), window="steady").to_dicts()
    gains = [row["replayed_ns"] for row in rows if row["replayed_ns"] is not None]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.slow
def test_the_page_follows_the_replays():
    page = overview(read(SAMPLES / "mlp_train" / "nsys.sqlite", cache=False))
    assert page.findings[0].rule == "graph-candidate"
    assert "could be replayed as a graph; with that about" in page.answer


def test_of_more_operations_and_calls_than_may_be_nothing_is_replayed():
    found = read(SAMPLES / "mlp_train" / "nsys.sqlite", cache=False)
    told = with_replays(found, ranked(found), most=1000)
    assert {one.rule for one in ranked(found)} - {one.rule for one in told} <= {"small-grid", "low-occupancy", "tail"}
    assert all(one.replayed_ns is None for one in told)


def test_findings_of_one_cause_are_one_and_what_their_remedy_changes_adds_up():
    gone, less = pl.Series("row", [1], dtype=pl.UInt32), pl.DataFrame({"row": [2], "saved_ns": [30]})

    def one(rule, ns, text, name, mending):
        return Finding(rule, 0, ns, text, "…", "…", (name,), action=CHANNELS_LAST, mending=lambda _: mending)

    slow = one("small-grid", 40, "{0} is slow.", "b", Mending(shorter=less))
    needless = one("layout-conversions", 90, "{0} is needless.", "a", Mending(gone=gone))
    (found,) = _joined([slow, needless])
    assert (found.rule, found.at_stake_ns, found.names) == ("layout-conversions", 130, ("a", "b"))
    assert found.text.format(*found.names) == "a is needless. The same cause: b is slow."
    change = found.change(None)
    assert (change.gone.to_list(), change.shorter.rows()) == ([1], [(2, 30)])
    assert [one.at_stake_ns for one in _joined([slow._replace(action="other"), needless])] == [90, 40]


@pytest.mark.parametrize("name", ["mlp_train", "launch_bound_plain"])
def test_gains_add_up_to_no_more_than_all_remedies_gain_together(name):
    of = read(SAMPLES / name / "nsys.sqlite", cache=False)
    of = of.narrow(window=known_steady_part(of).window)
    found = ranked(of)
    changes = [change for one in found if (change := one.change(of)) is not None]
    together, *_ = _replayed(of, 0, reduce(Mending.with_all_of, changes))
    assert sum(one.replayed_ns or 0 for one in with_replays(of, found, most=1 << 20)) <= together[0]


def test_what_two_remedies_change_is_changed_once():
    gone, less = pl.Series("row", [1, 2], dtype=pl.UInt32), pl.DataFrame({"row": [2, 3, 3], "saved_ns": [9, 20, 10]})
    host = pl.DataFrame({"process_id": [1], "start": [0], "end": [5]})
    one = Mending(gone=gone, calls=pl.Series("row", [4], dtype=pl.UInt32), host=host)
    other = Mending(shorter=less, unwaited=pl.Series("row", [5], dtype=pl.UInt32), graph=True)
    both = one.with_all_of(other).with_all_of(Mending(shorter=pl.DataFrame({"row": [3], "saved_ns": [40]})))
    assert sorted(both.gone) == [1, 2]
    assert both.shorter.rows() == [(3, 40)]
    assert (both.calls.to_list(), both.unwaited.to_list(), both.graph) == ([4], [5], True)
    assert both.host.rows() == [(1, 0, 5)]


def test_a_finding_without_a_replay_gains_no_more_than_the_device_does_not_work_besides():
    """Kernels of 30, 50 and 20 ns in a window of 150."""
    of = report([kernel(0, 30), kernel(40, 90), kernel(130, 150)])
    claims = pl.DataFrame({"start": [40], "end": [90]})
    one = Finding("full-sort", 0, 50, "text", "remedy", "kernels", claims=claims)
    found = with_replays(of, [one, one._replace(at_most=True), one._replace(vague=True), one._replace(claims=None)], 99)
    bounds = [each.replayed for each in found]
    assert bounds == [(None, 0, 150 - 30 - 20), (None, 0, 50), (None, None, None), (None, None, None)]


def test_what_is_paid_once_makes_no_replay_less_sure():
    of = read(SAMPLES / "add" / "nsys.sqlite", cache=False)
    (one,) = (found for found in ranked(of) if found.rule == "small-grid")
    (gain, apart), *_ = _replayed(of, 0, one.change(of))
    once = bucket_sums(of).filter(bucket="loading").get_column("ns").sum()
    start, end = windows(of).select("start", "end").row(0)
    assert 0 < apart <= 0.03 * (end - start - once - gain) + 1
