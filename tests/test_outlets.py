"""Every text of a report leaves through one function per format, and nothing in it is obeyed there."""

import html as library
import json
import re

import polars as pl
import pytest
from hypothesis import example, given, strategies as st

from kanalyze import outlets
from support.hostile import ALL, active_in_markdown, obeyed_by_terminal

TEXTS = st.one_of(
    st.text(st.characters(), max_size=30),
    st.sampled_from(ALL),
    st.builds("{} {}".format, st.sampled_from(ALL), st.text(st.sampled_from("`|*_\\<&@#a1 :/.[]()!~$-+=x"))),
)


def hostile(test):
    for text in ALL:
        test = example(text)(test)
    return given(TEXTS)(test)


@hostile
def test_a_line_is_one_and_printable(text):
    assert outlets.line(text).isprintable()
    assert len(outlets.line(text)) == len(text)
    outlets.line(text).encode()


@hostile
def test_lines_hold_our_own_colours_and_line_ends_only(text):
    shown = outlets.lines(f"\x1b[1;32m{text}\x1b[0m\n")
    assert obeyed_by_terminal(re.sub("\x1b\\[[0-9;]*m", "", shown)) == ""


@hostile
def test_nothing_is_active_in_markdown(text):
    for made in (outlets.markdown(text), outlets.paragraph(text), outlets.code(text)):
        assert active_in_markdown(made) == []
        assert "\n" not in made


@hostile
def test_nothing_ends_a_cell_of_a_table_in_markdown(text):
    assert "|" not in outlets.markdown(text) + outlets.code(text)


@pytest.mark.parametrize("text", ["- a", "+ a", "1. a", "12) a", "---", "===", "> a", "# a", "* a", "-", "-\ta"])
def test_a_paragraph_begins_no_block(text):
    assert not re.match(r"([-+*>#=]+|\d+[.)])(\s|$)|---|===", outlets.paragraph(text))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("54.2 % of 1.5 ms; <0.1 % (GPU 0)", "54.2 % of 1.5 ms; <0.1 % (GPU 0)"),
        ("between cudaMemcpy and cudaFree", "between cudaMemcpy and cudaFree"),
        ("window step#3, twice", "window `step#3`, twice"),
        ("(aten::add)", "(aten::add)"),
        ("ask @all.", "ask `@all`."),
        ("`kanalyze tables` lists <b>them</b>", "`kanalyze tables` lists `<b>them</b>`"),
        ("0dedf65 1234567", "`0dedf65` 1234567"),
        ("a_b __c__", "a_b `__c__`"),
        ("-3 ms", "-3 ms"),
    ],
)
def test_words_that_are_active_become_code(text, made):
    assert outlets.markdown(text) == made


@hostile
def test_html_shows_the_line(text):
    made = outlets.html(text)
    assert not set("<>\"'") & set(made)
    assert library.unescape(made) == outlets.line(text)


@hostile
def test_json_reads_back_the_same_and_is_printable(text):
    made = outlets.json({text: [text]})
    assert json.loads(made) == {text: [text]}
    assert obeyed_by_terminal(made) == ""
    made.encode()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\0=1", "\n=1"])
def test_a_spreadsheet_runs_nothing(text):
    frame = pl.DataFrame({"name": [text, "plain", None], "n": [-1, 2, 3]})
    assert outlets.spreadsheet(frame).to_dict(as_series=False) == {"name": [f"'{text}", "plain", None], "n": [-1, 2, 3]}


def test_long_texts_are_cut_on_pages_only():
    assert len(outlets.short("a" * 100_000)) == outlets.LONGEST
    assert len(outlets.line("\x1b" * 100_000)) == 100_000
