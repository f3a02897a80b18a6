"""Trains a network and keeps its weights and the optimizer's state on the host after every step, for a restart."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "downloads"
ALSO = ()
BATCH, FEATURES, WIDTH = size(4096, 16), size(512, 16), size(1024, 16)
STEPS_BETWEEN_SAVES = 1000


def to_host(state):
    """The same state, each tensor of it on the CPU."""
    if torch.is_tensor(state):
        return state.detach().cpu()  # fault
    if isinstance(state, dict):
        return {key: to_host(value) for key, value in state.items()}  # fault
    return state


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, FEATURES),
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(BATCH, FEATURES, device=DEVICE)
    saved = {}

    def step(i):
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not fixed or i % STEPS_BETWEEN_SAVES == 0:
            saved["model"] = to_host(model.state_dict())  # fault
            saved["optimizer"] = to_host(optimizer.state_dict())  # fault
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
