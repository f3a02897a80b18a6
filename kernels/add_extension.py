"""A kernel's first launch against its later ones, in an extension that `torch.utils.cpp_extension.load` builds.

`add_kernel` adds 1,024,000 floats in blocks of 256 threads. Its machine code is loaded when it is first launched, and
the launch waits for it. With no GPU the extension is built all the same, with a loop in place of the kernel.

Look for:
- in the range `cold`, the loading of the module and a `cudaLaunchKernel` of many times what later ones take;
- in `warm`, launches of a few microseconds, of the very same kernel, which itself takes equally long each time;
- in `build`, the compilers; a later run only loads what they made.

Run: python kernels/add_extension.py
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch.utils.cpp_extension import load

from _common import Check, arguments, find_device, phase, positive, report, times_ms, wait

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent


class Extension(Protocol):
    """What the compiled module offers."""

    def add(self, x: torch.Tensor, y: torch.Tensor, /) -> torch.Tensor:
        """The sum, element by element."""


def flops(n: int) -> int:
    """One addition for each element."""
    return n


def bytes_moved(n: int) -> int:
    """Two float32 are read and one is written for each element; no cache keeps any."""
    return 3 * 4 * n


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum in float64, rounded once: a float32 sum has to be exactly that."""
    return (x.double() + y.double()).float()


def build(device: torch.device) -> Extension:
    """Compiles the extension, or loads what an earlier run left in torch's folder of extensions."""
    on_gpu = device.type == "cuda"
    sources = ["_add_extension.cpp", *(["_add_extension_kernel.cu"] if on_gpu else [])]
    module = load(
        name=f"kanalyze_add_{device.type}",
        sources=[str(HERE / source) for source in sources],
        extra_cflags=["-O2", *(["-DWITH_CUDA"] if on_gpu else [])],
        extra_cuda_cflags=["-O2", "-lineinfo"],
    )
    return cast("Extension", module)


def launch_ms(extension: Extension, x: torch.Tensor, y: torch.Tensor) -> float:
    """How long the host is in one call; the device may still be at work when it returns."""
    wait(x.device)
    start = time.perf_counter()
    extension.add(x, y)
    return (time.perf_counter() - start) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__)
    parser.add_argument("--size", type=positive, default=1_024_000, help="elements (%(default)s)")
    parser.add_argument("--steps", type=positive, default=20, help="warm launches (%(default)s)")
    args = parser.parse_args(argv)
    device = find_device()
    if device.type == "cpu":
        print("extension: a C++ loop in place of the CUDA kernel", flush=True)

    start = time.perf_counter()
    with phase("build"):
        extension = build(device)
    report("build (or load)", (time.perf_counter() - start) * 1e3)

    torch.manual_seed(0)
    x, y = torch.randn(2, args.size, device=device)
    torch.empty_like(x)  # torch's allocator keeps it, so that the cold call need not wait for cudaMalloc
    with phase("cold"):
        report("cold call", launch_ms(extension, x, y))
        wait(device)
    with phase("warm"):
        report("warm call, median", statistics.median(launch_ms(extension, x, y) for _ in range(args.steps)))
        wait(device)
    with phase("timed"):
        ms = statistics.median(times_ms(lambda: extension.add(x, y), device, args.steps))
    report("add_kernel", ms, size_bytes=bytes_moved(args.size), operations=flops(args.size))
    check = Check()
    with phase("check"):
        check.compare("add", extension.add(x, y), reference(x, y))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
