"""The recipes, each on a real torch: a script runs under the runner in a process of its own. CPU only is enough."""

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kanalyze.collectors.in_workload import torch_runner

pytest.importorskip("torch", reason="needs torch; CI has it in a step of its own")

RUNNER = Path(torch_runner.__file__).resolve()

TRAIN = """
    import torch
    from torch.profiler import record_function
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train():
        with record_function("data"):
            x = torch.rand(4, 8)
        with record_function("forward"):
            loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for _ in range(12):
        with record_function("step"):
            train()
"""

INFER = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    for _ in range(12):
        model(torch.rand(4, 8))
"""


class Ran:
    def __init__(self, folder, done):
        self.folder, self.status, self.out, self.err = folder, done.returncode, done.stdout, done.stderr

    @property
    def files(self):
        """All but the lines of the program, of which test_source_lines.py tells."""
        names = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        return sorted(name for name in names if not name.startswith("lines-"))

    @property
    def told(self):
        return json.loads((self.folder / "torch-run.json").read_text())

    def events(self, file="torch.json.gz"):
        """All operators and ranges in a trace."""
        with gzip.open(self.folder / file) as trace:
            return [event for event in json.load(trace)["traceEvents"] if event.get("ph") == "X"]

    def names(self, file="torch.json.gz"):
        return [event["name"] for event in self.events(file)]


@pytest.fixture
def run(tmp_path):
    def run(text, *options, arguments=(), environ=None, timeout_s=110):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        command = [sys.executable, "-W", "ignore", RUNNER, "--out", tmp_path / "out", *options, "--", script]
        command += arguments
        kept = {"capture_output": True, "text": True, "env": {**os.environ, **(environ or {})}, "cwd": tmp_path}
        done = subprocess.run([*command, *arguments], check=False, timeout=timeout_s, **kept)  # noqa: S603
        return Ran(tmp_path / "out", done)

    return run


def test_plain_records_everything(run):
    ran = run(TRAIN + "    print('done')")
    assert (ran.status, ran.out) == (0, "done\n")
    assert ran.files == ["torch-run.json", "torch.json.gz", "torch.key_averages.txt"]
    assert (ran.folder / "lines-torch.json.gz").exists()
    names = ran.names()
    assert [names.count(name) for name in ("step", "data", "Optimizer.step#SGD.step")] == [12, 12, 12]
    assert "aten::addmm" in (ran.folder / "torch.key_averages.txt").read_text()
    told = ran.told
    assert told["workload"].pop("duration_ns") > 0
    script = str(ran.folder.parent / "script.py")
    assert told["workload"] == {"argv": [script], "ended": "return", "status": 0, "exception": None}
    found = (told["traces"], told["files"])
    assert found == (["torch.json.gz"], ["lines-torch.json.gz", "torch.json.gz", "torch.key_averages.txt"])
    assert (told["failures"], told["stepping"], told["left_out"]) == ([], None, None)


@pytest.mark.parametrize(("longest_s", "steps", "notes"), [(1, 21, ["the first 21 steps are recorded"]), (0, 30, [])])
def test_plain_ends_with_the_step_that_is_long_enough_after_the_first(run, longest_s, steps, notes):
    clock = "import time; start = time.perf_counter_ns(); time.perf_counter_ns = lambda: start + int(50e6) * i"
    text = TRAIN.replace("for _ in range(12):", f"{clock}; i = 0\n    for i in range(30):")
    ran = run(text, f"--longest={longest_s}")
    assert (ran.status, ran.names().count("Optimizer.step#SGD.step")) == (0, steps)
    kept = [note.partition(",")[0] for note in ran.told["notes"] if "GPU" not in note]
    assert (kept, ran.told["workload"]["ended"]) == (notes, "return")


def test_schedule_records_seven_steps_that_the_optimizer_ends_each_with_its_own_ranges(run):
    ran = run(TRAIN, "--recipe", "schedule", "--activities", "cpu")
    events = ran.events()
    steps = [event for event in events if event["name"].startswith("ProfilerStep")]
    assert [step["name"] for step in steps] == [f"ProfilerStep#{n}" for n in range(2, 9)]
    for step in steps:  # it ends after the optimizer's range, so that this range is whole in it
        end = step["ts"] + step["dur"]
        inside = [one["name"] for one in events if step["ts"] <= one["ts"] and one["ts"] + one["dur"] <= end]
        assert [inside.count(name) for name in ("data", "forward", "Optimizer.step#SGD.step")] == [1, 1, 1]
    assert ran.told["stepping"] == {"by": "optimizer", "name": "", "seen": 12}
    assert ran.told["notes"] == ["a step is the optimizer's step, of which there were 12"]
    assert (ran.told["steps"], ran.told["cycles"], ran.told["switches"]["record_shapes"]) == (12, 1, True)


COMPILED = """
    import torch
    torch._dynamo.config.error_on_recompile = True
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
        def forward(self, x):
            return self.linear(x).relu()
    net = Net()
    net.compile(fullgraph=True, backend="eager")
    for _ in range(12):
        net(torch.rand(4, 8))
