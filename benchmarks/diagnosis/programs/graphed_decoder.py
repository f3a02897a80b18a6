"""Decodes with a compiled transformer in bf16: a fixed cache of keys and values, and one CUDA graph for each token."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
BATCH, LENGTH, LAYERS = size(32, 2), size(1024, 8), size(6, 2)
VOCABULARY, WIDTH, HEADS = size(32768, 128), size(2048, 32), size(16, 2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("keys", torch.randn(BATCH, HEADS, LENGTH, WIDTH // HEADS, dtype=torch.bfloat16))
        self.register_buffer("values", torch.randn(BATCH, HEADS, LENGTH, WIDTH // HEADS, dtype=torch.bfloat16))

    def forward(self, x, position):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, words, position):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, position)
        words.copy_(F.linear(x, self.embedding.weight).argmax(-1))
        position.add_(1).remainder_(LENGTH)


@torch.no_grad()
def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        decoder = Decoder().to(torch.bfloat16)
        words = torch.zeros(BATCH, 1, dtype=torch.long)
        position = torch.zeros(1, dtype=torch.long)
    decode = torch.compile(decoder)
    if DEVICE == "cpu":
        return torch.no_grad()(lambda i: decode(words, position))
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            decode(words, position)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(words, position)

    def step(i):
        graph.replay()

    step.decoder = decoder  # the graph works in its memory
    return step


if __name__ == "__main__":
    run(build, steps=40)
