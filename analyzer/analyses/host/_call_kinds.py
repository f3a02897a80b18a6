"""Kinds of CUDA and HIP calls by name, the worlds of programs; the creation of contexts, and how recordings begin.

The buckets and their order are those of definitions.md, section 5. Names are CUPTI's: runtime (``cuda…``) and driver
(``cu…``) calls, with or without a version suffix; and ROCm's (``hip…``), which count as the CUDA calls that do the
same. Patterns are therefore written for CUDA names, and matched against :func:`cuda_name`.

The bucket `sync` is a class of calls by name. Whether a call blocks its thread, and what it then waits for, is another
question, which :mod:`kanalyze.analyses.idle.syncs` answers for the table `syncs`: ``cudaFree`` blocks, and is
in the bucket `allocation`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import polars as pl

from kanalyze.analyses.device._operations import launch_calls, launching_rows, nearest_launches, operations, with_facts
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import as_of, having, nearest, rows_at, sure, told_of
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
    return [name for name, cuda in _cuda_names(report).items() if fits(cuda)]


def graph_call(report: Report, names: pl.Series) -> pl.Series:
    """Whether each call name launches a CUDA graph."""
    return sure(names.is_in(names_that(report, lambda name: "GraphLaunch" in name)))


def calls_that(report: Report, fits: Callable[[str], object], *columns: str, **named: str | pl.Expr) -> pl.DataFrame:
    """Columns of the calls whose CUDA name passes `fits`, in the order of the api events."""
    calls = report.kind("api").lazy().filter(pl.col("name").is_in(names_that(report, fits)))
    return calls.select(*columns, **named).collect(engine="in-memory")


def cuda_name(name: str) -> str:
    """The CUDA name of a call: its own, or the counterpart of a HIP call."""
    if not name.startswith("hip"):
        return name
    rule = next(((names, cuda) for names, cuda in _HIP if re.match(names, name)), None)
    return name if rule is None else re.sub(*rule, name, count=1)


def cuda_names(names: pl.Series) -> pl.Series:
    """:func:`cuda_name` of each (String, null where there is none)."""
    return told_of(names, cuda_name)


def bucket_of(name: str | None) -> str:
    """The bucket of a call: ``loading``, ``allocation``, ``sync`` or ``api``."""
    cuda = cuda_name(name or "")
    return next((bucket for bucket, names in _BUCKETS.items() if names.match(cuda)), "api")


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
    steps = {name: step.lastgroup for name, cuda in _cuda_names(report).items() if (step := _STEPS.match(cuda))}
    step_name = pl.col("name").cast(pl.String).replace_strict(steps, return_dtype=pl.String).alias("step")
    rows = calls.filter(pl.col("name").is_in([*steps])).select(step_name, "event_id", "name", *THREAD, **OF_EVENTS)
    return rows.sort("start", "event_id")


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


@once_per_process
def interface(report: Report) -> str:
    """CUDA, HIP or RUNTIME (:mod:`kanalyze.tools`), by names of calls; without calls by names of GPUs."""
    names = call_names(report).cast(pl.String).drop_nulls()
    for tool, pattern in ((HIP, r"^hip(?:[A-Z]|rtc)"), (CUDA, r"^cu(?:da)?[A-Z]")):
        if names.str.contains(pattern).any():
            return tool
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
    CUPY: r"^cupyx?_",
    NUMBA: r"cudapy::|^_ZN6cudapy",
    OPENMP: r"^__omp_offloading_|^nvkernel_\w*_F\d+L\d+_\d+|\$_omp_fn\$",
    OPENACC: r"_\d+_gpu(?:__red)?$|\$_oacc_|^acc_\w+_L\d+",
}

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
    domains = report.table("range_detail").get_column("domain").unique().cast(pl.String)
    of_names = of_kernels or next((name for domain, name in _DOMAINS.items() if domain in domains), None)
    if of_names or not any(map(_INTERPRETER.match, report.processes.get_column("name").drop_nulls())):
        return of_names or CUDA
    # CuPy reduces by CUB, as other libraries do that have kernels of their own besides
    others = kernels.str.contains(r"\b(?:cudf|raft|cuml|cugraph|thrust|rmm)::").any()
    return CUPY if kernels.str.contains("cub::", literal=True).any() and not others else PYTHON


def spoken(report: Report, words: Mapping[str, T], otherwise: T) -> T:
    """Of `words` by world those of the program's world, or of one that is like it."""
    of_program = world(report)
    return words.get(of_program, words.get(_LIKE.get(of_program, of_program), otherwise))


# Beginnings of processes: contexts, by a recorded call or outside of any, and recordings that begin in mid-run.


