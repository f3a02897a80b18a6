"""Trains a diffusion transformer on latents of micrographs; the losses of all steps stay on the GPU."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
BATCH, PATCHES, PATCH = size(64, 2), size(256, 8), size(64, 8)
WIDTH, HEADS, LAYERS = size(1152, 32), size(9, 2), size(6, 1)
KEPT = 1024


class Layer(nn.Module):
    """Attention and MLP, scaled and shifted by the level of noise."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.modulate = nn.Linear(WIDTH, 6 * WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, level):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulate(F.silu(level))[:, None].chunk(6, dim=2)
        qkv = self.qkv(self.norm(x) * (1 + scale_a) + shift_a).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate_a * self.out(F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2))
        y = self.expand(self.norm(x) * (1 + scale_m) + shift_m)
        return x + gate_m * self.contract(F.gelu(y, approximate="tanh"))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(PATCH, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.level = nn.Linear(256, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, PATCH)
        self.register_buffer("waves", torch.exp(torch.linspace(0, 7, 128)))

    def forward(self, noisy, time):
        angles = time[:, None] * self.waves
        level = self.level(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.enter(noisy) + self.places
        for layer in self.layers:
            x = layer(x, level)
        return self.leave(x)


def build(fixed):
    torch.manual_seed(0)
    model = Denoiser().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    latents = torch.randn(BATCH, PATCHES, PATCH, device=DEVICE, dtype=torch.bfloat16)
    losses = torch.zeros(KEPT, device=DEVICE)

    def flow_loss(latents):
        time = torch.rand(BATCH, device=DEVICE, dtype=torch.bfloat16)
        noise = torch.randn_like(latents)
        noisy = torch.lerp(latents, noise, time[:, None, None])
        return F.mse_loss(model(noisy, time).float(), (noise - latents).float())

    loss_of = torch.compile(flow_loss) if DEVICE == "cuda" else flow_loss

    def step(i):
        loss = loss_of(latents)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[i % KEPT] = loss.detach()
        return losses

    return step


if __name__ == "__main__":
    run(build)
