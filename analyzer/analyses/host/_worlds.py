"""The world of a program: what its users write, which its kernels, operators and ranges tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kanalyze.report import Report

T = TypeVar("T")

PYTORCH: Final = "PyTorch"
JAX: Final = "JAX"
CUPY: Final = "CuPy"
NUMBA: Final = "Numba"
OPENMP: Final = "OpenMP"
OPENACC: Final = "OpenACC"
#: Any other program of Python, and any other program: CUDA C++, or HIP.
PYTHON: Final = "Python"
CUDA: Final = "CUDA"

#: Names of kernels that only one world has, the first that fits; libraries of C++ run in all of them.
_KERNELS: Final = {
    PYTORCH: r"\bat::(?:native|cuda)::|^triton_(?:poi|red|per|tem)_",
    JAX: r"^(?:loop|input)(?:_\w+)?_fusion(?:_\d+)?$|^wrapped_\w+$|stream_executor::|xla_fp_comparison",
    CUPY: r"^cupy_",
    NUMBA: r"cudapy::|^_ZN6cudapy",
    OPENMP: r"^__omp_offloading_|^nvkernel_\w*_F\d+L\d+_\d+|\$_omp_fn\$",
    OPENACC: r"_\d+_gpu(?:__red)?$|\$_oacc_|^acc_\w+_L\d+",
}

#: Libraries of Python that use CUB, too.
_OTHER_LIBRARIES: Final = r"\b(?:cudf|raft|cuml|cugraph|thrust|rmm)::"

#: Domains of ranges: TSL is what XLA and TensorFlow are built on.
_DOMAINS: Final = {"TSL": JAX, "cupy": CUPY, "cupy.cuda": CUPY}

#: Executables that run Python.
_INTERPRETER: Final = re.compile(r"(?:.*[/\\])?(?:python|pypy|ipython)[\d.]*(?:\.exe)?$", re.IGNORECASE)

#: Whose words serve where a world has none of its own.
_LIKE: Final = {JAX: PYTHON, CUPY: PYTHON, NUMBA: PYTHON, OPENACC: OPENMP}


@once_per_process
def world(report: Report) -> str:
    """What the program is written with, by what its report names; CUDA where nothing tells otherwise."""
    if "op" in report.kinds and report.kind("op").get_column("name").cast(pl.String).str.starts_with("aten::").any():
        return PYTORCH
    kernels = report.kind("kernel").get_column("name").unique().cast(pl.String)
    of_kernels = next((name for name, pattern in _KERNELS.items() if kernels.str.contains(pattern).any()), None)
    if of_kernels != PYTORCH and _traced_by_torch(report):
        return PYTORCH
    if (known := of_kernels or _of_domains(report)) is not None or not _interpreted(report):
        return known or CUDA
    # CuPy reduces by CUB, as other libraries do that have kernels of their own besides
    reduces = kernels.str.contains("cub::", literal=True).any() and not kernels.str.contains(_OTHER_LIBRARIES).any()
    return CUPY if reduces else PYTHON


def _traced_by_torch(report: Report) -> bool:
    """Whether a trace of PyTorch's operators lies beside the report in its capture."""
    other = report.beside()
    return other is not None and "op" in other.kinds


def _of_domains(report: Report) -> str | None:
    if "range" not in report.kinds:
        return None
    domains = report.table("range_detail").get_column("domain").unique().cast(pl.String)
    return next((name for domain, name in _DOMAINS.items() if domain in domains), None)


def _interpreted(report: Report) -> bool:
    names = report.processes.get_column("name").drop_nulls()
    return any(_INTERPRETER.match(name) for name in names)


def spoken(report: Report, words: Mapping[str, T], otherwise: T) -> T:
    """Of `words` by world those of the program's world, or of one that is like it."""
    own = world(report)
    return words.get(own, words.get(_LIKE.get(own, own), otherwise))
