"""Python functions of a trace: program code, library code, modules and wrappers; and names of sampled stacks.

Frames are named as torch's profiler names them: ``train.py(31): step`` with a path relative to the import path,
``<built-in function sleep>``, ``nn.Module: Linear_0``. Program code is every file that belongs neither to Python, nor
to torch and its dependencies, nor to a few packages that programs only call, and that no compiler generated.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered, positions

if TYPE_CHECKING:
    from kanalyze.report import Report

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
_IN_PACKAGES: Final = r"/(?:site|dist)-packages/"

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
    installed = pl.col("module").cast(pl.String).str.contains(_IN_PACKAGES)
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
