"""What holds for every file of kernels/, whether or not anything of it can run here."""

import ast
import re

import pytest

from support.kernel_files import CUDA, KERNELS, NAMES, PYTHON, documentation, documented_pairs, documented_variants

README = (KERNELS / "README.md").read_text()


def tree(name):
    return ast.parse((KERNELS / name).read_text())


def test_every_reference_workload_is_there_and_no_other():
    files = {file.name for file in KERNELS.iterdir() if file.suffix in (".cu", ".py") and file.name[0] != "_"}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_teaches_what_to_look_for_and_how_to_run_it_and_counts_its_work(name):
    text, source = documentation(name), (KERNELS / name).read_text()
    first, blank, *_ = text.splitlines()
    assert (first[-1], blank) == (".", "")
    assert 20 < len(first) <= 120
    assert re.search(r"^Look for.*:\n- ", text, flags=re.MULTILINE)
    (command,) = re.findall(r"^Run: (.*)$", text, flags=re.MULTILINE)
    assert command.startswith(f"python kernels/{name}" if name in PYTHON else f"nvcc -lineinfo -o {name[:-3]} {name}")
    spelling = r"^def {}\(" if name in PYTHON else r"^constexpr long long {}\(long long n\)"
    for function in ("flops", "bytes_moved"):
        assert re.search(spelling.format(function), source, flags=re.MULTILINE), function


@pytest.mark.parametrize("name", PYTHON)
def test_each_python_workload_has_a_reference_and_says_what_its_counts_assume(name):
    functions = {node.name: node for node in tree(name).body if isinstance(node, ast.FunctionDef)}
    assert {"reference", "main"} <= set(functions)
    for function in ("reference", "flops", "bytes_moved"):
        assert ast.get_docstring(functions[function]), function


@pytest.mark.parametrize("name", [file.name for file in KERNELS.glob("*.py")])
def test_a_workload_needs_nothing_of_kanalyze(name):
    """It runs in an environment that has only PyTorch, and imports only what is beside it."""
    imported = {
        module.partition(".")[0]
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [part.name for part in node.names])
    }
    assert "kanalyze" not in imported
    assert imported & {name.removesuffix(".py") for name in PYTHON} == set()


def test_the_readme_lists_every_workload_with_its_idea_and_variants():
    rows = re.findall(r"^\| \[`(\w+)`\]\(([\w.]+)\) \| ([^|]+) \| ([^|]*)\|", README, flags=re.MULTILINE)
    assert [file for _, file, _, _ in rows] == list(NAMES)
    for name, file, idea, variants in rows:
        assert file.startswith(f"{name}.")
        assert documentation(file).startswith(idea.partition(":")[0]), file
        assert [variant for variant in variants.strip().split(", ") if variant] == documented_variants(file)


def test_the_readme_lists_every_pair_with_its_fault_and_its_remedy():
    pairs = documented_pairs()
    assert len(pairs) > 20
    assert all(reason.endswith(".") for _, _, reason in pairs.values())
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", README, flags=re.MULTILINE)
    assert {name: (fault, remedy) for name, fault, remedy in rows} == {name: each[:2] for name, each in pairs.items()}


def test_the_variants_of_cuda_programs_are_those_that_their_usage_names():
    found = {name: documented_variants(name) for name in CUDA}
    assert found == {"add.cu": [], "add_parallel.cu": ["managed", "explicit"]}
    assert "[--variant managed|explicit]" in (KERNELS / "add_parallel.cu").read_text()
