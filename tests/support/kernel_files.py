"""The workloads of kernels/ as tests use them: their files, imported without a package, or run as a user would."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"

#: Every reference workload, in the order in which they build on each other.
CUDA = ("add.cu", "add_parallel.cu")
PYTHON = (
    *("add_extension.py", "square.py", "square_inline.py", "square_triton.py", "gelu.py", "cdist.py", "matmul.py"),
    *("mlp_train.py", "launch_bound.py", "streams.py", "serving.py", "remedies.py"),
)
NAMES = CUDA + PYTHON
NEEDS_TORCH = "the Python workloads need PyTorch"
NEEDS_TRITON = "these workloads need Triton"


def load(name):
    """A file of kernels/ as a module; its folder is on the path, as it is for `python FILE`."""
    if str(KERNELS) not in sys.path:
        sys.path.insert(0, str(KERNELS))
    return import_module(name)


def documentation(name):
    """What a workload's file says of itself: its docstring, or the comment that it begins with."""
    text = (KERNELS / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    lines = text.splitlines()
    end = next(index for index, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines[:end])


def documented_variants(name):
    """The variants that a workload's file names, none where it has none."""
    for line in documentation(name).splitlines():
        if line.startswith("Variants: "):
            return line.removeprefix("Variants: ").split(", ")
    return []


def documented_pairs():
    """Each pair of `remedies`: its fault, its remedy and what is said of it, in the order in which they run."""
    return {
        function.name: (*(ast.literal_eval(text) for text in mark.args[:2]), ast.get_docstring(function) or "")
        for part in ("_pairs.py", "_habits.py", "_kernels.py")
        for function in ast.parse((KERNELS / part).read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef)
        for mark in function.decorator_list
        if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "pair"
    }


def run(script, *arguments, **environment):
    return subprocess.run(  # noqa: S603 - our own scripts
        [sys.executable, str(script), *map(str, arguments)],
        cwd="/",
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=290,  # extensions are compiled, on a busy machine for minutes
        check=False,
    )
