"""Generates posters with a diffusion transformer that is guided by a text: one denoising of a batch is a step."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.func import functional_call

CAUSE = "offloaded-weights"
ALSO = []


DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
WIDTH = size(1024, 16)
HEADS = size(16, 2)
LAYERS = size(8, 2)
POSTERS = size(8, 1)  # each with and without its text
TOKENS = size(1024, 16)
LATENT = 16
GUIDANCE = 4.5


class DiffusionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, condition):
        b, t, d = x.shape
        a, s, g, a2, s2, g2 = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        y = F.layer_norm(x, (d,)) * (1 + s) + a
        q, k, v = self.qkv(y).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        x = x + g * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + g2 * self.mlp(F.layer_norm(x, (d,)) * (1 + s2) + a2)


class SequentialOffload(nn.Module):
    """Keeps a block's weights in the host's memory, and has them on the GPU only while it runs."""

    def __init__(self, block):
        super().__init__()
        self.block = [block.to("cpu")]

    def forward(self, x, condition):
        block = self.block[0]
        weights = {name: value.to(x.device) for name, value in block.state_dict().items()}  # fault
        return functional_call(block, weights, (x, condition))


class Denoiser(nn.Module):
    def __init__(self, offload):
        super().__init__()
        self.enter = nn.Linear(LATENT, WIDTH)
        self.time = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        blocks = [DiffusionBlock().to(DTYPE) for _ in range(LAYERS)]
        self.blocks = nn.ModuleList(SequentialOffload(b) if offload else b for b in blocks)  # fault
        self.leave = nn.Linear(WIDTH, LATENT)

    def forward(self, latent, time, text):
        x = self.enter(latent)
        condition = self.time(time) + text
        for block in self.blocks:
            x = block(x, condition)
        return self.leave(F.layer_norm(x, (WIDTH,)))


def build(fixed):
    torch.manual_seed(0)
    model = Denoiser(offload=not fixed).to(DEVICE, DTYPE).eval()  # fault
    latent = torch.randn(POSTERS, TOKENS, LATENT).to(DEVICE, DTYPE)
    text = torch.randn(2 * POSTERS, WIDTH).to(DEVICE, DTYPE)
    text[POSTERS:] = 0
    times = torch.linspace(1, 0, 21).to(DEVICE, DTYPE)

    @torch.inference_mode()
    def step(i):
        time = times[i % 20].expand(2 * POSTERS, 1)
        with_text, without = model(latent.repeat(2, 1, 1), time, text).chunk(2)
        speed = without + GUIDANCE * (with_text - without)
        return latent + speed * (times[i % 20 + 1] - times[i % 20])

    return step


if __name__ == "__main__":
    run(build)
