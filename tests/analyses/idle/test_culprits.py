"""Culprits: the ledger's idle time by name, bucket by bucket, then against a model that goes instant by instant."""

import re
from collections import Counter

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.idle.culprits import BY_FUNCTION, NODES, culprits, waiting_host, waiting_trees
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import LAUNCH, host, kernel, launched, report, timeline
from support.command import REPORTS
from support.large import in_batches
from support.shares import cases, holds
from support.slow_frames import SlowFrames, frame_reports
from support.slow_gaps import SlowGaps, gap_reports
from support.strategies import WINDOWS, few_given, slow_given

#: Idle time by block: what it shows; its events; and after = the culprits of GPU 0, with their ranges and time.
CULPRITS = """
calls and overheads go by their names and ranges
    0-40 [load]; 0-10 cuModuleLoadData; 10-13 !CUPTI buffer flush; 20-60 cudaMalloc_v3020
    60-70 cudaStreamSynchronize_v3020; 75-80 cudaLaunchKernel_v7000 #1; 80-90 kernel #1
    = profiler CUPTI buffer flush [load] 3; loading cuModuleLoadData [load] 10; allocation cudaMalloc 20
      allocation cudaMalloc [load] 20; launch k 5; sync cudaStreamSynchronize 10; host load [load] 7
      host between cudaStreamSynchronize and cudaLaunchKernel 5

host without a range goes by the calls around it
    0-2 cudaGetDevice; 5-10 cudaLaunchKernel_v7000 #1; 10-20 kernel #1; 30-32 cudaMemcpyAsync_v3020
    40-45 cudaLaunchKernel_v7000 #2; 45-50 kernel #2; 80-90 kernel s8
    = launch k 10; api cudaGetDevice 2; api cudaMemcpyAsync 2; host after cudaLaunchKernel 30
      host between cudaLaunchKernel and cudaMemcpyAsync 10; host between cudaMemcpyAsync and cudaLaunchKernel 8
      host between cudaGetDevice and cudaLaunchKernel 3

queued behind another stream
    0-5 cudaLaunchKernel_v7000 #1; 5-50 kernel:first #1; 10-15 cudaLaunchKernel_v7000 #2; 60-70 kernel #2 s8
    = launch first 5; queued after first on stream 7 10

queued behind another process
    0-50 kernel:other p2; 10-15 cudaLaunchKernel_v7000 #1; 60-70 kernel #1
    = queued after other of process 2 10
"""


