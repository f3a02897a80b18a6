"""Power spectra of simulated density fields: a transform of each, and the mean power of shells of wavenumbers."""

import torch
from _run import DEVICE, run, size

CAUSE = "scatter-atomics"
ALSO = ()
FIELDS, CELLS, SHELLS = size(8, 2), size(256, 8), size(64, 4)
COPIES = 512


def shells_of_modes():
    """The shell of each mode of a real transform; corners beyond the largest wavenumber are of the last one."""
    long = torch.fft.fftfreq(CELLS, 1 / CELLS, device=DEVICE)
    short = torch.fft.rfftfreq(CELLS, 1 / CELLS, device=DEVICE)
    wavenumber = (long[:, None, None].square() + long[:, None].square() + short.square()).sqrt()
    return (wavenumber * (2 * SHELLS / CELLS)).long().clamp_(max=SHELLS - 1).flatten()


def summed(power, shell):
    """The power of each shell: (fields, modes) to (fields, shells)."""
    total = torch.zeros(len(power), SHELLS, device=power.device)
    return total.scatter_add_(1, shell.expand_as(power), power)  # fault


def summed_in_copies(power, place):
    """The same, modes that follow each other added to different copies of the shells."""
    total = torch.zeros(len(power), COPIES * SHELLS, device=power.device)
    total.scatter_add_(1, place.expand_as(power), power)
    return total.view(len(power), COPIES, SHELLS).sum(1)


def build(fixed):
    torch.manual_seed(0)
    density = torch.randn(FIELDS, CELLS, CELLS, CELLS, device=DEVICE).exp_()
    shell = shells_of_modes()
    count = torch.bincount(shell, minlength=SHELLS)
    place = shell + SHELLS * (torch.arange(len(shell), device=DEVICE) % COPIES)

    @torch.inference_mode()
    def step(i):
        modes = torch.view_as_real(torch.fft.rfftn(density, dim=(1, 2, 3)))
        power = torch.linalg.vector_norm(modes, dim=-1).square_().flatten(1)
        total = summed_in_copies(power, place) if fixed else summed(power, shell)
        return total / count

    return step


if __name__ == "__main__":
    run(build)