"""

SECOND = TRAIN.replace("optimizer.step()", "optimizer.step(); other.step()").replace(
    "    def train", "    other = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())\n    def train"
)

#: The first step of each further optimizer might be one of two that belong together.
FURTHER = """
    import torch
    for rounds in (1, 6, 7):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(rounds):
            model(torch.rand(2, 2)).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "options", "by", "name"),
    [
        (INFER, (), "forward", ""),
        (COMPILED, (), "forward", ""),  # of which torch.compile sees nothing
        (TRAIN, ("--step-on", "forward"), "forward", ""),
        (TRAIN, ("--step-range", "st*p"), "range", "st*p"),
        (TRAIN, ("--step-on", "__main__:train"), "function", "__main__:train"),
        (INFER, ("--step-on", "torch.nn:ReLU.forward"), "function", "torch.nn:ReLU.forward"),
        (SECOND, (), "optimizer", ""),  # of several the steps of the first one count
        (FURTHER, (), "optimizer", ""),
    ],
)
def test_what_ends_a_step(run, text, options, by, name):
    ran = run(text, "--recipe", "schedule", *options)
    assert (ran.status, ran.told["stepping"]) == (0, {"by": by, "name": name, "seen": 12})
    assert len([name for name in ran.names() if name.startswith("ProfilerStep")]) == 7


def test_several_cycles_are_several_traces(run):
    ran = run(INFER, "--recipe", "schedule", "--active", "2", "--repeat", "2")
    assert ran.told["traces"] == ["torch-cycle1.json.gz", "torch-cycle2.json.gz"]
    for number, first in ((1, 2), (2, 6)):
        steps = [name for name in ran.names(f"torch-cycle{number}.json.gz") if name.startswith("ProfilerStep")]
        assert steps == [f"ProfilerStep#{first}", f"ProfilerStep#{first + 1}"]


NO_STEP = (
    "no trace, because no step was seen: the optimizer's step, or the top-level module's call never ended. "
    "Name what ends one: --step-range NAME of a range, --step-on MODULE:FUNCTION (the script is __main__), "
    "forward or optimizer"
)


@pytest.mark.parametrize(
    ("text", "options", "note"),
    [
        (INFER, ("--active", "50"), "cycle 1 ended with the program, before its last step"),
        (INFER.replace("12", "1"), ("--wait", "5"), "no trace: too few steps (1): the recipe skips the first 6"),
        ("import torch\ntorch.rand(3)", (), NO_STEP),
    ],
)
def test_a_cycle_that_is_not_finished_or_not_begun_is_told(run, text, options, note):
    ran = run(text, "--recipe", "schedule", "--activities", "cpu", *options)
    assert note in ran.told["notes"]
    assert (ran.status, ran.told["traces"]) == (0, ["torch.json.gz"] if note.startswith("cycle") else [])


@pytest.mark.parametrize(
    ("recipe", "counts"),
    [("toggle", [12, 12, 0]), ("toggle-cuda-off", [12, 12, 12])],  # the recipes differ in the activities alone
)
def test_toggle_leaves_the_optimizer_out(run, recipe, counts):
    ran = run(TRAIN, "--recipe", recipe, "--activities", "cpu")
    names = ran.names()
    assert [names.count(name) for name in ("step", "data", "Optimizer.step#SGD.step")] == counts
    assert ran.told["left_out"] == {"by": "optimizer", "name": "", "seen": 12}


def test_toggle_leaves_a_range_out_and_says_where_it_meets_none(run):
    names = run(TRAIN, "--recipe", "toggle", "--leave-out", "data").names()
    assert [names.count(name) for name in ("data", "aten::rand", "forward")] == [0, 0, 12]
    ran = run(INFER, "--recipe", "toggle", "--leave-out", "validate", "--activities", "cpu")
    (note,) = ran.told["notes"]
    assert note == (
        "nothing was left out: the range validate never came. Name the part: --leave-out NAME of a range, "
        "or --leave-out-call MODULE:FUNCTION"
    )


def test_events_give_the_time_of_each_step_after_the_warm_up(run):
    ran = run(INFER, "--recipe", "events", "--warmup", "3", "--active", "4", "--activities", "cpu")
    assert ran.files == ["torch-run.json", "torch.times.json"]
    assert not (ran.folder / "lines-torch.json.gz").exists()  # it would cost time
    times = json.loads((ran.folder / "torch.times.json").read_text())
    assert (times["clock"], len(times["warmup_ns"]), len(times["times_ns"])) == ("host", 3, 4)
    assert 0 < sum(times["warmup_ns"] + times["times_ns"]) <= times["whole_ns"]


