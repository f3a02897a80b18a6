"""Times one large product per type and one large copy on a GPU, and prints the rates as JSON, by type and "copy".

Runs in any Python that has torch for CUDA; imports nothing of kanalyze. A type that the GPU or torch lacks is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

SIDE, COPIED_BYTES, ROUNDS = 8192, 1 << 30, 10


@cache
def torch() -> Any:  # noqa: ANN401 - a module
    """The package of that name."""
    return import_module("torch")


def seconds(work: Callable[[], object]) -> float:
    """The shortest of some rounds, after one to warm up."""
    work()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch().cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch().cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return min(times)


def product(dtype: Any, side: int = SIDE) -> float:  # noqa: ANN401 - torch's own type
    """FLOP/s of a product of two square matrices of random numbers, which take more power than zeros."""
    a, b = (torch().randn(side, side, device="cuda").to(dtype) for _ in range(2))
    if dtype.itemsize > 1:
        work = partial(torch().mm, a, b)
    else:
        one = torch().ones((), device="cuda")
        scaled = torch()._scaled_mm  # noqa: SLF001 - torch has no other product of this type
        work = partial(scaled, a, b.t(), scale_a=one, scale_b=one, out_dtype=torch().bfloat16)
    return 2 * side**3 / seconds(work)


def rates() -> dict[str, float]:
    """FLOP/s by type, and bytes/s of a copy within the device, read and written."""
    rate_of: dict[str, float] = {}
    types = {"bf16": torch().bfloat16, "fp32": torch().float32, "fp64": torch().float64, "fp8": torch().float8_e4m3fn}
    for name, dtype in types.items():
        with suppress(RuntimeError, NotImplementedError):
            rate_of[name] = product(dtype, SIDE // 2 if name in {"fp32", "fp64"} else SIDE)
    with suppress(RuntimeError):
        torch().backends.cuda.matmul.allow_tf32 = True
        rate_of["tf32"] = product(torch().float32)
    source = torch().empty(COPIED_BYTES, dtype=torch().uint8, device="cuda")
    target = torch().empty_like(source)
    rate_of["copy"] = 2 * COPIED_BYTES / seconds(lambda: target.copy_(source))
    return rate_of


if __name__ == "__main__":
    print(json.dumps({"name": torch().cuda.get_device_name(), "rates": rates()}))  # noqa: T201 - what its caller reads
