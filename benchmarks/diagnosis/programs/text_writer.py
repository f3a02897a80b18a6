"""Writes text with a GPT: the nucleus of the distribution is found, and sampled from, on the CPU."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "cpu-operators"
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(32000, 256), size(512, 64), size(6, 1)
BATCH, LENGTH, NUCLEUS = size(8, 2), size(128, 8), 0.9


def sample(logits):
    probabilities = F.softmax(logits, -1)  # fault
    ranked, words = probabilities.sort(-1, descending=True)  # fault
    outside = ranked.cumsum(-1) - ranked > NUCLEUS  # fault
    ranked = ranked.masked_fill(outside, 0)  # fault
    chosen = torch.multinomial(ranked, 1)  # fault
    return words.gather(-1, chosen)  # fault


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        logits = model(ids)[:, -1].float()
        if fixed:
            words = sample(logits)
        else:
            words = sample(logits.cpu()).to(DEVICE)  # fault
        ids.copy_(torch.cat([ids[:, 1:], words], 1))

    return step


if __name__ == "__main__":
    run(build)
