"""Python functions of a trace: which are the program's own, which only pass a call on, and how they are shown.

Frames are named as torch's profiler names them: ``train.py(31): step`` with the path from where Python found the file,
``<built-in function sleep>``, ``nn.Module: Linear_0``. A file is the program's own if it is none of Python, of torch
and what comes with it, or of a few packages that programs call but are not written in, and not made up by a compiler.
"""

from __future__ import annotations

import sys
from typing import Final

import polars as pl

from kanalyze.analyses.shared.lookup import gathered, positions

#: What a function is: the program's own, an ``nn.Module`` or Python's garbage collection, any other, or one that only
#: passes a call on.
ROLES: Final = ("program", "module", "library", "passing")

#: Packages that programs call, but are not written in.
_LIBRARIES: Final = (
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "pandas", "pyarrow", "PIL", "cv2", "einops"),
    *("tqdm", "wrapt", "packaging", "pydantic", "typing_extensions", "yaml"),
)
#: Modules of Python whose names scripts have, too.
_SCRIPTS: Final = ("bdb", "code", "cProfile", "profile", "pstats", "site", "test", "this", "trace")
_PYTHON: Final = tuple(sorted(sys.stdlib_module_names - {*_SCRIPTS}))

_FRAME: Final = r"^(.+)\(\d+\): (.+)$"
_INSTALLED: Final = r"^.*/(?:site|dist)-packages/"
_OF_PYTHON: Final = r"^.*/lib/python3\.\d+/|torchinductor_|^<"
#: What a person typed.
_TYPED: Final = r"^<(?:ipython|stdin)"
_MODULE: Final = r"^nn\.Module: |^Python GC$"

#: Functions of torch that only call the function that they wrap.
_WRAPPERS: Final = ("_call_impl", "_wrapped_call_impl", "wrapper", "decorate_context", "_use_grad", "inner", "_fn")
#: Built-in functions, and methods of built-in types, that belong to the language.
_LANGUAGE: Final = (
    r"^<built-in (?:function (?:isinstance|issubclass|hasattr|getattr|setattr|len|next|iter|id|hash|callable|repr|any"
    r"|all|sum|min|max|abs|sorted|format|vars|dir)"
    r"|method \w+ of (?:dict|list|set|str|tuple|int|float|bytes|frozenset|mappingproxy|generator) object.*)>$"
)
#: A call is passed on by no more functions than this.
_PASSED_ON: Final = 32

_ADDRESS: Final = r" at 0x[0-9a-fA-F]+"


def roles(names: pl.Series) -> pl.DataFrame:
    """What each of the different `names` (categorical) of Python functions is: columns name, role and shown.

    `shown` is the name without the addresses of objects, and where a package is installed, which differ between runs.
    """
    text = pl.col("text")
    path, function = text.str.extract(_FRAME, 1), text.str.extract(_FRAME, 2)
    inside = path.str.replace(_INSTALLED, "")
    top = inside.str.split("/").list.first().str.replace(r"\.py$", "")
    foreign = top.is_in([*_LIBRARIES, *_PYTHON]) | (inside.str.contains(_OF_PYTHON) & ~path.str.contains(_TYPED))
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
    """Which of the `functions` (event_id, parent_id, role; sorted by event_id) the program's own called from a library.

    What only passes a call on counts for what it calls, not for itself.
    """
    rows = positions(functions.get_column("event_id"), functions.get_column("parent_id"))
    role = functions.get_column("role")
    asks, callers = role == "library", rows
    for _ in range(_PASSED_ON):
        further = (gathered(role, callers) == "passing").fill_null(value=False) & asks
        if not further.any():
            break
        callers = callers.zip_with(~further, gathered(rows, callers))
    return asks & (gathered(role, callers) == "program").fill_null(value=False)
