"""Finds rust on coffee leaves in hyperspectral cubes that lie in the memory of the host."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "pageable-copy"
ALSO = ()

LEAVES, BANDS, SIDE = size(64, 2), size(48, 4), size(96, 16)
WIDTH = size(192, 8)


class RustFinder(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands = nn.Conv2d(BANDS, WIDTH, 1)
        self.body = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(size(7, 2)))
        self.rust = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, cubes):
        x = self.bands(cubes).relu()
        for conv in self.body:
            x = conv(x).relu_()
        return self.rust(x).sigmoid()


class CubeStore:
    """The cubes of a plantation, a batch at a time."""

    def __init__(self, count, pinned):
        self.batches = [torch.randn(LEAVES, BANDS, SIDE, SIDE) for _ in range(count)]
        if pinned and DEVICE == "cuda":
            self.batches = [batch.pin_memory() for batch in self.batches]

    def __getitem__(self, i):
        return self.batches[i % len(self.batches)]


def build(fixed):
    torch.manual_seed(0)
    finder = RustFinder().to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    store = CubeStore(size(5, 2), pinned=fixed)

    @torch.inference_mode()
    def step(i):
        if fixed:
            cubes = store[i].to(DEVICE, non_blocking=True)
        else:
            cubes = store[i].to(DEVICE)  # fault
        cubes = cubes.to(torch.bfloat16, memory_format=torch.channels_last)
        rust = finder(cubes)
        return (rust > 0.5).float().mean((1, 2, 3))

    return step


if __name__ == "__main__":
    run(build)
