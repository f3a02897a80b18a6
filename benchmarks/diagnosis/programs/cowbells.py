"""Tells cowbells apart by their sound; clips are made to sound as in valleys, then become mel spectra."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "long-convolution"
ALSO = ()
CLIPS, SAMPLES, ECHO = size(64, 3), size(48_000, 2000), size(4000, 60)
WINDOW, HOP, BANDS, HERDS, C = size(1024, 128), size(256, 64), size(80, 8), 30, size(64, 4)


class Valleys:
    """Echoes of places where bells were recorded: one is put on each clip."""

    def __init__(self, *, spectral):
        self.spectral = spectral
        fall = torch.exp(-6 * torch.linspace(0, 1, ECHO, device=DEVICE))
        self.echoes = torch.randn(200, ECHO, device=DEVICE) * fall * 0.1
        self.echoes[:, 0] = 1

    def __call__(self, clips):
        echoes = self.echoes[torch.randint(len(self.echoes), (len(clips),), device=DEVICE)]
        if self.spectral:
            length = 1 << (SAMPLES + ECHO - 1).bit_length()
            return torch.fft.irfft(torch.fft.rfft(clips, length) * torch.fft.rfft(echoes, length))[:, :SAMPLES]
        padded = F.pad(clips, (ECHO - 1, 0))
        return F.conv1d(padded[None], echoes.flip(1)[:, None], groups=len(clips))[0]  # fault


class MelSpectra:
    def __init__(self):
        self.window = torch.hann_window(WINDOW, device=DEVICE)
        bins = torch.linspace(0, 8000, WINDOW // 2 + 1, device=DEVICE)
        peaks = 700 * (10 ** (torch.linspace(30, 2800, BANDS + 2, device=DEVICE) / 2595) - 1)
        rise = (bins - peaks[:-2, None]) / (peaks[1:-1] - peaks[:-2])[:, None]
        fall = (peaks[2:, None] - bins) / (peaks[2:] - peaks[1:-1])[:, None]
        self.filters = torch.minimum(rise, fall).clamp(min=0)

    def __call__(self, clips):
        spectra = torch.stft(clips, WINDOW, HOP, window=self.window, return_complex=True)
        return (self.filters @ spectra.abs().square()).clamp(min=1e-5).log()[:, None]


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def build(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(conv(1, C), conv(C, 2 * C), conv(2 * C, 4 * C), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(*net, nn.Linear(4 * C, HERDS)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    valleys, mel_spectra = Valleys(spectral=fixed), MelSpectra()
    recordings = torch.randn(8, CLIPS, SAMPLES, device=DEVICE)
    herds = torch.randint(HERDS, (8, CLIPS), device=DEVICE)

    def step(i):
        with torch.no_grad():
            spectra = mel_spectra(valleys(recordings[i % 8]))
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(spectra), herds[i % 8], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
