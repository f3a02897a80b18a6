"""The page of several tools in every format: the same figures everywhere, nothing lost, and each format valid."""

import json
import re
from dataclasses import replace
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze import units
from kanalyze.analyses.page.time_page import summarize_together
from kanalyze.renderers.formats import json as summary_json
from kanalyze.renderers.formats import markdown
from kanalyze.renderers.page import page_of_any
from support.command import SAMPLES

TOP = 8
LARGER = ("launch_bound_graph", "mlp_train")
CAPTURES = ("add", "cdist", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER))


@cache
def reports(name):
    return kanalyze.read_all(SAMPLES / name)


@cache
def joint(name):
    (found,) = summarize_together(*reports(name))
    assert found.joined is not None
    return found


@pytest.fixture(params=CAPTURES)
def name(request):
    return request.param


@pytest.fixture
def page(name):
    return page_of_any(joint(name), TOP)


def squeezed(text):
    """Words alone: without layout and what a format needs for itself."""
    return re.sub(r"[\s`|*]+", " ", text.replace("\\|", "|"))


# JSON


@cache
def told(name):
    return json.loads(summary_json.render([joint(name)]), parse_constant=pytest.fail)


def test_json_is_the_object_of_the_time_with_the_tables_of_all(name):
    found, (base, *others) = told(name), reports(name)
    alone = json.loads(summary_json.render([kanalyze.summarize(base)]))
    more = {"joined_with", "joined_reports", "joined", "gains"}
    assert {key: value for key, value in found.items() if key not in more} == alone
    assert found.keys() - alone.keys() == more
    assert found["joined"] == kanalyze.joined(*reports(name)).to_dicts()
    assert found["gains"] == kanalyze.gains(*reports(name)).to_dicts()
    assert found["joined_with"] == [str(one.meta.path) for one in others]
    assert [one["tool"] for one in found["joined_reports"]] == [one.meta.tool for one in others]
    assert found["joined_reports"][0].keys() == found["report"].keys()


def test_figures_on_the_page_are_those_of_the_json(name, page):
    rows = told(name)["joined"]
    timed = [row for row in rows if row["count"] is not None][:TOP]
    (section,) = [one for one in page.sections if one.title == "KERNELS"]
    cells = [dict(zip((head.title for head in section.grid.heads), row, strict=True)) for row in section.grid.rows]
    assert [(cell["time"], cell["window"], cell["count"], cell["kernel"]) for cell in cells] == [
        (units.time(row["exclusive_ns"]), units.percent(row["window_share"]), units.count(row["count"]), row["name"])
        for row in timed
    ]
    assert [cell["match"] for cell in cells] == [row["ncu_match"] for row in timed]
    shares = {"compute": "compute_share", "memory": "memory_share", "of roof": "roof_share"}
    for head, column in shares.items():
        assert [cell[head] for cell in cells] == [
            "-" if row[column] is None else units.percent(row[column]) for row in timed
        ]
    if "operator" in cells[0]:
        assert [cell["operator"] for cell in cells] == [row["operator"] or "-" for row in timed]


def test_a_kernel_has_a_chapter_for_its_best_advice():
    found = joint("cdist")
    assert found.gains is not None
    first = found.gains.item(0, "event_id")
    own = found.gains.filter(event_id=first).head(1)
    for best, told in ((0.01, 1), (0.0099, 0)):
        gains = pl.concat([own.with_columns(gain_share=pl.lit(share)) for share in (best, 0.001)])
        assert len(page_of_any(replace(found, gains=gains), TOP).chapters) == told


# Markdown


def test_markdown_says_all_that_the_page_says(name, page):
    words = squeezed(markdown.render([joint(name)], TOP))
    texts = [*page.heading, page.health, page.answer, *(point.action for point in page.points)]
    texts += [text for one in page.sections for text in (one.foot, one.plain_title)]
    for chapter in page.chapters:
        texts += [chapter.launch, chapter.conclusion, chapter.more]
        texts += [text for one in chapter.advice for text in (one.worth, one.sentence, one.remedy)]
    assert [text for text in texts if squeezed(text).strip() not in words] == []
