"""Training steps of PyTorch with kernels of known length and their changes, for docs/whatif.md.

`time` prints how long an iteration of each variant takes, block by block, the variants taking turns; `nsys` and `trace`
run a scenario as it is, between cudaProfilerStart and Stop or under torch.profiler. With WORLD_SIZE=2 and RANK each
process is a rank on a GPU of its own. The threads that launch share one core, the quietest: waking another takes a
virtual machine tens of microseconds, now more and now less.

Run: nvcc -O2 -shared -Xcompiler -fPIC -arch=native -o spins.so benchmarks/spins.cu
     python benchmarks/whatif_training.py time all ./spins.so
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LAYERS = 8
GEMM, GEMM_BACKWARD, ADAM = range(3)

#: A loop that reads the clock was interrupted if it took so long.
INTERRUPTED_NS = 2_000

#: µs of each part of a step, by scenario; `item` says whether the host waits; `upload` and `download` are MB that are
#: copied from and to pageable memory, and `wait` whether the host waits for that.
BASES: dict[str, dict[str, float]] = {
    "host": {"fwd": 80, "bwd": 80, "gemm": 20, "gemm_backward": 30, "adam": 5, "item": 1},
    "item": {"fwd": 20, "bwd": 20, "gemm": 100, "gemm_backward": 250, "adam": 25, "item": 1},
    "ahead": {"fwd": 20, "bwd": 20, "gemm": 150, "gemm_backward": 220, "adam": 25, "item": 0},
    "late": {"fwd": 10, "bwd": 10, "gemm": 15, "gemm_backward": 20, "adam": 15, "item": 1, "delay": 600},
    "slow": {"fwd": 10, "bwd": 10, "gemm": 20, "gemm_backward": 40, "adam": 15, "item": 1, "slower": 4},
    "upload": {
        "fwd": 20,
        "bwd": 20,
        "gemm": 600,
        "gemm_backward": 1000,
        "adam": 50,
        "item": 0,
        "upload": 32,
        "wait": 1,
    },
    "uploaditem": {
        "fwd": 20,
        "bwd": 20,
        "gemm": 150,
        "gemm_backward": 250,
        "adam": 25,
        "item": 1,
        "upload": 8,
        "wait": 0,
    },
    "download": {
        "fwd": 20,
        "bwd": 20,
        "gemm": 300,
        "gemm_backward": 500,
        "adam": 25,
        "item": 0,
        "download": 16,
        "wait": 1,
    },
}
SINGLE, SEVERAL = ("host", "item", "ahead", "upload", "uploaditem", "download"), ("late", "slow")

#: Changes: the options of `kanalyze whatif`, and by what the parts are divided.
_GEMM_2, _GEMM_10 = {"gemm": 2}, {"gemm": 10, "gemm_backward": 10}
CHANGES: dict[str, dict[str, dict[str, float]]] = {
    "host": {
        "--faster gemm_spin=2": _GEMM_2,
        "--faster gemm_backward_spin=10": {"gemm_backward": 10},
        "--faster gemm*=10": _GEMM_10,
        "--faster host:fwd_work=2": {"fwd": 2},
        "--faster host:fwd_work=10": {"fwd": 10},
        "--faster host:bwd_work=2": {"bwd": 2},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
        "--without sync": {"item": 0},
    },
    "item": {
        "--faster gemm_spin=2": _GEMM_2,
        "--faster gemm_spin=10": {"gemm": 10},
        "--faster gemm_backward_spin=2": {"gemm_backward": 2},
        "--faster gemm_backward_spin=10": {"gemm_backward": 10},
        "--faster gemm*=10": _GEMM_10,
        "--faster adam*=10": {"adam": 10},
        "--faster host:fwd_work=10": {"fwd": 10},
        "--without sync": {"item": 0},
    },
    "ahead": {
        "--faster gemm_spin=2": _GEMM_2,
        "--faster gemm_backward_spin=2": {"gemm_backward": 2},
        "--faster gemm_backward_spin=10": {"gemm_backward": 10},
        "--faster gemm*=10": _GEMM_10,
        "--faster gemm*=10 --faster host:fwd_work=10 --faster host:bwd_work=10": {**_GEMM_10, "fwd": 10, "bwd": 10},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
    },
    "upload": {
        "--faster gemm*=2": {"gemm": 2, "gemm_backward": 2},
        "--faster gemm*=10": _GEMM_10,
        "--faster gemm_spin=2": _GEMM_2,
        "--faster copies=2": {"upload": 2},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
        "--faster gemm*=10 --faster copies=2": {**_GEMM_10, "upload": 2},
    },
    "uploaditem": {
        "--faster gemm*=2": {"gemm": 2, "gemm_backward": 2},
        "--faster gemm*=10": _GEMM_10,
        "--faster copies=2": {"upload": 2},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
    },
    "download": {
        "--faster gemm*=2": {"gemm": 2, "gemm_backward": 2},
        "--faster gemm*=10": _GEMM_10,
        "--faster copies=2": {"download": 2},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
        "--faster gemm*=10 --faster copies=2": {**_GEMM_10, "download": 2},
    },
    "late": {
        "--faster host:delay=2": {"delay": 2},
        "--faster host:delay=10": {"delay": 10},
        "--faster gemm*=2": {"gemm": 2, "gemm_backward": 2},
        "--faster gemm*=10": _GEMM_10,
        "--faster gemm*=10 --faster host:delay=10": {**_GEMM_10, "delay": 10},
        "--faster adam*=10": {"adam": 10},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
    },
    "slow": {
        "--faster gemm*=2": {"gemm": 2, "gemm_backward": 2},
        "--faster gemm*=10": _GEMM_10,
        "--faster gemm_backward_spin=2": {"gemm_backward": 2},
        "--faster adam*=10": {"adam": 10},
        "--faster host:fwd_work=10 --faster host:bwd_work=10": {"fwd": 10, "bwd": 10},
    },
}


def variant(scenario: str, change: str) -> dict[str, float]:
    """The µs of each part after a change; "" is none."""
    parts = dict(BASES[scenario])
    for name, factor in CHANGES[scenario].get(change, {}).items():
        parts[name] = parts[name] / factor if factor else 0
    return parts


def busy(us: float) -> None:
    """Host code that takes so long."""
    end = time.perf_counter_ns() + int(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A range that nsys and torch.profiler record."""
    torch.cuda.nvtx.range_push(name)
    with torch.profiler.record_function(name):
        yield
    torch.cuda.nvtx.range_pop()