#: Calls that need no context: the first other call of a process is the one that creates it.
_WITHOUT_CONTEXT: Final = (
    r"^(?:cuInit|cuDriverGet|cuDeviceGet|cuDeviceTotalMem|cuGetProcAddress|cuGetErr|cuModuleGetLoadingMode"
    r"|cuLibrary(?:Load|Unload|GetKernel)|cuKernelGetName|cuGetExportTable|cudaGetDevice|cudaDriverGet|cudaRuntimeGet|cudaGetDriverEntryPoint"
    r"|cudaDeviceGet(?:Attribute|ByPCIBusId|PCIBusId|P2PAttribute)"
    r"|cudaChooseDevice|cudaGetErr|cudaPeekAtLastError|cudaGetLastError|cudaSetDeviceFlags|cudaStreamIsCapturing)"
)

#: Calls on objects of an existing context (event, stream, memory, graph, module), and calls that wait for the device,
#: copy, load or launch: a long one is no evidence of context creation.
_NO_EVIDENCE: Final = (
    r"(?:cuda|cu|hip)(?:Event(?!Create)|Stream(?!Create)|Graph|Mem(?:cpy|set|Prefetch|Advise)|\w*(?:Free|Synchronize)|HostUnregister"
    r"|Profiler|Ctx(?!Create)|Module|Library|Link|Kernel|Func|Occupancy|\w*Launch)|nvrtc|nvJitLink"
)

#: Calls that can take long for other reasons (they wait, or pin or map memory): evidence only where the recording also
#: has the first CUDA call of the process, one of :data:`BEGINS_CUDA`.
_WEAK_EVIDENCE: Final = r"(?:cuda|hip)(?:Free|HostAlloc|HostMalloc|MallocHost|HostRegister|MallocManaged)(?:_v\d+)?$"
BEGINS_CUDA: Final = re.compile(r"cuInit|cuModuleGetLoadingMode|cuDriverGetVersion")

#: Launches that copy or set memory, which may wait for other reasons; and how many times the usual one of its name the
#: first launch takes in which a context is made.
_COPIES: Final = re.compile(r"(?:cuda|cu|hip)(?:Mem|Graph)")
_TIMES_USUAL: Final = 100

#: Shortest first call that counts as context creation where the profiler records none: the fastest contexts take tens
#: of milliseconds, and a call in an existing context takes a fraction of one.
CONTEXT_FROM_NS: Final = 10_000_000

#: Whether an operation is a unified-memory copy, which the driver makes without a call.
BY_DRIVER: Final = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)


@once_per_process
def context_calls(report: Report) -> pl.DataFrame:
    """Calls that created a context: api events with their row, end_ns, and made_ns, when the context was ready.

    Where the profiler recorded context creation in a process, it is the outermost call around that record, until the
    record starts. Elsewhere it is the first call of the process that needs a context, if that took at least
    :data:`CONTEXT_FROM_NS` before any operation ran and no other evidence rules it out (definitions.md, section 5).
    """
    calls, records = _with_end(report, "api").with_row_index("row"), _context_records(report)
    creations = rows_at(calls, calls_around(report, records.rename({"start_ns": "at", "end_ns": "until"})))
    creations = creations.with_columns(made_ns=records.get_column("start_ns")).drop_nulls("row")
    recorded = records.get_column("process_id").unique()
    silent = calls if recorded.is_empty() else calls.filter(~pl.col("process_id").is_in(recorded.implode()))
    made = pl.concat([creations, _inferred(report, silent)]).sort("made_ns")
    return made.unique("event_id", keep="last", maintain_order=True)


