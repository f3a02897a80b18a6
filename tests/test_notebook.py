"""What notebooks show: the page of a report, and tables with units; the values stay what they are."""

import re
import shutil
from html import unescape

import pytest

import kanalyze
from kanalyze.errors import IncomparableError, NoJobError, ReportNotFoundError, UnknownNameError
from support.command import ADD, ADD_UM, REPORTS, SAMPLES, TORCH
from support.hostile import Tags


def text_of(html):
    assert Tags(html).tags
    return re.sub(r"<style>.*?</style>|<[^>]*>", " ", html)


@pytest.mark.parametrize("path", [ADD, ADD_UM, TORCH])
@pytest.mark.one_in(4)
def test_a_report_shows_its_first_page(path):
    report = kanalyze.read(path)
    text = text_of(report._repr_html_())
    assert path.name in text
    assert text_of(kanalyze.overview(report)._repr_html_()) == text
    assert ("What to do first" in text) == (path != ADD)  # of one kernel nothing is told
    assert len(text) < len(text_of(kanalyze.summarize(report)._repr_html_()))


def test_a_table_shows_units_and_whole_names_on_hover():
    html = kanalyze.kernels(kanalyze.read(ADD_UM))._repr_html_()
    assert "57.26 ms" in text_of(html)
    assert "title='add(int, float *, float *)'" in html


@pytest.mark.slow
def test_a_capture_shows_the_page_of_all_its_tools():
    folder = SAMPLES / "mlp_train"
    text = text_of(kanalyze.read(folder)._repr_html_())
    assert "with torch.json.gz (torch.profiler) · with ncu" in text
    together = kanalyze.summarize(*kanalyze.read_all(folder))
    assert "with torch.json.gz (torch.profiler) · with ncu" in text_of(together._repr_html_())
    assert "with" not in text_of(kanalyze.read(folder / "nsys.sqlite")._repr_html_()).partition("health")[0]


@pytest.fixture(scope="module")
def fused():
    """Four runs of a program against four in which two kernels are one."""
    return kanalyze.compare(SAMPLES / "loop_base.kz", SAMPLES / "loop_fuse.kz")


def test_a_comparison_has_a_verdict_and_frames(fused):
    verdict = fused.verdict
    assert isinstance(fused, kanalyze.Comparison)
    assert isinstance(verdict, kanalyze.Verdict)
    assert (verdict.word, bool(verdict), verdict.basis) == ("faster", True, "runs")
    assert verdict.low < verdict.ratio < verdict.high < 1
    assert fused.buckets["delta_ns"].sum() == verdict.new_ns - verdict.base_ns
    assert fused.kernels.filter("changed")["change"].to_list() == ["fused"]
    for name in ("kernels", "ranges", "calls", "copies", "ops", "memory", "findings", "counters", "ranks"):
        assert getattr(fused, name).equals(fused.tables[f"compare_{name}"])
    assert repr(fused).endswith("loop_fuse.kz': faster>")


@pytest.mark.slow
def test_a_side_is_a_report_a_path_or_several_of_these(fused, tmp_path):
    base, new = (SAMPLES / f"loop_{name}.kz" for name in ("base", "fuse"))
    for given in (str(base), [base], (one for one in [str(base)])):
        assert kanalyze.compare(given, new).verdict == fused.verdict
    copy = shutil.copy(base, tmp_path)
    assert [*kanalyze.compare([base, copy], new).base.values_ns] == [*fused.base.values_ns] * 2
    with pytest.raises(kanalyze.KanalyzeError, match="is given twice"):
        kanalyze.compare([base, base], new)
    report = kanalyze.read(ADD)
    assert kanalyze.compare(report, ADD).verdict.base_ns == kanalyze.compare(ADD, [report]).verdict.new_ns > 0


@pytest.mark.slow
def test_a_least_effect_and_a_floor_decide_what_counts():
    base, new = (SAMPLES / f"loop_{name}.kz" for name in ("base", "fuse"))
    assert kanalyze.compare(base, new, least_effect=0.1).verdict.word == "same"
    unknown, known = (kanalyze.compare(ADD_UM, ADD_UM, window="400ms..480ms", floor=one) for one in (None, 0.0))
    assert unknown.pair.limits.floor is None
    assert known.pair.limits.floor == 0.0


@pytest.mark.parametrize(
    ("error", "base", "options"),
    [
        *((IncomparableError, [], {}), (TypeError, 1, {}), (TypeError, [ADD, None], {})),
        *((ValueError, ADD, {"least_effect": 2.0}), (ValueError, ADD, {"floor": -0.1})),
        (ValueError, ADD, {"floor": float("nan")}),
    ],
)
def test_what_cannot_be_compared_is_refused(error, base, options):
    with pytest.raises(error):
        kanalyze.compare(base, ADD, **options)


@pytest.fixture(scope="module")
def ranks():
    return kanalyze.ranks(REPORTS / "nccl.sqlite")


@pytest.mark.slow
def test_a_job_has_frames(ranks):
    for name in ("collectives", "collective_summary", "ranks", "rank_steps", "clocks"):
        assert getattr(ranks, name).equals(ranks.tables[name])
    assert ranks.ranks["rank"].to_list() == [0, 1]
    assert (ranks.world_size, ranks.missing, ranks.left_out) == (2, [], [])
    assert ranks.doubts.columns == ["check", "count", "effect"]
    assert ranks.doubts.height == len(ranks.job.doubts)
    assert repr(ranks) == "<Job of 2 ranks, 2 read>"
    with pytest.raises(UnknownNameError, match="no table of a job 'clock'"):
        ranks.table("clock")


@pytest.mark.slow
def test_a_job_is_of_reports_and_paths_and_tells_what_is_left_out(ranks, tmp_path):
    with kanalyze.read(REPORTS / "nccl.sqlite") as report:
        assert kanalyze.ranks(report).ranks.equals(ranks.ranks)
    found = kanalyze.ranks(REPORTS / "nccl.sqlite", str(tmp_path / "<none>.json"))
    assert [type(error) for error in found.left_out] == [ReportNotFoundError]
    assert "Left out: " in text_of(found._repr_html_())
    assert "<none>" not in found._repr_html_()


def test_what_is_no_job_is_refused(tmp_path):
    with pytest.raises(TypeError, match="takes reports and paths, not int"):
        kanalyze.ranks(1)
    with pytest.raises(ReportNotFoundError):
        kanalyze.ranks(tmp_path / "none.json")
    with pytest.raises(NoJobError):
        kanalyze.ranks(REPORTS / "empty.sqlite")
    with pytest.raises(NoJobError):
        kanalyze.ranks()


@pytest.mark.slow
def test_a_timeline_is_a_frame_of_its_own_that_may_only_run_its_script():
    found = kanalyze.timeline(kanalyze.read(SAMPLES / "mlp_train" / "nsys.sqlite"), window="step#30")
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" title="nsys.sqlite" ')
    assert shown.endswith('"></iframe>')
    assert len(shown) < 2_000_000
    assert shown.count('"') == 2 * shown.count('="')  # nothing leaves the attribute
    page = unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert page.startswith("<!doctype html>")
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert 'id="timeline-data"' in page
    assert "recorded" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert repr(found) == f"<Timeline of 'nsys.sqlite', {len(found.drawn.tracks)} tracks>"