def test_tensorboard_lays_the_trace_out_as_the_board_wants_it(run):
    ran = run(INFER, "--recipe", "tensorboard")
    (trace,) = ran.told["traces"]
    assert trace.startswith("tensorboard/torch.")
    assert trace.endswith(".pt.trace.json.gz")
    assert trace.count(".") == 5
    assert len([name for name in ran.names(trace) if name.startswith("ProfilerStep")]) == 7


def test_nvtx_without_a_gpu_says_so(run):
    ran = run(INFER, "--recipe", "nvtx", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert (ran.status, ran.files) == (0, ["torch-run.json"])
    assert "no NVTX ranges: this torch has no CUDA, or finds no GPU" in ran.told["notes"]


COMPILE = """
    import torch
    function = torch.compile(lambda x: torch.sin(x) + 2, backend="inductor")
    function(torch.rand(100))
"""


@pytest.mark.timeout(400)  # inductor compiles a header of torch first, which takes a slow machine minutes
def test_the_code_that_inductor_wrote_is_kept(run):
    ran = run(COMPILE, "--recipe", "output-code", environ={"CUDA_VISIBLE_DEVICES": ""}, timeout_s=380)
    assert ran.status == 0, ran.err
    code = (ran.folder / "inductor" / "output_code.py").read_text()
    assert code.startswith("# graph 1\n")
    assert "sin" in code
    assert "Output code" in ran.err
    assert not list(ran.folder.glob(".*"))


OWN = """
    import torch
    torch.zeros(1)
    with torch.profiler.profile() as mine:
        torch.ones(3)
    mine.export_chrome_trace("mine.json")
    print(len(mine.key_averages()) > 0)
"""


def test_a_script_with_a_profiler_of_its_own_keeps_it_and_ours_ends(run):
    ran = run(OWN)
    assert (ran.out, ran.told["traces"]) == ("True\n", ["torch.json.gz", "torch-own1.json.gz"])
    assert "aten::zeros" in ran.names()
    assert "aten::ones" not in ran.names()
    assert "aten::ones" in ran.names("torch-own1.json.gz")
    assert "the workload started a torch profiler of its own" in ran.told["notes"][0]
    ran = run(OWN, "--recipe", "own")
    assert (ran.out, ran.told["traces"], ran.told["notes"]) == ("True\n", ["torch-own1.json.gz"], [])


@pytest.mark.parametrize(
    ("last", "status", "ended", "exception"),
    [
        ("sys.exit(7)", 7, "exit", None),
        ("sys.exit('bye')", 1, "exit", None),
        ("raise ValueError('no good')", 1, "exception", "ValueError: no good"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "interrupt", "KeyboardInterrupt"),
        ("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 143, "exit", None),
    ],
)
def test_the_scripts_end_is_its_own_and_the_trace_is_kept(run, last, status, ended, exception):
    ran = run(f"import sys, torch\ntorch.zeros(1)\n{last}")
    workload = ran.told["workload"]
    assert (ran.status, workload["ended"], workload["exception"]) == (status, ended, exception)
    assert "aten::zeros" in ran.names()
    assert str(RUNNER.parent) not in ran.err


def test_a_trace_that_cannot_be_written_is_told_and_the_script_runs_on(run):
    ran = run(
        """
        import os, sys, torch
        out = sys.argv[1]
        os.mkdir(os.path.join(out, "torch.json.gz"))  # in the way of the trace
        print("ran")
        """,
        arguments=["out"],
    )
    assert (ran.status, ran.out) == (120, "ran\n")
    assert ran.told["failures"][0].startswith("trace: IsADirectoryError")
    assert not list(ran.folder.glob(".*"))


SPAWN = """
    import os
    import torch
    import torch.multiprocessing as mp
    class Thing: pass
    def work(rank, size, thing):
        torch.full((size,), rank).neg()
        os.write(1, f"rank {rank} {type(thing).__name__}\\n".encode())  # at once: both write to one pipe
    if __name__ == "__main__":
        mp.spawn(work, (100, Thing()), nprocs=2)
"""


def test_every_spawned_process_has_its_trace(run):
    ran = run(SPAWN, "--no-key-averages")
    assert sorted(ran.out.splitlines()) == ["rank 0 Thing", "rank 1 Thing"], ran.err
    assert ran.files == [
        *("torch-rank0.json.gz", "torch-rank1.json.gz", "torch-run-rank0.json", "torch-run-rank1.json"),
        *("torch-run.json", "torch.json.gz"),
    ]
    assert all("aten::neg" in ran.names(f"torch-rank{rank}.json.gz") for rank in (0, 1))


def test_a_child_that_is_told_to_end_ends(run):
    """A process that was forked dies of SIGTERM at once, as without the runner."""
    ran = run(
        """
        import multiprocessing, os, signal, time, torch
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start(); time.sleep(0.5); process.terminate(); process.join(30)
        print(process.exitcode)
        """
    )
    assert ran.out == f"{-signal.SIGTERM}\n"
