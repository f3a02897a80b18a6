"""HIP: the same program in HIP's names and in CUDA's gives the same figures, in words of its own."""

import re
import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.host._call_kinds import bucket_of, cuda_name, interface, is_launch_name
from kanalyze.analyses.idle.syncs import scope_of
from kanalyze.analyses.page.time_page import summarize
from kanalyze.errors import CannotTellError
from kanalyze.renderers.page.time import page_of
from kanalyze.tools import HIP, RUNTIME, amd_target, is_amd, worded
from support.build import call, kernel, report
from support.command import SAMPLES
from support.made_traces import report_of, trace as text_of
from support.real_reports import real_report

#: What HIP calls a CUDA call, where that is not the name with hip for cuda or cu.
IRREGULAR = {
    "cuLaunchKernel": "hipModuleLaunchKernel", "cuLaunchKernelEx": "hipDrvLaunchKernelEx",
    "cuLaunchCooperativeKernel": "hipModuleLaunchCooperativeKernel", "cudaMallocHost": "hipHostMalloc",
    "cudaHostAlloc": "hipHostAlloc", "cudaFreeHost": "hipHostFree", "cudaThreadSynchronize": "hipDeviceSynchronize",
    "cuMemAlloc": "hipMalloc", "cuMemFree": "hipFree", "cudaGetDriverEntryPoint": "hipGetProcAddress",
}  # fmt: skip

#: Calls by their bucket.
BUCKETS = {
    "allocation": (
        "hipFree hipMalloc hipMallocAsync hipFreeAsync hipExtMallocWithFlags hipHostMalloc hipHostFree "
        "hipHostRegister hipHostUnregister hipMemPoolCreate hipMemCreate hipMemAddressReserve hipArrayDestroy "
        "hipMallocManaged"
    ),
    "sync": (
        "hipDeviceSynchronize hipStreamSynchronize hipStreamSynchronize_spt hipEventSynchronize hipCtxSynchronize "
        "hipMemcpy hipMemcpyWithStream hipMemcpyDtoH hipMemcpy2D hipMemcpyToSymbol hipDrvMemcpy3D"
    ),
    "loading": (
        "hipModuleLoad hipModuleLoadData hipModuleLoadDataEx hipModuleGetFunction hipModuleGetGlobal "
        "hipLibraryLoadData hipLinkComplete hipCtxCreate hipDevicePrimaryCtxRetain hiprtcCompileProgram"
    ),
    "api": (
        "hipLaunchKernel hipGraphLaunch hipMemcpyAsync hipMemcpyDtoHAsync hipMemcpyHtoDAsync hipMemsetAsync "
        "hipGetDevicePropertiesR0600 hipPointerGetAttribute hipEventRecord hipModuleUnload hip hippo"
    ),
}

LAUNCHES = (
    "hipLaunchKernel hipLaunchKernelExC hipLaunchCooperativeKernel hipExtLaunchKernel hipModuleLaunchKernel "
    "hipExtModuleLaunchKernel hipHccModuleLaunchKernel hipDrvLaunchKernelEx hipGraphLaunch hipMemcpyAsync "
    "hipMemcpyWithStream hipMemsetAsync"
)


def in_hip(name: str) -> str:
    """The HIP call that does what this CUDA call does; the version of its form stays."""
    whole = re.fullmatch(r"(cu(?:da)?(?=[A-Z])\w*?)((?:_v\d+)?)", name)
    if not whole:
        return name
    plain, version = whole.groups()
    return IRREGULAR.get(plain, re.sub(r"^cu(?:da)?", "hip", plain)) + version


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_hip_call_is_in_the_bucket_of_what_it_does(bucket):
    assert {name: bucket_of(name) for name in BUCKETS[bucket].split()} == dict.fromkeys(BUCKETS[bucket].split(), bucket)


def test_names_of_hip_and_of_cuda():
    assert all(map(is_launch_name, LAUNCHES.split()))
    assert not any(map(is_launch_name, ("hipLaunchHostFunc", "hipFuncGetAttributes", "hipModuleLoad")))
    waits = {f"hip{what.title()}Synchronize": what for what in ("device", "stream", "event")}
    waits |= {"hipMemcpyWithStream": "copy", "hipMemcpy": "copy", "hipFree": "free", "hipHostFree": "free"}
    waits |= {"hipFreeAsync": None, "hipMemcpyAsync": None}
    assert {name: scope_of(name) for name in waits} == waits
    names = ("cudaFree", "cuMemAlloc_v2", "cudaLaunchKernel_v7000", "hippo", "hip", "", "synchronizeStream")
    assert [cuda_name(name) for name in names] == list(names)


