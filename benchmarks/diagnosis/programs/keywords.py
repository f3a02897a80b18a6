"""Keyword spotting: a log-mel spectrogram, a recurrent layer, and a word of twelve."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "rnn-cells"
ALSO = ()

BATCH = size(128, 2)
SAMPLES = size(16000, 1600)
WINDOW, HOP, BANDS = 512, 160, 80
WIDTH = size(384, 16)
WORDS = 12


def mel_filters(bins, bands, rate=16000):
    """Triangles that are equally wide on the mel scale."""
    mels = torch.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = torch.linspace(0, rate / 2, bins)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


class Spotter(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.register_buffer("window", torch.hann_window(WINDOW))
        self.register_buffer("filters", mel_filters(WINDOW // 2 + 1, BANDS))
        self.norm = nn.LayerNorm(BANDS)
        self.memory = nn.GRU(BANDS, WIDTH, batch_first=True)
        self.words = nn.Linear(WIDTH, WORDS)

    def spectrogram(self, audio):
        spectrum = torch.stft(audio, WINDOW, HOP, window=self.window, return_complex=True)
        return torch.log(spectrum.abs().square().transpose(1, 2) @ self.filters + 1e-6)

    def scan(self, frames):
        """The memory h' = (1 - z) n + z h, frame after frame."""
        gru = self.memory
        inputs = F.linear(frames, gru.weight_ih_l0, gru.bias_ih_l0)
        h, states = frames.new_zeros(len(frames), WIDTH), []
        for x in inputs.unbind(1):  # fault
            xr, xz, xn = x.chunk(3, -1)  # fault
            hr, hz, hn = F.linear(h, gru.weight_hh_l0, gru.bias_hh_l0).chunk(3, -1)  # fault
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)  # fault
            n = torch.tanh(xn + r * hn)  # fault
            h = n + z * (h - n)  # fault
            states.append(h)  # fault
        return torch.stack(states, 1)

    def forward(self, audio):
        frames = self.norm(self.spectrogram(audio))
        states = self.memory(frames)[0] if self.fixed else self.scan(frames)
        return self.words(states.mean(1))


def build(fixed):
    spotter = Spotter(fixed).to(DEVICE)
    optimizer = torch.optim.Adam(spotter.parameters(), lr=1e-3, fused=True)
    audio = torch.randn(BATCH, SAMPLES, device=DEVICE)
    words = torch.randint(WORDS, (BATCH,), device=DEVICE)

    def step(i):
        loss = F.cross_entropy(spotter(audio), words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
