"""Cleans detector frames in CuPy; pixels over a threshold are chosen by a boolean mask in each frame."""

import cupy as cp
from _run_other import run

CAUSE = "boolean-masks"
ALSO = ()
FRAMES, H, W = 48, 512, 512


def build(fixed):
    frames = cp.random.default_rng(0).standard_normal((FRAMES, H, W), cp.float32)

    def cleaned(frame):
        bright = frame[frame > 2.5]  # fault
        return cp.minimum(frame, bright.mean())

    def cleaned_fixed(frame):
        mask = frame > 2.5
        mean = cp.where(mask, frame, 0).sum() / mask.sum()
        return cp.minimum(frame, mean)

    def step(i):
        result = None
        for frame in frames:
            result = (cleaned_fixed if fixed else cleaned)(frame)
        return result

    return step


if __name__ == "__main__":
    run(build)
