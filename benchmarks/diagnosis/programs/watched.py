"""A perceptron with hooks that keep statistics of its activations."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "blocking-read"
ALSO = ()
D, LAYERS, B = size(1024, 16), size(16, 2), size(256, 4)


def build(fixed):
    net = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(D, D), nn.ReLU())]).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    history = {}

    def watch(name):
        def hook(module, inputs, output):
            if fixed:
                history[name] = output.detach().mean()
            else:
                history[name] = (output.mean().item(), output.std().item())  # fault

        return hook

    for name, module in net.named_children():
        module.register_forward_hook(watch(name))
    x = torch.randn(B, D, device=DEVICE)

    def step(i):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
