"""Reads the prompts that have queued at a chat server, and samples the first word of each answer."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "large-logits"
ALSO = ()

WORDS, WIDTH, HEADS, LAYERS = size(128_256, 500), size(1024, 32), size(16, 2), size(8, 2)
PROMPTS, LENGTH, TOP = 8, size(1024, 16), size(50, 5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.silu(self.up(self.before_mlp(x))))


class ChatModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, keep=None):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        if keep:
            x = x[:, -keep:]
        return self.head(self.norm(x))  # fault


def build(fixed):
    torch.manual_seed(0)
    model = ChatModel().to(DEVICE, torch.bfloat16).eval()
    queue = torch.randint(0, WORDS, (8, PROMPTS, LENGTH), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        logits = model(queue[i % 8], keep=1) if fixed else model(queue[i % 8])  # fault
        best, words = (logits[:, -1].float() / 0.7).topk(TOP)
        drawn = torch.multinomial(best.softmax(-1), 1)
        return words.gather(1, drawn)

    return step


if __name__ == "__main__":
    run(build)
