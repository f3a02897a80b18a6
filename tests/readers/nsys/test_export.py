"""Reports in NVIDIA's own format: exported once, never stale, never half; with a script in place of nsys."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import kanalyze
from kanalyze import files
from kanalyze.readers import read
from kanalyze.readers.nsys import read_rep
from support.command import ADD, ADD_UM, command_line, is_running, refused, run, started, wait_until

pytestmark = pytest.mark.slow

MAGIC = b"NVIDIA Tegra Profiler Report 2025.\n"

#: An nsys that exports any report as `source`, after a delay, and notes that it ran.
FAKE = """\
#!{python} -S
import os, shutil, signal, sys, time
if sys.argv[1:] == ["--version"]:
    print("NVIDIA Nsight Systems version 2025.3.2.474-253236389888v0")
    sys.exit()
output, = [word.removeprefix("--output=") for word in sys.argv if word.startswith("--output=")]
assert sys.argv[1:3] == ["export", "--type=sqlite"] and os.path.isfile(sys.argv[-1]), sys.argv
with open({runs!r}, "a") as runs:
    print(os.getpid(), output, file=runs)
{before}
for percent in (1, 50, 100):
    print(f"\\rProcessing 1145 events: [{{'=' * (percent // 2)}}{{percent}}%   ]", end="", flush=True)
    time.sleep(0.1)
print()
shutil.copyfile({source!r}, output)
{after}
"""


class FakeNsys:
    """A script called nsys in a folder of its own, and the runs of it."""

    def __init__(self, folder):
        self.folder, self.log = folder / "bin", folder / "runs"
        self.folder.mkdir()
        self.write()

    def write(self, source=ADD, before="", after=""):
        """Make it export as `source`; with Python statements before and after."""
        text = FAKE.format(python=sys.executable, runs=str(self.log), source=str(source), before=before, after=after)
        script = self.folder / "nsys"
        script.write_text(text)
        script.chmod(0o755)

    @property
    def runs(self):
        """The process and the output of each export."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(line.split(maxsplit=1)[0]), Path(line.split(maxsplit=1)[1])) for line in lines]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kanalyze"


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(cache, tmp_path, monkeypatch):
    """No nsys that is installed, and no cache of who runs the tests."""
    assert not cache.exists()
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(read_rep, "NSYS_FOLDERS", ())


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    fake = FakeNsys(tmp_path)
    monkeypatch.setenv("PATH", str(fake.folder))
    return fake


@pytest.fixture
def report(tmp_path):
    return recorded(tmp_path / "run.nsys-rep")


def recorded(path, content=b"events"):
    path.write_bytes(MAGIC + content)
    return path


def kernels(path):
    return kanalyze.kernels(kanalyze.read(path))


def message(path):
    told, remedy = refused(run("summarize", path, columns=80))
    assert told.startswith(f"{path}: ")
    assert remedy.endswith("  [export-failed]")
    return told.removeprefix(f"{path}: "), remedy.removesuffix("  [export-failed]")


@pytest.mark.parametrize("beginning", [MAGIC, b"a format of tomorrow: "])
def test_a_report_is_exported_once(nsys, cache, report, beginning):
    report.write_bytes(beginning + b"events")
    assert kernels(report).equals(kernels(ADD))
    assert kernels(report).equals(kernels(ADD))
    ((_, output),) = nsys.runs
    (kept,) = cache.iterdir()
    assert kept.suffix == ".sqlite"
    assert kept.read_bytes() == ADD.read_bytes()
    assert output.parent.parent == cache
    assert not output.parent.exists()
    assert report.read_bytes() == beginning + b"events"


def test_the_report_is_called_as_the_user_calls_it(nsys, report):
    meta = kanalyze.read(report).meta
    assert (meta.path, meta.tool_version) == (report, "2025.3.2")
    assert meta.read_from.parent.name == "kanalyze"
    assert run("summarize", report).lines[0].startswith("run.nsys-rep   nsys 2025.3.2")
    assert nsys.runs


def test_a_changed_report_and_another_nsys_export_again_and_the_old_export_goes(nsys, cache, report):
    kernels(report)
    nsys.write(ADD_UM)
    assert kernels(report).equals(kernels(ADD_UM))
    for number, content in enumerate((b"other events", b"OTHER EVENTS"), 3):
        recorded(report, content)
        assert kernels(report).equals(kernels(ADD_UM))
        assert len(nsys.runs) == number
    assert len(list(cache.iterdir())) == 1


