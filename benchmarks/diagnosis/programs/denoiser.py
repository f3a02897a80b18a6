"""Samples of a small diffusion U-Net, with a table of the seconds that each kind of layer took."""

import time
from collections import Counter

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-sync"
ALSO = ()

BATCH = size(16, 1)
SIDE = size(64, 16)
WIDTH = size(128, 8)
NOISE_LEVELS = size(6, 2)


def conv_block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(8, width, 3, padding=1)
        self.down1, self.down2 = conv_block(width, width), conv_block(width, 2 * width)
        self.middle = nn.Sequential(conv_block(2 * width, 2 * width), conv_block(2 * width, 2 * width))
        self.up2, self.up1 = conv_block(4 * width, width), conv_block(2 * width, width)
        self.last = nn.Conv2d(width, 8, 3, padding=1)
        self.smaller = nn.MaxPool2d(2)
        self.larger = nn.Upsample(scale_factor=2)

    def forward(self, x):
        a = self.down1(self.first(x))
        b = self.down2(self.smaller(a))
        c = self.middle(self.smaller(b))
        b = self.up2(torch.cat([b, self.larger(c)], 1))
        return self.last(self.up1(torch.cat([a, self.larger(b)], 1)))


class Stopwatch:
    """Adds up the seconds of each kind of layer."""

    def __init__(self, model):
        self.seconds = Counter()
        for layer in model.modules():
            if not list(layer.children()):
                layer.register_forward_pre_hook(self.start)
                layer.register_forward_hook(self.stop)

    def start(self, layer, inputs):
        torch.cuda.synchronize()  # fault
        self.began = time.perf_counter()

    def stop(self, layer, inputs, output):
        torch.cuda.synchronize()  # fault
        self.seconds[type(layer).__name__] += time.perf_counter() - self.began


def build(fixed):
    model = UNet(WIDTH).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    watch = None if fixed else Stopwatch(model)
    levels = torch.linspace(1, 0.1, NOISE_LEVELS).tolist()

    @torch.inference_mode()
    def step(i):
        x = torch.randn(BATCH, 8, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
        x = x.to(memory_format=torch.channels_last)
        for level in levels:
            x = x - level / NOISE_LEVELS * model(x)
        return x, watch

    return step


if __name__ == "__main__":
    run(build)