def _inferred(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Infers context creation from the first call of each process that needs a context, by its length."""
    needing = names_that(report, lambda name: not re.match(_WITHOUT_CONTEXT, name))
    asking = calls.filter(pl.col("name").is_in(needing) | pl.col("name").is_null())
    first = asking.sort("start_ns", "event_id").unique("process_id", keep="first")
    long = first.filter(pl.col("dur_ns") >= CONTEXT_FROM_NS)
    if long.is_empty():
        return long.with_columns(made_ns="end_ns")
    telling = pl.Series([_is_evidence(row, calls) for row in long.iter_rows(named=True)], dtype=pl.Boolean)
    # of processes that used a device before the recording began: their first recorded step of the profiler is not step
    # 0, or their first operation has no launch call, or started long after its launch call had returned
    later = report.steps().group_by("process_id").agg(pl.col("step").min()).filter(pl.col("step") > 0)
    work = operations(report).filter(~BY_DRIVER).sort("start", "row")
    first = with_facts(report, work.unique("process_id", keep="first", maintain_order=True), "call_row", "call_end")
    late = (pl.col("start") - pl.col("call_end") >= CONTEXT_FROM_NS).fill_null(value=False)
    before = first.filter(pl.col("call_row").is_null() | late)
    warm = pl.concat(frame.select(pl.col("process_id").cast(pl.Int64)) for frame in (later, before))
    long = long.filter(telling).join(warm, on="process_id", how="anti", nulls_equal=True)
    creations = long.join(_first_operations(report), on="process_id", how="left", nulls_equal=True)
    creations = creations.with_columns(made_ns=pl.min_horizontal("end_ns", "first")).drop("first")
    return creations.filter(pl.col("made_ns") - pl.col("start_ns") >= CONTEXT_FROM_NS)


def _is_evidence(call: dict[str, Any], calls: pl.DataFrame) -> bool:
    """Whether the length of a first call is evidence of context creation, by its name."""
    name, own = cuda_name(call["name"] or ""), pl.col("process_id") == call["process_id"]
    if is_launch_name(name) and not _COPIES.match(name):
        others = own & (pl.col("name") == call["name"]) & (pl.col("event_id") != call["event_id"])
        usual = calls.filter(others).select(pl.col("dur_ns").median()).item()
        return usual is not None and call["dur_ns"] >= _TIMES_USUAL * usual
    if not re.match(_WEAK_EVIDENCE, name):
        return bool(name) and bucket_of(name) != "sync" and not re.match(_NO_EVIDENCE, name)
    before = calls.filter(own & (pl.col("start_ns") < call["start_ns"]))
    return any(map(BEGINS_CUDA.match, cuda_names(before.get_column("name").unique()).drop_nulls()))


@once_per_process
def unrecorded_contexts(report: Report) -> pl.DataFrame:
    """Context creation that the profiler recorded outside any recorded call, as intervals.

    Columns: process_id, thread_id, start (end of the last recorded activity of the thread: call, range, operator,
    opening of a library), end (start of the record of the profiler), and before and after (names of the adjacent calls
    as shown; null at the edge of the recording).
    """
    records = _context_records(report)
    around = calls_around(report, records.rename({"start_ns": "at", "end_ns": "until"}))
    records, name, times = records.filter(around.is_null()), shown(pl.col("name")), ("start_ns", "end_ns")
    calls = _with_end(report, "api") if records.height else records
    calls = calls.join(records, on=THREAD, how="semi", maintain_order="left")
    moments = [calls.select(*THREAD, moment="end_ns").clear()]
    for kind in {"range", "op", "overhead"}.intersection(report.kinds) if records.height else ():
        events = _with_end(report, kind).join(records, on=THREAD, how="semi")
        if kind == "overhead":
            # but libraries that the driver itself opens, also while it makes a context
            events = events.filter(name.str.starts_with("dlopen(") & ~name.str.contains(r"lib(?:cuda|cupti|nvidia)"))
        moments += [events.select(*THREAD, moment=side) for side in times]
    rows = nearest(records, pl.concat(moments), ("start_ns", "moment"), THREAD, "strictly before")
    rows = nearest(rows, calls.select(*THREAD, ended="end_ns", before="name"), ("start_ns", "ended"), THREAD)
    rows = nearest(rows, calls.select(*THREAD, begun="start_ns", after="name"), ("end_ns", "begun"), THREAD, "after")
    rows = rows.with_columns(shown(pl.col("before", "after")))
    start = pl.when(pl.col("ended").is_null()).then("start_ns").otherwise(pl.max_horizontal("ended", "moment"))
    return rows.select(*THREAD, "before", "after", start=start, end="start_ns").sort("end")


def calls_around(report: Report, points: pl.DataFrame) -> pl.Series:
    """Row of the outermost call around each of `points` (:data:`THREAD`, at, until), as driver calls lie in others."""
    calls = report.kind("api").select(*THREAD, **OF_EVENTS).with_row_index("call_row")
    low, high = (pl.lit(at, dtype=pl.Int64) for at in points.select(pl.min("until"), pl.max("at")).row(0))
    calls = calls.filter(pl.col("end") >= low, pl.col("start") <= high)
    line = calls.sort(*THREAD, "start", "end", "call_row", descending=[*(False for _ in THREAD), False, True, False])
    # calls in no other one, which may overlap, end in the order of their begins
    line = line.filter((pl.col("end") > pl.col("end").cum_max().shift(1).over(THREAD)).fill_null(value=True))
    around = rows_at(line, as_of(points.select(*THREAD, at="until"), line.select(*THREAD, at="end"), later=True))
    return around.get_column("call_row").set(~sure(around.get_column("start") <= points.get_column("at")), None)


def _with_end(report: Report, kind: str) -> pl.DataFrame:
    """Events of a kind with end_ns added."""
    events = report.kind(kind).select("event_id", "process_id", "thread_id", "name", "start_ns", "dur_ns")
    return events.with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))


@once_per_process
def _context_records(report: Report) -> pl.DataFrame:
    named = pl.col("name").cast(pl.String).str.contains("context created", literal=True)
    return _with_end(report, "overhead").filter(named).drop_nulls(["process_id", "thread_id"])


# Detects processes that were running before the recording began, and their waits for unrecorded work.
#
# A recording that begins in mid-run lacks the work already under way. What the first operations of such a process
# waited for is therefore not known, and the first recorded launch of a kernel need not be its first launch.
# Definitions: definitions.md, section 5, "Recordings that begin in mid-run".

#: Detail of the bucket `unknown` for waits on work from before the recording.
BEGINS: Final = "recording begins"

#: Longest launch latency of an idle device, with a margin: an operation that starts later waited for other work.
PROMPT_NS: Final = 50_000

#: Names of profiler overheads for lazy loading by CUDA itself.
LOADING_WORDS: Final = r"(?i)lazy function loading|module loading"


@once_per_process
def loading_seen(report: Report) -> pl.DataFrame:
    """Evidence that a process was not warm yet: context creation, module loading, CUDA initialisation.

    Columns: process_id, thread_id, start, end; sorted by start.
    """
    # a warm process looks up loaded modules and functions as well
    loads = names_that(report, lambda name: bucket_of(name) == "loading" and not re.match(r"cu\w*Get", name))
    overhead = report.kind("overhead")
    # first calls of processes, where they initialise CUDA
    earliest = pl.col("thread_id", "name", "start_ns", "dur_ns").get(pl.col("start_ns").arg_min())
    first, begins = report.kind("api").group_by("process_id").agg(earliest), names_that(report, BEGINS_CUDA.match)
    parts = [
        report.kind("api").filter(pl.col("name").is_in(loads)).select(*THREAD, **OF_EVENTS),
        overhead.filter(having(overhead.get_column("name"), LOADING_WORDS)).select(*THREAD, **OF_EVENTS),
        context_calls(report).select(*THREAD, start="start_ns", end="made_ns"),
        unrecorded_contexts(report).select(*THREAD, "start", "end"),
        first.filter(pl.col("name").is_in(begins)).select(*THREAD, **OF_EVENTS),
    ]
    return pl.concat(parts).sort("start")


@once_per_process
def begun_before(report: Report) -> pl.DataFrame:
    """Processes that were running before the recording began: process_id, and first (start of the first operation).

    Those with calls and operations, and without :func:`loading_seen` before the first operation.
    """
    seen = loading_seen(report).group_by("process_id").agg(cold=pl.col("start").min())
    called = report.kind("api").select("process_id").unique()
    processes = _first_operations(report).join(seen, on="process_id", how="left", nulls_equal=True)
    warm = processes.filter(pl.col("cold").is_null() | (pl.col("cold") > pl.col("first")))
    return warm.join(called, on="process_id", how="semi", nulls_equal=True).select("process_id", "first")


@once_per_process
def _first_operations(report: Report) -> pl.DataFrame:
    """Start of the first operation of each process: process_id, first."""
    return operations(report).group_by("process_id").agg(pl.col("start").min().alias("first"))


@once_per_process
def unseen_starts(report: Report) -> pl.Series:
    """Rows of the operations that waited for work from before the recording, sorted.

    In processes of :func:`begun_before`: the first operation of a stream, if it started more than :data:`PROMPT_NS`
    after its launch call returned, and operations that were launched before the recording began.
    """
    warm, work = begun_before(report), operations(report).select("row", "process_id", "device", "start", "detail")
    if warm.is_empty():
        return pl.Series("row", [], dtype=pl.UInt32)
    work = with_facts(report, work, "context_id", "stream", "call_row")
    work = work.join(warm, on="process_id", how="semi", nulls_equal=True)
    streams = work.group_by("process_id", "device", "context_id", "stream")
    first = streams.agg(pl.col("row").get(pl.col("start").arg_min())).get_column("row")
    waited = work.select("row", "start").join(first.to_frame(), on="row", how="semi", maintain_order="left")
    waited = with_facts(report, waited, "call_end")
    late = waited.filter((pl.col("start") - pl.col("call_end") > PROMPT_NS).fill_null(value=False))
    alone = work.filter(pl.col("call_row").is_null() & ~BY_DRIVER)
    launched = launch_calls(report, "call_start").group_by("process_id").agg(pl.col("call_start").min())
    alone = alone.join(launched, on="process_id", nulls_equal=True).filter(pl.col("start") < pl.col("call_start"))
    return pl.concat([late.get_column("row"), alone.get_column("row")]).unique().sort()


@once_per_process
def unseen_syncs(report: Report) -> pl.Series:
    """Rows of the blocking calls that waited for work from before the recording: those before any operation."""
    names = names_that(report, lambda name: bucket_of(name) == "sync")
    calls = report.kind("api").select("process_id", "name", "start_ns", "dur_ns").with_row_index("row")
    long = calls.filter((pl.col("dur_ns") > PROMPT_NS) & pl.col("name").is_in(names))
    early = long.join(_first_operations(report), on="process_id", nulls_equal=True)
    early = early.filter(pl.col("start_ns") < pl.col("first"))
    if early.is_empty():  # as is usual: whether a process was warm takes longer to tell
        return early.get_column("row")
    return early.join(begun_before(report), on="process_id", how="semi", nulls_equal=True).get_column("row").sort()


def shown_cold(report: Report, launches: pl.DataFrame) -> pl.Series:
    """Whether there is evidence that each of `launches` was cold.

    `launches` has the columns process_id, thread_id, call_start and call_end. Evidence: the process began within the
    recording, or a module was loaded on the thread since the previous launch call.
    """
    warm = begun_before(report).get_column("process_id")
    began = ~launches.get_column("process_id").is_in(warm.implode(), nulls_equal=True)
    numbered = launches.select(*THREAD, "call_start", "call_end").with_row_index("at")
    seen = loading_seen(report).select(*THREAD, loaded="start")
    late = nearest(numbered, seen, ("call_end", "loaded"), THREAD).drop_nulls("loaded")
    late = late.filter(~began[late.get_column("at")])
    if late.is_empty():
        return began
    before = nearest_launches(report, late.select(*THREAD, at="call_start"), "call_start").to_series()
    loads = late.filter(before.is_null() | (late.get_column("loaded") >= before))
    return began.scatter(loads.get_column("at"), True)  # noqa: FBT003 - polars has no name for it


#: Calls that set memory. Those without an operation are of 0 bytes if four of five return in less than this part of the
#: time of any other of their process that set some, and than it takes to start an operation; or, where none did, in
#: less time than a launch takes at all. Single ones may take as long as starting one does.
_SETTING: Final = re.compile(r"(?:cuda|cu)Memset")
_NOTHING: Final = 0.75
_NOTHING_NS: Final = 2500
_NO_LAUNCH_NS: Final = 1000
_STARTING_NS: Final = 3000


def unused_launches(report: Report) -> pl.DataFrame:
    """Launching calls that no operation refers to: columns dur_ns and captured (inside a capture on their thread).

    Of calls with one correlation id, such as those of two interfaces inside each other, one is referred to for all.
    Calls that set 0 bytes, as libraries make them, launch nothing, and are not among them.
    """
    key = ["process_id", "correlation_id"]
    calls = report.kind("api").select("name", *key, "thread_id", "start_ns", "dur_ns")
    lost = calls.select(pl.col("name").is_in(names_that(report, is_launch_name)).fill_null(value=False)).to_series()
    used = launching_rows(report)
    unused = calls.filter(lost.scatter(used, False))  # noqa: FBT003 - polars has no name for it
    if unused.height:
        unused = unused.join(calls.select(pl.col(key).gather(used)), on=key, how="anti").sort("start_ns")
        setting = pl.col("name").is_in(names_that(report, _SETTING.match))
        shortest = rows_at(calls, used).filter(setting).group_by("process_id", "name").agg(least=pl.col("dur_ns").min())
        unused = unused.join(shortest, on=["process_id", "name"], how="left", nulls_equal=True, maintain_order="left")
        usual = pl.col("dur_ns").quantile(0.8, "higher").over("process_id", "name")
        bound = pl.min_horizontal((_NOTHING * pl.col("least")).fill_null(_NO_LAUNCH_NS), _NOTHING_NS)
        nothing = (usual < bound) & (pl.col("dur_ns") < _STARTING_NS) & setting
        unused = unused.filter(~nothing)
    spans = captures(report).select("process_id", "thread_id", "end", start_ns="start").sort("start_ns")
    last = unused.join_asof(spans, on="start_ns", by=["process_id", "thread_id"], check_sortedness=False)
    return last.select("dur_ns", captured=(pl.col("start_ns") < pl.col("end")).fill_null(value=False))
