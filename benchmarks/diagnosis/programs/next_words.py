"""Predicts the next word of a queue of prompts, four prompts a call."""

import torch
from _run import DEVICE, run, size

from _models import LM

CAUSE = "small-batches"
ALSO = ()
PROMPTS, LENGTH = size(64, 8), size(96, 8)
BATCH = 4  # fault
LARGE_BATCH = PROMPTS
WORDS, WIDTH, LAYERS = size(20000, 128), size(640, 64), size(6, 1)


def build(fixed):
    torch.manual_seed(0)
    model = LM(WORDS, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16).eval()
    prompts = torch.randint(0, WORDS, (PROMPTS, LENGTH), device=DEVICE)
    batch = LARGE_BATCH if fixed else BATCH

    @torch.inference_mode()
    def step(i):
        logits = []
        for start in range(0, PROMPTS, batch):  # fault
            ids = prompts[start : start + batch]  # fault
            logits.append(model(ids)[:, -1])  # fault
        return torch.cat(logits)

    return step


if __name__ == "__main__":
    run(build)
