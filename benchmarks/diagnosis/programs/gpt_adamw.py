"""Trains a GPT with an AdamW that is written out, one parameter after the other."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "unfused-optimizer"
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(8192, 128), size(512, 64), size(8, 1)
BATCH, LENGTH = size(8, 2), size(256, 8)


class AdamW:
    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):  # fault
            gradient = parameter.grad
            parameter.mul_(1 - self.lr * self.weight_decay)  # fault
            mean.mul_(beta1).add_(gradient, alpha=1 - beta1)  # fault
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)  # fault
            corrected = mean / (1 - beta1**self.steps)  # fault
            scale = (square / (1 - beta2**self.steps)).sqrt() + self.eps  # fault
            parameter.sub_(self.lr * corrected / scale)  # fault

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    if fixed:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = AdamW(model.parameters())
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()  # fault
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
