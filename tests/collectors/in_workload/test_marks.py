"""What a script's run without a profiler notes of its recurring parts."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from kanalyze.collectors.in_workload import bare_run
from kanalyze.collectors.run.plan import RUNNER

#: A package with the functions of nvtx, and ranges that are objects.
NVTX = """
    class annotate:
        def __init__(self, message):
            self.attributes = type("Attributes", (), {"message": message})
        def __enter__(self):
            return self
        def __exit__(self, *error):
            return False
    def push_range(message=None, color=None): return 0
    def pop_range(): return 0
"""

TORCH = """
    import torch
    from torch.profiler import record_function
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.utils.data.DataLoader(torch.rand(24, 8), batch_size=4)
    for batch in batches:
        with record_function("step"):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""


def marked(folder, source, *, nvtx=False, **environment):
    """The file that a run of a script left, with a package nvtx on demand."""
    if nvtx:
        (folder / "nvtx").mkdir()
        (folder / "nvtx" / "nvtx.py").write_text(textwrap.dedent(NVTX))
        (folder / "nvtx" / "__init__.py").write_text("from nvtx.nvtx import *\n")
    script, file = folder / "script.py", folder / "bare.json"
    script.write_text(textwrap.dedent(source))
    words = [sys.executable, str(RUNNER), "--bare", str(file), "--", str(script)]
    subprocess.run(words, check=True, env=os.environ | environment)  # noqa: S603 - a script of the test
    (written,) = folder.glob("bare*.json")
    return written.name, json.loads(written.read_text())


def test_ranges_of_nvtx_are_marked_by_name_in_order(tmp_path):
    source = """
        import nvtx.nvtx as nvtx
        for number in range(3):
            nvtx.push_range(message="outer")
            with nvtx.annotate("inner"):
                pass
            nvtx.pop_range()
        nvtx.pop_range()
    """
    name, told = marked(tmp_path, source, nvtx=True, RANK="1")
    assert name == "bare-rank1.json"
    outer, inner = told["starts_ns"]["outer"], told["starts_ns"]["inner"]
    # from Python 3.12 on passes of the loop are marked, too
    assert {mark for mark in told["starts_ns"] if not mark.startswith("script.py:")} == {"outer", "inner"}
    times = [time for both in zip(outer, inner, strict=True) for time in both]
    assert (len(times), times) == (6, sorted(times))


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch; CI has it in a step of its own")
def test_steps_of_torch_are_marked(tmp_path):
    _, told = marked(tmp_path, TORCH)
    counts = {name: len(times) for name, times in told["starts_ns"].items()}
    assert bare_run.OWN not in counts
    assert counts["step"] == counts["Optimizer.step#SGD.step"] == counts[bare_run.CALL] == 6
    assert counts["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == 7
    assert told["mark_ns"] > 0


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch; CI has it in a step of its own")
def test_a_program_that_profiles_itself_is_marked_so(tmp_path):
    source = """
        import torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            profile.step()
    """
    _, told = marked(tmp_path, source)
    assert bare_run.OWN in told["starts_ns"]


def test_threads_that_share_a_range_and_go_on_at_the_end_do_no_harm(tmp_path):
    source = """
        import sys, threading
        import nvtx.nvtx as nvtx
        sys.setswitchinterval(1e-6)
        shared = nvtx.annotate("step")
        def work(number):
            for at in range(2000):
                with shared, nvtx.annotate(f"{number} {at}"):
                    pass
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        threads[0].join()
    """
    _, told = marked(tmp_path, source, nvtx=True)
    assert 2000 <= len(told["starts_ns"]["step"]) <= 16000
    assert len(told["starts_ns"]) <= bare_run.NAMES + 8


def test_no_more_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(bare_run, "EACH", 2)
    monkeypatch.setattr(bare_run, "NAMES", 2)
    kept = bare_run.Marks()
    for name in "aaabbc":
        kept.mark(name)
    assert {name: len(times) for name, times in kept.starts.items()} == {"a": 2, "b": 2}
