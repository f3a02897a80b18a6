"""``kanalyze html``: a file that holds all it needs."""

import json
import re
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape

import pytest

from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.operators.tree import tree
from kanalyze.analyses.timeline import _tracks
from kanalyze.analyses.timeline._tracks import timeline
from kanalyze.errors import CannotTellError
from support.command import ADD_UM, REPORTS, ROOT, SAMPLES, html_of, run
from support.real_reports import real_report

LIMIT = 5_000_000


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    path = tmp_path_factory.mktemp("html") / "mlp.html"
    ran = run("html", SAMPLES / "mlp_train", "-o", path)
    assert ran.status == 0
    assert str(path) in ran.error
    return path.read_text()


@pytest.mark.slow
def test_nothing_is_fetched_and_nothing_else_may_run(mlp):
    assert len(mlp) < LIMIT
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", mlp)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', mlp)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'")
    for kind in ("script", "style"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", mlp, re.DOTALL)
        assert f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'" in policy
    assert not re.search(
        r"""\son\w+\s*=\s*["']|\sstyle\s*=\s*["']""", re.sub(r"<script>.*?</script>", "", mlp, flags=re.DOTALL)
    )


SECTIONS = ("roofline-picture", "copies-picture", "roofline", "stalls", "hot_lines")


@pytest.mark.slow
def test_a_section_of_what_ncu_measured_and_none_where_it_measured_nothing(mlp, tmp_path):
    assert [name for name in SECTIONS if f'id="{name}"' in mlp] == [
        "roofline-picture", "copies-picture", "roofline", "stalls"]  # fmt: skip
    for section in ("roofline-picture", "copies-picture"):
        assert re.search(rf'id="{section}".*?<circle class="point', mlp, re.DOTALL)
    text = html_of(tmp_path, REPORTS / "nvtx.sqlite")
    of_ncu = [name for name in SECTIONS if name != "copies-picture"]
    assert not any(f'id="{name}"' in text or f'href="#{name}"' in text for name in of_ncu)


@pytest.mark.slow
def test_a_rank_that_cannot_be_drawn_is_said_to_be_left_out(tmp_path, monkeypatch):
    def drawn(report, most):
        if report.meta.rank == 1:
            raise CannotTellError.without("timeline", report.meta.path, ["kernel"])
        return timeline(report, most)

    monkeypatch.setattr(_tracks, "timeline", drawn)
    text = html_of(tmp_path, SAMPLES / "ddp_late")
    assert "; without 1 ranks" in text
    assert "Rank 1 is 29.23 ms late in step 11" in text


@pytest.mark.slow
def test_findings_name_their_kernels_and_lead_to_them(mlp):
    first = re.search(r'<section id="first".*?</section>', mlp, re.DOTALL)[0]
    assert not re.search(r"\{\d*\}", first)
    wanted = [unescape(name) for name in re.findall(r'data-find="(.*?)"', first)]
    data = re.search(r'id="timeline-data">(.*?)</script>', mlp, re.DOTALL)[1]
    packed = zlib.decompress(b64decode(data))
    texts = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])["texts"]
    assert wanted
    assert {*wanted} <= {*texts}


@pytest.mark.slow
def test_a_million_events_fit_into_five_megabytes(tmp_path):
    report = tmp_path / "big.sqlite"
    make = [sys.executable, ROOT / "benchmarks" / "make_report.py", REPORTS / "torch.sqlite", report, "--copies", "302"]
    subprocess.run(make, check=True, capture_output=True)  # noqa: S603 - ours
    text = html_of(tmp_path, report)
    assert len(text.encode()) < LIMIT
    told = re.search(r"([\d,]+) events, ([\d,]+) of them one by one, the shorter ones in ([\d,]+) sums", text)
    events, alone, sums = (int(one.replace(",", "")) for one in told.groups())
    assert events > 1_000_000
    assert alone + sums <= 650_000


@pytest.mark.slow
def test_a_part_of_a_job_is_refused(tmp_path):
    ran = run("html", SAMPLES / "ddp_late", "--window", "step#2", "-o", tmp_path / "report.html")
    assert ran.status == 2
    assert "the ranks of a job are shown whole" in ran.error


@pytest.mark.slow
def test_two_sides_are_compared(tmp_path):
    text = html_of(tmp_path, "--base", *(SAMPLES / f"launch_bound_{name}/nsys.sqlite" for name in ("plain", "graph")))
    assert "These two runs differ" in re.search(r'<p class="answer">(.*?)</p>', text)[1]
    assert text.index("Where the difference went") < text.index('id="timeline"') < text.index('id="compare_kernels"')


@pytest.mark.slow
def test_the_call_tree_is_that_of_the_table(tmp_path):
    trace = SAMPLES / "mlp_train" / "torch.json.gz"
    (data,) = re.findall(r'id="flame-data">(.*?)</script>', html_of(tmp_path, trace))
    for text, nodes in json.loads(data).items():
        by = text.removesuffix(" time")
        table = tree(real_report(trace), by, min_share=0.002)
        assert [(node[0], node[3], node[4]) for node in nodes] == table.select("parent", "count", f"{by}_ns").rows()
    text = html_of(tmp_path, ADD_UM)
    assert 'id="timeline-data"' in text
    assert "<h2>How it was recorded</h2>" in text
    assert "flame-data" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sampled_python.sqlite", "torch/with_modules.json.gz"])
def test_the_flame_graph_of_waiting_has_the_host_time_of_the_ledger(tmp_path, name):
    (data,) = re.findall(r'id="waiting-flame-data">(.*?)</script>', html_of(tmp_path, REPORTS / name))
    of = real_report(REPORTS / name)
    ((_, nodes),) = json.loads(data).items()
    whole = ledger(of).filter(bucket="host").get_column("ns").sum()
    assert sum(node[4] for node in nodes if node[0] is None) == whole > 0
