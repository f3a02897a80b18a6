"""Host time while a device waited, as a tree: by hand, against slow models, and as the ledger of real reports."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.idle.culprits import NODES, waiting_host, waiting_trees
from kanalyze.analyses.idle.ledger import ledger
from support.build import host, kernel, launched, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report
from support.shares import cases, holds
from support.strategies import FEWER

#: The device is idle from 20 on, and the thread in no CUDA call until 120.
WAITING = (*launched(0, 10, kernel(10, 20, correlation=1)), *launched(120, 130, kernel(130, 140, correlation=2)))
KINDS = ("kernel", "api", "osrt")


def frame(stack, depth, function, module="/home/me/app", line=None):
    return {"stack_id": stack, "depth": depth, "function": function, "module": module, "line": line}


def sample(time, stack):
    return {"time_ns": time, "process_id": 1, "thread_id": 1, "stack_id": stack}


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


def test_stacks_lead_to_the_state_and_what_no_sample_covers_is_told():
    samples = [sample(time, 1 if time < 60 else 2) for time in range(22, 100, 10)]
    frames = [frame(1, 0, "memcpy", "/usr/lib/libc.so.6"), frame(1, 1, "load"), frame(1, 2, "main")]
    frames.append(frame(2, 0, "main"))
    events = (*WAITING, host("osrt", "usleep", 100, 120))
    moments = [{"time_ns": 0, "process_id": 1, "thread_id": 1, "cpu": 0, "runs": True}]
    made = report(events, kinds=KINDS, cpu_samples=samples, stack_frames=frames, scheduling=moments)
    (tree,) = waiting_trees(made, 0).values()
    assert paths(tree) == {
        ("main in app",): 80,
        ("main in app", "load in app"): 40,
        ("main in app", "load in app", "memcpy in libc.so.6"): 40,
        ("main in app", "load in app", "memcpy in libc.so.6", "running"): 40,
        ("main in app", "running"): 40,
        ("not sampled",): 20,
        ("not sampled", "system call usleep"): 20,
    }
    assert tree.filter(name="load in app").item(0, "count") == 4


def test_functions_without_a_symbol_are_one_and_small_nodes_a_rest():
    samples = [sample(time, 1 if time < 110 else 2) for time in range(22, 120, 10)]
    frames = [frame(1, depth, None, "/usr/lib/libcuda.so.1") for depth in range(3)] + [frame(1, 3, "main")]
    frames += [frame(2, 0, "step", "/home/me/train.py", 4)]
    moments = [{"time_ns": 0, "process_id": 1, "thread_id": 1, "cpu": 0, "runs": True}]
    made = report(WAITING, kinds=KINDS, cpu_samples=samples, stack_frames=frames, scheduling=moments)
    (tree,) = waiting_trees(made, 0.2).values()
    assert paths(tree) == {
        ("main in app",): 90,
        ("main in app", "? in libcuda.so.1"): 90,
        ("main in app", "? in libcuda.so.1", "running"): 90,
        (None,): 10,
    }
    assert tree.filter(kind="rest").select("ns", "nodes", "count").row(0) == (10, 1, 1)


def test_without_any_stack_there_is_no_tree():
    made = report((*WAITING, host("osrt", "usleep", 30, 50)), kinds=KINDS)
    assert waiting_trees(made, 0) == {}
    assert waiting_trees(report(WAITING, kinds=("kernel", "api")), 0) == {}


STACKS = st.dictionaries(
    st.integers(1, 3), st.lists(st.sampled_from(["a", "b", None]), min_size=0, max_size=4), min_size=1
)
SAMPLED = st.lists(st.tuples(st.integers(0, 140), st.integers(1, 4)), max_size=12, unique_by=lambda one: one[0])
CALLS = st.lists(st.tuples(st.integers(0, 130), st.integers(1, 30), st.integers(0, 4)), max_size=4)


@cases(0.2)
@FEWER
@given(STACKS, SAMPLED, CALLS)
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
        assert sum(ns for path, ns in paths(found[0]).items() if len(path) == 1) == 100


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
@FEWER
@given(nested())
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


@pytest.mark.parametrize(
    "path",
    [*sorted(REPORTS.glob("sampled_*.sqlite")), *sorted(REPORTS.glob("torch/*.gz")), *SAMPLES.glob("*/torch.json.gz")],
    ids=lambda path: path.parent.name + path.stem,
)
@pytest.mark.one_in(4)
def test_the_sums_of_real_reports_are_the_bucket_host(path):
    of = real_report(path)
    if not {"kernel", "memcpy"} & {*of.kinds}:
        pytest.skip("nothing ran on a device")
    whole = dict(ledger(of).filter(bucket="host").select("device", "ns").iter_rows())
    for device, tree in waiting_trees(of, 0.01).items():
        assert tree.filter(pl.col("parent").is_null()).get_column("ns").sum() == whole[device]
        inside = tree.group_by("parent").agg(pl.col("ns").sum()).drop_nulls()
        assert all(tree.item(parent, "ns") >= ns for parent, ns in inside.iter_rows())


def test_a_program_that_waits_for_a_lock_waits_in_the_function_that_takes_it():
    (tree,) = waiting_trees(kanalyze.read(REPORTS / "sampled_lock.sqlite"), 0.01).values()
    known = {path[-3:]: ns for path, ns in paths(tree).items()}
    blocked = "blocked in pthread_mutex_lock (lock)"
    assert known["update_table() in host", "__pthread_mutex_lock in libc.so.6", blocked] == pytest.approx(
        0.985 * 99_356_435, rel=0.02
    )
