"""Finds paragraphs of judgments that resemble a question, and ranks them anew with a small network."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
PARAGRAPHS, WIDTH, BEST, QUESTIONS = size(1_500_000, 2000), size(384, 32), size(200, 8), 8


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * WIDTH, 512), nn.GELU(), nn.Linear(512, 1))

    def forward(self, questions, paragraphs):
        questions = questions[:, None].expand_as(paragraphs)
        return self.layers(torch.cat([questions, paragraphs, questions * paragraphs], -1))[..., 0]


def build(fixed):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(DEVICE).eval()
    ranker = Ranker().to(DEVICE).eval()
    stored = torch.randn(PARAGRAPHS, WIDTH, device=DEVICE)
    unit = F.normalize(stored, dim=1) if fixed else None
    asked = torch.randn(64, QUESTIONS, WIDTH, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        questions = F.normalize(encoder(asked[i % 64]), dim=1)
        paragraphs = unit if fixed else F.normalize(stored, dim=1)  # fault
        _, rows = (questions @ paragraphs.T).topk(BEST, dim=1)
        order = ranker(questions, paragraphs[rows]).argsort(1, descending=True)
        return rows.gather(1, order)[:, :10].cpu()

    return step


if __name__ == "__main__":
    run(build)
