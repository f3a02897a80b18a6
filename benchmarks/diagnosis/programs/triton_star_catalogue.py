"""Compares spectra of stars with a catalogue: attention-like sums over the catalogue in one Triton kernel."""

import os

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "unpipelined-loads"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
STARS, CATALOGUE, WIDTH, SURVEYS = (128, 256, 128, 2) if TINY else (16384, 16384, 128, 8)
BLOCK_STARS, BLOCK_CATALOGUE = 128, 64


@triton.jit
def compare(
    spectra, references, properties, result, scale, stars, entries,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Means of the properties of the catalogue's entries, weighted by how alike spectra are to a star's."""
    survey = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, WIDTH)
    star = tl.load(spectra + (survey * stars + m[:, None]) * WIDTH + d[None, :])
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    for start in tl.range(0, entries, BLOCK_N, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK_N)
        rows = (survey * entries + n[:, None]) * WIDTH + d[None, :]
        likeness = tl.dot(star, tl.trans(tl.load(references + rows))) * scale
        top = tl.maximum(peak, tl.max(likeness, axis=1))
        shares = tl.exp2(likeness - top[:, None])
        shrink = tl.exp2(peak - top)
        weight = weight * shrink + tl.sum(shares, axis=1)
        total = total * shrink[:, None]
        entry = tl.load(properties + rows)
        total = tl.dot(shares.to(entry.dtype), entry, total)
        peak = top
    mean = total / weight[:, None]
    tl.store(result + (survey * stars + m[:, None]) * WIDTH + d[None, :], mean.to(result.dtype.element_ty))


class Catalogue:
    """Reference spectra and what is known of their stars, of several surveys."""

    def __init__(self, references, properties, launch):
        self.references, self.properties = references, properties
        self.launch = launch

    def look_up(self, spectra):
        surveys, stars, width = spectra.shape
        result = torch.empty_like(spectra)
        grid = (triton.cdiv(stars, BLOCK_STARS), surveys)
        compare[grid](
            spectra, self.references, self.properties, result, width**-0.5 * 1.4427, stars, self.references.shape[1],
            WIDTH=width, BLOCK_M=BLOCK_STARS, BLOCK_N=BLOCK_CATALOGUE, num_warps=8, **self.launch,
        )  # fmt: skip
        return result


def normalised(spectra):
    """Spectra without their continuum, of unit length."""
    wide = spectra.float()
    wide = wide - wide.mean(-1, keepdim=True)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(spectra.dtype)


def build(fixed):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def random(*shape):
        return torch.randn(shape, device=device).to(torch.bfloat16)

    references, properties = normalised(random(SURVEYS, CATALOGUE, WIDTH)), random(SURVEYS, CATALOGUE, WIDTH)
    observed = random(2, SURVEYS, STARS, WIDTH)
    mixing = random(WIDTH, WIDTH) * WIDTH**-0.5
    catalogue = Catalogue(references, properties, {"STAGES": 3 if fixed else 1})  # fault

    def step(i):
        spectra = normalised(observed[i % 2])
        first = catalogue.look_up(spectra)  # fault
        # what the first look has found corrects the spectra for the second
        corrected = normalised(spectra + first @ mixing)
        return catalogue.look_up(corrected)  # fault

    return step


if __name__ == "__main__":
    run(build)
