"""Copies and kernels on several streams: how much of the copying hides behind the kernels.

Matrices go to the device one after another, are multiplied there, and come back. `serial` does it on one stream, from
pinned memory; `pageable` on several streams, from ordinary memory; `pinned` on several streams, from pinned memory.

Look for:
- `serial`: every copy is exposed, since one stream does one thing at a time;
- `pageable`: more streams, and the copies are exposed all the same: the host has to put the data into a pinned buffer
  piece by piece, and waits, so that it cannot launch what would overlap;
- `pinned`: copies in both directions run beside the kernels; the total of the copies grows a little, the exposed
  part is what the first and the last piece take, and whatever the kernels are too short to hide.

Run: python kernels/streams.py --variant pinned
Variants: serial, pageable, pinned
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from _common import Check, arguments, chosen, find_device, phase, positive, report, wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

VARIANTS = ("serial", "pageable", "pinned")


def flops(chunks: int, size: int) -> int:
    """Of one step: a product of two size × size matrices for each chunk."""
    return chunks * 2 * size**3


def bytes_moved(chunks: int, size: int) -> int:
    """Of one step, between host and device: each float32 matrix there and back; the factor is there already."""
    return chunks * 2 * 4 * size**2


def reference(rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The product in float64."""
    return rows.double() @ factor.double()


def budget(rows: torch.Tensor, factor: torch.Tensor) -> float:
    """How far from the reference float32 may be.

    Each sum of k terms is rounded k times; roundings of random numbers are independent, so what they cost grows with
    the root of k (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019).
    """
    return 4 * math.sqrt(rows.shape[-1]) * 2.0**-24 * float((rows.double().abs() @ factor.double().abs()).max())


class Lane(NamedTuple):
    """A stream and the device's memory that its chunks use in turn."""

    stream: torch.cuda.Stream | None
    source: torch.Tensor
    result: torch.Tensor

    def entered(self) -> AbstractContextManager[object]:
        """Makes the stream the one that work goes to."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()


def make_lanes(count: int, size: int, device: torch.device) -> list[Lane]:
    """Lanes with streams of their own; on the CPU, which has none, they only have memory of their own."""
    return [
        Lane(
            torch.cuda.Stream(device) if device.type == "cuda" else None,
            torch.empty(size, size, device=device),
            torch.empty(size, size, device=device),
        )
        for _ in range(count)
    ]


def one_step(lanes: Sequence[Lane], inputs: torch.Tensor, factor: torch.Tensor, outputs: torch.Tensor) -> None:
    """All chunks there, through the product and back; a chunk's three steps are on one stream, in that order."""
    for index, (chunk, product) in enumerate(zip(inputs, outputs, strict=True)):
        lane = lanes[index % len(lanes)]
        with lane.entered():
            lane.source.copy_(chunk, non_blocking=True)
            torch.mm(lane.source, factor, out=lane.result)
            product.copy_(lane.result, non_blocking=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("--size", type=positive, help="rows and columns of a chunk (2048; 128 on the CPU)")
    parser.add_argument("--chunks", type=positive, default=12, help="matrices in a step (%(default)s)")
    parser.add_argument("--streams", type=positive, default=3, help="that take turns (%(default)s)")
    parser.add_argument("--steps", type=positive, default=3, help="timed steps (%(default)s)")
    args = parser.parse_args(argv)
    device = find_device()
    on_gpu = device.type == "cuda"
    if not on_gpu:
        print("streams: none without a GPU, so all variants are the same loop", flush=True)
    size = args.size or (2048 if on_gpu else 128)

    torch.manual_seed(0)
    host = torch.randn(args.chunks, size, size)
    factor = torch.randn(size, size)
    on_device = factor.to(device)
    check = Check()
    for name in chosen(args.variant, VARIANTS):
        pin = on_gpu and name != "pageable"
        inputs = host.pin_memory() if pin else host
        outputs = torch.full_like(host, torch.nan, pin_memory=pin)
        lanes = make_lanes(1 if name == "serial" else args.streams, size, device)
        wait(device)
        with phase(f"{name}: warm-up"):
            one_step(lanes, inputs, on_device, outputs)
            wait(device)
        begin = time.perf_counter()
        with phase(name):
            for _ in range(args.steps):
                with phase("step"):
                    one_step(lanes, inputs, on_device, outputs)
            wait(device)
        ms = (time.perf_counter() - begin) * 1e3 / args.steps
        report(f"{name}, a step", ms, size_bytes=bytes_moved(args.chunks, size), operations=flops(args.chunks, size))
        with phase("check"):
            rows = torch.cat((host[0, :4], host[-1, -4:]))
            got = torch.cat((outputs[0, :4], outputs[-1, -4:]))
            check.compare(name, got, reference(rows, factor), budget(rows, factor))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
