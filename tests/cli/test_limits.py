"""Closed and full standard streams, Ctrl-C, and little memory: an error or nothing, never a traceback."""

import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from kanalyze.cli import _process
from support.command import ADD, SAMPLES, TORCH, command_line, environment

COMMANDS = (
    *(("summarize", ADD), ("summarize", ADD, "--format", "json"), ("show", "kernels", ADD)),
    *(("show", "kernels", ADD, "--format", "csv"), ("tree", ADD), ("tables",), ("name", "k<int>(float*)")),
    *(("--help",), ("--version",), ("summarize", "nowhere.sqlite")),
)


def program(*arguments):
    """The command as it is installed, which ends without cleaning up."""
    code = "from kanalyze.cli import entry; entry()"
    return [command_line()[0], "-W", "error", "-c", code, *map(str, arguments)]


def shell(redirect, *arguments):
    line = f'"$@" {redirect}'
    return subprocess.run(  # noqa: S603 - it starts this very package
        ["/bin/sh", "-c", line, "sh", *program(*arguments)],
        capture_output=True,
        env=environment(),
        timeout=100,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda some: " ".join(map(str, some))[:30])
def test_closed_and_full_standard_streams(arguments):
    usual = shell("", *arguments)
    assert b"Traceback" not in usual.stderr
    for redirect in (
        *(">&-", "2>&-", ">&- 2>&-", "</dev/null >&- 2>&-", "<&-", "2>/dev/full", ">/dev/full", "| head -c 1"),
    ):
        ended = shell(redirect, *arguments)
        assert b"Traceback" not in ended.stderr, redirect
        assert b"Exception ignored" not in ended.stderr, redirect
        expected = {usual.returncode}
        if redirect.startswith((">", "</dev/null >")) and not usual.returncode:
            expected = {0, 2} if str(arguments[0]).startswith("--") else {2}  # click says nothing where it cannot
        assert ended.returncode in expected or redirect.startswith("|"), (redirect, ended)
        if redirect in ("2>&-", "2>/dev/full", "<&-"):
            assert ended.stdout == usual.stdout


