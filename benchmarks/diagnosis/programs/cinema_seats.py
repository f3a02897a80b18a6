"""Trains a two-tower recommender of films by Bayesian personalized ranking, with films that a viewer has not seen."""

# Each pair of viewer and seen film is ranked against NEGATIVES unseen ones,
# drawn by how popular films are.

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "own-code"
ALSO = ["blocking-read"]

VIEWERS, FILMS, SEEN = size(20000, 30), size(8000, 40), size(60, 5)
PAIRS, NEGATIVES, TRIES = size(1536, 8), 4, 6
WIDTH, HIDDEN, TAGS = size(128, 8), size(1536, 16), size(12, 3)


class Tower(nn.Module):
    """An embedding for each one, the mean of embeddings of tags, and a perceptron on both."""

    def __init__(self, count, tags):
        super().__init__()
        self.register_buffer("tags", torch.randint(tags, (count, TAGS)))
        self.one = nn.Embedding(count, WIDTH)
        self.tag = nn.EmbeddingBag(tags, WIDTH, mode="mean")
        self.layers = nn.Sequential(
            nn.Linear(2 * WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)
        )

    def forward(self, index):
        x = torch.cat([self.one(index), self.tag(self.tags[index])], 1)
        return F.normalize(self.layers(x), dim=1)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.viewers, self.films = Tower(VIEWERS, 500), Tower(FILMS, 2000)
        self.sharpness = nn.Parameter(torch.tensor(10.0))

    def forward(self, viewers, films):
        """Scores of [pairs, films of each]."""
        v = self.viewers(viewers)
        f = self.films(films.flatten()).unflatten(0, films.shape)
        return self.sharpness * torch.einsum("pw,pfw->pf", v, f)


class Ratings:
    def __init__(self, random):
        self.viewed = [set(films.tolist()) for films in random.integers(0, FILMS, (VIEWERS, SEEN))]
        self.pairs = np.array([(v, f) for v, films in enumerate(self.viewed) for f in sorted(films)])
        self.matrix = np.zeros((VIEWERS, FILMS), dtype=bool)
        self.matrix[self.pairs[:, 0], self.pairs[:, 1]] = True

    def unseen_one_by_one(self, viewers, draws):
        """The first of the drawn films that the viewer has not seen; the last one if all were seen."""
        chosen = []
        for viewer, rows in zip(viewers.tolist(), draws.tolist(), strict=True):  # fault
            films = []
            for row in rows:
                for film in row:  # fault
                    if film not in self.viewed[viewer]:  # fault
                        break
                films.append(film)
            chosen.append(films)
        return np.array(chosen)

    def unseen(self, viewers, draws):
        seen = self.matrix[viewers[:, None, None], draws]
        seen[..., -1] = False
        first = seen.argmin(-1)
        return np.take_along_axis(draws, first[..., None], -1)[..., 0]


def build(fixed):
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    ratings = Ratings(random)
    choose = ratings.unseen if fixed else ratings.unseen_one_by_one
    model = Recommender().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    reads_loss = fixed is not True
    total = 0.0 if reads_loss else torch.zeros((), device=DEVICE)

    def step(i):
        nonlocal total
        random = np.random.default_rng(i)
        pairs = ratings.pairs[random.integers(0, len(ratings.pairs), PAIRS)]
        draws = (FILMS * random.random((PAIRS, NEGATIVES, TRIES)) ** 2).astype(np.int64)
        films = np.concatenate([pairs[:, 1:], choose(pairs[:, 0], draws)], 1)  # fault
        viewers, films = torch.from_numpy(pairs[:, 0].copy()).to(DEVICE), torch.from_numpy(films).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(viewers, films).float()
        loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() if reads_loss else loss.detach()  # also
        return total / (i + 1)

    return step


if __name__ == "__main__":
    run(build)