def named(of):
    """Bucket, culprit, range and time of each row, as written above."""
    rows = culprits(of.narrow(device=0)).select("bucket", "culprit", "range", "ns").rows()
    return [
        " ".join([bucket, *([culprit] if culprit else []), *([f"[{range_}]"] if range_ else []), str(ns)])
        for bucket, culprit, range_, ns in rows
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("block", CULPRITS.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_each_bucket_by_its_name(block):
    events, _, expected = block.partition("\n")[2].partition("\n    = ")
    rows = named(report(timeline(events)))
    times = [int(row.rpartition(" ")[2]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert sorted(rows) == sorted(re.split(r"; |;?\n\s+", expected))


@slow_given(
    st.tuples(st.just(SlowGaps), gap_reports()) | st.tuples(st.just(SlowFrames), frame_reports()),
    *(WINDOWS, st.sampled_from([1, 2, 3, 1_000])),
)
def test_culprits_equal_the_model(made, window, batch):
    model, (events, records) = made
    narrowed = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = culprits(narrowed)
    keys = ("device", "bucket", "culprit", "range")
    got = {row[:4]: row[4:] for row in found.select(*keys, "ns", "gaps", "longest_ns").iter_rows()}
    assert len(got) == found.height
    assert got == model(events, window, records).culprits()


#: The device is idle from 20 on, and the thread in no CUDA call until 120.
WAITING = (*launched(0, 10, kernel(10, 20), LAUNCH), *launched(120, 130, kernel(130, 140), LAUNCH))
KINDS = ("kernel", "api", "osrt")
LIBC = "/usr/lib/libc.so.6"


def moment(time, *, runs, cpu=0, thread=1, process=1):
    return {"time_ns": time, "process_id": process, "thread_id": thread, "cpu": cpu, "runs": runs}


def sample(time, stack, thread=1):
    return {"time_ns": time, "process_id": 1, "thread_id": thread, "stack_id": stack}


def frame(stack, depth, function, module="/home/me/app", line=None):
    return {"stack_id": stack, "depth": depth, "function": function, "module": module, "line": line}


def functions(*events, **tables):
    """Time by function, with its state, chain, evidence and samples."""
    found = culprits(report((*WAITING, *events), **tables), by="function")
    assert dict(found.schema) == BY_FUNCTION.schema
    names = ("function", "state", "chain", "evidence", "samples", "ns")
    return found.select(names).rows()


def test_each_sample_stands_for_the_time_between_samples():
    """Ten samples of a thread that runs: those where the device waits tell, and what they do not is null."""
    samples = [sample(time, 1 if time < 70 else 2) for time in range(0, 160, 16)]
    frames = [frame(1, 0, "memcpy", LIBC), frame(1, 1, "load"), frame(1, 2, "main"), frame(2, 0, "pack")]
    assert functions(scheduling=[moment(0, runs=True)], cpu_samples=samples, stack_frames=frames) == [
        ("load", "running", "main > load", "cpu samples", 3, 48),
        ("pack", "running", "pack", "cpu samples", 3, 48),
        (None, "running", None, "none", 0, 4),
    ]


def test_a_blocked_call_is_told_by_its_stack_and_a_library_by_itself_where_nothing_is_the_programs_own():
    frames = [frame(5, 0, "__lll_lock_wait", LIBC), frame(5, 1, "update"), frame(5, 2, "main")]
    frames += [frame(6, 0, "poll", LIBC)]
    events = (host("osrt", "pthread_mutex_lock", 30, 80), host("osrt", "poll", 90, 95))
    stacks = [{"event_id": 4, "stack_id": 5}, {"event_id": 5, "stack_id": 6}]
    found = functions(*events, call_stacks=stacks, stack_frames=frames)
    wanted = [("update", "blocked", "main > update", "call stack", 0, 50), (None, "unknown", None, "none", 0, 45)]
    assert found[:2] == wanted
    assert found[2] == ("poll", "system call", None, "call stack", 0, 5)


def test_what_waits_in_a_dataloader_waits_for_a_worker():
    moments = [moment(0, runs=True), moment(30, runs=False), moment(110, runs=True)]
    python = [{**sample(time, 8), "periodic": True, "state": None} for time in range(25, 120, 10)]
    frames = [frame(8, 0, "get", "/x/site-packages/torch/utils/data/dataloader.py", 3)]
    frames += [frame(8, 1, "main", "/home/me/train.py", 3)]
    events = (*WAITING, host("osrt", "poll", 29, 111))
    made = report(events, scheduling=moments, python_samples=python, stack_frames=frames)
    found = culprits(made, by="state").row(0, named=True)
    shown = (found["state"], found["waits_on"], found["call"], found["ns"])
    assert shown == ("blocked", "DataLoader worker", "poll", 80)


@pytest.mark.parametrize(("taken", "state"), [(50, "runnable"), (49, "off processor")])
def test_a_thread_is_ready_where_another_one_has_its_processor_for_half_of_the_time(taken, state):
    moments = [moment(0, runs=True), moment(20, runs=False), moment(30, runs=True, thread=2)]
    moments += [moment(30 + taken, runs=False, thread=2), moment(120, runs=True)]
    assert [row[1] for row in functions(scheduling=moments)] == [state]


def test_it_cannot_be_told_without_samples_scheduler_and_system_calls():
    with pytest.raises(CannotTellError) as raised:
        culprits(report(WAITING), by="function")
    assert "--sample=process-tree" in str(raised.value.remedy)


MOMENTS = st.lists(
    st.tuples(st.integers(-5, 150), st.booleans(), st.integers(0, 1), st.integers(1, 2)), max_size=14
).map(lambda rows: [moment(time, runs=runs, cpu=cpu, thread=thread) for time, runs, cpu, thread in sorted(rows)])
CALLS = st.lists(
    st.tuples(st.integers(0, 140), st.integers(1, 60), st.sampled_from(["read", "usleep", "pthread_mutex_lock"])),
    max_size=5,
).map(lambda rows: [host("osrt", name, start, start + dur) for start, dur, name in rows])
SAMPLES = st.lists(st.tuples(st.integers(0, 140), st.integers(1, 4)), max_size=12, unique_by=lambda one: one[0])


@cases(0.1)
@few_given(MOMENTS, CALLS, SAMPLES, st.booleans())
def test_the_parts_sum_to_the_bucket(moments, calls, samples, python):
    """Whatever the samples are; and time that is told has samples, or a stack of a call."""
    rows = [sample(time, stack) for time, stack in sorted(samples)]
    tables = {"python_samples": [{**row, "periodic": True} for row in rows]} if python else {"cpu_samples": rows}
    frames = [frame(stack, 0, f"f{stack}") for stack in (1, 2)]
    made = report((*calls, *WAITING), kinds=KINDS, scheduling=moments, stack_frames=frames, **tables)
    whole = culprits(made).filter(bucket="host").get_column("ns").sum()
    for by in ("state", "function"):
        found = culprits(made, by=by)
        assert found.get_column("ns").sum() == whole
        assert found.get_column("ns").min() > 0
        assert found.get_column("host_share").sum() == pytest.approx(1)
    told = found.filter(pl.col("function").is_not_null())
    assert not told.height or rows
    holds(told.height > 0)


def test_a_trace_tells_functions_by_its_python_frames():
    """They sum to the bucket; what is in no function of the program goes by its own name."""
    report = kanalyze.read(REPORTS / "torch" / "with_modules.json.gz")
    found = culprits(report, by="function")
    assert dict(found.schema) == BY_FUNCTION.schema
    host_ns = culprits(report).filter(bucket="host").get_column("ns").sum()
    assert found.get_column("ns").sum() == host_ns > 0
    assert found.get_column("evidence").unique().to_list() == ["trace"]
    files = found.get_column("module").drop_nulls()
    assert len(files)
    assert files.str.ends_with(".py").all()
    with pytest.raises(CannotTellError):
        culprits(report, by="state")


def paths(tree):
    """Time of each node by its path, and the number of samples."""
    assert dict(tree.schema) == NODES
    known = {}

    def path(row):
        parent, name = tree.item(row, "parent"), tree.item(row, "name")
        return (*(path(parent) if parent is not None else ()), name)

    for row, ns in enumerate(tree.get_column("ns")):
        assert path(row) not in known
        known[path(row)] = ns
    return known


def inside(times, path):
    """The time of all nodes right below one, by the times of all paths."""
    return sum(ns for (*outer, _), ns in times.items() if tuple(outer) == path)


def test_functions_without_a_symbol_are_one_and_small_nodes_a_rest():
    samples = [sample(time, 1 if time < 110 else 2) for time in range(22, 120, 10)]
    frames = [frame(1, depth, None, "/usr/lib/libcuda.so.1") for depth in range(3)] + [frame(1, 3, "main")]
    frames += [frame(2, 0, "step", "/home/me/train.py", 4)]
    made = report(WAITING, kinds=KINDS, cpu_samples=samples, stack_frames=frames, scheduling=[moment(0, runs=True)])
    (tree,) = waiting_trees(made, 0.2).values()
    assert paths(tree) == {
        ("main in app",): 90,
        ("main in app", "? in libcuda.so.1"): 90,
        ("main in app", "? in libcuda.so.1", "running"): 90,
        (None,): 10,
    }
    assert tree.filter(kind="rest").select("ns", "nodes", "count").row(0) == (10, 1, 1)


STACKS = st.dictionaries(
    st.integers(1, 3), st.lists(st.sampled_from(["a", "b", None]), min_size=0, max_size=4), min_size=1
)
STACKED_CALLS = st.lists(st.tuples(st.integers(0, 130), st.integers(1, 30), st.integers(0, 4)), max_size=4)


@cases(0.2)
@few_given(STACKS, SAMPLES, STACKED_CALLS)
def test_the_tree_of_stacks_is_that_of_the_slow_model(stacks, samples, calls):
    frames = [frame(stack, depth, name) for stack, names in stacks.items() for depth, name in enumerate(names)]
    events = [*WAITING, *(host("osrt", "read", start, start + dur) for start, dur, _ in calls)]
    taken = [{"event_id": len(WAITING) + at, "stack_id": stack} for at, (*_, stack) in enumerate(calls) if stack]
    tables = {"cpu_samples": [sample(*one) for one in sorted(samples)], "call_stacks": taken, "stack_frames": frames}
    made = report(events, kinds=KINDS, **tables)
    if not frames:
        return
    expected, told = Counter(), False
    for part in waiting_host(made).iter_rows(named=True):
        names = [f"{name or '?'} in app" for name in reversed(stacks.get(part["stack_id"], []))]
        told |= bool(names)
        names = [name for at, name in enumerate(names) if at == 0 or name[0] != "?" or name != names[at - 1]]
        names = names or ["not sampled" if part["evidence"] == "none" else "sampled without a stack"]
        names.append(f"{part['state']} {part['call']}" if part["call"] else part["state"])
        for depth in range(len(names)):
            expected[*names[: depth + 1]] += part["ns"]
    found = waiting_trees(made, 0)
    assert bool(found) == told
    holds(told)
    if told:
        assert paths(found[0]) == expected
        large = paths(waiting_trees(made, 0.4)[0])
        for path in [(), *(path for path in large if path[-1])]:  # small nodes are a rest of the same time
            assert inside(large, path) == inside(expected, path)
        assert inside(expected, ()) == 100


@st.composite
def nested(draw, low=0, high=140, depth=0):
    """Events of one thread inside each other: kind, name, start, end."""
    found = []
    while low < high - 1 and depth < 4 and draw(st.booleans()):
        start = draw(st.integers(low, high - 1))
        end = draw(st.integers(start + 1, high))
        kind = draw(st.sampled_from(["op", "python", "range"]))
        found.append((kind, f"{kind} {draw(st.sampled_from('abc'))}{depth}", start, end))
        found += draw(nested(start, end - 1, depth + 1))  # equal times nest by kind
        low = end
    return found


@cases(0.2)
@few_given(nested())
def test_the_tree_of_a_trace_is_that_of_the_slow_model(events):
    made = report((*WAITING, *(host(*one) for one in events)), kinds=("kernel", "api", "op"))
    expected = Counter()
    for time in range(20, 120):
        around = tuple(name for _, name, start, end in events if start <= time < end)
        for depth in range(len(around)):
            expected[around[: depth + 1]] += 1
        expected["in no operator or function",] += not around
    found = waiting_trees(made, 0)
    holds(bool(found))
    assert bool(found) == any(start < 120 and end > 20 for *_, start, end in events)
    if found:
        assert paths(found[0]) == +expected
