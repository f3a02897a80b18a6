"""Learns to detect calls of whales in hydrophone recordings, with a gated norm over channels as a Triton kernel."""

import os

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from _run_other import run
from torch import nn

CAUSE = "uncoalesced"
ALSO = ()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
BATCH, SAMPLES, CHANNELS, LAYERS = (2, 1024, 32, 2) if TINY else (32, 65536, 256, 8)
STRIDE, WINDOW, SPAN, SPECIES = 16, 64, 32, 12
EPSILON = 1e-5


@triton.jit
def norm_of_frame(x, gain, gate, y, frames, EPSILON: tl.constexpr, CHANNELS: tl.constexpr):
    batch, frame = tl.program_id(0) // frames, tl.program_id(0) % frames
    channel = tl.arange(0, CHANNELS)
    at = (batch * CHANNELS + channel) * frames + frame  # fault
    values = tl.load(x + at).to(tl.float32)  # fault
    scale = tl.rsqrt(tl.sum(values * values, 0) / CHANNELS + EPSILON)
    normed = values * scale * tl.load(gain + channel).to(tl.float32)
    opened = tl.sigmoid(values * tl.load(gate + channel).to(tl.float32))
    tl.store(y + at, (normed * opened).to(y.dtype.element_ty))  # fault


@triton.jit
def norm_of_span(x, gain, gate, y, frames, EPSILON: tl.constexpr, CHANNELS: tl.constexpr, SPAN: tl.constexpr):
    frame = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    channel = tl.arange(0, CHANNELS)
    at = (tl.program_id(1) * CHANNELS + channel[:, None]) * frames + frame[None, :]
    values = tl.load(x + at).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / CHANNELS + EPSILON)
    normed = values * scale[None, :] * tl.load(gain + channel).to(tl.float32)[:, None]
    opened = tl.sigmoid(values * tl.load(gate + channel).to(tl.float32)[:, None])
    tl.store(y + at, (normed * opened).to(y.dtype.element_ty))


class GatedNorm(nn.Module):
    """Norms each frame over its channels (batch, channels, frames), and gates it by itself."""

    def __init__(self, channels, by_span):
        super().__init__()
        self.gain, self.gate = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.full((channels,), 0.5))
        self.by_span = by_span

    def forward(self, x):
        batch, channels, frames = x.shape
        y = torch.empty_like(x)
        if self.by_span:
            grid = (frames // SPAN, batch)
            norm_of_span[grid](x, self.gain, self.gate, y, frames, EPSILON, channels, SPAN, num_warps=8)
        else:
            norm_of_frame[(batch * frames,)](  # fault
                x, self.gain, self.gate, y, frames, EPSILON, channels, num_warps=4
            )
        return y


class Mix(nn.Module):
    """Mixes the channels of each frame."""

    def __init__(self, channels, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, channels) * channels**-0.5)

    def forward(self, x):
        return torch.bmm(self.weight.expand(len(x), -1, -1), x)


class Dilated(nn.Module):
    """A layer that hears its frame and an earlier one."""

    def __init__(self, channels, reach, by_span):
        super().__init__()
        self.norm = GatedNorm(channels, by_span)
        self.expand, self.near, self.far = Mix(channels, 2 * channels), Mix(channels, channels), Mix(channels, channels)
        self.reach = reach

    def forward(self, x):
        a, b = self.expand(self.norm(x)).chunk(2, 1)
        y = F.silu(a) * b
        return x + self.near(y) + F.pad(self.far(y), (self.reach, -self.reach))


class Detector(nn.Module):
    def __init__(self, by_span):
        super().__init__()
        self.listen = Mix(WINDOW, CHANNELS)
        self.layers = nn.Sequential(*(Dilated(CHANNELS, 2**k, by_span) for k in range(LAYERS)))
        self.norm, self.score = GatedNorm(CHANNELS, by_span), Mix(CHANNELS, SPECIES)

    def forward(self, recording):
        margin = (WINDOW - STRIDE) // 2
        windows = F.pad(recording, (margin, margin)).unfold(1, WINDOW, STRIDE)
        x = self.layers(self.listen(windows.transpose(1, 2)))
        return self.score(self.norm(x))


def build(fixed):
    torch.manual_seed(0)
    model = Detector(by_span=fixed).to(DEVICE, torch.float32 if DEVICE == "cpu" else torch.bfloat16).eval()
    recordings = torch.randn(BATCH, SAMPLES, device=DEVICE, dtype=next(model.parameters()).dtype)
    loudest = torch.zeros(BATCH, SPECIES, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        scores = model(recordings.roll(i * 100, 1)).float().sigmoid()
        smooth = F.avg_pool1d(scores, 9, 1, 4)
        torch.maximum(loudest, smooth.amax(2), out=loudest)
        return smooth

    return step


if __name__ == "__main__":
    run(build)