def trace(interface_name, gpu):
    """The same program in either interface: launches, frees, waits."""
    name = in_hip if interface_name == "hip" else str

    def host(call_name, start, length, **args):
        event = {"ph": "X", "cat": "cuda_runtime", "name": name(call_name), "pid": 1, "tid": 1}
        return event | {"ts": start, "dur": length, "args": args}

    def work(start, correlation):
        args = {"device": 0, "stream": 7, "correlation": correlation}
        return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start, "dur": 10, "args": args}

    events = [
        host("cudaLaunchKernel", 0, 5, correlation=1),
        work(10, 1),
        host("cudaFree", 20, 5000),
        host("cudaDeviceSynchronize", 5020, 3000),
        host("cudaLaunchKernel", 8030, 5, correlation=2),
        work(8040, 2),
    ]
    return events, {"schemaVersion": 1, "deviceProperties": [gpu]}


def read(folder, events, head):
    return report_of(folder, text_of(events, head=head))


AMD = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304, "warpSize": 64}
NVIDIA = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32}


def renamed(source, place):
    """A copy of an nsys export in which every call has HIP's name."""
    path = place / "hip.sqlite"
    shutil.copy(source, path)
    with closing(sqlite3.connect(path)) as database:
        used = "SELECT DISTINCT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        rows = database.execute(f"SELECT id, value FROM StringIds WHERE id IN ({used})").fetchall()
        database.executemany("UPDATE StringIds SET value = ? WHERE id = ?", [(in_hip(name), id_) for id_, name in rows])
        database.commit()
    assert any(in_hip(name) != name for _, name in rows)
    return kanalyze.read(path)


def told(frame):
    """Rows with the names of calls and the words of either interface in HIP's."""
    plain = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    return sorted(
        worded(re.sub(r"\bcu(?:da)?[A-Z]\w*", lambda found: in_hip(found[0]), repr(row)), HIP) for row in plain.rows()
    )


TABLES = ("ledger", "gaps", "syncs", "culprits", "cold", "graphs", "memory", "launches", "api", "copies")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("sample", ["add_parallel", "launch_bound_graph", "mlp_train"])
def test_a_recording_whose_calls_are_hips_gives_the_same_tables(sample, tmp_path):
    source = SAMPLES / sample / "nsys.sqlite"
    cuda, hip = real_report(source), renamed(source, tmp_path)
    assert interface(hip) == HIP
    compared = 0
    for name in TABLES:
        try:
            expected = told(getattr(kanalyze, name)(cuda))
        except CannotTellError:
            continue
        assert told(getattr(kanalyze, name)(hip)) == expected, name
        compared += bool(expected)
    assert compared >= 5
    told_of, other = kanalyze.findings(hip), kanalyze.findings(cuda)
    told_of, other = (rows.select("rule", "device", "at_stake_ns").rows() for rows in (told_of, other))
    assert told_of == other
    words = " ".join(kanalyze.findings(hip).select(pl.concat_str("sentence", "remedy")).to_series())
    assert not re.search(r"\bCUDA (?:call|graph|context)|\bSMs\b", words)


@pytest.mark.slow
def test_the_page_of_an_amd_gpu_speaks_of_its_units_and_of_hip(tmp_path):
    page = page_of(summarize(read(tmp_path, *trace("hip", AMD))), 8)
    assert "AMD Instinct MI300X, gfx942, 304 CUs" in page.heading
    assert "HIP CALLS" in [section.title for section in page.sections]
    effects = kanalyze.health(read(tmp_path, *trace("hip", AMD))).get_column("effect").drop_nulls()
    assert not any("CUDA" in text for text in effects)


def test_calls_of_another_interface_are_the_runtimes():
    of = report([call("runFunction", 0, 5, correlation=1), kernel(6, 9, correlation=1)])
    assert interface(of) == RUNTIME
    page = page_of(summarize(of), 8)
    assert "RUNTIME CALLS" in [section.title for section in page.sections]
    assert "CUDA" not in page.answer


