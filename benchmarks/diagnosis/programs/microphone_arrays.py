"""Enhances speech recorded by arrays of eight microphones: masks by a network, then a beamformer for each frequency."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "decompositions"
ALSO = []


UTTERANCES = size(8, 2)
MICROPHONES = size(8, 3)
SAMPLES = size(64000, 2000)
FFT = size(1024, 64)
HOP = FFT // 4
BINS = FFT // 2 + 1
WIDTH = size(1024, 16)


class MaskNet(nn.Module):
    """The share of speech in each frame and frequency."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(BINS, WIDTH, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, BINS, 5, padding=2),
        )

    def forward(self, magnitude):
        return self.layers(magnitude.log1p()).sigmoid()


def covariance(spectra, mask):
    """[utterance, frequency, microphone, microphone] of what the mask lets through."""
    x = spectra.permute(0, 2, 1, 3)
    weight = mask / mask.sum(-1, keepdim=True)
    return (x * weight[:, :, None]) @ x.mH


class Beamformer(nn.Module):
    """MVDR by Souden et al.: the filter comes from the covariances of speech and noise."""

    def __init__(self, solve, loading=1e-2):
        super().__init__()
        self.solve = solve
        self.register_buffer("eye", torch.eye(MICROPHONES))
        self.loading = loading

    def forward(self, spectra, mask):
        speech = covariance(spectra, mask)
        noise = covariance(spectra, 1 - mask)
        power = noise.diagonal(dim1=-2, dim2=-1).real.mean(-1)
        noise = noise + self.loading * power[..., None, None] * self.eye
        if self.solve:
            ratio = torch.linalg.solve(noise, speech)
        else:
            ratio = torch.linalg.pinv(noise) @ speech  # fault
        trace = ratio.diagonal(dim1=-2, dim2=-1).sum(-1)
        weights = ratio[..., 0] / trace[..., None]
        return torch.einsum("bfc,bcft->bft", weights.conj(), spectra)


def build(fixed):
    torch.manual_seed(0)
    net = MaskNet().to(DEVICE).eval()
    beamformer = Beamformer(solve=bool(fixed)).to(DEVICE)
    window = torch.hann_window(FFT, device=DEVICE)
    recordings = torch.randn(2, UTTERANCES * MICROPHONES, SAMPLES, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        spectra = torch.stft(recordings[i % 2], FFT, HOP, window=window, return_complex=True)
        masks = net(spectra.abs()).view(UTTERANCES, MICROPHONES, BINS, -1)
        enhanced = beamformer(spectra.view(UTTERANCES, MICROPHONES, BINS, -1), masks.mean(1))
        return torch.istft(enhanced, FFT, HOP, window=window, length=SAMPLES)

    return step


if __name__ == "__main__":
    run(build)
