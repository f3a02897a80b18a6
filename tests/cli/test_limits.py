"""Closed and full standard streams, Ctrl-C, and little memory: an error or nothing, never a traceback."""

import faulthandler
import os
import resource
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from kanalyze.cli import _process
from support.command import ADD, SAMPLES, TORCH, command_line, ended, started

#: A page, bytes for programs, what click prints, and an error; and commands that print as one of these does.
COMMANDS = (("summarize", ADD), ("show", "kernels", ADD, "--format", "csv"), ("--help",), ("summarize", "none.sqlite"))
ALIKE = (
    *(("summarize", ADD, "--format", "json"), ("show", "tree", ADD), ("show",)),
    *(("explain", "k<int>(float*)"), ("--version",)),
)

#: What is done to the standard streams; of commands that are alike the first two.
REDIRECTS = (">&-", ">/dev/full", "2>/dev/full", "2>&-", ">&- 2>&-", "</dev/null >&- 2>&-", "<&-", "| head -c 1")


def program(*arguments):
    """The command as it is installed, which ends without cleaning up."""
    code = "from kanalyze.cli import entry; entry()"
    return [command_line()[0], "-W", "error", "-c", code, *map(str, arguments)]


def shell(redirect, *arguments):
    return ended(["/bin/sh", "-c", f'"$@" {redirect}', "sh", *program(*arguments)], text=False)


def trace_of(folder, count):
    event = '{{"ph":"X","cat":"cpu_op","name":"op{0}","pid":1,"tid":1,"ts":{0},"dur":1}}'
    (folder / "trace.json").write_text(f'{{"traceEvents": [{",".join(map(event.format, range(count)))}]}}')
    return folder / "trace.json"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS + ALIKE, ids=lambda some: " ".join(map(str, some))[:30])
def test_closed_and_full_standard_streams(arguments):
    usual = shell("", *arguments)
    assert b"Traceback" not in usual.stderr
    for redirect in REDIRECTS[: 2 if arguments in ALIKE else None]:
        done = shell(redirect, *arguments)
        assert b"Traceback" not in done.stderr, redirect
        assert b"Exception ignored" not in done.stderr, redirect
        expected = {usual.returncode}
        if redirect.startswith((">", "</dev/null >")) and not usual.returncode:
            expected = {0, 2} if str(arguments[0]).startswith("--") else {2}  # click says nothing where it cannot
        assert done.returncode in expected or redirect.startswith("|"), (redirect, done)
        if redirect in ("2>&-", "2>/dev/full", "<&-"):
            assert done.stdout == usual.stdout


@pytest.mark.parametrize("limited", [False, True], ids=["usual", "in a child"])
@pytest.mark.one_in(4)
def test_an_interrupt_while_it_works(tmp_path, limited):
    trace, page = trace_of(tmp_path, 400_000), tmp_path / "page.txt"
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
    with started(command, start_new_session=True) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
        return process.wait(60), said


