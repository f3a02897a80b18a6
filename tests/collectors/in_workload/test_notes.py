"""What is noted of a script: the lines that its threads are in, exactly or by samples, and its recurring parts."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from kanalyze.collectors.in_workload import notes
from kanalyze.collectors.run.plan import RUNNER


def runs(python):
    """Whether it starts: a launcher of pyenv may be there without its Python."""
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0  # noqa: S603


def newer():
    """A Python that notes every change of the line; also one that pyenv keeps beside this one."""
    beside = Path(sys.base_prefix).parent.glob("3.1[2-9]*/bin/python3")
    known = [path for minor in range(12, 20) if (path := shutil.which(f"python3.{minor}"))]
    found = [sys.executable] if sys.version_info >= (3, 12) else [*known, *map(str, sorted(beside))]
    return next(filter(runs, found), None)


EXACT, SAMPLED = newer(), sys.executable if sys.version_info < (3, 12) else None
exact = pytest.mark.skipif(EXACT is None, reason="needs Python 3.12 or later")
sampled = pytest.mark.skipif(SAMPLED is None, reason="needs Python 3.11 or earlier")


def noted(folder, source, *words, python=None, status=0, **environment):
    """The file that a run of a script left, and what it printed."""
    (folder / "script.py").write_text(textwrap.dedent(source))
    command = [python or sys.executable, str(RUNNER), "--lines", str(folder / "lines-nsys.json.gz"), "--"]
    ran = subprocess.run(  # noqa: S603 - a script of the test
        [*command, str(folder / "script.py"), *words],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert ran.returncode == status, ran.stderr
    files = [*folder.glob("lines-*.json.gz")]
    return json.loads(gzip.decompress(files[0].read_bytes())) if files else None, ran


def visited(content, thread=0):
    """The lines of a thread in order, with their texts; None for none of the program's."""
    places = [None if at < 0 else content["places"][at] for at in content["threads"][thread]["lines"]["places"]]
    return [place and (place[1], place[2], place[3]) for place in places]


LOOP = """
    import json
    def work(number):
        return json.dumps(list(range(number)))
    for number in (1, 2):
        work(number)
"""


@exact
def test_every_change_of_the_line_is_noted_and_none_of_python_s_own(tmp_path):
    content, _ = noted(tmp_path, LOOP, python=EXACT)
    assert (content["schema"], content["exact"], content["files"]) == (1, True, ["script.py"])
    lines = [line for line in visited(content) if line is not None]
    first = (4, "work", "return json.dumps(list(range(number)))")
    assert lines.count(first) == 2
    assert {line for line, *_ in lines} <= {2, 3, 4, 5, 6}
    at = lines.index(first)
    assert (6, "<module>", "work(number)") in lines[at + 1 : at + 3]  # where it returns to


@exact
def test_each_next_pass_of_a_loop_is_noted_with_the_line_in_which_it_begins(tmp_path):
    source = """
        def work(number):
            total = 0
            while number:
                number -= 1
                total += number
            return total
        for number in (1, 2, 3):
            work(number)
    """
    content, _ = noted(tmp_path, source, python=EXACT)
    (thread,) = content["threads"]
    lines = [content["places"][at][1] for at in thread["loops"]["places"]]
    assert lines.count(8) >= 2
    assert {*lines} <= {4, 5, 8}  # of a while loop newer Pythons jump behind its condition


@exact
def test_generators_and_threads_are_followed(tmp_path):
    source = """
        import threading
        def numbers():
            yield 1
            yield 2
        def other():
            total = sum(numbers())
            return total
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    """
    content, _ = noted(tmp_path, source, python=EXACT)
    assert len({thread["id"] for thread in content["threads"]}) == 2
    (worker,) = [at for at in (0, 1) if not any(line and line[1] == "<module>" for line in visited(content, at))]
    told = [line[0] for line in visited(content, worker) if line]
    assert [line for at, line in enumerate(told) if not at or told[at - 1] != line][-1] == 8
    assert {4, 5, 7, 8} <= {*told}


@exact
def test_lines_that_a_thread_changes_to_too_often_are_noted_as_one_and_those_after_them_as_they_are(tmp_path):
    source = """
        import time
        total = 0
        for number in range(100_000):
            total += number
            total ^= 1
        time.sleep(0.01)
    """
    content, _ = noted(tmp_path, source, python=EXACT)
    assert sum(len(thread["lines"]["times"]) for thread in content["threads"]) < 10_000
    assert visited(content)[-2] == (7, "<module>", "time.sleep(0.01)")


