"""Writes text; words that were said already get a penalty, looked up word by word in a Python loop."""

import torch
from _run import DEVICE, run, size

from _models import LM

CAUSE = "blocking-read"
ALSO = ()
V, D, LAYERS, B, T = size(16384, 64), size(512, 64), size(4, 1), size(4, 2), size(128, 8)


def penalised_by_words(logits, ids):
    for row in range(ids.shape[0]):
        for word in set(ids[row].tolist()):  # fault
            if logits[row, word] < 0:  # fault
                logits[row, word] *= 1.2  # fault
            else:
                logits[row, word] /= 1.2  # fault
    return logits


def penalised(logits, ids):
    score = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(score < 0, score * 1.2, score / 1.2))


def build(fixed):
    torch.manual_seed(0)
    model = LM(V, D, LAYERS, T).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(V, (B, T), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        logits = model(ids)[:, -1].float()
        logits = (penalised if fixed else penalised_by_words)(logits, ids)
        ids.copy_(torch.cat([ids[:, 1:], logits.argmax(-1, keepdim=True)], 1))

    return step


if __name__ == "__main__":
    run(build)
