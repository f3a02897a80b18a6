"""Trains an encoder of pictures and their captions in one sequence."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "boolean-masks"
ALSO = ()
WIDTH, HEADS, LAYERS = size(384, 32), size(6, 4), size(10, 2)
BATCH, LENGTH = size(16, 2), size(256, 16)
PATCH, WORDS = size(588, 12), size(16000, 100)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.contract(F.gelu(self.expand(self.norm(x))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MultiwayLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.picture = MLP()
        self.text = MLP()

    def forward(self, x, is_text, text_rows, picture_rows):
        x = x + self.attention(x)
        if text_rows is None:
            out = torch.empty_like(x)
            out[is_text] = self.text(x[is_text])  # fault
            out[~is_text] = self.picture(x[~is_text])  # fault
            return x + out
        rows = x.flatten(0, 1)
        out = torch.empty_like(rows)
        out = out.index_copy(0, text_rows, self.text(rows.index_select(0, text_rows)))
        out = out.index_copy(0, picture_rows, self.picture(rows.index_select(0, picture_rows)))
        return x + out.view_as(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(PATCH, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(MultiwayLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, patches, words, is_text, text_rows, picture_rows):
        x = torch.where(is_text[..., None], self.words(words), self.patches(patches))
        for layer in self.layers:
            x = layer(x, is_text, text_rows, picture_rows)
        return self.head(self.norm(x).mean(1))


def collate():
    """Captions of 8 to 60 words after each picture; the rows of each modality are known here, before the upload."""
    is_text = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    for row, words in enumerate(torch.randint(LENGTH // 32, LENGTH // 4, (BATCH,)).tolist()):
        is_text[row, LENGTH - words :] = True
    flat = is_text.flatten()
    return is_text.to(DEVICE), flat.nonzero()[:, 0].to(DEVICE), (~flat).nonzero()[:, 0].to(DEVICE)


def build(fixed):
    torch.manual_seed(0)
    model = Encoder().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    patches = torch.randn(BATCH, LENGTH, PATCH, device=DEVICE, dtype=torch.bfloat16)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), device=DEVICE)
    target = torch.randn(BATCH, 256, device=DEVICE, dtype=torch.bfloat16)
    is_text, text_rows, picture_rows = collate()
    with torch.no_grad():
        one = model(patches, words, is_text, None, None)
        assert torch.allclose(one, model(patches, words, is_text, text_rows, picture_rows), atol=0.05)  # noqa: S101 - of the program itself
    if not fixed:
        text_rows = picture_rows = None

    def step(i):
        joined = model(patches, words, is_text, text_rows, picture_rows)
        loss = 1 - F.cosine_similarity(joined, target).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
