"""Learns which hotel bookings are cancelled, from a table of categories, with the Lion optimizer."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-optimizer"
ALSO = ()

BOOKINGS, COLUMNS, WIDTH, LAYERS = size(1024, 4), size(24, 3), size(192, 16), size(14, 2)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.01, together=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.together = together

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros_like(p)
            if self.together:
                grads, averages = [p.grad for p in params], [self.state[p]["average"] for p in params]
                torch._foreach_mul_(params, 1 - lr * decay)
                updates = torch._foreach_mul(averages, beta1)
                torch._foreach_add_(updates, grads, alpha=1 - beta1)
                torch._foreach_sign_(updates)
                torch._foreach_add_(params, updates, alpha=-lr)
                torch._foreach_mul_(averages, beta2)
                torch._foreach_add_(averages, grads, alpha=1 - beta2)
                continue
            for p in params:  # fault
                average = self.state[p]["average"]
                p.mul_(1 - lr * decay)  # fault
                update = average.mul(beta1).add_(p.grad, alpha=1 - beta1).sign_()  # fault
                p.add_(update, alpha=-lr)  # fault
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)  # fault


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(self.two(x))


class BookingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = nn.Embedding(COLUMNS * 100, WIDTH)
        self.layers = nn.Sequential(*(Mixer() for _ in range(LAYERS)))
        self.cancelled = nn.Linear(WIDTH, 1)

    def forward(self, cells):
        return self.cancelled(self.layers(self.columns(cells)).mean(1)).squeeze(1)


def build(fixed):
    torch.manual_seed(0)
    net = BookingNet().to(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    optimizer = Lion(net.parameters(), lr=3e-4, together=fixed)
    cells = torch.randint(0, 100, (BOOKINGS, COLUMNS), device=DEVICE) + 100 * torch.arange(COLUMNS, device=DEVICE)
    cancelled = torch.randint(0, 2, (BOOKINGS,), device=DEVICE).float()

    def step(i):
        loss = F.binary_cross_entropy_with_logits(net(cells).float(), cancelled)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
