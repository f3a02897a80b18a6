"""Who ended a wait, by hand, and what holds of any calls."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.host._causes import causes, waits
from support import build
from support.build import US, call, host
from support.strategies import FEWER


def osrt(name, start, end, *, process=1, thread=1):
    """A system call; times in µs."""
    return host("osrt", name, start * US, end * US, process=process, thread=thread)


def report(events, **tables):
    """A report in which thread 1 makes a CUDA call, of which the last event tells."""
    return build.report([*events, call("cudaGetDevice", -9_000 * US, -9_000 * US + 1)], **tables)


def moments(thread, *times, process=1, cpu=None):
    """A thread that comes onto its processor and leaves it in turn; times in µs."""
    keys = {"process_id": process, "thread_id": thread, "cpu": thread if cpu is None else cpu}
    return [{"time_ns": time * US, "runs": place % 2 == 0, **keys} for place, time in enumerate(times)]


def scheduling(*lines):
    return sorted((row for line in lines for row in line), key=lambda row: row["time_ns"])


def told(made):
    """Each wait: thread, who was waited for (process and thread), evidence, hops."""
    rows = causes(made).sort("start").select("thread_id", "by_process_id", "by_thread_id", "evidence", "hops")
    return [(row[0], None if row[1] is None else row[1:3], *row[3:]) for row in rows.iter_rows()]


@pytest.mark.parametrize(
    ("call", "wake", "other", "fits"),
    [
        ("read", "write", 2, True),
        ("poll", "sendmsg", 2, True),
        ("recv", "send", 1, True),
        ("epoll_wait", "write", 1, True),
        ("pthread_cond_wait", "pthread_cond_signal", 1, True),
        ("pthread_cond_timedwait", "pthread_cond_broadcast", 1, True),
        ("pthread_cond_wait", "pthread_cond_signal", 2, False),  # of another process
        ("read", "pthread_cond_signal", 1, False),
        ("sem_wait", "write", 1, False),
        ("futex", "futex", 2, True),
    ],
)
def test_a_wait_ends_by_a_call_that_wakes(call, wake, other, fits):
    made = report([osrt(call, 0, 10_000), osrt(wake, 9_950, 9_960, process=other, thread=9)])
    assert told(made)[0] == ((1, (other, 9), "call", 0) if fits else (1, None, None, 0))


def test_a_call_too_long_before_the_end_or_before_the_wait_did_not_end_it():
    made = report([osrt("read", 0, 10_000), osrt("write", 4_900, 4_910, thread=9)])
    assert told(made) == [(1, None, None, 0)]
    made = report([osrt("read", 0, 100), osrt("write", -20, -10, thread=9)])
    assert told(made) == [(1, None, None, 0)]


def test_of_two_that_fit_none_is_claimed_and_a_sleep_ends_by_itself():
    writes = [osrt("write", 9_950, 9_960, thread=8), osrt("write", 9_940, 9_950, thread=9)]
    assert told(report([osrt("read", 0, 10_000), *writes]))[0] == (1, None, None, 0)
    assert told(report([osrt("usleep", 0, 10_000), *writes]))[0] == (1, None, "timer", 0)


def test_of_two_that_fit_the_one_that_fits_the_other_waits_as_well_is_claimed():
    """Thread 9 writes at the end of each of ten waits, thread 8 at the end of one of them."""
    reads = [osrt("read", at, at + 9_000) for at in range(0, 100_000, 10_000)]
    writes = [osrt("write", at + 8_950, at + 8_955, thread=9, process=2) for at in range(0, 100_000, 10_000)]
    noise = osrt("write", 38_960, 38_965, thread=8, process=3)
    found = [row for row in told(report([*reads, *writes, noise])) if row[0] == 1]
    assert found == [(1, (2, 9), "call", 0)] * 10


def test_without_such_a_call_it_is_who_alone_was_on_a_processor():
    """A semaphore is released without a traced call."""
    lines = moments(1, 0, 10, 10_000, 10_050), moments(2, 9_500, 9_970), moments(3, 0, 5_000)
    made = report([osrt("sem_wait", 5, 10_001)], scheduling=scheduling(*lines))
    assert (1, (1, 2), "processor", 0) in told(made)
    both = scheduling(*lines, moments(4, 8_000, 9_980))
    assert (1, None, None, 0) in told(report([osrt("sem_wait", 5, 10_001)], scheduling=both))


def test_who_waited_meanwhile_itself_handed_on_what_another_one_did():
    """A worker's thread computes, wakes the thread that writes, and that one writes what the loop waits for."""
    events = [
        osrt("read", 0, 10_000),
        osrt("pthread_cond_wait", 100, 9_900, process=2, thread=21),
        osrt("pthread_cond_signal", 9_850, 9_855, process=2, thread=20),
        osrt("write", 9_950, 9_960, process=2, thread=21),
    ]
    found = causes(report(events)).filter(thread_id=1).row(0, named=True)
    assert (found["by_process_id"], found["by_thread_id"], found["hops"], found["at"]) == (2, 20, 1, 9_850 * US)
    events[1] = osrt("pthread_cond_wait", 5_200, 9_900, process=2, thread=21)  # less than half of the wait
    found = causes(report(events)).filter(thread_id=1).row(0, named=True)
    assert (found["by_thread_id"], found["hops"], found["at"]) == (21, 0, 9_950 * US)


