"""The texts on findings: each says what it has to, in code that parses and lines that fit, and is installed."""

import ast
import re

import pytest

from kanalyze.errors import UnknownNameError
from kanalyze.renderers.tables import descriptions as explanations

EVERY = [explanations.explanation(name) for name in explanations.names()]
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

each = pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)


@each
def test_a_text_says_when_it_is_found_what_is_at_stake_and_what_to_do(one):
    parts = r"(?!Found when).+?\.\n\nFound when: .+?[.).]\n\n(.+\n\n)?At stake: .+?\.\n\n(.+\n\n)?What to do: .+"
    assert re.fullmatch(parts, one.text, flags=re.DOTALL)


@each
def test_its_headline_is_a_sentence_that_fits_beside_the_name_at_80_columns(one):
    assert re.fullmatch(r"\w[^.]*\.", one.headline)
    assert len(one.headline) + max(len(name) for name in explanations.names()) + 2 <= 80


@each
def test_it_has_code_that_fits_an_indented_line_of_80_columns(one):
    blocks = CODE.findall(one.text)
    assert blocks
    for language, code in blocks:
        assert language in ("python", "cuda", "sh")
        assert max(map(len, code.splitlines())) <= 76
        if language == "python":
            ast.parse(code)


@each
def test_a_remedy_of_code_is_shown_before_and_after(one):
    code = "".join(text for _, text in CODE.findall(one.text))
    assert ("before: " in code) == ("after: " in code)


def test_no_other_name_is_a_finding():
    for name in ("", "../errors", "host-computes.md", "Host-Computes"):
        with pytest.raises(UnknownNameError):
            explanations.explanation(name)
