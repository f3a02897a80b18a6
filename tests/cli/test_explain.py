"""`kanalyze explain`: a line per finding, or the text on one, at any width."""

import re

import pytest

from kanalyze import explanations
from kanalyze.renderers.tables.explanations import terminal
from support.command import refused, run


def printed(*arguments, **keys):
    ran = run("explain", *arguments, **keys)
    assert (ran.status, ran.error) == (0, "")
    return ran.text


def test_all_findings_are_a_line_each():
    lines = [re.split(r"  +", line) for line in printed().splitlines()]
    every = [explanations.explanation(name) for name in explanations.names()]
    assert lines == [[one.name, one.headline] for one in every]


@pytest.mark.parametrize("name", explanations.names())
def test_a_text_has_all_words_of_its_source_and_none_of_its_marks(name):
    said, one = printed(name), explanations.explanation(name)
    assert said.startswith(f"{name}\n  {one.headline}\n\n  ")
    assert "```" not in said
    prose = re.sub(r"^```.*?^```$", "", one.text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", prose).replace("`", "")
    words = iter(said.split())
    assert all(word in words for word in plain.split())  # in this order


@pytest.mark.parametrize("width", [40, 55, 80, 200])
@pytest.mark.parametrize("name", explanations.names())
def test_paragraphs_fit_the_width_and_code_stays(name, width):
    one = explanations.explanation(name)
    blocks = re.findall(r"(?ms)^```\w+\n(.*?)^```$", one.text)
    code = [line for block in blocks for line in block.splitlines()]
    told = terminal(one, width).splitlines()
    assert [line for line in code if line and f"    {line}" not in told] == []
    longest = max(len(word) for word in one.text.split())
    wrapped = [line for line in told if line.removeprefix("    ") not in code]
    assert all(len(line) <= max(width, longest + 4) for line in wrapped)


def test_markdown_is_the_source():
    one = explanations.explanation("tail")
    assert printed("tail", "--format", "markdown") == f"## tail\n\n{one.headline}\n\n{one.text}"
    assert printed("tail", "--format", "markdown") in printed("--format", "markdown")


def test_an_unknown_finding_is_told_with_the_nearest():
    ran = run("explain", "host-computs")
    message, remedy = refused(ran)
    assert ran.status == 2
    assert message == "no finding 'host-computs'."
    assert remedy.startswith("Did you mean host-computes? There are: allocation-in-loop, ")


def test_output_is_written_as_it_would_be_printed(tmp_path):
    assert printed("tail", "-o", tmp_path / "tail.txt") == ""
    assert (tmp_path / "tail.txt").read_text(encoding="utf-8") == printed("tail")
