"""Work in threads, or in one alone, gives the same as any other: each result, each error, and for large reports too."""

import resource
import signal
import threading
import traceback
from itertools import islice

import polars as pl
import pytest

from analyses.test_any_order import page
from kanalyze import cli, columns
from kanalyze.analyses.shared import analysis
from kanalyze.analyses.shared.analysis import in_one_thread, in_threads
from kanalyze.readers import read
from support.command import REPORTS, SAMPLES, run
from support.real_reports import real_report

JOBS = range(50)
FRAME = pl.DataFrame({"number": range(10)})


def odd():
    return FRAME.filter(pl.col("number") % 2 == 1).get_column("number").to_list()


@pytest.fixture
def _three_workers(monkeypatch):
    monkeypatch.setattr(analysis, "workers", lambda: 3)


@pytest.mark.usefixtures("_three_workers")
@pytest.mark.parametrize("jobs", [[], [7], [1, 2], JOBS])
def test_results_come_in_the_order_of_the_jobs(jobs):
    assert list(in_threads(lambda job: job * job, jobs)) == [job * job for job in jobs]


@pytest.mark.usefixtures("_three_workers")
def test_as_many_jobs_run_at_one_time_as_there_are_workers():
    all_there = threading.Barrier(3, timeout=10)
    assert list(in_threads(lambda _: all_there.wait() >= 0, range(9))) == [True] * 9


@pytest.mark.usefixtures("_three_workers")
@pytest.mark.parametrize("error", [ValueError("word"), SystemExit(3), KeyboardInterrupt(), pl.exceptions.ShapeError()])
def test_an_error_is_raised_where_its_result_would_come_and_as_it_is(error):
    def failing(job=20):
        if job == 20:
            raise error
        return job

    found = in_threads(failing, JOBS)
    assert list(islice(found, 20)) == [*range(20)]
    for work in (lambda: next(found), lambda: in_one_thread(failing)):
        with pytest.raises(type(error)) as raised:
            work()
        assert raised.value is error
        assert traceback.extract_tb(error.__traceback__)[-1].name == "failing"


@pytest.mark.usefixtures("_three_workers")
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


def test_in_one_thread_polars_hands_over_nothing():
    def waited():
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(100):
            odd()
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

    assert in_one_thread(waited) < 50


def test_an_interrupt_ends_it_at_once(request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which nohup ignores
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    reached = []

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        reached.extend(odd())

    with pytest.raises(KeyboardInterrupt):
        in_one_thread(interrupted)
    assert reached == []
    assert odd() == [1, 3, 5, 7, 9]


def test_one_thread_may_be_inside_itself_and_have_threads(monkeypatch):
    assert in_one_thread(lambda: in_one_thread(odd)) == [1, 3, 5, 7, 9]
    assert in_one_thread(lambda: list(in_threads(lambda _: odd(), range(4)))) == [[1, 3, 5, 7, 9]] * 4
    assert in_one_thread(lambda: FRAME.lazy().select(pl.col("number").sum()).collect().item()) == 45
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda *_, **__: FRAME)  # which calls nothing
    assert in_one_thread(odd) == [1, 3, 5, 7, 9]


@pytest.mark.slow
@pytest.mark.parametrize("reports", [["add/nsys.sqlite"], ["add"], ["add/nsys.sqlite", "cdist/torch.json.gz"]])
@pytest.mark.parametrize("more", [0, 1])
def test_commands_work_in_one_thread_unless_all_reports_together_are_large(monkeypatch, reports, more):
    paths, asked = [SAMPLES / name for name in reports], []
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    monkeypatch.setattr(cli, "_ONE_THREAD_BYTES", sum(file.stat().st_size for file in files) + more)
    monkeypatch.setattr(analysis, "in_one_thread", lambda work: asked.append(work) or work())
    assert run("show", "kernels", *paths).status == 0
    assert len(asked) == more


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_node", "thrash", "torch"])
def test_the_page_of_a_large_report_is_the_same(name, monkeypatch):
    usual = page(real_report(REPORTS / f"{name}.sqlite"))
    monkeypatch.setattr(columns, "_SLICE", 97)
    assert page(read(REPORTS / f"{name}.sqlite")) == usual
