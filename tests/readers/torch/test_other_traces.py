"""Chrome traces of other programs than torch.profiler are refused; no trace of torch's profilers is."""

import gzip
import json

import pytest

import kanalyze
from support.command import refused, run


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
    for command in (("summarize",), ("show", "kernels"), ("show", "health"), ("tree",)):
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
