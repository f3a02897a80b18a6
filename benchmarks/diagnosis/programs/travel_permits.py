"""Serves a classifier of applications for travel permits: batches of requests, answers through pinned memory."""

import torch
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = ""
ALSO = ()

BATCH, LENGTH, PIECES, KINDS = size(96, 2), size(256, 16), size(30_000, 100), 24
WIDTH, LAYERS, IN_FLIGHT = size(768, 64), size(12, 2), 2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces = nn.Embedding(PIECES, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.kinds = nn.Linear(WIDTH, KINDS)

    def forward(self, pieces):
        x = self.blocks(self.pieces(pieces) + self.places.weight)
        return self.kinds(self.norm(x[:, 0])).float().softmax(-1)


class Server:
    """Launches a batch, and then answers an earlier one, so that the device always has work."""

    def __init__(self, model):
        self.model = model
        pinned = DEVICE == "cuda"
        self.answers = [torch.empty(BATCH, KINDS, pin_memory=pinned) for _ in range(IN_FLIGHT + 1)]
        self.waiting = []
        self.count = 0

    @torch.inference_mode()
    def serve(self, requests):
        answer = self.answers[self.count % len(self.answers)]
        self.count += 1
        answer.copy_(self.model(requests.to(DEVICE, non_blocking=True)), non_blocking=True)
        done = torch.cuda.Event() if DEVICE == "cuda" else None
        if done:
            done.record()
        self.waiting.append((answer, done))
        if len(self.waiting) <= IN_FLIGHT:
            return None
        answer, done = self.waiting.pop(0)
        if done:
            done.synchronize()
        return answer.argmax(1).tolist()


def build(fixed):
    torch.manual_seed(0)
    server = Server(Classifier().to(DEVICE, torch.bfloat16).eval())
    requests = torch.randint(PIECES, (8, BATCH, LENGTH))
    if DEVICE == "cuda":
        requests = requests.pin_memory()

    def step(i):
        return server.serve(requests[i % 8])

    return step


if __name__ == "__main__":
    run(build)
