"""The benchmark's programs say which fault they have, and where; read as text, since torch is not installed here."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

from kanalyze.renderers.tables import descriptions as explanations

PROGRAMS = Path(__file__).parents[2] / "benchmarks/diagnosis/programs"
FILES = sorted(PROGRAMS.glob("[!_]*.py"))

#: Causes that no finding names yet.
UNNAMED = {
    *("anomaly-detection", "boolean-masks", "cpu-operators", "cpu-tensors", "downloads", "float64", "gathers"),
    *("growing-copies", "host-grid-loop", "large-logits", "large-upload", "layout-copies", "no-donation", "not-jitted"),
    *("recompilation", "recomputation", "repeated-work", "rnn-cells", "scatter-atomics", "small-batches"),
    "uncoalesced",
}

each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def constants(tree):
    """The cause, and the other causes, of a program."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    return {name: ast.literal_eval(values[name]) for name in ("CAUSE", "ALSO")}


def comments(text):
    return {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    }


@each
def test_a_program_says_what_it_does_and_which_lines_are_its_faults(file):
    text = file.read_text()
    tree, named = ast.parse(text), constants(ast.parse(text))
    assert "\n" not in ast.get_docstring(tree)
    assert {cause for cause in (named["CAUSE"], *named["ALSO"]) if cause} <= UNNAMED.union(explanations.names())
    assert ("# fault" in comments(text)) == bool(named["CAUSE"])
    assert ("# also" in comments(text)) == bool(named["ALSO"])
    (build,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build")
    assert [argument.arg for argument in build.args.args] == ["fixed"]
    assert "\n    run(build" in text


def test_there_are_healthy_programs_and_some_with_two_faults():
    named = [constants(ast.parse(file.read_text())) for file in FILES]
    assert sum(not each["CAUSE"] for each in named) >= 4
    assert sum(bool(each["ALSO"]) for each in named) >= 3
