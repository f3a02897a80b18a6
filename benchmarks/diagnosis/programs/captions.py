"""Captions of a batch of pictures, a word at a time, with keys and values kept."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "blocking-read"
ALSO = ()

PICTURES = size(64, 2)
PATCHES = size(196, 4)
WORDS = size(12, 3)
WIDTH, HEADS, LAYERS = size(1024, 32), size(16, 2), size(8, 2)
VOCABULARY = size(16384, 64)
END = 2


class CaptionLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        shape = (2, PICTURES, HEADS, PATCHES + WORDS, WIDTH // HEADS)
        self.register_buffer("memory", torch.randn(shape))

    def forward(self, x, at):
        q, k, v = self.qkv(self.norm1(x)).view(PICTURES, 3, HEADS, 1, -1).unbind(1)
        keys, values = self.memory
        keys[:, :, at : at + 1] = k
        values[:, :, at : at + 1] = v
        y = F.scaled_dot_product_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1])
        x = x + self.out(y.reshape(PICTURES, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(CaptionLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words, at):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, at)
        return self.norm(x) @ self.embedding.weight.T


def build(fixed):
    with torch.device(DEVICE):
        captioner = Captioner().to(torch.bfloat16).eval()

    def ended_on_device(words, ended):
        return ended | (words == END)

    def ended_by_picture(words, ended):
        for picture in range(PICTURES):
            if words[picture].item() == END:  # fault
                ended[picture] = True
        return ended

    @torch.inference_mode()
    def step(i):
        words = torch.ones(PICTURES, dtype=torch.long, device=DEVICE)
        ended = torch.zeros(PICTURES, dtype=torch.bool, device=DEVICE) if fixed else [False] * PICTURES
        caption = torch.empty(WORDS, PICTURES, dtype=torch.long, device=DEVICE)
        for at in range(WORDS):
            words = captioner(words, PATCHES + at).argmax(-1)
            caption[at] = words
            ended = (ended_on_device if fixed else ended_by_picture)(words, ended)
        return caption, ended

    return step


if __name__ == "__main__":
    run(build)
