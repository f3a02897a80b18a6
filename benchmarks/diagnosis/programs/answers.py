"""Sampling of answers with a nucleus: words by their probability."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
V, D, B = size(128_256, 64), size(1024, 16), size(64, 2)


def build(fixed):
    body = nn.Sequential(*[nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)) for _ in range(8)])
    head = nn.Linear(D, V, bias=False)
    body, head = body.to(DEVICE, torch.bfloat16), head.to(DEVICE, torch.bfloat16)

    def of_sorted(logits):
        probs = F.softmax(logits.float(), -1)
        ranked, order = torch.sort(probs, -1, descending=True)  # fault
        ranked[ranked.cumsum(-1) - ranked > 0.9] = 0  # fault
        return order.gather(1, torch.multinomial(ranked, 1))

    def of_top(logits):
        probs, order = F.softmax(logits.float(), -1).topk(64, -1)
        probs = torch.where(probs.cumsum(-1) - probs > 0.9, 0.0, probs)
        return order.gather(1, torch.multinomial(probs, 1))

    choose = of_top if fixed else of_sorted

    @torch.inference_mode()
    def step(i):
        x = torch.randn(B, D, device=DEVICE, dtype=torch.bfloat16)
        return choose(head(body(x)))

    return step


if __name__ == "__main__":
    run(build)
