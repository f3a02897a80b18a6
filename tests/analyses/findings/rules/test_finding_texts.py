"""Names of a program in the sentences of findings: whatever they hold, braces too."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

import kanalyze
from kanalyze.analyses.findings.findings import findings, ranked
from kanalyze.analyses.findings.rules import ACTION_LONGEST, HEADLINE_LONGEST, Finding, literal
from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.formats import json as summary_json
from kanalyze.renderers.formats import markdown, terminal
from kanalyze.renderers.tables.descriptions import explanation
from kanalyze.window import Window
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"

#: What is put behind every name of a call, range, domain (but NCCL's), overhead and kernel.
BRACES = "{0} {x} {"


@pytest.fixture(params=["findings", "memory", "thrash", "two_gpus", "nccl"])
def reports(request, tmp_path):
    """A report, and a copy of it in which all names have braces."""
    original = REPORTS / f"{request.param}.sqlite"
    copy = tmp_path / original.name
    shutil.copyfile(original, copy)
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute("UPDATE StringIds SET value = value || ?", (BRACES,))
        others = "text IS NOT NULL AND text != 'NCCL'"  # by this domain the ranges of NCCL are known
        connection.execute(f"UPDATE NVTX_EVENTS SET text = text || ? WHERE {others}", (BRACES,))
    connection.close()
    return real_report(original), kanalyze.read(copy)


def test_a_literal_is_what_a_format_gives_back():
    assert literal(BRACES).format("kernel") == BRACES


@pytest.mark.parametrize(("length", "said"), [(400, "{" * 400), (401, "{" * 399 + "…")])
def test_of_a_long_name_a_sentence_has_the_beginning(length, said):
    assert literal("{" * length).format() == said


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("Short, and whole.", "Short, and whole"),
        ("A clause: the rest is evidence.", "A clause"),
        ("Version 1.5 of a::b:c stays; this goes.", "Version 1.5 of a::b:c stays"),
        ("{0} " + "long " * 20, "{0} " + "long " * 11 + "…"),
        ("{{" * 61, "{{" * 59 + "…"),
        ("x" * 58 + "{0}{{", "x" * 58 + "{0}{{"),
        ("x" * 58 + "{0}{{x", "x" * 58 + "{0}…"),
    ],
)
def test_a_finding_without_a_headline_has_the_beginning_of_its_sentence(text, headline):
    found = Finding("rule", 0, 1, text, text, "ledger", ("name",)).brief
    assert found.headline == headline.replace(" …", "…")
    assert len(found.headline.format("k")) <= HEADLINE_LONGEST
    assert len(found.action) <= ACTION_LONGEST + text.count("{{")
    assert found._replace(headline="own", action="own").brief == found._replace(headline="own", action="own")


@pytest.mark.parametrize(
    ("headline", "told"),
    [
        ("12 waits per step", "12 waits per step"),
        (
            "1,184 copies of pinned memory per train_step_of_the_large_model_on_rank_0",
            "1,184 copies of pinned memory per train_step_of…el_on_rank_0",
        ),
        ("12 waits per " + "{{" * 60, "12 waits per " + "{{" * 23 + "…" + "{{" * 23),
        ("many short words " * 5, "many short words many short words many short words many…"),
    ],
)
def test_a_headline_fits_its_line_by_the_middle_of_a_name(headline, told):
    found = Finding("rule", 0, 1, "text", "remedy", "ledger", headline=headline).brief
    assert found.headline == told
    assert len(found.headline.format()) <= HEADLINE_LONGEST


def test_a_headline_of_plain_words_is_a_bit_longer_rather_than_cut():
    headline = "The GPU waits for the program in 42.0 short stretches a repetition"
    assert Finding("rule", 0, 1, "text", "remedy", "ledger", headline=headline).brief.headline == headline


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_names_with_braces_are_said_as_they_are(reports):
    usual, braces = (findings(report).select("rule", "device", "at_stake_ns", "sentence") for report in reports)
    assert braces.drop("sentence").rows() == usual.drop("sentence").rows()
    told = usual.get_column("rule") != "host-computes"  # which tells calls by their kinds, as far as it knows them
    sentences = dict(zip(usual.filter(told)["sentence"], braces.filter(told)["sentence"], strict=True))
    assert any(BRACES in changed for changed in sentences.values())
    for plain, changed in sentences.items():
        # the version of a call is only left out at the end of its name
        assert re.sub(f"(?:_v.{{4}})?{re.escape(BRACES)}", "", changed) == plain


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_pages_of_names_with_braces(reports):
    pages = [summarize(reports[1])]
    for text in (
        markdown.render(pages, 8),
        summary_json.render(pages),
        terminal.render(pages, terminal.Look(80, colour=False), 8),
    ):
        assert text


@pytest.fixture(scope="module", params=["findings", "memory", "thrash", "nccl", "torch", "add_um", "two_processes"])
def told(request):
    """The findings of a report as a whole, and as if it were four steps."""
    whole = real_report(REPORTS / f"{request.param}.sqlite")
    return ranked(whole), ranked(whole.narrow(window=Window(count=4, each="step")))


@pytest.mark.one_in(4)
def test_headlines_and_actions_fit_a_line(told):
    for finding in (finding for findings_of in told for finding in findings_of):
        headline = finding.headline.format(*("" for _ in finding.names))
        assert 0 < len(headline) <= HEADLINE_LONGEST, headline
        assert 0 < len(finding.action) <= ACTION_LONGEST, finding.action
        assert not headline.endswith((".", ":"))
        assert not finding.action.endswith(".")
        assert not headline.endswith("…"), finding.rule  # each rule has one of its own
        finding.where.format()


@pytest.mark.one_in(2)
def test_what_is_found_in_steps_is_told_of_each(told):
    whole, steps = ({finding[:3]: finding.text for finding in found} for found in told)
    both = [key for key in whole if key in steps]
    assert both
    for key in both:
        says = any(word in steps[key] for word in (" a step", " in 4 steps"))
        assert says == (steps[key] != whole[key]), key


@pytest.mark.one_in(2)
def test_an_upper_bound_is_explained_as_one(told):
    for finding in told[0]:
        at_stake = explanation(finding.rule).text.partition("At stake: ")[2].partition("What to do: ")[0]
        if finding.at_most:
            assert "at most" in at_stake or "cannot gain more" in at_stake, finding.rule
