"""`kanalyze summarize` without options: the first page, of the typical iteration."""

import json
import re
from unittest.mock import patch

import pytest

from kanalyze.cli._process import PAGES, Out
from support.command import ADD, SAMPLES, TORCH, html_of, printed, run
from support.page_schema import mistakes
from support.real_reports import EXPORTS, TRACES

MLP, TRACE = SAMPLES / "mlp_train" / "nsys.sqlite", SAMPLES / "mlp_train" / "torch.json.gz"
EVERY = [
    *(path for path in EXPORTS if path.stem != "empty"),
    *TRACES,
    *(SAMPLES / name for name in ("add", "add_parallel", "launch_bound_graph", "mlp_train", "square", "streams")),
    *(SAMPLES / "sampled" / name for name in ("crowded.sqlite", "foreign.sqlite", "units")),
]


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("path", [ADD, TORCH, MLP, TRACE], ids=lambda path: f"{path.parent.name}_{path.stem}")
@pytest.mark.one_in(4)
def test_page_looks_as_it_should(gold, path, columns, monkeypatch):
    monkeypatch.chdir(path.parent)  # the commands at the end take lines of the page, by the length of the path
    name = f"overview_{path.parent.name}_{path.name.split('.')[0]}_{columns}.txt"
    gold(run("summarize", path.name, columns=columns).text, name)


@pytest.mark.parametrize("name", ["units", "crowded.sqlite", "foreign.sqlite", "python.sqlite"])
@pytest.mark.one_in(4)
def test_pages_of_samples_look_as_they_should(gold, name, monkeypatch):
    monkeypatch.chdir(SAMPLES / "sampled")
    gold(run("summarize", name, columns=100).text, f"overview_sampled_{name.split('.')[0]}.txt")


@pytest.mark.slow
def test_the_steady_part_is_first_and_the_whole_is_an_option():
    first, whole, full = (printed("summarize", MLP, *option) for option in ([], ["--whole"], ["--full"]))
    assert "WHERE A STEP GOES" in first
    rows = f"average of {json.loads(printed('summarize', MLP, '--format', 'json'))['iterations']['steady_count']} steps"
    assert rows in first
    assert "WHERE THE TIME WENT" in whole
    assert "The GPU was busy" in whole
    assert "TOTAL AND EXPOSED" in full
    assert "TOTAL AND EXPOSED" not in first + whole


#: A headline's time, and the totals of ledgers in terminal, markdown and HTML (which takes long: of some).
HEAD = re.compile(r"(?:takes|next pass) ([\d.,]+ (?:ns|µs|ms|s))(?=[ .])")
TERMINAL = r"^  total +([\d.,]+ (?:ns|µs|ms|s)) "
MARKDOWN = r"\| \*\*total\*\* \| \*\*([^*]+)\*\*"
HTML = r"total</\w+>\s*<\w+[^>]*>([^<]+)<"


def near(text, ns):
    """Whether a text tells a time, as far as it has digits."""
    number, unit = text.replace(",", "").split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    return abs(float(number) - ns / scale) <= 0.51 * 10 ** -len(number.partition(".")[2])


def in_every_form(path):
    """The first page of a report as the command prints it, and the same page in the forms for programs."""
    found, usual = {}, Out.emit_pages

    def emit(to, pages):
        found.update({form: render(pages, None) for form, render in PAGES.items()})
        usual(to, pages)

    with patch.object(Out, "emit_pages", emit):
        return run("summarize", path).text, found


def tells_the_mean(page, total, mean_ns):
    """Asserts that the headline of a page and a total of its ledger, found by an expression, are the mean."""
    (first, *_), totals = HEAD.findall(" ".join(page.split())), re.findall(total, page, re.MULTILINE)
    assert near(first, mean_ns), (first, mean_ns)
    assert any(near(one, mean_ns) for one in totals), (totals, mean_ns)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_train", "two_gpus"])
def test_html_tells_the_mean_of_the_steps_too(name, tmp_path):
    (path,) = (path for path in EVERY if path.stem == name)
    mean_ns = json.loads(in_every_form(path)[1]["json"])["iterations"]["mean_ns"]
    tells_the_mean(html_of(tmp_path, path), HTML, mean_ns)


@pytest.mark.one_in(27)
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_page_is_short_and_its_headline_is_the_sum_of_the_ledger_in_every_format(path):
    """At most 45 lines of 80 columns, and 20 kB of JSON by its schema."""
    text, forms = in_every_form(path)
    packed = forms["json"]
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, text.partition("\nMore: ")[0].splitlines())) <= 80  # below it stand paths of any length
    assert [line for line in lines if line != line.rstrip()] == []
    assert len(packed.encode()) < 20_000
    found = json.loads(packed)
    assert found["answer"]
    assert mistakes(found, "first_page") == []
    told = found.get("iterations")
    if told is None:
        return
    ledger = [row for row in found["ledger"] if row["device"] == told["device"]]
    each = sum(row["ns"] for row in ledger) / told["steady_count"]
    assert told["mean_ns"] == pytest.approx(each, rel=1e-9)
    assert told["min_ns"] <= told["median_ns"] <= told["max_ns"]
    if "next pass" not in found["answer"]:  # else there is time between iterations
        assert told["min_ns"] <= each <= told["max_ns"]
    for page_of, total in ((text, TERMINAL), (forms["markdown"], MARKDOWN)):
        tells_the_mean(page_of, total, each)
