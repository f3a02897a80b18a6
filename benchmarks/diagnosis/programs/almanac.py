"""Writes entries of an almanac with a GPT whose keys and values have a fixed place; a word is one replay of a graph."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
ENTRIES, WORDS, WIDTH, HEADS, LAYERS = size(32, 2), size(32000, 40), size(2048, 16), size(16, 2), size(12, 2)
BEGUN, LONGEST = size(256, 4), size(512, 24)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        shape = ENTRIES, HEADS, LONGEST, WIDTH // HEADS
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(self, x, at, seen):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.silu(self.wide(self.norm2(x))))


class Almanac(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("all", torch.arange(LONGEST))

    def forward(self, word, at):
        seen = (self.all <= at)[None, None, None]
        x = self.words(word) + self.places(at)
        for layer in self.layers:
            x = layer(x, at, seen)
        return self.head(self.norm(x))[:, -1]


class Writer:
    """Holds the word, its place and the graph."""

    def __init__(self, model):
        self.model = model
        self.word = torch.randint(0, WORDS, (ENTRIES, 1), device=DEVICE)
        self.at = torch.full((1,), BEGUN, device=DEVICE)
        self.graph = None
        if DEVICE == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.next()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.next()

    def next(self):
        scores = self.model(self.word, self.at)
        self.word.copy_(scores.argmax(-1, keepdim=True))
        self.at.sub_(BEGUN - 1).remainder_(LONGEST - BEGUN).add_(BEGUN)

    def write(self):
        if self.graph:
            self.graph.replay()
        else:
            self.next()
        return self.word


@torch.inference_mode()
def build(fixed):
    torch.manual_seed(0)
    model = Almanac().to(DEVICE, torch.bfloat16).eval()
    writer = Writer(model)

    @torch.inference_mode()
    def step(i):
        return writer.write()

    return step


if __name__ == "__main__":
    run(build, steps=40)
