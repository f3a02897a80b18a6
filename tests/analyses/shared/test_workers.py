"""Work handed out to threads: every result in its place, every error raised, and nothing left undone."""

import threading
from itertools import islice

import pytest

from kanalyze.analyses.shared import workers
from kanalyze.analyses.shared.workers import in_threads

JOBS = range(50)


@pytest.fixture(autouse=True)
def three_workers(monkeypatch):
    monkeypatch.setattr(workers, "workers", lambda: 3)


@pytest.mark.parametrize("jobs", [[], [7], [1, 2], JOBS])
@pytest.mark.parametrize("small", [False, True])
def test_results_come_in_the_order_of_the_jobs(jobs, small):
    assert list(in_threads(lambda job: job * job, jobs, small=small)) == [job * job for job in jobs]


def test_as_many_jobs_run_at_one_time_as_there_are_workers():
    all_there = threading.Barrier(3, timeout=10)
    assert list(in_threads(lambda _: all_there.wait() >= 0, range(9))) == [True] * 9


@pytest.mark.parametrize("error", [ValueError("word"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_is_raised_where_its_result_would_come(error):
    def work(job):
        if job == 20:
            raise error
        return job

    found = in_threads(work, JOBS)
    assert list(islice(found, 20)) == [*range(20)]
    with pytest.raises(type(error)) as raised:
        next(found)
    assert raised.value is error


def test_what_nobody_waits_for_is_not_begun():
    begun, go_on = [], threading.Event()

    def work(job):
        begun.append(job)
        assert job == 0 or go_on.wait(10)
        return job

    found = in_threads(work, JOBS)
    assert next(found) == 0
    threading.Timer(0.1, go_on.set).start()
    found.close()
    assert len(begun) < len(JOBS)