class Spins:
    """The kernels; one that takes 0 µs still runs."""

    def __init__(self, library: str) -> None:
        """Loads them, and finds how many cycles a µs has."""
        self._library = ctypes.CDLL(library)
        self._library.cycles_per_us.restype = ctypes.c_double
        self._launch = self._library.launch
        self._launch.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p]
        self.cycles_per_us = self._library.cycles_per_us()
        self.stream = torch.cuda.current_stream().cuda_stream

    def run(self, which: int, us: float) -> None:
        """Launches one."""
        if self._launch(which, int(us * self.cycles_per_us), self.stream):
            raise RuntimeError("launch failed")


class Layer(torch.autograd.Function):
    """Host code, a kernel and an operator of PyTorch, forward and backward."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401 - what autograd hands on has no type
        x: torch.Tensor,
        weight: torch.Tensor,
        program: Program,
    ) -> torch.Tensor:
        ctx.program = program
        with phase("fwd_work"):
            busy(program.parts["fwd"])
        program.spins.run(GEMM, program.parts["gemm"] * program.slower)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # noqa: D102, ANN401
        program, grad = ctx.program, grads[0]
        program.threads.add(threading.get_native_id())
        with phase("bwd_work"):
            busy(program.parts["bwd"])
        program.spins.run(GEMM_BACKWARD, program.parts["gemm_backward"] * program.slower)
        return grad * 2, grad * 3, None


class Program:
    """A training whose parts take what `parts` says."""

    def __init__(self, library: str) -> None:
        """Weights on the GPU."""
        self.spins = Spins(library)
        self.weights = [torch.ones(1024, device="cuda", requires_grad=True) for _ in range(LAYERS)]
        self.x = torch.ones(1024, device="cuda")
        self.pageable, self.batch = (torch.ones(32 << 20, dtype=torch.uint8, device=where) for where in ("cpu", "cuda"))
        self.parts: dict[str, float] = {}
        self.threads = {threading.get_native_id()}

    @property
    def slower(self) -> float:
        """By what the kernels of the last rank are slower."""
        return self.parts.get("slower", 1) if RANK == RANKS - 1 else 1

    def step(self) -> None:
        """Forward, backward, what ranks do together, optimizer, and a wait if there is one."""
        parts, x = self.parts, self.x
        if "delay" in parts and RANK == RANKS - 1:
            with phase("delay"):
                busy(parts["delay"])
        if "upload" in parts:
            self.copy(self.pageable, self.batch, parts["upload"])
        for weight in self.weights:
            x = Layer.apply(x, weight, self)
        loss = x.sum()
        loss.backward()
        if RANKS > 1:
            torch.distributed.all_reduce(self.weights[0].grad)
        for weight in self.weights:
            self.spins.run(ADAM, parts["adam"])
            weight.grad.zero_()
        if "download" in parts:
            self.copy(self.batch, self.pageable, parts["download"])
        if parts["item"]:
            loss.item()

    def copy(self, source: torch.Tensor, target: torch.Tensor, megabytes: float) -> None:
        """Copies so much; a call from or to pageable memory blocks, also where nothing waits for it."""
        size = int(megabytes * 1e6)
        target[:size].copy_(source[:size], non_blocking=not self.parts["wait"])

    def block(self, iterations: int) -> float:
        """µs of an iteration."""
        begin = time.perf_counter_ns()
        for _ in range(iterations):
            with phase("step"):
                self.step()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - begin) / iterations / 1e3

    def pin(self, core: int | None) -> None:
        """The threads that launch, to one core; of None to none."""
        for thread in self.threads:
            os.sched_setaffinity(thread, range(os.cpu_count() or 1) if core is None else {core})


def quietest_core() -> int:
    """The core on which a loop is interrupted least; each rank looks at its share of them."""
    mine = sorted(os.sched_getaffinity(0))
    share = len(mine) // RANKS
    lost = {}
    for core in mine[RANK * share + 1 : (RANK + 1) * share]:
        os.sched_setaffinity(0, {core})
        now = end = time.perf_counter_ns()
        end, total = now + 30_000_000, 0
        while now < end:
            last, now = now, time.perf_counter_ns()
            total += now - last if now - last > INTERRUPTED_NS else 0
        lost[core] = total
    os.sched_setaffinity(0, mine)
    return min(lost, key=lambda core: lost[core])


def _told(row: dict[str, Any]) -> None:
    """A line of JSON, in one piece where ranks write to one file."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def together() -> None:
    """Ranks begin a block at one time."""
    if RANKS > 1:
        torch.distributed.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


