"""Children end with the program that started them, however that ends."""

import subprocess
import sys

import pytest

#: Starts a child that holds standard output, and is killed as soon as that child says something.
_STARTS = {
    "end_with": """
import os, time
from kanalyze.machinery.processes import end_with
parent = os.getpid()
if not os.fork():
    end_with(parent)
    print("child", flush=True)
    time.sleep(600)
time.sleep(600)""",
    "nsys": """
import sys, time
from kanalyze.readers.nsys.read_rep import start
start([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"], sys.stdout)
time.sleep(600)""",
    "ncu": """
import sys
from kanalyze.readers.ncu.read_csv_rep import run_program
said = "import os, time; out = open(f'/proc/{os.getppid()}/fd/1', 'w'); print('child', file=out, flush=True); "
run_program([sys.executable, "-c", said + "time.sleep(600)"])""",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children end with their parent on Linux")
@pytest.mark.parametrize("starts", _STARTS)
def test_a_child_ends_when_its_parent_is_killed(starts):
    command = [sys.executable, "-c", _STARTS[starts]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 - Python itself
        assert parent.stdout.readline() == "child\n"
        parent.kill()
        assert parent.stdout.read() == ""  # which waits for the end of all that could write


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children end with their parent on Linux")
def test_a_child_whose_parent_ended_before_ends_at_once():
    code = "from kanalyze.machinery.processes import end_with; end_with(1 << 30); print('lives on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # noqa: S603 - as above
    assert (ended.returncode, ended.stdout) == (1, b"")
