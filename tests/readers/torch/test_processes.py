"""Processes that decode a trace: their answers in order, and what happens to them when something ends early."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import kanalyze
from kanalyze.errors import DecoderEndedError
from kanalyze.readers.torch import pieces as trace_pool
from kanalyze.readers.torch.pieces import TraceText, decoded
from support.made_traces import trace, written_to, x

EVENTS = [x("cpu_op", f"op {number}", number, 1, {"Input Dims": [[number]]}) for number in range(2000)]
NAMES = [event["name"] for event in EVENTS]


@pytest.fixture
def pooled(monkeypatch):
    """Every trace goes to two processes, in small pieces."""
    monkeypatch.setattr(trace_pool, "SMALL_PLAIN_BYTES", 0)
    monkeypatch.setattr(trace_pool, "SMALL_GZIP_BYTES", 0)
    monkeypatch.setattr(trace_pool, "processors", partial(int, 2))
    monkeypatch.setattr(trace_pool, "PIECE_BYTES", 2000)


def names_of(parts):
    return [part.texts[code] for part in parts for code in part.columns.blocks.get("Op", {"name": ()})["name"]]


def no_progress(*_):
    return None


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.usefixtures("pooled")
def test_columns_come_back_in_the_order_of_the_file_but_for_broken_ones(tmp_path, compressed):
    broken = bytearray(trace(EVENTS))
    for number in range(1000, 1900):
        broken[broken.index(b'"op %d"' % number)] = ord(b"{")
    text = TraceText(written_to(tmp_path, bytes(broken), compressed=compressed))
    parts = decoded(text, no_progress)
    assert names_of(parts) == NAMES[:1000] + NAMES[1900:]
    assert sum(part.columns.counts["unreadable"] for part in parts) == 900
    assert (len(parts) > 50, text.damage) == (True, [])


@pytest.mark.usefixtures("pooled")
def test_progress_is_told_where_it_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_pool, "_PATIENCE_S", 0)
    monkeypatch.setattr(trace_pool, "_AHEAD", 8)
    monkeypatch.setattr(trace_pool, "_READ_BYTES", 2000)
    path, told = written_to(tmp_path, trace(EVENTS)), []
    decoded(TraceText(path), lambda what, share: told.append((what, share)))
    assert {what for what, _ in told} == {f"reading {path.name}"}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0] < 0.5, shares[-1]) == (True, 1.0)


@pytest.mark.parametrize(
    "executable", ["", None, "/nowhere/python", sys.executable + "-of-another-version", "/bin/false"]
)
@pytest.mark.usefixtures("pooled")
def test_without_processes_it_is_done_here(tmp_path, monkeypatch, executable):
    monkeypatch.setattr(trace_pool.sys, "executable", executable)
    assert names_of(decoded(TraceText(written_to(tmp_path, trace(EVENTS))), no_progress)) == NAMES


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.usefixtures("pooled")
def test_a_process_that_is_killed_ends_the_reading_with_a_word(tmp_path, monkeypatch, compressed):
    path = written_to(tmp_path, trace(EVENTS), compressed=compressed)
    sent, send = [], trace_pool.send

    def sending(target, message):
        sent.append(message)
        if len(sent) == 30:
            for worker in pool:
                worker.process.kill()
        send(target, message)

    class Kept(trace_pool.Worker):
        def __init__(self):
            super().__init__()
            pool.append(self)

    pool = []
    monkeypatch.setattr(trace_pool, "Worker", Kept)
    monkeypatch.setattr(trace_pool, "send", sending)
    with pytest.raises(DecoderEndedError, match=f"{path.name}: a process that decoded it was ended by signal 9"):
        decoded(TraceText(path), no_progress)
    assert all(worker.process.returncode == -signal.SIGKILL for worker in pool)
    assert threading.active_count() == 1


@pytest.mark.usefixtures("pooled")
def test_ctrl_c_that_ends_a_process_before_it_is_ready_interrupts_the_reading(tmp_path, monkeypatch):
    class Interrupted(trace_pool.Worker):
        def answer(self, _):
            self.process.kill()
            self.process.wait()
            self.process.returncode = -signal.SIGINT

    monkeypatch.setattr(trace_pool, "Worker", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoded(TraceText(written_to(tmp_path, trace(EVENTS))), no_progress)


@pytest.mark.usefixtures("pooled")
def test_processes_end_when_the_reading_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_pool, "_PATIENCE_S", 0)
    before = children()

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(TraceText(written_to(tmp_path, trace(EVENTS))), interrupted)
    assert (children(), threading.active_count()) == (before, 1)


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("pooled")
def test_a_process_that_cannot_be_closed_ends_the_reading(tmp_path, monkeypatch):
    """Nobody waits for it for ever."""
    close = trace_pool.Worker.close

    def failing(worker):
        close(worker)
        raise OSError(5, "a pipe that does not close")

    monkeypatch.setattr(trace_pool.Worker, "close", failing)
    with pytest.raises(OSError, match="a pipe that does not close"):
        decoded(TraceText(written_to(tmp_path, trace(EVENTS))), no_progress)
    assert threading.active_count() == 1


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from kanalyze.readers.torch import pieces
pieces.SMALL_PLAIN_BYTES, pieces.PIECE_BYTES, pieces.processors = 0, 2000, partial(int, 2)
print(len(pieces.decoded(pieces.TraceText(Path(sys.argv[1])), lambda *_: None)))
"""


def test_modules_of_the_user_do_not_stand_in_for_ours(tmp_path):
    """Whatever lies in the working directory or on the path of Python."""
    path = written_to(tmp_path, trace(EVENTS))
    for name in ("struct", "pickle", "decimal", "signal", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError\n")
    package = Path(kanalyze.__file__).parent.parent
    program = (
        f"import sys; sys.path[:] = [{str(package)!r}, *sys.path[1:]]\n{SCRIPT}\nprint(sys.modules['pickle'].__file__)"
    )
    ran = subprocess.run(  # noqa: S603 - it starts this very package
        [sys.executable, "-c", program, path], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ran.stdout.split()[0]) > 50
    assert not ran.stderr


def test_a_process_ends_with_the_one_that_started_it():
    process = trace_pool.Worker().process
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def test_a_process_lets_the_user_interrupt_only_the_one_that_started_it():
    worker = trace_pool.Worker()
    assert worker.answer(b'{"cat": "cpu_op", "ts": 1}') is not None
    worker.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    assert worker.answer(b'{"cat": "cpu_op", "ts": 1}') is not None
    worker.close()
    assert worker.process.returncode == 0


def test_a_piece_without_events_is_kept_until_it_is_known_what_it_is():
    columns = trace_pool.Decoder().columns
    assert columns(b"").hollow
    assert columns(b'{"a": 1}, {"ph": "X"}').hollow
    assert not columns(b'{"ph": "M", "name": "process_name"}').hollow
    assert not columns(b'{"cat": "cpu_op", "ts": 1}').hollow
