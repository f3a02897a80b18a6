"""What PyTorch 2.15 writes of GPUs beside its events: sampled counters, nodes and arrows of CUDA graphs."""

import json
import random

import kanalyze
from support.made_traces import report_of

CALL = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 9, "tid": 9, "ts": 1.0, "dur": 2.0}
ON = {"device": 0, "stream": 7, "context": 1, "correlation": 5}
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.0, "dur": 30.0, "args": ON}
NODE = {**KERNEL, "cat": "graph_host_node", "name": "HostNode: f", "ts": 50.0, "dur": 1.0}
ARROW = {"cat": "graph_dep", "name": "graph_dep", "id": 1 << 40, "pid": 0, "tid": 7}
SORTED = {"ph": "M", "name": "process_sort_index", "pid": "GPU 0 Counters", "tid": 0, "args": {"sort_index": 100}}


def sample(name, ts, value, device=0):
    return {"ph": "C", "name": name, "pid": f"GPU {device} Counters", "ts": ts, "args": {"": value}}


SAMPLES = [
    *(sample("SM Active (%)", 2.0 * step, 60.0) for step in range(30)),
    *(sample("SM Clock (MHz)", 20.0 * step, 1500.0) for step in range(3)),
    sample("Power (W)", 5.0, 200.5, device=1),
    sample("Cycles (Current Kernel)", 10.0, 4500),
]
EVENTS = [
    {**CALL, "args": {"correlation": 5}},
    KERNEL,
    NODE,
    {**NODE, "cat": "graph_event_node", "name": "EventRecord"},
    {**ARROW, "ph": "s", "ts": 40.0},
    {**ARROW, "ph": "f", "ts": 50.0, "bp": "e"},
    SORTED,
    *SAMPLES,
]


def read(folder, events):
    return report_of(folder, json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_counters_are_those_of_gpu_metrics(tmp_path):
    found = read(tmp_path, EVENTS).table("gpu_metrics")
    assert sorted(found.select("device", "metric", "unit", "value").unique().rows()) == [
        (0, "Cycles (Current Kernel)", "", 4500.0),
        (0, "SM Active", "%", 60.0),
        (0, "SM Clock", "MHz", 1.5e9),
        (1, "Power", "W", 200.5),
    ]
    active = found.filter(metric="SM Active")
    assert active.select("start_ns", "dur_ns", "samples").rows()[:2] == [(0, 2000, 1), (2000, 2000, 1)]


def test_a_kernel_has_the_means_of_its_samples(tmp_path):
    row = kanalyze.gpu_units(read(tmp_path, EVENTS)).row(0, named=True)
    assert (row["name"], row["sms_active_share"], row["sm_clock_hz"]) == ("k", 0.6, 1.5e9)


def test_none_of_it_is_a_doubt(tmp_path):
    checks = {row["check"]: row for row in kanalyze.health(read(tmp_path, EVENTS)).to_dicts()}
    assert not [check for check in checks if "categor" in check]
    for check, count in {
        "samples of counters of GPUs": len(SAMPLES),
        "nodes of CUDA graphs that are no work": 2,
        "arrows between events": 2,
    }.items():
        assert (checks[check]["count"], checks[check]["doubt"]) == (count, False)


def test_a_counter_of_anything_else_stays_a_doubt(tmp_path):
    other = {**SAMPLES[0], "pid": "Program"}
    checks = {row["check"]: row for row in kanalyze.health(read(tmp_path, [*EVENTS, other])).to_dicts()}
    assert checks["events without a category"]["doubt"]


def test_the_order_of_events_tells_nothing(tmp_path):
    shuffled = random.Random(3).sample(EVENTS, len(EVENTS))  # noqa: S311 - of a test
    one, other = read(tmp_path, EVENTS), read(tmp_path, shuffled)
    for table in (kanalyze.gpu_units, kanalyze.kernels, kanalyze.ledger):
        assert table(one).equals(table(other))
    assert one.table("gpu_metrics").equals(other.table("gpu_metrics"))


def test_copies_have_their_direction_in_their_arguments(tmp_path):
    kinds = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device", "bytes": 8}
    copy = {**KERNEL, "cat": "gpu_memcpy", "name": "Memcpy", "args": {**ON, **kinds}}
    old = {**copy, "name": "Memcpy DtoH (Device -> Pinned)", "args": ON, "ts": 90.0}
    found = read(tmp_path, [copy, old])
    assert found.kind("memcpy").get_column("name").to_list() == [
        "[CUDA memcpy Host-to-Device]",
        "[CUDA memcpy Device-to-Host]",
    ]
    memory = found.table("copy_detail").select("direction", "source_memory", "target_memory").rows()
    assert memory == [("Host-to-Device", "Pageable", "Device"), ("Device-to-Host", "Device", "Pinned")]
