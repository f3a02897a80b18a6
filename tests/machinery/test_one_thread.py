"""Working in one thread changes nothing but the time that it takes."""

import resource
import signal
import traceback

import polars as pl
import pytest

from kanalyze.analyses.shared.workers import in_threads
from kanalyze.cli import _options
from kanalyze.machinery import one_thread
from kanalyze.machinery.one_thread import in_one_thread
from support.command import SAMPLES, run

FRAME = pl.DataFrame({"number": range(10)})


def odd():
    return FRAME.filter(pl.col("number") % 2 == 1).get_column("number").to_list()


def waits():
    """How often the calling thread has waited."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def test_what_it_gives_comes_out():
    assert in_one_thread(odd) == [1, 3, 5, 7, 9]
    assert in_one_thread(lambda: None) is None


def test_polars_hands_over_nothing():
    def filtered():
        before = waits()
        for _ in range(100):
            odd()
        return waits() - before

    assert in_one_thread(filtered) < 50


@pytest.mark.parametrize("error", [ValueError("word"), SystemExit(3), KeyboardInterrupt(), pl.exceptions.ShapeError()])
def test_what_it_raises_comes_out_as_it_is(error):
    def failing():
        raise error

    with pytest.raises(type(error)) as raised:
        in_one_thread(failing)
    assert raised.value is error
    assert traceback.extract_tb(error.__traceback__)[-1].name == "failing"


def test_an_interrupt_ends_it_at_once():
    reached = []

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        reached.extend(odd())

    with pytest.raises(KeyboardInterrupt):
        in_one_thread(interrupted)
    assert reached == []
    assert odd() == [1, 3, 5, 7, 9]


def test_it_may_be_inside_itself_and_have_threads():
    assert in_one_thread(lambda: in_one_thread(odd)) == [1, 3, 5, 7, 9]
    assert in_one_thread(lambda: list(in_threads(lambda _: odd(), range(4)))) == [[1, 3, 5, 7, 9]] * 4
    assert in_one_thread(lambda: FRAME.lazy().select(pl.col("number").sum()).collect().item()) == 45


def test_where_polars_calls_nothing_the_work_is_done_all_the_same(monkeypatch):
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda *_, **__: FRAME)
    assert in_one_thread(odd) == [1, 3, 5, 7, 9]


@pytest.mark.slow
@pytest.mark.parametrize("reports", [["add/nsys.sqlite"], ["add"], ["add/nsys.sqlite", "cdist/torch.json.gz"]])
@pytest.mark.parametrize("more", [0, 1])
def test_commands_work_in_one_thread_unless_all_reports_together_are_large(monkeypatch, reports, more):
    paths, asked = [SAMPLES / name for name in reports], []
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    monkeypatch.setattr(_options, "_ONE_THREAD_BYTES", sum(file.stat().st_size for file in files) + more)
    monkeypatch.setattr(one_thread, "in_one_thread", lambda work: asked.append(work) or work())
    assert run("summarize", *paths).status == 0
    assert len(asked) == more