@pytest.mark.parametrize("limited", [False, True], ids=["usual", "in a child"])
@pytest.mark.one_in(4)
def test_an_interrupt_while_it_works(tmp_path, limited):
    trace, page = tmp_path / "trace.json", tmp_path / "page.txt"
    events = (
        {"ph": "X", "cat": "cpu_op", "name": f"op{at % 99}", "pid": 1, "tid": 1, "ts": at, "dur": 1}
        for at in range(400_000)
    )
    trace.write_text(json.dumps({"traceEvents": list(events)}))
    prefix = ["/bin/sh", "-c", f'{"ulimit -v 16000000; " if limited else ""}exec "$@"', "sh"]
    command = [*prefix, *program("summarize", trace, "--no-cache", "-o", page)]
    for tenth in (7, 5, 6, 4, 3, 8, 9):  # it may have ended by then
        status, said = interrupted(command, tenth / 10)
        if status and b"Exception ignored" not in said:  # Python loses an interrupt that comes while it runs a callback
            break
        page.unlink(missing_ok=True)
    assert status == 130, said
    assert said.strip() in (b"Aborted!", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json"]


def interrupted(command, after_s):
    """The exit status of a command that is interrupted after some time, and what it said."""
    with subprocess.Popen(  # noqa: S603 - it starts this very package
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
        return process.wait(60), said


# Memory


def limited(limit_bytes, *arguments):
    return subprocess.run(  # noqa: S603 - it starts this very package
        program(*arguments),
        capture_output=True,
        env=environment(),
        timeout=100,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "trace.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for at in range(200_000):
            file.write(f'{{"ph":"X","cat":"cpu_op","name":"op{at}","pid":1,"tid":1,"ts":{at},"dur":1}},\n')
        file.write('{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":1,"dur":1}]}')
    return path


LINES = (
    *("summarize {0}", "html {0} -o {1}/page.html", "show kernels {0}", "tree {3}", "compare {2} {2}"),
    *("compare --noise {0} {0}", "compare {0} --save {1}/x.kz", "ranks {0} {3}", "reduce {0} {2} -o {1}/reduced"),
    *("export {0} --to csv -o {1}/tables", "export {0} --to perfetto -o {1}/trace.json", "sql {0} SELECT"),
    *("plot {0} ledger -o {1}/p.svg", "whatif {0}", "verify {2}", "roofline {2}", "redact {0} -o {1}/copy.sqlite"),
    *("tables", "name gemm", "explain launch-bound"),
)
SLUGS = (b"[out-of-memory]", b"[cannot-tell]", b"[bad-sql]", b"[not-comparable]", b"[unknown-name]", b"[no-job]")


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:24])
@pytest.mark.parametrize("limit_mb", [200, 400, 800, 1400])
def test_whatever_lacks_memory_answers_or_says_so(tmp_path, line, limit_mb):
    words = [word.format(ADD, tmp_path, SAMPLES / "add", TORCH) for word in line.split()]
    ended = limited(limit_mb * 10**6, *words)
    assert b"Traceback" not in ended.stderr
    assert b"OpenBLAS" not in ended.stderr
    answered = ended.returncode == 0 or (ended.returncode == 1 and line.startswith("verify"))
    assert answered or (ended.returncode == 2 and any(slug in ended.stderr for slug in SLUGS)), ended


@pytest.mark.one_in(10)
@pytest.mark.parametrize("mib", [260, 400, 800, 1400])
def test_little_process_is_an_error_or_enough(large, mib):
    ended = limited(mib << 20, "summarize", large, "--no-cache")
    assert ended.returncode in (0, 2), ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"stack backtrace" not in ended.stderr
    if ended.returncode:
        assert ended.stdout == b""
        assert b"[out-of-memory]" in ended.stderr or b"[decoder-ended]" in ended.stderr


def test_the_limits_of_control_groups(tmp_path):
    group = tmp_path / "job" / "step"
    group.mkdir(parents=True)
    for folder, limit in ((tmp_path / "job", "1000000"), (group, "max")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("600000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 100000\nactive_file 0\n")
    assert list(_process.free_in_groups(tmp_path, "/job/step", "memory.max", "memory.current")) == [500_000]


def test_a_report_that_may_not_fit_is_read_in_a_child(tmp_path):
    report = tmp_path / "x.json.gz"
    report.write_bytes(b"x" * 1000)
    with patch.object(_process, "limits_of_process", list), patch.object(_process, "_free_bytes", lambda: [100_000]):
        assert _process.tight(["summarize", str(report)])
        assert not _process.tight(["tables", str(report)])
    with patch.object(_process, "limits_of_process", list), patch.object(_process, "_free_bytes", lambda: [1_000_000]):
        assert not _process.tight(["summarize", str(report)])


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_an_end_for_want_of_process_is_told(number):
    def end():
        faulthandler.disable()  # the end is wanted: no traceback between the dots of the tests
        os.kill(os.getpid(), number)
        return 0

    told = []
    status = _process.in_own_process(end, told.append)
    assert (status, len(told)) == (2, 1)
    assert _process.in_own_process(lambda: 3, told.append) == 3


@pytest.mark.parametrize("error", [MemoryError, SystemError, KeyError])
def test_a_child_that_lacks_process_to_say_so_is_told(error, capfd, monkeypatch):
    def lack():
        raise error

    monkeypatch.setattr(_process, "limits_of_process", lambda: [1 << 40])
    told = []
    assert _process.in_own_process(lack, told.append) == 2
    assert [one.slug for one in told] == ["out-of-memory"]
    assert capfd.readouterr().err == ""


def test_a_child_whose_threads_wait_for_ever_lacked_process(monkeypatch):
    def wait():
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=lock.acquire).start()
        threading.Thread(target=select.epoll().poll).start()  # as an idle thread of polars
        return int(lock.acquire())

    monkeypatch.setattr(_process, "limits_of_process", lambda: [1 << 40])
    monkeypatch.setattr(_process, "_STUCK_S", 0.05)
    told = []
    assert _process.in_own_process(wait, told.append) == 2
    assert [error.slug for error in told] == ["out-of-memory"]


def test_what_says_that_process_is_refused():
    assert _process.refused(MemoryError())
    assert _process.refused(OSError(12, "Cannot allocate memory"))
    assert _process.refused(RuntimeError("an `Err` value: Os { code: 11, kind: WouldBlock }"))  # as polars panics
    assert not _process.refused(ValueError("anything"))
    assert not _process.refused(SyntaxError("anything"))
    assert Path("/proc/self").exists()


def test_a_library_that_cannot_be_loaded_for_a_limit_lacked_process(monkeypatch):
    monkeypatch.setattr(_process, "limits_of_process", lambda: [1 << 40])
    assert _process.refused(SyntaxError("(unicode error) \\N escapes not supported (can't load unicodedata module)"))
