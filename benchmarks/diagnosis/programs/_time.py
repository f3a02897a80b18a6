"""Times programs of the benchmark without a profiler, in one process: `python _time.py OUT.json NAME…`.

Of each program and variant (fault, fixed, and main where it has two faults): the mean time of a step in ms, the least
and the largest of the repeats' means, and the peak of the GPU's memory in MiB.
A program that fails has its error there instead.
"""

import gc
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from _run import DEVICE, TINY

WARM_UP_STEPS, LEAST_STEPS, REPEATS = 5, 10, 3
ENOUGH_S, TOO_MUCH_S = (0.5, 3.0) if not TINY else (0.01, 0.1)


def reset() -> None:
    """Brings back the state that programs change, and frees what they held."""
    torch.autograd.set_detect_anomaly(mode=False)
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float32)
    torch.backends.cudnn.benchmark = False
    torch._dynamo.reset()  # nothing public frees compiled code
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def mean_ms(step: Callable[[int], object], first: int) -> tuple[float, int]:
    """The mean time of a step, and the number of steps that ran."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    deadline, latest = start + ENOUGH_S, start + TOO_MUCH_S
    count = 0
    while (now := time.perf_counter()) < latest and (count < LEAST_STEPS or now < deadline):
        step(first + count)
        count += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3, count


def timed(
    build: Callable[[bool | str], Callable[[int], object]], variant: bool | str
) -> dict[str, float | list[float]]:
    """Times one variant of one program."""
    torch.manual_seed(0)
    start = time.perf_counter()
    step = build(variant)
    for i in range(WARM_UP_STEPS):
        step(i)
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - start
    steps, means = WARM_UP_STEPS, []
    for _ in range(REPEATS):
        mean, count = mean_ms(step, steps)
        means.append(mean)
        steps += count
    return {
        "mean_ms": sum(means) / len(means),
        "spread_ms": [min(means), max(means)],
        "steps": steps - WARM_UP_STEPS,
        "ready_s": ready_s,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else 0,
    }


def variants(program: ModuleType) -> dict[str, bool | str]:
    """What is to be timed of a program; a healthy one has nothing to mend."""
    mended = {"fixed": True} if program.CAUSE else {}
    main_mended = {"main": "main"} if program.ALSO else {}
    return {"fault": False, **mended, **main_mended}


def main(out: Path, names: list[str]) -> None:
    """Times the programs, and writes the file anew after each variant."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    programs = {}
    for name in names:
        times = programs[name] = {}
        try:
            program = importlib.import_module(name)
            times |= {"cause": program.CAUSE, "also": program.ALSO}
            for label, variant in variants(program).items():
                reset()
                times[label] = timed(program.build, variant)
                print(name, label, times[label]["mean_ms"], flush=True)
        except Exception:  # noqa: BLE001  # the others are to be timed all the same
            times["error"] = traceback.format_exc()
            print(name, "failed", flush=True)
        out.write_text(json.dumps({"device": device, "torch": torch.__version__, "programs": programs}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