def test_sleeps_in_a_row_are_one_wait_for_what_is_polled():
    """The flag is set while the thread sleeps for the last time but one, or after that."""
    polls = [osrt("clock_nanosleep", at, at + 100) for at in range(0, 1_000, 110)]
    lines = moments(1, -10, *(t for at in range(0, 1_000, 110) for t in (at + 1, at + 100)), 1_200)
    setter = moments(2, 850, 930, process=2)
    made = report(polls, scheduling=scheduling(lines, setter, moments(3, -9_000, -8_000)))
    found = waits(made).filter(thread_id=1)
    assert found.select("start", "end", "polls").rows() == [(0, 1_090 * US, True)]
    assert told(made) == [(1, (2, 2), "processor", 0)]
    assert waits(report(polls[:4])).get_column("polls").to_list() == [False] * 4


NAMES = ("read", "write", "pthread_cond_wait", "pthread_cond_signal", "usleep")
CALLS = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 30), st.sampled_from(NAMES), st.sampled_from([(1, 1), (1, 2), (2, 3)])
    ),
    max_size=12,
).map(
    lambda rows: [
        osrt(name, start * 20, (start + dur) * 20, process=key[0], thread=key[1]) for start, dur, name, key in rows
    ]
)


@FEWER
@given(CALLS)
def test_waits_of_a_thread_are_disjoint_and_who_is_waited_for_is_another_thread_that_was_free_before_the_end(events):
    rows = causes(report(events))
    for own in rows.partition_by("thread_id"):
        assert (own["start"].shift(-1).drop_nulls() >= own["end"].head(-1)).all()
    known = rows.drop_nulls("by_thread_id")
    assert (known["by_thread_id"] != known["thread_id"]).all()
    assert ((known["at"] <= known["woken"]) & (known["at"] >= known["start"] - 10_000 * US)).all()
    assert rows.filter(pl.col("by_thread_id").is_null()).get_column("by_call").is_null().all()


def test_a_wait_is_a_call_in_which_the_thread_left_its_processor_or_a_long_one_and_time_off_it_in_no_call():
    calls = [osrt("read", 100, 119), osrt("read", 200, 220), osrt("ioctl", 300, 400), osrt("read", 500, 600, thread=2)]
    lines = moments(2, 0, 510, 590, 700, 750, 800), moments(3, 0, 20)
    made = report([*calls, osrt("poll", 620, 690, thread=2)], scheduling=scheduling(*lines))
    rows = waits(made).select("thread_id", "start", "end", "woken", "name").rows()
    shown = [(row[0], *(time // US for time in row[1:4]), row[4]) for row in rows]
    assert shown == [(1, 200, 220, 220, "read"), (2, 500, 600, 590, "read"), (2, 700, 750, 750, None)]


def test_time_off_the_processor_in_no_call_ends_only_by_a_thread_of_the_process():
    own = moments(1, -9_000, 0, 5_000, 6_000)
    for process, told_of in ((1, (1, 2)), (2, None)):
        other = moments(2, 4_500, 4_950, process=process)
        found = causes(report([], scheduling=scheduling(own, other))).row(0, named=True)
        assert (found["by_process_id"], found["by_thread_id"]) == (told_of or (None, None))
        assert (found["start"], found["end"], found["name"]) == (0, 5_000 * US, None)


def test_who_runs_most_of_the_time_is_not_claimed_for_one_wait():
    """It is on a processor for 8 of 10 ms, in pieces between which less than the reach lies."""
    own, busy = moments(1, 0, 10, 9_500, 10_000), moments(2, *range(0, 10_000, 40))
    made = report([osrt("sem_wait", 5, 9_501)], scheduling=scheduling(own, busy))
    assert told(made)[-1] == (1, None, None, 0)
    rare = moments(2, 9_400, 9_480)
    assert told(report([osrt("sem_wait", 5, 9_501)], scheduling=scheduling(own, rare)))[-1][1] == (1, 2)


def test_sleeps_with_more_between_them_are_waits_of_their_own():
    near, far = ([osrt("usleep", at, at + 100) for at in range(0, 1_200, step)] for step in (124, 126))
    assert waits(report(near)).height == 1
    assert waits(report(far)).height == len(far)


def test_calls_long_before_the_end_compete_with_those_up_to_twice_as_long_before():
    """A processor that was asleep takes milliseconds to go on; the calls of two threads 2 and 3 ms before both fit."""
    late = osrt("write", 8_000, 8_010, thread=8)
    far = osrt("poll", 100_000, 100_001, thread=7)
    assert told(report([osrt("read", 0, 10_000), late, far]))[0] == (1, (1, 8), "call", 0)
    for other, claimed in ((7_000, False), (5_890, True)):
        events = [osrt("read", 0, 10_000), late, osrt("write", other, other + 10, thread=9), far]
        assert told(report(events))[0][1] == ((1, 8) if claimed else None)