@pytest.mark.parametrize(
    ("name", "version", "target"),
    [
        *((f"AMD Instinct MI2{model}", (9, 0), "gfx90a") for model in ("10", "50X", "50")),
        *(("AMD Instinct MI300X VF", (9, 4), "gfx942"), ("", (9, 4), "gfx942")),
        *(("AMD Instinct MI100", (9, 0), "gfx908"), ("AMD Instinct MI355X", (9, 5), "gfx950")),
        *(("AMD Radeon Graphics", (9, 0), None), ("AMD Radeon RX 7900 XTX", (11, 0), None)),
    ],
)
def test_targets_of_amd(name, version, target):
    assert amd_target(name, *version) == target
    assert is_amd(name, 64)


def test_an_amd_gpu_has_no_limits_of_nvidias(tmp_path):
    mi210 = AMD | {"name": "AMD Instinct MI210", "computeMinor": 0, "numSms": 104, "maxThreadsPerMultiProcessor": 2048}
    of = read(tmp_path, *trace("hip", mi210))
    assert of.devices.select("compute_capability", "max_blocks_per_sm").rows() == [("gfx90a", None)]


@pytest.mark.parametrize(
    ("text", "told_so"),
    [
        ("cudaHostAlloc once, then cudaMemcpyAsync to there", "hipHostMalloc once, then hipMemcpyAsync to there"),
        (
            "cudaMallocAsync, cudaStreamBeginCapture, cudaGraphLaunch",
            "hipMallocAsync, hipStreamBeginCapture, hipGraphLaunch",
        ),
        ("cudaStreamCreateWithFlags(…, cudaStreamNonBlocking)", "hipStreamCreateWithFlags(…, hipStreamNonBlocking)"),
        ("Making the CUDA context: no CUDA calls.", "Making the HIP context: no HIP calls."),
        (  # words of the program stay
            "Most in range my_SM_cudaFoo CUDA: 3 SMs, per SM, in no CUDA call, as CUDA graphs, cudaMemAdvise",
            "Most in range my_SM_cudaFoo CUDA: 3 CUs, per CU, in no HIP call, as HIP graphs, hipMemAdvise",
        ),
    ],
)
def test_what_to_do_in_the_words_of_hip(text, told_so):
    assert worded(text, HIP) == told_so


@pytest.mark.parametrize(
    ("launched_by", "grid", "blocks"),
    [
        # it takes work-items, the other calls blocks; Kineto writes down what the call took
        ("hipExtModuleLaunchKernel", [66560, 2, 1], 260),
        ("hipExtModuleLaunchKernel", [100, 1, 1], 1),
        ("hipModuleLaunchKernel", [66560, 2, 1], 66560),
    ],
)
def test_a_grid_in_work_items_is_told_in_blocks(tmp_path, launched_by, grid, blocks):
    events, head = trace("hip", AMD)
    events[0]["name"] = launched_by
    events[1]["args"] |= {"grid": grid, "block": [256, 1, 1]}
    assert read(tmp_path, events, head).kernel_config.item(0, "grid_x") == blocks


MIXED = [AMD, AMD | {"id": 1, "name": "AMD Instinct MI210", "numSms": 104}]


@pytest.mark.parametrize(
    ("gpus", "device", "row"),
    [
        # on a machine of two CPUs the first GPU is number 2 in events, and number 0 in the properties
        ([AMD], 2, (2, "AMD Instinct MI300X", 304)),
        ([AMD, AMD | {"id": 1}], 3, (3, "AMD Instinct MI300X", 304)),
        (MIXED, 3, (3, None, None)),
        (MIXED, 1, (1, "AMD Instinct MI210", 104)),
        ([NVIDIA], 2, (2, None, None)),
    ],
)
def test_rocms_numbers_of_processors_are_not_hips(tmp_path, gpus, device, row):
    events, head = trace("hip", AMD)
    for event in events:
        if event["cat"] == "kernel":
            event["args"] = event["args"] | {"device": device}
    devices = read(tmp_path, events, head | {"deviceProperties": gpus}).devices
    assert devices.select("device", "name", "sm_count").rows()[-1] == row


def test_copies_of_hip_are_called_so(tmp_path):
    def copies(name):
        events, head = trace(name, AMD)
        args = {"device": 0, "stream": 7, "correlation": 2, "bytes": 8}
        place = {"pid": 0, "tid": 7, "ts": 9000, "dur": 10, "args": args}
        copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Host -> Device)"} | place
        fill = {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)"} | place | {"ts": 9100}
        return kanalyze.copies(read(tmp_path, [*events, copy, fill], head)).get_column("operation").to_list()

    assert copies("hip") == ["[HIP memcpy Host-to-Device]", "[HIP memset]"]
    assert copies("cuda") == ["[CUDA memcpy Host-to-Device]", "[CUDA memset]"]
