"""Names of stacks: the innermost function of the program's own, and the chain of its own functions to it.

A module of native code is the program's own unless it is of the system, of an installed package, or of a vendor's
library; a Python file by the rules of :mod:`kanalyze.analyses.host._python_frames`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._python_frames import roles
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Paths of modules that are not the program's own.
_FOREIGN: Final = (
    r"^\[|^$"
    r"|^/(?:usr/)?(?:lib|lib32|lib64|libexec)/|^/usr/local/(?:cuda|nvidia|lib)|^/opt/(?:nvidia|rocm)|^/(?:proc|dev)/"
    r"|/(?:site|dist)-packages/|/(?:nsight|nsys)"
    r"|(?:^|/)lib(?:cuda|cu[a-z]+|nv|nccl|torch|c10|python|ToolsInjection|stdc\+\+|gomp|omp|iomp|mpi|ucx|mkl|openblas"
    r"|scipy_openblas|pthread|m|c|dl|rt|gcc_s)[^/]*\.so|/ld-linux[^/]*$|^ld-linux"
    r"|(?:^|/)python[0-9.]*$|^\w*vmlinux|\.ko$"
)

#: Functions of the CUDA runtime that is linked into a program, and what starts it.
_LINKED: Final = r"^(?:__)?cuda[A-Z]|^libcudart_static_|^_start$|^__libc_|^_dl_|^_Py|^Py[A-Z]"

#: Python files of installed packages, which are no program's own.
_INSTALLED: Final = r"/(?:site|dist)-packages/"

#: Python files of a DataLoader, and of the queues through which its workers give batches.
_LOADS: Final = r"/torch/utils/data/"

#: Own functions that a chain shows, of longer ones the innermost.
_LONGEST_CHAIN: Final = 8

#: Schema of a stack's names.
NAMES: Final = {
    "stack_id": pl.Int64,
    "function": pl.String,
    "module": pl.String,
    "own": pl.Boolean,
    "chain": pl.String,
    "loads": pl.Boolean,
}


@once_per_process
def stack_names(report: Report) -> pl.DataFrame:
    """Each stack by name: :data:`NAMES`, sorted by stack.

    `loads` is set where a function of torch's DataLoader is in it.

    `function` is the innermost of the program's own, else the innermost that has a name; `chain` are the program's own
    functions from the outermost to it.
    """
    frames = report.table("stack_frames")
    if frames.is_empty():
        return pl.DataFrame(schema=NAMES)
    told = frames.with_columns(_own(frames)).filter(
        pl.col("function").is_not_null() & ~pl.col("function").cast(pl.String).str.starts_with("[")
    )
    own = told.filter("own").sort("stack_id", "depth", descending=[False, True])
    twice = (pl.col("function") == pl.col("function").shift(1)) & (pl.col("stack_id") == pl.col("stack_id").shift(1))
    own = own.filter(~twice.fill_null(value=False))
    functions = pl.col("function").cast(pl.String)
    chains = own.group_by("stack_id", maintain_order=True).agg(
        functions.tail(_LONGEST_CHAIN).str.join(" > ").alias("chain")
    )
    first = told.sort("stack_id", pl.col("own"), "depth", descending=[False, True, False])
    first = first.unique("stack_id", keep="first", maintain_order=True)
    named = first.join(chains, on="stack_id", how="left", maintain_order="left")
    loading = told.filter(pl.col("module").cast(pl.String).str.contains(_LOADS)).get_column("stack_id").unique()
    named = named.with_columns(loads=pl.col("stack_id").is_in(loading.implode()))
    return named.select(pl.col(name).cast(dtype) for name, dtype in NAMES.items())


def _own(frames: pl.DataFrame) -> pl.Series:
    """Whether each frame is in the program's own code."""
    python = frames.get_column("line").is_not_null()
    kinds = frames.select("module", "function", line=python).unique()
    text = pl.format("{}(1): {}", pl.col("module").cast(pl.String), pl.col("function").cast(pl.String))
    asked = kinds.with_columns(name=text.cast(pl.Categorical))
    role = roles(asked.get_column("name").unique().drop_nulls()).select("name", "role")
    native = ~(
        pl.col("module").cast(pl.String).fill_null("").str.contains(_FOREIGN)
        | pl.col("function").cast(pl.String).str.contains(_LINKED)
    )
    installed = pl.col("module").cast(pl.String).str.contains(_INSTALLED)
    decided = asked.join(role, on="name", how="left").select(
        "module",
        "function",
        "line",
        own=pl.when("line").then((pl.col("role") == "program") & ~installed).otherwise(native).fill_null(value=False),
    )
    asking = frames.select("module", "function", line=python)
    return asking.join(
        decided, on=["module", "function", "line"], how="left", nulls_equal=True, maintain_order="left"
    ).get_column("own")
