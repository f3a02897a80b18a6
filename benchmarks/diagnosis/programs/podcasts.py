"""Ranks a catalogue of podcasts for listeners: two towers, episodes already heard left out, the best 50 shown."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
EPISODES = size(262144, 512)
LISTENERS = size(256, 8)
HEARD = size(128, 8)
WIDTH = size(256, 16)
SHOWN = size(50, 5)


class ListenerTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.episodes = nn.Embedding(EPISODES, WIDTH)
        self.mix = nn.TransformerEncoderLayer(WIDTH, size(4, 2), 4 * WIDTH, batch_first=True, dropout=0.0)
        self.out = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, heard):
        return self.out(self.mix(self.episodes(heard)).mean(1))


class Ranker:
    def __init__(self, tower, sort_all):
        self.tower = tower
        self.catalogue = tower.episodes.weight.detach().clone()
        self.popularity = torch.rand(EPISODES, device=DEVICE) * 0.1
        self.sort_all = sort_all

    def best(self, scores):
        if self.sort_all:
            ranked = torch.sort(scores, dim=1, descending=True)  # fault
            return ranked.values[:, :SHOWN], ranked.indices[:, :SHOWN]
        return torch.topk(scores, SHOWN, dim=1)

    @torch.inference_mode()
    def rank(self, heard):
        listeners = self.tower(heard)
        scores = torch.addmm(self.popularity, listeners, self.catalogue.T)
        scores.scatter_(1, heard, float("-inf"))
        return self.best(scores)


def build(fixed):
    torch.manual_seed(0)
    ranker = Ranker(ListenerTower().to(DEVICE).eval(), sort_all=not fixed)
    requests = torch.randint(0, EPISODES, (8, LISTENERS, HEARD), device=DEVICE)

    def step(i):
        values, episodes = ranker.rank(requests[i % 8])
        return episodes, values.softmax(1)

    return step


if __name__ == "__main__":
    run(build)
