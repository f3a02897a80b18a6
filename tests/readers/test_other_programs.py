"""Files of other programs are refused with the program's name and a way round, whatever their own name is."""

import gzip
import json
import pickle
import sqlite3
from contextlib import closing

import pytest

import kanalyze
from kanalyze.errors import UnknownFormatError
from support.command import refused, run


def database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in statements:
            made.execute(statement)
        return made.serialize()


KERNEL = {"cat": "kernel", "name": "k", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 7}
PROTON = {"displayTimeUnit": "us", "traceEvents": [{"args": {"call_stack": ["ROOT", "k"]}, **KERNEL}]}
HATCHET = [{"children": [], "frame": {"name": "ROOT", "type": "function"}, "metrics": {"count": 0}}, {"CUDA": {}}]
INSPECTOR = {"header": {"id": "0x7f", "rank": 2}, "metadata": {"inspector_output_format_version": "v4.0"}}
RECORDER = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
AGENTS = b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n"KERNEL_DISPATCH","Agent 4",1,"k"\n'

FILES = {
    "rocpd": (database("CREATE TABLE `rocpd_string_0a` (id INTEGER)"), "rocprofv3"),
    "rocpd views": (database("CREATE TABLE a (b)", 'CREATE TABLE "rocpd_metadata" (id)'), "rocprofv3"),
    "results": (json.dumps({"rocprofiler-sdk-tool": [{"metadata": {}}]}).encode(), "rocprofv3"),
    "kernel_trace": (AGENTS, "rocprofv3"),
    "hip_api_trace": (b'"Domain","Function","Process_Id"\n"HIP","hipMalloc",1\n', "rocprofv3"),
    "snapshot": (pickle.dumps({"segments": [], "device_traces": [[]], "allocator_settings": {}}), "memory snapshot"),
    "recorder": (pickle.dumps(RECORDER), "flight recorder"),
    "recorder as JSON": (json.dumps(RECORDER).encode(), "flight recorder"),
    "inspector": (json.dumps(INSPECTOR).encode() + b"\n" + json.dumps(INSPECTOR).encode(), "NCCL inspector"),
    "hatchet": (json.dumps(HATCHET).encode(), "Proton"),
    "hatchet indented": (json.dumps(HATCHET, indent=2).encode(), "Proton"),
    "chrome trace": (json.dumps(PROTON, separators=(",", ":")).encode(), "Proton"),
    "xplane": (b"\n\x40\x12\x09/host:CPU\x1a\x02ab", "JAX or XLA"),
    "xplane of a GPU": (b"\n\x8a\x08\x08\x01\x12\x0d/device:GPU:0\x1a\x02ab", "JAX or XLA"),
    "pftrace": (b"\n\x0e\x50\x01\xe2\x03\x06\x08\x01\x12\x02ab", "Perfetto"),
    "pftrace with a clock": (b"\n\x10\x40\x80\x01\x50\x01\x58\x01", "Perfetto"),
    "chakra": (b"\x07\n\x050.0.4\x20\x08\x01\x12\x04name", "Chakra"),
    "chakra as JSON": (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "Chakra"),
    "stats": (b"Time (%),Total Time (ns),Instances,Avg (ns)\n99.9,1,1,1\n", "nsys stats"),
    "stats trace": (b"Start (ns),Duration (ns),CorrId\n1,2,3\n", "nsys stats"),
}


@pytest.mark.parametrize("name", ["file", "file.json", "file.sqlite", "file.csv", "file.pb"])
@pytest.mark.parametrize(("data", "program"), FILES.values(), ids=FILES)
def test_the_program_and_a_way_round_are_named(tmp_path, data, program, name):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnknownFormatError, match=program) as told:
        kanalyze.read(path)
    assert told.value.remedy.endswith(".")


def test_a_compressed_one_is_told_too(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(PROTON).encode()))
    with pytest.raises(UnknownFormatError, match="Proton"):
        kanalyze.read(tmp_path / "a.json.gz")


def test_a_name_alone_tells_nothing(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(b"nothing of Perfetto")
    with pytest.raises(UnknownFormatError, match="unknown format"):
        kanalyze.read(tmp_path / "a.pftrace")


def x(cat, name="work", **more):
    event = {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 10, "dur": 5, **more}
    return event if cat is None else {**event, "cat": cat}


def process(name):
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}}


