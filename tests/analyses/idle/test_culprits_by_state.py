"""Host time while a device waited, by state and function: by hand, against a slow model, and on known programs."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.host._thread_timeline import STATES, states_of
from kanalyze.analyses.idle.culprits import BY_FUNCTION, BY_STATE, culprits
from kanalyze.errors import CannotTellError, UnknownNameError
from support.build import host, kernel, launched, report
from support.command import REPORTS
from support.shares import cases, holds
from support.strategies import FEWER

LAUNCH = "cudaLaunchKernel_v7000"

#: The device is idle from 20 on, and the thread in no CUDA call until 120.
WAITING = (
    *launched(0, 10, kernel(10, 20, correlation=1), LAUNCH),
    *launched(120, 130, kernel(130, 140, correlation=2), LAUNCH),
)


def moment(time, *, runs, cpu=0, thread=1, process=1):
    return {"time_ns": time, "process_id": process, "thread_id": thread, "cpu": cpu, "runs": runs}


def sample(time, stack, thread=1):
    return {"time_ns": time, "process_id": 1, "thread_id": thread, "stack_id": stack}


def frame(stack, depth, function, module="/home/me/app", line=None):
    return {"stack_id": stack, "depth": depth, "function": function, "module": module, "line": line}


def states(*events, **tables):
    """Time by state, call and what that waits for."""
    found = culprits(report((*WAITING, *events), **tables), by="state")
    assert dict(found.schema) == BY_STATE.schema
    return {(state, waits, name): ns for _, state, waits, name, ns, *_ in found.rows()}


def functions(*events, **tables):
    """Time by function, with its state, chain, evidence and samples."""
    found = culprits(report((*WAITING, *events), **tables), by="function")
    assert dict(found.schema) == BY_FUNCTION.schema
    names = ("function", "state", "chain", "evidence", "samples", "ns")
    return found.select(names).rows()


def test_a_thread_runs_or_is_off_the_processor():
    moments = [moment(0, runs=True), moment(50, runs=False), moment(60, runs=True)]
    assert states(scheduling=moments) == {("running", None, None): 90, ("off processor", None, None): 10}


def test_a_thread_whose_processor_others_have_is_runnable():
    mine = [moment(0, runs=True, cpu=3), moment(40, runs=False, cpu=3), moment(80, runs=True, cpu=3)]
    other = [moment(45, runs=True, cpu=3, thread=2), moment(65, runs=False, cpu=3, thread=2)]
    elsewhere = [moment(45, runs=True, cpu=4, thread=2), moment(65, runs=False, cpu=4, thread=2)]
    assert states(scheduling=mine + other)[("runnable", None, None)] == 40
    assert states(scheduling=mine + elsewhere)[("off processor", None, None)] == 40


def test_what_blocks_is_the_innermost_system_call():
    moments = [moment(0, runs=True), moment(35, runs=False), moment(75, runs=True)]
    waits = (host("osrt", "pthread_mutex_lock", 30, 80), host("osrt", "read", 40, 50))
    assert states(*waits, scheduling=moments) == {
        ("running", None, None): 50,
        ("system call", "lock", "pthread_mutex_lock"): 10,
        ("blocked", "lock", "pthread_mutex_lock"): 30,
        ("blocked", "file, pipe or socket", "read"): 10,
    }


def test_without_the_scheduler_only_calls_that_do_nothing_else_are_known_to_block():
    assert states(host("osrt", "usleep", 30, 50), host("osrt", "read", 60, 70)) == {
        ("unknown", None, None): 70,
        ("blocked", "sleep", "usleep"): 20,
        ("system call", "file, pipe or socket", "read"): 10,
    }


def test_each_sample_stands_for_the_time_between_samples():
    """Ten samples of a thread that runs: those where the device waits tell, and what they do not is null."""
    samples = [sample(time, 1 if time < 70 else 2) for time in range(0, 160, 16)]
    frames = [
        frame(1, 0, "memcpy", "/usr/lib/libc.so.6"),
        frame(1, 1, "load"),
        frame(1, 2, "main"),
        frame(2, 0, "pack"),
    ]
    found = functions(scheduling=[moment(0, runs=True)], cpu_samples=samples, stack_frames=frames)
    assert found == [
        ("load", "running", "main > load", "cpu samples", 3, 48),
        ("pack", "running", "pack", "cpu samples", 3, 48),
        (None, "running", None, "none", 0, 4),
    ]


def test_a_blocked_call_is_told_by_its_stack_and_a_library_by_itself_where_nothing_is_the_programs_own():
    frames = [frame(5, 0, "__lll_lock_wait", "/usr/lib/libc.so.6"), frame(5, 1, "update"), frame(5, 2, "main")]
    frames += [frame(6, 0, "poll", "/usr/lib/libc.so.6")]
    events = (host("osrt", "pthread_mutex_lock", 30, 80), host("osrt", "poll", 90, 95))
    stacks = [{"event_id": 4, "stack_id": 5}, {"event_id": 5, "stack_id": 6}]
    found = functions(*events, call_stacks=stacks, stack_frames=frames)
    assert found[:2] == [
        ("update", "blocked", "main > update", "call stack", 0, 50),
        (None, "unknown", None, "none", 0, 45),
    ]
    assert found[2] == ("poll", "system call", None, "call stack", 0, 5)


def test_a_python_stack_tells_of_the_time_around_it_whatever_the_state():
    """The sampler takes the interpreter's lock, so that its samples lie in short waits."""
    moments = [
        moment(0, runs=True),
        *(moment(at, runs=runs) for t in (40, 60, 80) for at, runs in ((t, False), (t + 1, True))),
    ]
    python = [
        {**sample(time, 9 if time < 70 else 8), "periodic": True, "state": "Running"} for time in (40, 60, 80, 100)
    ]
    frames = [frame(9, 0, "step", "/home/me/train.py", 12), frame(9, 1, "<module>", "/home/me/train.py", 30)]
    frames += [frame(8, 0, "get", "/x/site-packages/torch/utils/data/dataloader.py", 3)]
    frames += [frame(8, 1, "main", "/home/me/train.py", 3)]
    found = functions(scheduling=moments, python_samples=python, stack_frames=frames)
    assert found == [
        ("main", "running", "main", "python samples", 2, 49),
        ("step", "running", "<module> > step", "python samples", 2, 48),
        ("step", "off processor", "<module> > step", "python samples", 0, 2),
        ("main", "off processor", "main", "python samples", 0, 1),
    ]


