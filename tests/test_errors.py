"""What errors say where it depends on what was found: reasons, counts, endings; the whole text, and its remedy."""

import ast
import errno
import os
import pickle
import re
from pathlib import Path

import pytest

from kanalyze.collectors.options import CompileError, WorkloadError
from kanalyze.errors import BadWindowError, CollectError, OutOfMemoryError, UnknownNameError, UnreadableReportError
from kanalyze.renderers.tables import descriptions as explanations

FOLDER, SOURCE = Path("run"), Path("k.cu")
FIRST, SECOND, THIRD = (f"k.cu({line}): error: expected a declaration" for line in (1, 2, 3))


@pytest.mark.parametrize(
    ("errors", "log", "said", "more"),
    [
        ([FIRST], ["nvcc warning", FIRST], FIRST, ""),
        ([FIRST, SECOND], [FIRST, SECOND], FIRST, " 1 error more came after it."),
        ([FIRST, SECOND, THIRD], [FIRST, SECOND, THIRD], FIRST, " 2 errors more came after it."),
        ([], ["", "  nvcc fatal: no input files "], "nvcc fatal: no input files", ""),
        ([], [], "nvcc said nothing", ""),
    ],
)
def test_a_source_that_does_not_compile(errors, log, said, more):
    error = CompileError.of(SOURCE, errors, log)
    assert str(error) == f"k.cu: does not compile: {said}"
    assert error.remedy == f"Correct the source, or give nvcc what it needs after --nvcc.{more}"
    assert list(error.details) == log


@pytest.mark.parametrize(
    ("error", "said", "remedy"),
    [
        (
            CollectError.not_all_written(FOLDER, ["torch.json.gz: disk full", "compiled.json: disk full"]),
            "run: not all of it could be written: torch.json.gz: disk full; compiled.json: disk full.",
            "See what is there.",
        ),
        (
            BadWindowError.several("step", "step", [f"step#{number}" for number in range(1, 1235)], Path("my a")),
            "--window 'step': 1,234 ranges have that name.",
            "Choose one of them, step#1 to step#1234; `kanalyze summarize 'my a' --window 'step#*'` compares all.",
        ),
        (
            WorkloadError.not_runnable(Path("my program")),
            "my program: neither a .cu file nor a Python script, and not executable.",
            "If it is a program, make it executable: `chmod +x 'my program'`.",
        ),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else "",
)
def test_an_error_says_what_was_found_and_what_to_do(error, said, remedy):
    assert (str(error), error.remedy) == (said, remedy)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (errno.EACCES, UnreadableReportError, "run: cannot be read (Permission denied)."),
        (errno.ENOMEM, OutOfMemoryError, "there is not enough memory."),
    ],
)
def test_what_the_system_refuses(code, kind, said):
    error = UnreadableReportError.of(FOLDER, OSError(code, os.strerror(code)))
    assert (type(error), str(error)) == (kind, said)


def test_an_error_comes_whole_from_another_process():
    error = CompileError.of(SOURCE, [FIRST], ["nvcc warning", FIRST])
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - as executors do
    for told in (type, str, lambda one: one.remedy, lambda one: one.details):
        assert told(found) == told(error)


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
def test_it_has_code_that_fits_an_indented_line_of_80_columns_before_and_after_its_remedy(one):
    blocks = CODE.findall(one.text)
    assert blocks
    for language, code in blocks:
        assert language in ("python", "cuda", "sh")
        assert max(map(len, code.splitlines())) <= 76
        if language == "python":
            ast.parse(code)
    whole = "".join(code for _, code in blocks)
    assert ("before: " in whole) == ("after: " in whole)


def test_no_other_name_is_a_finding():
    for name in ("", "../errors", "host-computes.md", "Host-Computes"):
        with pytest.raises(UnknownNameError):
            explanations.explanation(name)
