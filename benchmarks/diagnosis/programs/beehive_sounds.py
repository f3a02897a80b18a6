"""Trains an encoder of beehive sounds that tells swarming, queenless and quiet colonies apart."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()

HIVES, FRAMES, MELS, WIDTH = size(48, 2), size(1024, 16), size(128, 8), size(1024, 16)
HEADS, LAYERS, STATES = size(16, 2), size(6, 2), 8


class HiveBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class HiveEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Conv1d(MELS, WIDTH, 4, stride=4)
        self.places = nn.Parameter(torch.randn(FRAMES // 4, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(HiveBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.state = nn.Linear(WIDTH, STATES)

    def forward(self, mels):
        x = self.inlet(mels).transpose(1, 2).contiguous() + self.places
        return self.state(self.norm(self.blocks(x)).mean(1))


def build(fixed):
    torch.manual_seed(0)
    net = HiveEncoder().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, fused=True)
    batches = [(torch.randn(HIVES, MELS, FRAMES), torch.randint(0, STATES, (HIVES,))) for _ in range(4)]
    if DEVICE == "cuda":
        batches = [(mels.pin_memory(), states.pin_memory()) for mels, states in batches]
    running = torch.zeros((), device=DEVICE)

    def step(i):
        mels, states = (t.to(DEVICE, non_blocking=True) for t in batches[i % 4])
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(mels), states)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running.mul_(0.98).add_(loss.detach(), alpha=0.02)
        if i % 100 == 0:
            print(f"step {i}: {running.item():.4f}")
        return running

    return step


if __name__ == "__main__":
    run(build)
