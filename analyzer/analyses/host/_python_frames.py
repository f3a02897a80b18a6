"""Classifies the Python functions of a trace: program code, library code, modules and wrappers.

Frames are named as torch's profiler names them: ``train.py(31): step`` with a path relative to the import path,
``<built-in function sleep>``, ``nn.Module: Linear_0``. Program code is every file that belongs neither to Python, nor
to torch and its dependencies, nor to a few packages that programs only call, and that no compiler generated.
"""

from __future__ import annotations

import sys
from typing import Final

import polars as pl

from kanalyze.columns.lookup import gathered, positions

#: Roles of a function: program code, an ``nn.Module`` or garbage collection, library code, or a wrapper that only
#: forwards a call.
ROLES: Final = ("program", "module", "library", "passing")

#: Packages that count as library code.
_LIBRARIES: Final = (
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "pandas", "pyarrow", "PIL", "cv2", "einops"),
    *("tqdm", "wrapt", "packaging", "pydantic", "typing_extensions", "yaml"),
)
#: Modules of the standard library that scripts are often named like.
_SCRIPT_NAMES: Final = ("bdb", "code", "cProfile", "profile", "pstats", "site", "test", "this", "trace")
_PYTHON: Final = tuple(sorted(sys.stdlib_module_names - {*_SCRIPT_NAMES}))

_FRAME: Final = r"^(.+)\(\d+\): (.+)$"
_INSTALLED: Final = r"^.*/(?:site|dist)-packages/"
_OF_PYTHON: Final = r"^.*/lib/python3\.\d+/|torchinductor_|^<"
#: Interactive input.
_INTERACTIVE: Final = r"^<(?:ipython|stdin)"
_MODULE: Final = r"^nn\.Module: |^Python GC$"

#: Functions of torch that only call the function that they wrap.
_WRAPPERS: Final = ("_call_impl", "_wrapped_call_impl", "wrapper", "decorate_context", "_use_grad", "inner", "_fn")
#: Built-in functions, and methods of built-in types, that count as wrappers.
_LANGUAGE: Final = (
    r"^<built-in (?:function (?:isinstance|issubclass|hasattr|getattr|setattr|len|next|iter|id|hash|callable|repr|any"
    r"|all|sum|min|max|abs|sorted|format|vars|dir)"
    r"|method \w+ of (?:dict|list|set|str|tuple|int|float|bytes|frozenset|mappingproxy|generator) object.*)>$"
)
#: Most wrappers that are skipped between a library function and its caller.
_MOST_WRAPPERS: Final = 32

_ADDRESS: Final = r" at 0x[0-9a-fA-F]+"


def roles(names: pl.Series) -> pl.DataFrame:
    """Role and display name of each of the distinct `names` (Categorical) of Python functions: name, role, shown.

    `shown` is the name without object addresses and installation paths, which differ between runs.
    """
    text = pl.col("text")
    path, function = text.str.extract(_FRAME, 1), text.str.extract(_FRAME, 2)
    inside = path.str.replace(_INSTALLED, "")
    top = inside.str.split("/").list.first().str.replace(r"\.py$", "")
    foreign = top.is_in([*_LIBRARIES, *_PYTHON]) | (inside.str.contains(_OF_PYTHON) & ~path.str.contains(_INTERACTIVE))
    wraps = text.str.contains(_LANGUAGE) | (foreign & function.is_in(_WRAPPERS)).fill_null(value=False)
    role = (
        pl.when(text.str.contains(_MODULE))
        .then(pl.lit("module"))
        .when(wraps)
        .then(pl.lit("passing"))
        .when(~foreign)
        .then(pl.lit("program"))
        .otherwise(pl.lit("library"))
    )
    told = names.alias("name").to_frame().with_columns(text=names.cast(pl.String))
    shown = text.str.replace(_ADDRESS, "").str.replace(_INSTALLED, "").cast(pl.Categorical)
    return told.select("name", role.cast(pl.Enum(ROLES)).alias("role"), shown.alias("shown"))


def called_by_program(functions: pl.DataFrame) -> pl.Series:
    """Whether each function is library code called directly by program code, wrappers between them skipped.

    `functions` has the columns event_id, parent_id and role, sorted by event_id.
    """
    rows = positions(functions.get_column("event_id"), functions.get_column("parent_id"))
    role = functions.get_column("role")
    asks, callers = role == "library", rows
    for _ in range(_MOST_WRAPPERS):
        further = (gathered(role, callers) == "passing").fill_null(value=False) & asks
        if not further.any():
            break
        callers = callers.zip_with(~further, gathered(rows, callers))
    return asks & (gathered(role, callers) == "program").fill_null(value=False)
