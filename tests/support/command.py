"""The command line as tests call it: in this process, which is quick, or in one of its own."""

import atexit
import fcntl
import functools
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from kanalyze.cli import main

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_reports"
REPORTS = ROOT / "tests" / "reports"
TRACE = SAMPLES / "mlp_train" / "torch.json.gz"
MLP = SAMPLES / "mlp_train" / "nsys.sqlite"
ADD, ADD_UM, TORCH = (REPORTS / f"{name}.sqlite" for name in ("add", "add_um", "torch"))

#: The tables of which ADD_UM has no rows, by the report that has.
_HOLDING = {
    REPORTS / "communicators.sqlite": ("communicator_calls",),
    REPORTS / "nvtx.sqlite": ("ranges", "range_gpu", "range_kernels", "range_detail"),
    REPORTS / "libraries.sqlite": ("libraries",),
    REPORTS / "graph_node.sqlite": ("graphs", "graph_nodes", "captured"),
    REPORTS / "graph_graph.sqlite": ("graph_detail",),
    REPORTS / "two_gpus.sqlite": ("sync_detail", "event_records"),
    REPORTS / "sampled_host.sqlite": ("cpu_samples", "stack_frames", "scheduling"),
    REPORTS / "sampled_lock.sqlite": ("call_stacks",),
    REPORTS / "waits" / "pipe_noise.sqlite": ("host_waits",),
    REPORTS / "sampled_python.sqlite": ("python_samples",),
    REPORTS / "gpu_metrics.sqlite": ("gpu_metrics", "gpu_units"),
    REPORTS / "network.sqlite": ("network_metrics",),
    REPORTS / "torch" / "with_modules.json.gz": ("ops", "op_detail"),
    REPORTS / "torch" / "ddp.json.gz": ("collective_detail",),
    SAMPLES / "mlp_train" / "torch.json.gz": ("op_kernels", "steps", "iterations", "phases", "tree"),
    SAMPLES / "gelu" / "torch.json.gz": ("fusion",),
    SAMPLES / "serving" / "vllm.sqlite": ("engine_steps", "step_laws", "requests"),
    REPORTS / "work" / "gpt.json.gz": ("work", "roofs", "budget", "mfu"),
    SAMPLES / "square": ("agreement", "gains", "variants"),
    REPORTS / "ncu" / "add.details.csv": (
        *("counters", "stalls", "roofline", "advice", "hot_lines", "metrics", "instructions"),
    ),
}

#: What in the environment of a test run would change what the commands print.
_UNWANTED = ("COLUMNS", "LINES", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONWARNINGS")


def _folder():
    """A folder that is gone when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="kanalyze-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def captured(folder, **reports):
    """A capture in a new folder: files by how they are called there, with _ in place of points."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"schema": 1}')
    for name, file in reports.items():
        shutil.copyfile(file, folder / name.replace("_", "."))
    return folder


@functools.cache
def capture():
    """A capture with a compiled kernel."""
    folder = _folder()
    row = {"name": "triton_poi_fused_0", "source": "inductor", "hash": "ABC", "backend": "cuda", "arch": 90}
    (folder / "compiled.json").write_text(json.dumps({"schema": 1, "kernels": [row]}))
    (folder / "manifest.json").write_text(json.dumps({"schema": 1}))
    shutil.copyfile(REPORTS / "torch_node.sqlite", folder / "nsys.sqlite")
    return folder


@functools.cache
def capture_with_lines():
    """A capture of a Python program with its lines and the passes of its loops."""
    folder = _folder()
    with tarfile.open(ROOT / "benchmarks" / "diagnosis" / "captures" / "cupy_options.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "cupy_options"


def report_with(table):
    """A report of which `table` has rows."""
    if table == "compiled":
        return capture()
    if table in ("code", "source_lines", "loop_passes"):
        return capture_with_lines()
    return next((path for path, tables in _HOLDING.items() if table in tables), ADD_UM)


#: What a word on a report's health ends with.
_OF_HEALTH = " See `kanalyze show health "


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote: on standard error all of it, and what is no word on a report's health."""

    status: int
    raw: bytes
    said: str

    @property
    def doubts(self):
        """The lines on standard error that say what of a report is in doubt."""
        return [line for line in self.said.splitlines() if _OF_HEALTH in line]

    @property
    def error(self):
        """The other lines there."""
        return "".join(line for line in self.said.splitlines(keepends=True) if _OF_HEALTH not in line)

    @property
    def text(self):
        return self.raw.decode()

    @property
    def lines(self):
        return self.text.splitlines()


def run(*arguments, columns=80):
    """Run the command line in this process; an exception that it lets through is the test's."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="\n")
    with (
        patch.object(sys, "argv", ["kanalyze", *map(str, arguments)]),
        patch.dict(os.environ, COLUMNS=str(columns)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = _status_of_main()
    out.flush()
    err.flush()
    return Ran(status, out.buffer.getvalue(), err.buffer.getvalue().decode())


def _status_of_main():
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


def printed(*arguments, **keys):
    """What a command prints that ends well and says nothing else."""
    ran = run(*arguments, **keys)
    assert (ran.status, ran.error) == (0, ""), ran
    return ran.text


def html_of(folder, *arguments):
    """The file that `kanalyze html` writes into a folder."""
    assert run("html", *arguments, "-o", folder / "report.html").status == 0
    return (folder / "report.html").read_text()


def refused(ran):
    """The message and the remedy (with its slug) of a command that printed nothing else and ended with status 2."""
    assert (ran.status, ran.raw) == (2, b""), ran
    message, remedy, *more = ran.error.splitlines()
    assert message.startswith("kanalyze: ")
    assert not more
    return message.removeprefix("kanalyze: "), remedy


def environment(**changes):
    """This process's environment without what changes the commands' output, and with `changes`."""
    return {name: value for name, value in os.environ.items() if name not in _UNWANTED} | changes


def command_line(*arguments):
    """What starts the commands in a process of their own, where a warning is an error."""
    return [sys.executable, "-W", "error", "-m", "kanalyze", *map(str, arguments)]


def started(command, **more):
    """A process of its own, what it prints, and what it says."""
    keys = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | more
    return subprocess.Popen([*map(str, command)], **keys)  # noqa: S603 - it starts what tests say


def ended(command, **more):
    """How a process of its own ended, and what it printed and said."""
    keys = {"capture_output": True, "text": True, "env": environment(), "timeout": 100} | more
    return subprocess.run([*map(str, command)], check=False, **keys)  # noqa: S603 - as above


def wait_until(holds, seconds=60):
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(process):
    """Whether a process runs, by its id; one that has ended and that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def spawn(*arguments, stdout=subprocess.PIPE, **changes):
    """Run the command line in a process of its own, with `changes` to the environment."""
    keys = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE, "capture_output": False}
    done = ended(command_line(*arguments), text=False, env=environment(**changes), **keys)
    return Ran(done.returncode, done.stdout or b"", done.stderr.decode())


def on_terminal(columns, *arguments, **changes):
    """What a command shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    keys = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with started(command_line(*arguments), env=environment(TERM="xterm-256color", **changes), **keys) as process:
        os.close(theirs)
        shown = b""
        while part := read_or_end(ours):
            shown += part
        os.close(ours)
        assert process.wait(100) == 0, shown
    return shown.decode().replace("\r\n", "\n")


def read_or_end(descriptor):
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux says so where the other side of a terminal is closed
        return b""
