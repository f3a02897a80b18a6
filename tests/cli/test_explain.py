"""`kanalyze explain` and `name`: findings, words of pages and names of kernels as text at any width, and as objects."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

from kanalyze.analyses.iterations import phases
from kanalyze.analyses.iterations.iterations import CUT, ODD
from kanalyze.analyses.shared.statistics import MEANINGS
from kanalyze.renderers.page import UNNAMED, counters
from kanalyze.renderers.page.overview import _NO_DETAIL
from kanalyze.renderers.tables import descriptions as explanations
from support.command import SAMPLES, printed, refused, run


def explained(*arguments, **keys):
    return printed("explain", *arguments, **keys)


def test_all_findings_are_a_line_each():
    lines = [re.split(r"  +", line) for line in explained().splitlines()]
    every = [explanations.explanation(name) for name in explanations.names()]
    assert lines == [[one.name, one.headline] for one in every]


@pytest.mark.parametrize("name", explanations.names())
def test_a_text_has_all_words_of_its_source_and_none_of_its_marks(name):
    said, one = explained(name), explanations.explanation(name)
    assert said.startswith(f"{name}\n  {one.headline}\n\n  ")
    assert "```" not in said
    prose = re.sub(r"^```.*?^```$", "", one.text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", prose).replace("`", "")
    words = iter(said.split())
    assert all(word in words for word in plain.split())  # in this order


@pytest.mark.parametrize("name", explanations.names())
def test_paragraphs_fit_the_width_and_code_stays(name):
    one = explanations.explanation(name)
    code = [line for block in re.findall(r"(?ms)^```\w+\n(.*?)^```$", one.text) for line in block.splitlines()]
    longest = max(len(word) for word in one.text.split())
    for width in (40, 55, 80, 200):
        lines = explanations.explained(one, width).splitlines()
        assert [line for line in code if line and f"    {line}" not in lines] == []
        wrapped = [line for line in lines if line.removeprefix("    ") not in code]
        assert all(len(line) <= max(width, longest + 4) for line in wrapped)


@pytest.mark.parametrize(
    ("word", "kind", "meant"),
    [("host-computs", "finding", "host-computes? Nearest: "), ("queud", "word of a page", "queued? ")],
)
def test_a_word_nearly_right_is_told_with_the_nearest(word, kind, meant):
    message, remedy = refused(run("explain", word))
    assert message == f"no {kind} {word!r}."
    assert remedy.startswith(f"Did you mean {meant}")


LABEL = re.compile(r'(?:Column|words|dashed|_whole|Block|section|Section|Ledger)\(\s*"([^"]+)"')
#: Functions whose keywords are the headings of columns, with ``_`` for spaces.
KEYWORDS = ("numbers", "_each", "_or_dash")


def headings(source):
    """The headings of sections and columns, and titles of blocks, in the source of a module or function."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [word.arg or "" for call in calls if getattr(call.func, "id", "") in KEYWORDS for word in call.keywords]
    return {*LABEL.findall(source), *(name.replace("_", " ") for name in named if name)}


def labels():
    """All that the modules of the page of a report name."""
    found = {*MEANINGS, "rest", "total", "elsewhere", "WHERE A STEP GOES", "BUSY OVER TIME", "WHAT TO DO FIRST"}
    found |= {"FINDINGS", "START-UP", "BEFORE", "BESIDE", "process", "thread", "context", "executable", "wait"}
    found |= {*", ".join(_NO_DETAIL.values()).split(", "), *UNNAMED.values(), *(phases.MODULES, phases.COMPILING)}
    found |= {phases.PROGRAM, ODD, CUT, "pass", "repetition", "loading apart", "exact", "about as long", "≤", "→"}
    for name in ("overview", "time"):
        found |= headings((Path("analyzer/renderers/page") / f"{name}.py").read_text(encoding="utf-8"))
    return sorted(found | {"GPU work"} | headings(inspect.getsource(counters.joined_kernels)))


@pytest.mark.parametrize("label", labels())
def test_each_label_that_a_page_has_is_explained(label):
    lines = explained(label, columns=400).splitlines()
    assert label in lines
    assert lines[lines.index(label) + 1].endswith(".")


@pytest.mark.parametrize("path", sorted(Path("tests/gold").glob("overview_*.txt")), ids=lambda path: path.stem)
def test_each_label_of_a_page_as_it_is_printed_is_explained(path):
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^([A-Z][A-Z -]+[A-Z])(?=  |$)", text, re.MULTILINE)
    buckets = re.findall(r"^[█▓▒░╬≡∷·] (\w+) ", text, re.MULTILINE)
    assert titles
    assert buckets
    assert [one for one in (*titles, *buckets) if not explanations.meanings(one)] == []


@pytest.mark.slow
def test_of_a_report_a_finding_is_shown_with_what_it_is_made_of():
    told = explained("no-tf32", SAMPLES / "mlp_train" / "nsys.sqlite")
    assert told.startswith("no-tf32   nsys.sqlite   21 steps\n\n13 matrix products a step in full float32")
    assert "KERNELS " in told
    words = " ".join(told.split())
    assert "It takes 193.2 µs of the GPU's time of a step; by a replay the remedy saves 0 ns." in words
    assert "kanalyze show kernels --by dtype " in words
    markdown = explained("no-tf32", SAMPLES / "mlp_train" / "nsys.sqlite", "--format", "markdown")
    assert markdown.startswith("### `no-tf32`\n")


@pytest.mark.slow
def test_programs_get_objects():
    one = explanations.explanation("tail")
    assert json.loads(explained("tail", "--format", "json")) == [one._asdict()]
    assert [told["word"] for told in json.loads(explained("of", "roof", "--format", "json"))] == ["of roof"]
    page = json.loads(explained("no-tf32", SAMPLES / "mlp_train" / "nsys.sqlite", "--format", "json"))
    assert page["finding"]["rule"] == "no-tf32"
    assert page["kernels"][0]["name"].startswith("sm80_xmma_gemm_f32f32")


GEMM = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
POINTWISE = "triton_poi_fused_add_mul_tanh_0"


def test_the_fields_that_names_give_are_printed_below_them():
    gemm, pointwise = map(explained, (GEMM, POINTWISE))
    assert explained("a2a_combine_send_kernel") == "a2a_combine_send_kernel\n  family  other\n"
    lines = gemm.splitlines()
    assert (lines[0], lines[1], lines[-1]) == (GEMM, "  family            gemm", "  tensor core       no")
    assert "  tile              256 × 128 × 8" in lines
    assert pointwise.splitlines()[-2:] == ["  fused    add, mul, tanh", "  ordinal  0"]


def test_a_long_name_is_wrapped_and_its_function_told():
    name = "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long)"
    assert explained(name).splitlines() == [
        "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *,",
        "int, long, long, long)",
        "  function   at::native::vectorized_gather_kernel",
        "  family     index",
        "  library    aten",
        "  operation  index_select",
    ]


def test_json_has_every_field_of_a_name():
    found = json.loads(printed("explain", POINTWISE, "--format", "json"))
    assert [one["name"] for one in found] == [POINTWISE]
    assert {field: value for field, value in found[0].items() if value not in (None, [])} == {
        "name": POINTWISE, "function": POINTWISE, "family": "elementwise", "library": "inductor", "kind": "pointwise",
        "fused": ["add", "mul", "tanh"], "ordinal": 0,
    }  # fmt: skip
    assert found[0]["tile"] == []