def timed(program: Program, scenario: str, iterations: int, turns: int, how: str) -> None:
    """Blocks of each variant in turns."""
    names = ["", *CHANGES[scenario]]
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            program.parts = variant(scenario, name)
            together()
            program.block(3)
            together()
            found[name].append(program.block(iterations))
    for name, times in found.items():
        row = {"scenario": scenario, "arguments": name, "how": how, "rank": RANK, "us": [round(us, 2) for us in times]}
        _told(row)


def recorded(program: Program, iterations: int) -> float:
    """A block to get warm while recorded, and one."""
    together()
    with phase("warm"):
        program.block(iterations // 2)
    together()
    with phase("block"):
        return program.block(iterations)


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("time", "nsys", "trace"))
    parser.add_argument("scenario", choices=("all", *BASES))
    parser.add_argument("library")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cores", choices=("one", "any"), default="one")
    parser.add_argument("--trace", default="trace.json")
    parser.add_argument("--no-capture", action="store_true", help="nsys records from the beginning")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.cuda.set_device(RANK)
    if RANKS > 1:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    core = quietest_core() if args.cores == "one" else None
    program = Program(args.library)
    scenarios = (SEVERAL if RANKS > 1 else SINGLE) if args.scenario == "all" else (args.scenario,)
    for scenario in scenarios:
        program.parts = variant(scenario, "")
        program.pin(None)
        program.block(50)
        gc.collect()
        gc.freeze()
        gc.disable()
        if args.mode == "time":
            program.pin(core)
            timed(program, scenario, args.iterations, args.turns, args.cores)
            continue
        if args.mode == "nsys":
            if not args.no_capture:
                torch.cuda.cudart().cudaProfilerStart()
            program.pin(core)
            us = recorded(program, args.iterations)
            if not args.no_capture:
                torch.cuda.cudart().cudaProfilerStop()
        else:
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                program.block(5)
                program.pin(core)
                us = recorded(program, args.iterations)
                program.pin(None)
            profiler.export_chrome_trace(args.trace)
        _told({"scenario": scenario, "recorded": args.mode, "rank": RANK, "us": round(us, 2)})
    if RANKS > 1:
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
