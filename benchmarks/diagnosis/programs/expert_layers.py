"""A mixture of experts: each expert takes the words that chose it."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "boolean-masks"
ALSO = ()
E, D, N = size(32, 4), size(512, 16), size(8192, 32)


def build(fixed):
    up = nn.Parameter(torch.randn(E, D, 2 * D, device=DEVICE, dtype=torch.bfloat16) * D**-0.5)
    down = nn.Parameter(torch.randn(E, 2 * D, D, device=DEVICE, dtype=torch.bfloat16) * D**-0.5)
    router = nn.Linear(D, E, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(N, D, device=DEVICE, dtype=torch.bfloat16)

    def of_masks(x, chosen):
        out = torch.zeros_like(x)
        for expert in range(E):
            mask = chosen == expert  # fault
            if mask.any():  # fault
                out[mask] = torch.relu(x[mask] @ up[expert]) @ down[expert]  # fault
        return out

    def of_slots(x, chosen):
        slots = 2 * N // E
        order = chosen.argsort(stable=True)
        rank = (
            torch.arange(N, device=DEVICE)
            - torch.searchsorted(chosen[order].contiguous(), torch.arange(E, device=DEVICE))[chosen[order]]
        )
        place = chosen[order] * slots + rank.clamp(max=slots - 1)
        padded = x.new_zeros(E * slots, D).index_copy(0, place, x[order])
        y = torch.bmm(torch.relu(torch.bmm(padded.view(E, slots, D), up)), down).view(E * slots, D)
        return torch.empty_like(x).index_copy(0, order, y[place])

    @torch.inference_mode()
    def step(i):
        return (of_slots if fixed else of_masks)(x, router(x).argmax(-1))

    return step


if __name__ == "__main__":
    run(build)
