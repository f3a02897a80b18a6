"""Scores letters that ask for loans, a batch at a time, with an encoder of texts."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "padding"
ALSO = []

LETTERS, LONGEST = size(64, 4), size(512, 32)
VOCABULARY, PAD, CLS, SEP = size(30000, 60), 0, 1, 2
WIDTH, HEADS, LAYERS = size(768, 16), size(12, 2), size(6, 2)
GRADES = 7


class Tokenizer:
    """Cuts texts (of words' numbers, here), and fills a batch up with PAD."""

    def __init__(self, padding):
        self.padding = padding

    def __call__(self, texts):
        texts = [np.concatenate([[CLS], text[: LONGEST - 2], [SEP]]) for text in texts]
        length = max(map(len, texts))
        if self.padding == "max_length":
            length = LONGEST  # fault
        length = min(LONGEST, (length + 7) // 8 * 8)
        tokens = np.full((len(texts), length), PAD, dtype=np.int64)
        for row, text in zip(tokens, texts, strict=False):
            row[: len(text)] = text
        return torch.from_numpy(tokens)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class LetterScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.pool, self.grade = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, GRADES)

    def forward(self, tokens):
        mask = (tokens != PAD)[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, mask)
        return self.grade(torch.tanh(self.pool(x[:, 0]))).float().softmax(-1)


class Inbox:
    """Letters of some dozens of words, few longer than a hundred."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.batches = []
        for _ in range(8):
            lengths = np.clip(rng.gamma(6.0, 10.0, LETTERS), 12, 126).astype(int)
            lengths[0] = 126
            if LONGEST < 126:
                lengths = lengths // 8
            self.batches.append([rng.integers(SEP + 1, VOCABULARY, length) for length in lengths])


def build(fixed):
    torch.manual_seed(0)
    model = LetterScorer().to(DEVICE, torch.bfloat16).eval()
    tokenize = Tokenizer(padding="longest" if fixed else "max_length")  # fault
    inbox = Inbox()
    worth = torch.arange(GRADES, device=DEVICE, dtype=torch.float32)

    @torch.inference_mode()
    def step(i):
        tokens = tokenize(inbox.batches[i % len(inbox.batches)])
        chances = model(tokens.to(DEVICE))
        return chances @ worth

    return step


if __name__ == "__main__":
    run(build)
