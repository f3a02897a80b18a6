"""Plans how the arm of an orchard robot moves to a fruit: a compiled network takes the noise out of a draft path."""

import logging

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "graph-breaks"
ALSO = ()

ROUNDS, POINTS, JOINTS = size(20, 3), size(32, 8), 7
log = logging.getLogger("arms")


class Layer(nn.Module):
    def __init__(self, width, heads, noted):
        super().__init__()
        self.noted = noted
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 4 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x, scene):
        scale1, shift1, scale2, shift2 = self.modulation(F.silu(scene))[:, None].chunk(4, -1)
        x = x + self.attention(self.norm1(x) * (1 + scale1) + shift1)
        x = x + self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        if self.noted:
            log.debug("points after a layer: %s", tuple(x.shape))  # fault
        return x


class Planner(nn.Module):
    def __init__(self, width, layers, noted):
        super().__init__()
        self.enter = nn.Linear(JOINTS, width)
        self.places = nn.Parameter(0.02 * torch.randn(POINTS, width))
        self.scene = nn.Linear(64, width)
        self.moment = nn.Linear(1, width)
        self.layers = nn.ModuleList(Layer(width, width // 32, noted) for _ in range(layers))
        self.leave = nn.Linear(width, JOINTS)

    def forward(self, path, moment, scene):
        scene = self.scene(scene) + self.moment(moment)
        x = self.enter(path) + self.places
        for layer in self.layers:
            x = layer(x, scene)
        return self.leave(x)


def build(fixed):
    torch.manual_seed(0)
    planner = Planner(size(256, 32), size(8, 2), noted=not fixed).to(DEVICE).eval()
    velocity = torch.compile(planner, mode="reduce-overhead", dynamic=False)  # fault
    scenes = torch.randn(8, 4, 64, device=DEVICE)
    drafts = torch.randn(8, 4, POINTS, JOINTS, device=DEVICE)
    moments = torch.linspace(0, 1, ROUNDS + 1, device=DEVICE)[:-1].view(-1, 1, 1).expand(-1, 4, 1).contiguous()

    @torch.inference_mode()
    def step(i):
        path = drafts[i % 8]
        for moment in moments:
            path = path + velocity(path, moment, scenes[i % 8]) / ROUNDS
        return path.cpu()

    return step


if __name__ == "__main__":
    run(build)