def test_what_waits_in_a_dataloader_waits_for_a_worker():
    moments = [moment(0, runs=True), moment(30, runs=False), moment(110, runs=True)]
    python = [{**sample(time, 8), "periodic": True, "state": None} for time in range(25, 120, 10)]
    frames = [frame(8, 0, "get", "/x/site-packages/torch/utils/data/dataloader.py", 3)]
    frames += [frame(8, 1, "main", "/home/me/train.py", 3)]
    events = (*WAITING, host("osrt", "poll", 29, 111))
    made = report(events, scheduling=moments, python_samples=python, stack_frames=frames)
    found = culprits(made, by="state").row(0, named=True)
    assert (found["state"], found["waits_on"], found["call"], found["ns"]) == (
        "blocked",
        "DataLoader worker",
        "poll",
        80,
    )


def test_it_cannot_be_told_without_samples_scheduler_and_system_calls():
    with pytest.raises(CannotTellError) as raised:
        culprits(report(WAITING), by="function")
    assert "--sample=process-tree" in str(raised.value.remedy)
    with pytest.raises(UnknownNameError, match="thread"):
        culprits(report(WAITING), by="thread")


MOMENTS = st.lists(
    st.tuples(st.integers(-5, 150), st.booleans(), st.integers(0, 1), st.integers(1, 2)), max_size=14
).map(lambda rows: [moment(time, runs=runs, cpu=cpu, thread=thread) for time, runs, cpu, thread in sorted(rows)])
CALLS = st.lists(
    st.tuples(st.integers(0, 140), st.integers(1, 60), st.sampled_from(["read", "usleep", "pthread_mutex_lock"])),
    max_size=5,
).map(lambda rows: [host("osrt", name, start, start + dur) for start, dur, name in rows])


