"""House rules on length: a stranger finds the room in a minute."""

import ast
from functools import cache

import pytest

from kanalyze.tools import TOOLS
from support.command import ROOT

FILES = sorted(file for folder in ("analyzer", "collectors", "kernels") for file in (ROOT / folder).rglob("*.py"))


@cache
def nodes(file):
    return [*ast.walk(ast.parse(file.read_text()))]


@cache
def functions():
    """Lines of every function, decorators and docstring included, by file and name."""
    found = {}
    for file in FILES:
        for node in nodes(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                found[f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"] = node.end_lineno - first + 1
    return found


def test_no_file_is_longer_than_600_lines():
    lines = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > 600} == {}


@pytest.mark.slow
def test_no_function_is_longer_than_70_lines_with_its_options_and_nine_in_ten_are_under_40():
    lengths = functions()
    assert {name: count for name, count in lengths.items() if count > 70} == {}
    assert (long := sum(count >= 40 for count in lengths.values())) <= len(lengths) / 10, long


@pytest.mark.slow
def test_modules_of_our_own_are_imported_inside_functions_only_where_few_reports_need_them():
    """Elsewhere it would hide a cycle; the command line imports them `with late()`, which keeps its start quick."""
    inner = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in FILES
        for function in nodes(file)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kanalyze")
    }
    deferring_numpy = (
        "analyzer/readers/storage/table_files.py",
        "analyzer/analyses/operators/_host_names.py",
        "analyzer/analyses/communication/_recorded.py",
        "analyzer/analyses/page/overview_page.py",  # and operators, which only traces have
    )
    deferring_polars = (  # while others decode
        "analyzer/readers/torch/read_json.py",
    )
    deferring_rooms = (  # what programs without marks, traces and captures need: 1 % of a small page
        "analyzer/analyses/iterations/iterations.py",
        "analyzer/analyses/operators/_host_names.py",
        "analyzer/analyses/replay/_changes.py",
    )
    deferring = deferring_numpy + deferring_polars + deferring_rooms
    assert {place for place in inner if not place.startswith(deferring)} == set()


def test_analyses_round_nothing():
    """Rounding belongs to kanalyze.units, where text is made."""
    rounding = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in FILES
        if "analyses" in file.parts or "readers" in file.parts
        for node in nodes(file)
        if isinstance(node, ast.Call) and "round" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }
    assert rounding == set()


def compared(node):
    """What a node compares: both sides, the beginning or end of a text, cases."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.args if node.func.attr in {"startswith", "starts_with", "endswith", "index", "is_in"} else []
    return [node.value] if isinstance(node, ast.MatchValue) else []


def test_the_name_of_a_tool_is_compared_in_its_reader_and_in_the_list_alone():
    names = {name for one in TOOLS for name in (one.name, one.short)}
    found = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in FILES
        if ROOT / "analyzer/readers" not in file.parents and ROOT / "kernels" not in file.parents
        for node in nodes(file)
        for side in compared(node)
        for part in getattr(side, "elts", [side])
        if isinstance(part, ast.Constant) and part.value in names
    }
    assert found == set()
