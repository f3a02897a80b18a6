"""Searches translations with beams whose scores are taken to Python lists for each beam and word."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "blocking-read"
ALSO = ()
V, D, LAYERS, B, BEAMS, T = size(8192, 64), size(512, 64), size(4, 1), size(8, 1), size(8, 2), size(32, 4)


def build(fixed):
    torch.manual_seed(0)
    model = LM(V, D, LAYERS, T + 1).to(DEVICE, torch.bfloat16).eval()
    texts = torch.randint(V, (B * BEAMS, T), device=DEVICE)
    scores = torch.zeros(B * BEAMS, device=DEVICE)

    def best_of_lists(logp):
        chosen = []
        for sentence in range(B):
            candidates = []
            for beam in range(BEAMS):
                row = sentence * BEAMS + beam
                value, word = (scores[row] + logp[row]).topk(BEAMS)
                candidates += [(v, row, w) for v, w in zip(value.tolist(), word.tolist(), strict=False)]  # fault
            chosen += sorted(candidates, reverse=True)[:BEAMS]
        rows = torch.tensor([row for _, row, _ in chosen], device=DEVICE)
        words = torch.tensor([word for _, _, word in chosen], device=DEVICE)
        return rows, words

    def best(logp):
        total = (scores[:, None] + logp).view(B, -1)
        _, at = total.topk(BEAMS)
        rows = (at // V + torch.arange(B, device=DEVICE)[:, None] * BEAMS).flatten()
        return rows, (at % V).flatten()

    @torch.inference_mode()
    def step(i):
        logp = F.log_softmax(model(texts)[:, -1].float(), -1)
        rows, words = (best if fixed else best_of_lists)(logp)
        texts.copy_(torch.cat([texts[rows, 1:], words[:, None]], 1))

    return step


if __name__ == "__main__":
    run(build)