def test_what_was_exported_is_read_by_any_path_and_without_nsys_too(nsys, tmp_path, monkeypatch, report):
    kernels(report)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (tmp_path / "link.nsys-rep").symlink_to(report)
    assert kernels(tmp_path / "link.nsys-rep").equals(kernels(ADD))
    monkeypatch.chdir(tmp_path)
    kernels("run.nsys-rep")
    assert len(nsys.runs) == 1


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert files.cache_folder() == Path("/some/where/kanalyze")
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", "/home/me")
        assert files.cache_folder() == Path("/home/me/.cache/kanalyze")


def test_what_killed_exports_left_is_removed_after_a_day(nsys, cache, report):
    for name in (".exporting-old", ".exporting-new"):
        (cache / name).mkdir(parents=True)
        (cache / name / "export.sqlite").touch()
    os.utime(cache / ".exporting-old", (time.time() - 100_000,) * 2)
    kernels(report)
    assert not (cache / ".exporting-old").exists()
    assert (cache / ".exporting-new").exists()
    assert nsys.runs


def test_progress_is_told(nsys, report):
    told = []
    read(report, progress=lambda *told_now: told.append(told_now))
    assert {what for what, _ in told} == {f"exporting run.nsys-rep with {nsys.folder / 'nsys'}"}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], 0.5 in shares, shares[-1]) == (0.0, True, 1.0)
    told.clear()
    read(report, progress=lambda *told_now: told.append(told_now))
    assert told == []


def test_progress_that_fails_ends_the_export(nsys, cache, report):
    nsys.write(before="time.sleep(60)")

    def fail(*_):
        raise RuntimeError("the terminal went away")

    with pytest.raises(RuntimeError, match="the terminal went away"):
        read(report, progress=fail)
    assert list(cache.iterdir()) == []


def beside(report, source, seconds):
    path = report.with_suffix(".sqlite")
    path.write_bytes(source.read_bytes())
    at = report.stat().st_mtime_ns + int(seconds * 1e9)
    os.utime(path, ns=(at, at))
    return path


def test_a_newer_export_beside_the_report_is_read(nsys, report):
    path = beside(report, ADD_UM, 1)
    meta = kanalyze.read(report).meta
    assert (meta.path, meta.read_from) == (report, path)
    assert kernels(report).equals(kernels(ADD_UM))
    assert nsys.runs == []


@pytest.mark.parametrize("odd", ["older", b"", b"notes", ADD_UM.read_bytes()[:20_000], "journal"], ids=lambda _: "")
def test_an_export_beside_the_report_that_is_older_none_or_not_finished_is_not_read(nsys, report, odd):
    path = beside(report, ADD_UM, -1 if odd == "older" else 1)
    if isinstance(odd, bytes):
        path.write_bytes(odd)
    elif odd == "journal":  # nsys is still writing it
        path.with_name(path.name + "-journal").write_bytes(b"journal")
    content = path.read_bytes()
    assert kernels(report).equals(kernels(ADD))
    assert path.read_bytes() == content
    assert nsys.runs


def test_without_nsys_the_command_is_told_and_an_older_export_is_pointed_at(report):
    told, remedy = message(report)
    assert told == "an Nsight Systems report in NVIDIA's own format, and there is no nsys here that can export it."
    assert remedy.startswith("Install Nsight Systems (https://developer.nvidia.com/nsight-systems) or put its nsys on")
    assert remedy.endswith(f"`nsys export --type=sqlite {report}`.")
    path = beside(report, ADD, -1)
    assert message(report)[1].endswith(f" Or give {path}, which is older than the report.")


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("print('Version not supported.', file=sys.stderr); sys.exit(1)", "Version not supported"),
        ("print('first'); print(); print('second  line'); sys.exit(3)", "first; second line"),
        ("sys.exit(1)", "it ended with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it ended with status -9"),
        ("os.remove(output)", "it left no whole export"),
        ("open(output, 'wb').write(b'SQLite format 3')", "it left no whole export"),
        ("os.remove(output); import sqlite3; sqlite3.connect(output).execute('CREATE TABLE a (b)')", "it left no"),
    ],
    ids=["too old", "words", "status", "killed", "no file", "no database", "another database"],
)
def test_an_export_that_fails_is_told_in_nsys_words_and_leaves_nothing(nsys, cache, report, after, reason):
    nsys.write(after=after)
    told, remedy = message(report)
    assert told.startswith(f"nsys 2025.3.2.474 cannot export it: {reason}")
    assert f"`nsys export --type=sqlite {report}`" in remedy
    assert list(cache.iterdir()) == []
    nsys.write()
    assert kernels(report).equals(kernels(ADD))


def test_an_nsys_that_cannot_be_started_and_a_cache_that_is_a_file_are_told(nsys, cache, report):
    (nsys.folder / "nsys").write_text("#!/no/such/interpreter\n")
    assert message(report)[0] == f"{nsys.folder / 'nsys'} cannot export it: No such file or directory."
    shutil.rmtree(cache.parent)
    cache.parent.write_text("not a folder")
    told, remedy = message(report)
    assert told == f"its export cannot be written to {cache} (Not a directory)."
    assert remedy.startswith("Set XDG_CACHE_HOME to a folder with space")


