"""Cleans scans of old maps of stains, strip by strip: up to the GPU, through a network and back, by streams."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-sync"
ALSO = ()

STRIPS, HEIGHT, WIDTH = size(12, 3), size(2048, 32), size(8192, 64)
GPU = DEVICE == "cuda"
KIND = torch.float16 if GPU else torch.float32


class Cleaner(nn.Module):
    """Works on squares of 4 by 4 points, and says what is to be taken from each point."""

    def __init__(self, channels):
        super().__init__()
        self.enter = nn.Conv2d(16, channels, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.leave = nn.Conv2d(channels, 16, 3, padding=1)

    def forward(self, strip):
        squares = F.pixel_unshuffle(strip, 4).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.enter(squares))
        for conv in self.inner:
            x = F.relu(conv(x))
        return strip - F.pixel_shuffle(self.leave(x), 4)


class Workshop:
    def __init__(self, network, fixed):
        self.network = network
        self.fixed = fixed
        self.rising, self.working, self.falling = (torch.cuda.Stream() if GPU else None for _ in range(3))
        self.soiled = torch.empty(STRIPS, 1, 1, HEIGHT, WIDTH, device=DEVICE, dtype=KIND)

    def after(self, later, earlier):
        """What comes next on the stream `later` needs what was put on the stream `earlier`."""
        if not GPU:
            return
        if self.fixed:
            later.wait_stream(earlier)
        else:
            earlier.synchronize()  # fault

    @torch.inference_mode()
    def clean(self, scans, results):
        for n, scan in enumerate(scans):
            with torch.cuda.stream(self.rising):
                self.soiled[n].copy_(scan, non_blocking=True)
            self.after(self.working, self.rising)  # fault
            with torch.cuda.stream(self.working):
                strip = self.network(self.soiled[n])
            self.after(self.falling, self.working)  # fault
            with torch.cuda.stream(self.falling):
                results[n].copy_(strip, non_blocking=True)
            if GPU:
                strip.record_stream(self.falling)
        if GPU:
            self.falling.synchronize()
        return results


def build(fixed):
    torch.manual_seed(0)
    network = Cleaner(size(64, 8)).to(DEVICE, KIND, memory_format=torch.channels_last).eval()
    workshop = Workshop(network, fixed)
    paper = torch.rand(STRIPS, 1, 1, HEIGHT, WIDTH).to(KIND)
    scans, results = paper, torch.empty_like(paper)
    if GPU:
        scans, results = scans.pin_memory(), results.pin_memory()
        torch.cuda.synchronize()

    def step(i):
        return workshop.clean(scans, results)[:, 0, 0, 0, :8].float().mean()

    return step


if __name__ == "__main__":
    run(build)