OTHERS = {
    "browser": ([x("devtools.timeline,rail"), x("v8")], {}, "a trace of a web browser", "torch.profiler"),
    "nsys": ([x("cuda", "gemm"), x("nvtx", "step")], {}, "report of Nsight Systems", "nsys export"),
    "viztracer": ([x("FEE", "main")], {"viztracer_metadata": {"version": "1.0"}}, "VizTracer", "nsys profile"),
    "xla": ([process("/device:GPU:0 (pid 701)"), x(None, "fusion.3")], {}, "XLA", "nsys profile"),
    "tensorflow": ([process("/host:CPU"), x(None, "MatMul")], {}, "TensorFlow", "nsys profile"),
    "compile": ([x("dynamo_timed", ph="B"), x("dynamo_timed", ph="E")], {}, "torch.compile", "torch.profiler"),
    "onnx": ([x("Session", "model_run"), x("Node"), x("Kernel", "gemm")], {}, "ONNX", "nsys profile"),
    "paddle": ([x("Operator"), x("Kernel")], {"schemaVersion": "1.0.0", "span_indx": "0"}, "Paddle", "nsys"),
    "rocprof": ([{}, process("COPY")], {"otherData": {"CMD": "rocminfo"}}, "rocprof", "torch.profiler"),
    "perfetto": ([x("rendering"), x("gfx")], {}, "categories 'gfx', 'rendering'", "torch.profiler"),
    "own": ([x(None, "read"), x(None, "write")], {}, "whose events have no categories", "torch.profiler"),
    "async": ([{"ph": "b", "cat": "async", "name": "load", "id": 1, "pid": 1, "ts": 1}, x("ui")], {}, "'ui'", "torch"),
    "hostile": ([x("\x1b]0;owned\x07")], {}, "categories '?]0;owned?'", "torch.profiler"),
}


@pytest.fixture(params=[False, True], ids=["object", "compressed"])
def written(tmp_path, request):
    def write(events, properties):
        text = json.dumps({**properties, "traceEvents": events}).encode()
        path = tmp_path / ("trace.json.gz" if request.param else "trace.json")
        path.write_bytes(gzip.compress(text) if request.param else text)
        return path

    return write


@pytest.mark.parametrize(("events", "properties", "what", "remedy"), OTHERS.values(), ids=OTHERS)
def test_another_program_s_trace_is_refused_with_what_it_is(written, events, properties, what, remedy):
    path = written(events, properties)
    for command in (("summarize",), ("show", "kernels"), ("show", "health"), ("show", "tree")):
        told, advice = refused(run(*command, path))
        assert told.startswith(f"{path}: ")
        assert what in told
        assert told.endswith("not a report that kanalyze reads.")
        assert remedy in advice
        assert advice.endswith("[unknown-format]")


OF_TORCH = {
    "operators alone": ([x("cpu_op", "aten::mm")], {}),
    "a kernel alone": ([x("kernel", "gemm")], {}),
    "operators among others' events": ([x("cpu_op", "aten::mm"), x("devtools.timeline"), x("FEE")], {}),
    "calls of MTIA": ([x("mtia_runtime", "runFunction")], {}),
    "calls of another device": ([x("privateuse1_runtime", "aclLaunch")], {}),
    "of the first profilers": ([x(None, "mm", pid="CPU functions")], {}),
    "of torch 1.8": ([x("Operator", "aten::mm"), x("Runtime", "cudaLaunchKernel"), x("Kernel", "gemm")], {}),
    "allocations of torch 1.9": ([{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {}}], {}),
    "nothing but what is unknown, with a property": ([x("hpu_gaudi")], {"deviceProperties": []}),
    "no events": ([], {"schemaVersion": 1}),
    "no events and no properties": ([], {}),
    "names alone": ([process("python")], {}),
}


@pytest.mark.parametrize(("events", "properties"), OF_TORCH.values(), ids=OF_TORCH)
def test_what_may_be_torch_s_is_read(written, events, properties):
    assert kanalyze.read(written(events, properties)).meta.tool == "torch.profiler"