def limited(limit_bytes, *arguments):
    """How a command ends that has so much address space.

    `verify` at 800 MB hung in two of some 1,500 runs, for a reason that is not known; what hangs is tried once more.
    """
    limits = (limit_bytes, limit_bytes)
    keys = {"text": False, "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, limits), "timeout": 50}
    with suppress(subprocess.TimeoutExpired):
        return ended(program(*arguments), **keys)
    return ended(program(*arguments), **keys)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return trace_of(tmp_path_factory.mktemp("large"), 200_000)


LINES = (
    *("summarize {0}", "html {0} -o {1}/page.html", "show kernels {0}", "show tree {3}", "compare {2} {2}"),
    *("compare --noise {0} {0}", "compare {0} --save {1}/x.kz", "ranks {0} {3}", "reduce {0} {2} -o {1}/reduced"),
    *("export {0} --to csv -o {1}/tables", "export {0} --to perfetto -o {1}/trace.json", "sql {0} SELECT"),
    *("plot {0} ledger -o {1}/p.svg", "whatif {0}", "verify {2}", "show roofline {2}", "redact {0} -o {1}/copy.sqlite"),
    *("show", "explain gemm", "explain launch-bound"),
)
#: MB: 200 do for nothing that loads polars, 1400 for all; between them some commands lack memory early, some late.
LIMITS = [
    *((400, line) for line in LINES),
    *((800, line) for line in LINES[::2]),
    *((200, line) for line in LINES if line.startswith(("summarize", "show tree", "sql", "redact", "explain gemm"))),
    *((1400, line) for line in LINES if line.startswith(("compare {2}", "plot", "ranks", "export {0} --to csv"))),
]
SLUGS = (b"[out-of-memory]", b"[cannot-tell]", b"[bad-sql]", b"[not-comparable]", b"[unknown-name]", b"[no-job]")


@pytest.mark.slow
@pytest.mark.parametrize(("limit_mb", "line"), LIMITS, ids=lambda value: str(value)[:24])
def test_whatever_lacks_memory_answers_or_says_so(tmp_path, line, limit_mb):
    words = [word.format(ADD, tmp_path, SAMPLES / "add", TORCH) for word in line.split()]
    done = limited(limit_mb * 10**6, *words)
    assert b"Traceback" not in done.stderr
    assert b"OpenBLAS" not in done.stderr
    answered = done.returncode == 0 or (done.returncode == 1 and line.startswith("verify"))
    assert answered or (done.returncode == 2 and any(slug in done.stderr for slug in SLUGS)), done


@pytest.mark.one_in(10)
@pytest.mark.parametrize("mib", [260, 400, 800, 1400])
def test_little_process_is_an_error_or_enough(large, mib):
    done = limited(mib << 20, "summarize", large, "--no-cache")
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr
    assert b"stack backtrace" not in done.stderr
    if done.returncode:
        assert done.stdout == b""
        assert b"[out-of-memory]" in done.stderr or b"[decoder-ended]" in done.stderr


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
    with patch.object(_process, "limits_of_process", dict), patch.object(_process, "_free_bytes", lambda: [100_000]):
        assert _process.tight(["summarize", str(report)])
        assert not _process.tight(["cache", str(report)])
    with patch.object(_process, "limits_of_process", dict), patch.object(_process, "_free_bytes", lambda: [1_000_000]):
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


LACKS = (MemoryError, SystemError, KeyError)


def lacks(error):
    raise error


def waits():
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lock.acquire).start()
    threading.Thread(target=select.epoll().poll).start()  # as an idle thread of polars
    return int(lock.acquire())


def spins():
    """It tries for ever, as Python 3.11 does where it has no memory for the place of an exception in a `with`."""
    while True:
        pass


@pytest.mark.parametrize(
    ("work", "at_limit"),
    [*((partial(lacks, error), False) for error in LACKS), (waits, False), (spins, True)],
)
def test_a_child_that_lacks_memory_and_cannot_say_so_is_told(work, at_limit, capfd, monkeypatch):
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(_process, "limits_of_process", lambda: {"RLIMIT_AS": used_bytes if at_limit else 1 << 40})
    monkeypatch.setattr(_process, "_STUCK_S", 0.05)
    told = []
    assert _process.in_own_process(work, told.append) == 2
    assert [one.slug for one in told] == ["out-of-memory"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("an `Err` value: Os { code: 11, kind: WouldBlock }"), True),  # as polars panics
        (ValueError("anything"), False),
        (SyntaxError("anything"), False),
    ],
)
def test_what_says_that_memory_is_refused(error, refused):
    assert _process.refused(error) is refused


def test_a_library_that_cannot_be_loaded_for_a_limit_lacked_memory(monkeypatch):
    monkeypatch.setattr(_process, "limits_of_process", lambda: {"RLIMIT_AS": 1 << 40})
    assert _process.refused(SyntaxError("(unicode error) \\N escapes not supported (can't load unicodedata module)"))
