"""The next article that a shop's visitor opens, of the whole catalogue."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "large-logits"
ALSO = ()

VISITORS = size(2048, 4)
CLICKS = size(20, 3)
ARTICLES = size(60_000, 50)
WIDTH = size(512, 16)
SMOOTHING = 0.1


class NextArticle(nn.Module):
    def __init__(self):
        super().__init__()
        self.articles = nn.Embedding(ARTICLES, WIDTH)
        self.session = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.project = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.articles.weight, std=0.05)

    def forward(self, clicks):
        _, last = self.session(self.articles(clicks))
        return self.project(last[0]) @ self.articles.weight.T


def smoothed_loss(scores, chosen):
    """Cross entropy with the chosen articles' share spread a little over the catalogue."""
    share = F.one_hot(chosen, ARTICLES).float()  # fault
    share = share * (1 - SMOOTHING) + SMOOTHING / ARTICLES  # fault
    probability = torch.softmax(scores.float(), dim=-1)  # fault
    return -(share * torch.log(probability + 1e-9)).sum(-1).mean()  # fault


def build(fixed):
    with torch.device(DEVICE):
        model = NextArticle()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
    clicks = torch.randint(ARTICLES, (VISITORS, CLICKS), device=DEVICE)
    chosen = torch.randint(ARTICLES, (VISITORS,), device=DEVICE)

    def loss_of(scores):
        if fixed:
            return F.cross_entropy(scores, chosen, label_smoothing=SMOOTHING)
        return smoothed_loss(scores, chosen)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(clicks)
        loss = loss_of(scores)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
