"""Classifies CUDA and HIP calls by name into ledger buckets.

The buckets and their order are those of definitions.md, section 5. Names are CUPTI's: runtime (``cuda…``) and driver
(``cu…``) calls, with or without a version suffix; and ROCm's (``hip…``), which count as the CUDA calls that do the
same. Patterns are therefore written for CUDA names, and matched against :func:`cuda_name`.

The bucket `sync` is a class of calls by name. Whether a call blocks its thread, and what it then waits for, is another
question, which :mod:`kanalyze.analyses.idle.syncs` answers for the table `syncs`: ``cudaFree`` blocks, and is
in the bucket `allocation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import polars as pl

from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.intervals import OF_EVENTS
from kanalyze.report import Report
from kanalyze.tools import CUDA, HIP, RUNTIME, is_amd

#: Copies that block their caller, whatever stream they name.
BLOCKING_COPY: Final = r"(?:cuda|cu)Memcpy(?!.*(?:Async|Node|Batch))"

#: Bucket of a call by prefix of its name; the first match counts, and a call without a match is `api`.
_BUCKETS: Final = {
    "loading": re.compile(
        r"cuModuleLoad|cuLibraryLoad|cudaLibraryLoad|cuLink|cuModuleGetFunction|cuModuleGetGlobal"
        r"|cuLibraryGet(?:Kernel|Module|Global|Managed)|cudaLibraryGet|cuKernelGetFunction|cuFuncLoad"
        r"|cuCtxCreate|cuDevicePrimaryCtxRetain|nvrtc|nvJitLink"
    ),
    "allocation": re.compile(
        r"cudaMalloc|cudaFree|cudaHostAlloc|cudaHostRegister|cudaHostUnregister|cudaMemPool"
        r"|cuMemAlloc|cuMemFree|cuMemHostAlloc|cuMemHostRegister|cuMemHostUnregister|cuMemPool"
        r"|cuMemCreate|cuMemRelease|cuMemMap|cuMemUnmap|cuMemAddress|cuMemSetAccess|cuArray3?D?Create|cuArrayDestroy"
        r"|cuMipmappedArray(?:Create|Destroy)"
    ),
    "sync": re.compile(rf"(?:cuda|cu)(?:Device|Stream|Event|Ctx|Thread)Synchronize|{BLOCKING_COPY}"),
}

#: HIP prefixes with their CUDA counterparts; the first match counts, and the last pattern covers all other calls.
#: HIP has one library for what CUDA splits into runtime and driver. Source: the lists of CUDA calls that HIP supports.
_HIP: Final = (
    (r"hipMemcpyWithStream", "cudaMemcpy"),  # waits for the stream: blocks, unlike hipMemcpyAsync
    (r"hip(?:Ext|Hcc)?ModuleLaunch", "cuLaunch"),
    (r"hipExtLaunch", "cudaLaunch"),
    (r"hipExtMalloc", "cudaMalloc"),
    (r"hipHost(?:Malloc|Alloc)", "cudaHostAlloc"),
    (r"hipHostFree", "cudaFreeHost"),
    (r"hiprtc", "nvrtc"),
    (r"hipExt", "cuda"),
    (r"hipDrv", "cu"),
    (
        (
            r"hip(?=Init|Ctx|Module|Link|Library|Kernel(?!NameRef)|FuncLoad|DevicePrimaryCtx|DeviceGetName|DeviceGetUuid"
            r"|DeviceTotalMem|DeviceComputeCapability|DeviceGet$|Array(?:3D)?(?:Create|Destroy)|MipmappedArray"
            r"|Mem(?:Alloc|Create|Release|Map|Unmap|Address|SetAccess|GetAddress)|GetProcAddress|PointerGet)"
        ),
        "cu",
    ),
    (r"hip(?=[A-Z])", "cuda"),
)

#: Buckets of host time inside calls, by precedence; `profiler` comes from the overhead that the profiler records.
CALL_BUCKETS: Final = ("profiler", "loading", "allocation", "sync", "api")

_LAUNCH: Final = re.compile(r"(?:cuda|cu)(?:Launch(?!HostFunc)|GraphLaunch)|(?:cuda|cu)Mem(?:cpy|set)(?!.*Node)")


@once_per_process
def call_names(report: Report) -> pl.Series:
    """Distinct names of the calls of the processes in scope (Categorical), null included."""
    return report.kind("api").get_column("name").unique()


@once_per_process
def _cuda_names(report: Report) -> dict[str, str]:
    """The CUDA name of each distinct name of a call (:func:`cuda_name`)."""
    return {name: cuda_name(name) for name in call_names(report).cast(pl.String).to_list() if name is not None}


def names_that(report: Report, fits: Callable[[str], object]) -> list[str]:
    """Distinct names of calls of the processes in scope whose CUDA name (:func:`cuda_name`) passes `fits`."""
    return [name for name, known in _cuda_names(report).items() if fits(known)]


def calls_that(report: Report, fits: Callable[[str], object], *columns: str | pl.Expr, **named: str) -> pl.DataFrame:
    """Columns of the calls whose CUDA name passes `fits`, in the order of the api events."""
    calls = report.kind("api").lazy().filter(pl.col("name").is_in(names_that(report, fits)))
    return calls.select(*columns, **named).collect(engine="in-memory")


def cuda_name(name: str) -> str:
    """The CUDA name of a call: its own, or the counterpart of a HIP call."""
    if not name.startswith("hip"):
        return name
    known = next(((names, cuda) for names, cuda in _HIP if re.match(names, name)), None)
    return name if known is None else re.sub(*known, name, count=1)


def cuda_names(names: pl.Series) -> pl.Series:
    """:func:`cuda_name` of each (String, null where there is none)."""
    texts = names.cast(pl.String)
    distinct = texts.unique().drop_nulls()
    return texts.replace_strict({name: cuda_name(name) for name in distinct}, default=None, return_dtype=pl.String)


def bucket_of(name: str | None) -> str:
    """The bucket of a call: ``loading``, ``allocation``, ``sync`` or ``api``."""
    known = cuda_name(name or "")
    return next((bucket for bucket, names in _BUCKETS.items() if names.match(known)), "api")


def is_launch_name(name: str | None) -> bool:
    """Whether a call of this name should start device work; only for finding launches without an operation."""
    return bool(name and _LAUNCH.match(cuda_name(name)))


def shown(name: pl.Expr) -> pl.Expr:
    """Names of calls as nsys prints them: cudaMalloc_v3020 becomes cudaMalloc, cudaLaunchKernelExC_v11060 stays."""
    return name.cast(pl.String).str.replace(r"_v.{4}$", "")


# Calls that create CUDA graphs, and stream captures: work submitted to a capturing stream does not run at once.

#: Calls that create graphs, by prefix of their names.
_STEPS: Final = re.compile(
    r"(?:cuda|cu)(?:(?P<instantiate>GraphInstantiate)|(?P<upload>GraphUpload)|(?P<begin>StreamBeginCapture)"
    r"|(?P<end>StreamEndCapture)|(?P<build>Graph(?:Create|Clone|Add)))"
)


@once_per_report
def graph_steps(report: Report) -> pl.DataFrame:
    """Calls that create CUDA graphs, sorted by start.

    Columns: step (instantiate, upload, begin or end of a capture, build), event_id, name, process_id, thread_id, start,
    end.
    """
    calls = report.kind("api")
    steps = {name: step.lastgroup for name, known in _cuda_names(report).items() if (step := _STEPS.match(known))}
    told = pl.col("name").cast(pl.String).replace_strict(steps, return_dtype=pl.String).alias("step")
    found = calls.filter(pl.col("name").is_in([*steps])).select(told, "event_id", "name", *THREAD, **OF_EVENTS)
    return found.sort("start", "event_id")


@once_per_report
def captures(report: Report) -> pl.DataFrame:
    """Stream captures: process_id, thread_id, start (of the begin call), end (of the end call), event_id.

    Only captures whose begin and end call follow each other on one thread: calls of overlapping captures cannot be
    paired.
    """
    sides = graph_steps(report).filter(pl.col("step").is_in(["begin", "end"]))
    before = [pl.col(name).shift(1).over(THREAD).alias(f"last_{name}") for name in ("step", "start")]
    ended = sides.with_columns(before).filter((pl.col("step") == "end") & (pl.col("last_step") == "begin"))
    return ended.select(*THREAD, "event_id", "name", start="last_start", end="end")


# The programming interface (CUDA or HIP) that the program used.

#: Pattern of the call names of each interface.
_CALLS: Final = {HIP: r"^hip(?:[A-Z]|rtc)", CUDA: r"^cu(?:da)?[A-Z]"}


@once_per_process
def interface(report: Report) -> str:
    """CUDA, HIP or RUNTIME (:mod:`kanalyze.tools`), by names of calls; without calls by names of GPUs."""
    names = report.kind("api").get_column("name").unique().cast(pl.String).drop_nulls()
    for found, pattern in _CALLS.items():
        if names.str.contains(pattern).any():
            return found
    if len(names):
        return RUNTIME
    gpus = report.devices.select("name", "threads_per_warp").rows()
    return HIP if gpus and all(is_amd(name, width) for name, width in gpus) else CUDA


# The world of a program: what its users write, which its kernels, operators and ranges tell.

T = TypeVar("T")

PYTORCH: Final = "PyTorch"
JAX: Final = "JAX"
CUPY: Final = "CuPy"
NUMBA: Final = "Numba"
OPENMP: Final = "OpenMP"
OPENACC: Final = "OpenACC"
#: Any other program of Python; any other program, of CUDA C++ or HIP, is of :data:`CUDA`.
PYTHON: Final = "Python"

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
    if of_kernels != PYTORCH and (other := report.beside()) is not None and "op" in other.kinds:
        return PYTORCH  # a trace of its operators lies beside the report in its capture
    known = of_kernels or _of_domains(report)
    if known or not any(map(_INTERPRETER.match, report.processes.get_column("name").drop_nulls())):
        return known or CUDA
    # CuPy reduces by CUB, as other libraries do that have kernels of their own besides
    reduces = kernels.str.contains("cub::", literal=True).any() and not kernels.str.contains(_OTHER_LIBRARIES).any()
    return CUPY if reduces else PYTHON


def _of_domains(report: Report) -> str | None:
    if "range" not in report.kinds:
        return None
    domains = report.table("range_detail").get_column("domain").unique().cast(pl.String)
    return next((name for domain, name in _DOMAINS.items() if domain in domains), None)


def spoken(report: Report, words: Mapping[str, T], otherwise: T) -> T:
    """Of `words` by world those of the program's world, or of one that is like it."""
    own = world(report)
    return words.get(own, words.get(_LIKE.get(own, own), otherwise))
