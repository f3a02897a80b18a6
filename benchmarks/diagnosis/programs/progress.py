"""A perceptron whose loop prints how much memory is in use."""

import subprocess

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "own-code"
ALSO = ()
D, B = size(2048, 16), size(1024, 4)


def build(fixed):
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(D, D), nn.GELU())]).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    x = torch.randn(B, D, device=DEVICE, dtype=torch.bfloat16)

    def used():
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True).stdout  # fault
        return next(line for line in status.splitlines() if line.startswith(b"VmRSS"))

    def step(i):
        net(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return None if fixed else used()

    return step


if __name__ == "__main__":
    run(build)
