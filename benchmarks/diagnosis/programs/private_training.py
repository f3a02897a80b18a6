"""Trains with differential privacy: the gradient of every sample is computed and clipped by itself."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.func import functional_call, grad, vmap

CAUSE = "small-batches"
ALSO = ()
B, D, H = size(64, 4), size(256, 16), size(512, 16)


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, H), nn.Tanh(), nn.Linear(H, H), nn.Tanh(), nn.Linear(H, 10)).to(DEVICE)
    x, y = torch.randn(B, D, device=DEVICE), torch.randint(10, (B,), device=DEVICE)
    params = dict(model.named_parameters())

    def loss_of(weights, one, label):
        return F.cross_entropy(functional_call(model, weights, (one[None],)), label[None])

    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def clipped_one_by_one():
        total = [torch.zeros_like(p) for p in model.parameters()]
        for k in range(B):
            loss = F.cross_entropy(model(x[k : k + 1]), y[k : k + 1])  # fault
            grads = torch.autograd.grad(loss, list(model.parameters()))  # fault
            norm = torch.stack([g.norm() for g in grads]).norm()
            scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_add_(total, torch._foreach_mul(grads, scale))
        return total

    def clipped():
        grads = list(per_sample({n: p.detach() for n, p in params.items()}, x, y).values())
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        return [torch.einsum("b,b...->...", scale, g) for g in grads]

    def step(i):
        total = clipped() if fixed else clipped_one_by_one()
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), total, alpha=-0.01 / B)

    return step


if __name__ == "__main__":
    run(build)