each_python = pytest.mark.parametrize(
    "python", [pytest.param(EXACT, marks=exact), pytest.param(SAMPLED, marks=sampled)]
)


@each_python
def test_code_of_no_file_runs_where_the_folder_is_gone(tmp_path, python):
    source = """
        import os, tempfile
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
        exec(compile("def made(): return 1", "<made>", "exec"))
        odd = made.__code__.replace(co_filename="a" + chr(0))
        made.__code__ = odd
        print(made())
    """
    _, ran = noted(tmp_path, source, python=python)
    assert ran.stdout == "1\n"


@sampled
def test_older_pythons_are_sampled(tmp_path):
    source = """
        import time
        def wait():
            time.sleep(0.2)
        wait()
    """
    content, _ = noted(tmp_path, source, python=SAMPLED)
    assert content["exact"] is False
    assert (4, "wait", "time.sleep(0.2)") in visited(content)


@each_python
def test_a_script_runs_as_without_it_and_its_error_is_shown_without_the_runner(tmp_path, python):
    source = """
        import sys
        print(__name__, sys.argv[1:], __file__.endswith("script.py"))
        def f():
            raise ValueError('no')
        f()
    """
    content, ran = noted(tmp_path, source, "--out", "--", "x", python=python, status=1)
    assert ran.stdout == "__main__ ['--out', '--', 'x'] True\n"
    assert "ValueError: no" in ran.stderr
    assert "torch_runner" not in ran.stderr
    assert "notes.py" not in ran.stderr
    assert content is not None


@exact
def test_a_child_of_the_process_writes_nothing_and_is_not_noted(tmp_path):
    source = """
        import os
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        print(os.getpid())
    """
    content, ran = noted(tmp_path, source, python=EXACT)
    assert content["process"] == int(ran.stdout)


def test_each_rank_has_a_file_of_its_own(tmp_path):
    noted(tmp_path, "x = 1\n", OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4")
    assert [path.name for path in tmp_path.glob("lines-*")] == ["lines-nsys-rank3.json.gz"]


@exact
def test_files_beside_the_script_are_told_from_its_folder_on(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "model.py").write_text("def forward():\n    return 1\n")
    content, _ = noted(tmp_path, "from package.model import forward\nforward()\n", python=EXACT)
    assert {*content["files"]} == {"script.py", os.path.join("package", "model.py")}  # noqa: PTH118 - as it is written


def test_what_python_and_packages_run_is_not_the_program_s():
    places = notes.Places()
    files = (os.__file__, pytest.__file__, notes.__file__, "<string>", __file__)
    assert [places.is_own(file) for file in files] == [False] * 4 + [True]


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
    name, told = marked(tmp_path, source, nvtx=True, RANK="1", WORLD_SIZE="2")
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
    assert notes.OWN not in counts
    assert counts["step"] == counts["Optimizer.step#SGD.step"] == counts[notes.CALL] == 6
    assert counts["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == 7


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch; CI has it in a step of its own")
@pytest.mark.parametrize(
    ("profiler", "turns"),
    [
        ("torch.profiler.profile(activities=[CPU])", 1),
        ("torch.profiler.profile(activities=[CPU], schedule=torch.profiler.schedule(wait=1, warmup=0, active=1))", 2),
        ("torch.autograd.profiler.profile()", 1),
    ],
)
def test_a_program_that_profiles_itself_is_marked_so_and_where_it_starts(tmp_path, profiler, turns):
    source = f"""
        import torch
        CPU = torch.profiler.ProfilerActivity.CPU
        with {profiler} as profile:
            for _ in range(4):
                getattr(profile, "step", bool)()
    """
    _, told = marked(tmp_path, source)
    starts, ends = (told["starts_ns"][name] for name in (notes.OWN, notes.OWN_END))
    assert (len(starts), told["profiler"].rpartition(":")[0]) == (turns, "script.py")
    assert all(start < min(end for end in ends if end > start) for start in starts)


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
    assert len(told["starts_ns"]) <= notes.NAMES + 8


def test_no_more_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(notes, "EACH", 2)
    monkeypatch.setattr(notes, "NAMES", 2)
    kept = notes.Marks(notes.Places())
    for name in "aaabbc":
        kept.mark(name)
    assert {name: len(times) for name, times in kept.starts.items()} == {"a": 2, "b": 2}