def slow_state(time, moments, calls):
    """State of thread 1 in the nanosecond from `time` on, and the place of its system call."""
    own = [one for one in moments if one["thread_id"] == 1 and one["time_ns"] <= time]
    inside = [(one.start, -one.end, at) for at, one in enumerate(calls) if one.start <= time < one.end]
    at = max(inside)[2] if inside else None
    runs = own[-1]["runs"] if own else None
    if at is not None:
        blocks = runs is False or (runs is None and calls[at].name != "read")
        return ("blocked" if blocks else "system call"), at
    if runs is None or runs:
        return ("unknown" if runs is None else "running"), None
    begun = own[-1]["time_ns"]
    later = [one["time_ns"] for one in moments if one["thread_id"] == 1 and one["time_ns"] > time]
    until = min(later, default=1 << 62)
    taken = sum(slow_runs(2, at, own[-1]["cpu"], moments) for at in range(begun, min(until, 400)))
    if until > 400:
        last = slow_runs(2, 399, own[-1]["cpu"], moments)
        return ("runnable" if last else "off processor"), None
    return ("runnable" if 2 * taken >= until - begun else "off processor"), None


def slow_runs(thread, time, cpu, moments):
    own = [one for one in moments if one["thread_id"] == thread and one["time_ns"] <= time]
    return bool(own and own[-1]["runs"] and own[-1]["cpu"] == cpu)


@cases(0.3)
@FEWER
@given(MOMENTS, CALLS)
def test_states_are_those_of_the_slow_model(moments, calls):
    made = report((*calls, *WAITING), scheduling=moments)
    pieces = pl.DataFrame({"start": [20, 70], "end": [60, 120]})
    found = states_of(made, (1, 1), pieces)
    assert found.get_column("state").dtype == pl.Enum(STATES)
    told = {
        time: (state, row)
        for start, end, row, state in found.select("start", "end", "call", "state").rows()
        for time in range(start, end)
    }
    assert sorted(told) == [*range(20, 60), *range(70, 120)]
    assert {time: one[0] for time, one in told.items()} == {time: slow_state(time, moments, calls)[0] for time in told}
    holds(len({state for state, _ in told.values()}) > 1)
    named = {time: None if one[1] is None else (calls[one[1]].start, calls[one[1]].end) for time, one in told.items()}
    slow = {time: slow_state(time, moments, calls)[1] for time in told}
    assert named == {time: None if at is None else (calls[at].start, calls[at].end) for time, at in slow.items()}


SAMPLES = st.lists(st.tuples(st.integers(0, 140), st.integers(1, 3)), max_size=12, unique_by=lambda one: one[0])


@cases(0.1)
@FEWER
@given(MOMENTS, CALLS, SAMPLES, st.booleans())
def test_the_parts_sum_to_the_bucket(moments, calls, samples, python):
    """Whatever the samples are; and time that is told has samples, or a stack of a call."""
    rows = [sample(time, stack) for time, stack in sorted(samples)]
    tables = {"python_samples": [{**row, "periodic": True} for row in rows]} if python else {"cpu_samples": rows}
    frames = [frame(stack, 0, f"f{stack}") for stack in (1, 2)]
    made = report(
        (*calls, *WAITING), kinds=("kernel", "api", "osrt"), scheduling=moments, stack_frames=frames, **tables
    )
    whole = culprits(made).filter(bucket="host").get_column("ns").sum()
    for by in ("state", "function"):
        found = culprits(made, by=by)
        assert found.get_column("ns").sum() == whole
        assert found.get_column("ns").min() > 0
        assert found.get_column("host_share").sum() == pytest.approx(1)
    told = found.filter(pl.col("function").is_not_null())
    assert not told.height or rows
    holds(told.height > 0)


def shares(name, *columns):
    found = culprits(kanalyze.read(REPORTS / f"{name}.sqlite"), by="function")
    sums = found.group_by(columns).agg(pl.col("host_share").sum())
    return {row[:-1]: row[-1] for row in sums.rows()}


def test_functions_of_a_program_have_the_shares_that_it_was_made_for():
    found = shares("sampled_host", "function", "chain", "state")
    assert found["augment_images(long)", "main > augment_images(long)", "running"] == pytest.approx(0.6, abs=0.02)
    chain = "main > write_statistics(long) > work_for(long)"
    assert found["work_for(long)", chain, "running"] == pytest.approx(0.4, abs=0.02)


def test_a_program_that_waits_for_a_lock_is_blocked_in_the_function_that_takes_it():
    found = shares("sampled_lock", "function", "state", "waits_on", "call")
    assert found["update_table()", "blocked", "lock", "pthread_mutex_lock"] == pytest.approx(0.985, abs=0.02)


def test_python_functions_have_the_shares_that_the_program_was_made_for():
    found = shares("sampled_python", "function")
    assert found["tokenize",] == pytest.approx(0.6, abs=0.02)
    assert found["build_prompt",] == pytest.approx(0.4, abs=0.02)


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
