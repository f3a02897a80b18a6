"""Learns the maker of a violin from recordings: a small head over the features of a pretrained encoder."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-gradients"
ALSO = ()

CLIPS, FRAMES, MELS, WIDTH = size(32, 2), size(400, 8), size(80, 8), size(768, 16)
MAKERS = size(60, 5)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, WIDTH // size(64, 8), -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(self.two(x))


class SoundEncoder(nn.Module):
    """Stands for a published encoder of sounds; its weights stay as they are."""

    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(MELS, WIDTH)
        self.layers = nn.Sequential(*(EncoderLayer() for _ in range(size(8, 2))))

    def forward(self, mels):
        return self.layers(self.inlet(mels))


class MakerHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(WIDTH, 1)
        self.maker = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, MAKERS))

    def forward(self, features):
        pooled = (self.weight(features).softmax(1) * features).sum(1)
        return self.maker(pooled)


def build(fixed):
    torch.manual_seed(0)
    encoder = SoundEncoder().to(DEVICE, torch.bfloat16).eval()
    head = MakerHead().to(DEVICE)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, fused=True)
    mels = torch.randn(4, CLIPS, FRAMES, MELS, device=DEVICE, dtype=torch.bfloat16)
    makers = torch.randint(0, MAKERS, (4, CLIPS), device=DEVICE)

    def step(i):
        if fixed:
            with torch.no_grad():
                features = encoder(mels[i % 4])
        else:
            features = encoder(mels[i % 4])  # fault
        loss = F.cross_entropy(head(features.float()), makers[i % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
