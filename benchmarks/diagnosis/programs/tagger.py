"""Tags sequences with an LSTM that is stepped through time cell by cell."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "rnn-cells"
ALSO = ()
WORDS, TAGS, WIDTH = size(10000, 100), 16, size(384, 16)
BATCH, LENGTH = size(48, 2), size(96, 8)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.tags = nn.Linear(WIDTH, TAGS)

    def forward(self, words):
        inputs = self.embedding(words)
        h = c = inputs.new_zeros(len(words), WIDTH)
        outputs = []
        for t in range(words.shape[1]):  # fault
            h, c = self.cell(inputs[:, t], (h, c))  # fault
            outputs.append(h)  # fault
        return self.tags(torch.stack(outputs, 1))


class WholeTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.tags = nn.Linear(WIDTH, TAGS)

    def forward(self, words):
        hidden, _ = self.lstm(self.embedding(words))
        return self.tags(hidden)


def build(fixed):
    torch.manual_seed(0)
    model = (WholeTagger() if fixed else Tagger()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), device=DEVICE)
    tags = torch.randint(0, TAGS, (BATCH, LENGTH), device=DEVICE)

    def step(i):
        loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
