"""An ensemble of two-dimensional turbulent flows, advanced by a pseudo-spectral solver."""

import numpy as np
import torch
from _run import DEVICE, run, size

CAUSE = "float64"
ALSO = ()

ENSEMBLE = size(16, 2)
N = size(512, 32)
SUBSTEPS = size(4, 1)
DT, VISCOSITY = 5e-4, 1e-4


def wave_numbers(n):
    """kx, ky, the inverse of the Laplacian, and the mask that removes aliases."""
    k = np.fft.fftfreq(n, 1 / n)
    kx, ky = np.meshgrid(k, np.abs(k[: n // 2 + 1]), indexing="ij")
    laplacian = kx**2 + ky**2
    inverse = np.divide(1.0, laplacian, out=np.zeros_like(laplacian), where=laplacian > 0)
    keep = ((np.abs(kx) < n / 3) & (ky < n / 3)).astype(float)
    return kx, ky, laplacian, inverse, keep


def random_vorticity(n, laplacian):
    noise = torch.fft.rfft2(torch.randn(ENSEMBLE, n, n, device=DEVICE))
    envelope = torch.exp(-((laplacian.float().sqrt() - 6) ** 2) / 8)
    w = torch.fft.irfft2(noise * envelope, s=(n, n))
    return 4 * w / w.std()


def tendency(w_hat, grid):
    kx, ky, laplacian, inverse, keep = grid
    psi = w_hat * inverse
    u = torch.fft.irfft2(1j * ky * psi, s=(N, N))
    v = -torch.fft.irfft2(1j * kx * psi, s=(N, N))
    w_x = torch.fft.irfft2(1j * kx * w_hat, s=(N, N))
    w_y = torch.fft.irfft2(1j * ky * w_hat, s=(N, N))
    advection = torch.fft.rfft2(u * w_x + v * w_y)
    return -keep * advection - VISCOSITY * laplacian * w_hat


def heun(w_hat, grid):
    first = tendency(w_hat, grid)
    second = tendency(w_hat + DT * first, grid)
    return w_hat + 0.5 * DT * (first + second)


def build(fixed):
    if fixed:
        grid = [torch.as_tensor(a, dtype=torch.float32, device=DEVICE) for a in wave_numbers(N)]
    else:
        grid = [torch.as_tensor(a, device=DEVICE) for a in wave_numbers(N)]  # fault
    state = {"w_hat": torch.fft.rfft2(random_vorticity(N, grid[2]))}

    @torch.no_grad()
    def step(i):
        for _ in range(SUBSTEPS):
            state["w_hat"] = heun(state["w_hat"], grid)
        return state["w_hat"].abs().square().mean()

    return step


if __name__ == "__main__":
    run(build)