def test_a_report_that_is_still_being_written_is_told(nsys, report):
    nsys.write(after=f"open({str(report)!r}, 'ab').write(b'more')")
    told, remedy = refused(run("summarize", report))
    assert told == f"{report}: cannot be read (it changed while it was exported)."
    assert remedy.endswith("[report-unreadable]")
    nsys.write()
    assert kernels(report).equals(kernels(ADD))


def test_nsys_on_the_path_comes_first_then_the_newest_installed(tmp_path, monkeypatch):
    assert read_rep.find() is None
    for version in ("2024.6.1", "2025.3.2", "2025.10.1", "2023.4.4"):
        folder = tmp_path / "nsight-systems" / version / "bin"
        folder.mkdir(parents=True)
        shutil.copyfile(sys.executable, folder / "nsys")
        (folder / "nsys").chmod(0o755 if version != "2025.10.1" else 0o644)
    monkeypatch.setattr(read_rep, "NSYS_FOLDERS", (str(tmp_path / "nsight-systems" / "*" / "bin"),))
    assert read_rep.find() == tmp_path / "nsight-systems" / "2025.3.2" / "bin" / "nsys"
    monkeypatch.setenv("PATH", str(tmp_path / "nsight-systems" / "2023.4.4" / "bin"))
    assert read_rep.find() == tmp_path / "nsight-systems" / "2023.4.4" / "bin" / "nsys"


@pytest.mark.parametrize("text", ["exit 1", "echo nothing", "exec sleep 60"])
def test_a_version_that_cannot_be_told_is_none(tmp_path, monkeypatch, text):
    script = tmp_path / "nsys"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(read_rep, "_VERSION_LIMIT_S", 0.2)
    assert read_rep.version(script) == ""


#: Starts a command that signals reach, also where these tests run in the background and they do not reach them.
INTERRUPTIBLE = (
    "import os, signal, sys; "
    "[signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def summarizing(report):
    """The command line in a process of its own, which runs on."""
    return started([sys.executable, "-c", INTERRUPTIBLE, *command_line("summarize", report)])


def stopped(process, number, true):
    """Send a signal once something is `true`; what the process wrote until it ended."""
    wait_until(true)
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert b"Traceback" not in error
    assert out == b""
    return process.returncode


@pytest.mark.parametrize(
    ("number", "stubborn"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)],
    ids=["Ctrl-C", "Ctrl-C, and nsys does not want to", "terminated", "hung up"],
)
def test_a_command_that_is_stopped_leaves_no_process_and_no_file(nsys, cache, report, number, stubborn):
    nsys.write(before=("signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else "") + "time.sleep(60)")
    assert stopped(summarizing(report), number, lambda: nsys.runs) != 0
    ((export, _),) = nsys.runs
    assert not is_running(export)
    assert list(cache.iterdir()) == []


CHILD = """
import subprocess
child = subprocess.Popen(['/bin/sleep', '60'])
with open({log!r}, 'a') as log:
    print(child.pid, 'x', file=log)
time.sleep(60)
"""


def test_children_of_nsys_are_stopped_with_it(nsys, cache, report):
    nsys.write(before=CHILD.format(log=str(nsys.log)))
    stopped(summarizing(report), signal.SIGINT, lambda: len(nsys.runs) == 2)
    for running, _ in nsys.runs:
        wait_until(lambda running=running: not is_running(running))
    assert list(cache.iterdir()) == []


def test_two_commands_at_once_both_have_a_page(nsys, cache, report):
    nsys.write(before="time.sleep(1)")
    both = [summarizing(report) for _ in range(2)]
    pages = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert pages[0] == pages[1]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.write_bytes(kept.read_bytes()[:-1]),
        lambda kept: kept.write_bytes(kept.read_bytes().replace(b"add", b"dad")),
        lambda kept: kept.chmod(0o666),
        lambda kept: kept.rename(kept.parents[2] / "x.sqlite") and kept.symlink_to(kept.parents[2] / "x.sqlite"),
    ],
    ids=["cut", "changed", "of others", "a link"],
)
def test_an_export_in_the_cache_that_is_not_as_it_was_made_is_made_again(nsys, cache, report, change):
    first = kernels(report)
    (kept,) = cache.iterdir()
    change(kept)
    assert kernels(report).equals(first)
    assert len(nsys.runs) == 2
    (again,) = cache.iterdir()
    assert (again.is_symlink(), again.read_bytes()) == (False, ADD.read_bytes())
