"""One command from start to end: its output, its time, and that nothing of it stays behind."""

import subprocess
import sys

import pytest

from kanalyze.collectors import process
from kanalyze.collectors.process import Step
from support.command import is_running, wait_until

#: Starts a grandchild in a session of its own, which outlives its parent and ignores polite requests.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


def python(code, *args):
    return [sys.executable, "-c", code, *map(str, args)]


def run(argv, folder, timeout_s=60.0, **more):
    return process.run(Step("x", argv, folder / "log"), timeout_s, **more)


def test_what_a_command_prints_goes_to_the_log_and_it_reads_nothing(tmp_path, monkeypatch):
    code = (
        "import os, sys; print(repr(sys.stdin.read()), os.environ['ADDED'], os.environ['KEPT'], flush=True)\n"
        "print('two', file=sys.stderr); sys.exit(7)"
    )
    monkeypatch.setenv("KEPT", "old")
    assert process.run(Step("x", python(code), tmp_path / "log", {"ADDED": "new"}), 60).status == 7
    assert (tmp_path / "log").read_text() == "'' new old\ntwo\n"


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped_even_if_it_does_not_want_to(tmp_path):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    ended = run(python(code), tmp_path, timeout_s=0.5)
    assert ended.status is None
    assert ended.seconds < 20


def test_no_process_outlives_its_step_whatever_session_it_is_in(tmp_path):
    assert run(python(DAEMON, tmp_path / "pid"), tmp_path).status == 0
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_an_interrupt_ends_everything_before_it_goes_on(tmp_path):
    def interrupted(_elapsed_s, _line):
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    code = DAEMON + "\ntime.sleep(1000)"
    with pytest.raises(KeyboardInterrupt):
        run(python(code, tmp_path / "pid"), tmp_path, tick=interrupted)
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text() or 0)), 5)


def test_other_processes_are_left_alone(tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as other:  # noqa: S607 - of the system
        run(python("pass"), tmp_path)
        assert is_running(other.pid)
        other.kill()


@pytest.mark.slow
def test_progress_tells_the_time_and_the_last_line(tmp_path):
    told = []
    code = "import time\nfor n in range(4): print('line', n, flush=True); time.sleep(0.3)"
    run(python(code), tmp_path, tick=lambda *event: told.append(event))
    times, lines = zip(*told, strict=True)
    assert list(times) == sorted(times)
    assert lines[-1] in ("line 2", "line 3")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("a\n\n  \n", ["a"]),
        ("10 %\r50 %\r100 %\ndone", ["100 %", "done"]),
        ("dos\r\n", ["dos"]),
        ("x" * 100_000 + "\nend\n", ["x" * 65_531, "end"]),
    ],
)
def test_the_end_of_a_log_is_what_a_terminal_would_show(tmp_path, text, lines):
    (tmp_path / "log").write_bytes(text.encode())
    assert process.tail(tmp_path / "log", 2) == lines


@pytest.mark.parametrize("printed", [1, 2000, 2033, 90_000])
def test_much_output_is_kept_as_its_beginning_and_its_end_and_less_as_a_whole(tmp_path, monkeypatch, printed):
    monkeypatch.setattr(process, "KEPT_BYTES", 1000)
    code = f"import time\nfor _ in range(3): print('x' * {printed // 3}, end='', flush=True); time.sleep(0.06)\n"
    ended = run(python(f"{code}print('y' * {printed % 3}, end='')"), tmp_path)
    log, whole = (tmp_path / "log").read_text(), "x" * (printed - printed % 3) + "y" * (printed % 3)
    assert ended.shortened == (printed == 90_000)
    assert log == (f"{whole[:1000]}\n[kanalyze: output left out here]\n{whole[-1000:]}" if ended.shortened else whole)


def test_a_check_passes_within_the_tolerance(tmp_path):
    right = ["Max error: 0", "Max error: 0.001", "Max error: -0.001.", "check: ok"]
    wrong = [f"Max error: {error}" for error in ("0.0011", "-0.5", "inf", "nan", "none")] + ["check: FAILED in 3 of 4"]
    log = tmp_path / "log"
    log.write_text("\nbetween\n".join(["before", *right, *wrong, "rank0: check: ok late", "after"]))
    assert process.checks(log) == [(line, line not in wrong) for line in [*right, *wrong, "check: ok late"]]


def test_lines_count_once_and_only_near_the_end_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("check: ok one\n" + "x" * (1 << 20) + "\ncheck: ok two\rcheck: FAILED three\ncheck: ok two\n")
    found = [(one.line, one.passed) for one in process.checks(log)]
    assert found == [("check: ok two", True), ("check: FAILED three", False)]
