"""Watches bridges for changes of their modes: power spectra of what accelerometers on the decks measured (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "float64"
ALSO = ()

SENSORS, PIECES, SAMPLES, BRIDGES = 64, 512, 4096, 2
RATE_HZ, LOWEST_HZ, HIGHEST_HZ = 200.0, 0.4, 12.0


class Watch:
    def __init__(self, fixed):
        self.window = cp.hanning(SAMPLES)  # fault
        if fixed:
            self.window = self.window.astype(cp.float32)
        self.scale = 1 / float(RATE_HZ * (self.window**2).sum())
        hertz = cp.fft.rfftfreq(SAMPLES, 1 / RATE_HZ)
        self.band = slice(round(LOWEST_HZ * SAMPLES / RATE_HZ), round(HIGHEST_HZ * SAMPLES / RATE_HZ))
        self.hertz = hertz[self.band]
        self.usual = [None] * BRIDGES

    def spectrum(self, measured):
        pieces = measured - measured.mean(axis=-1, keepdims=True)
        lines = cp.fft.rfft(pieces * self.window, axis=-1)  # fault
        power = lines.real**2 + lines.imag**2  # fault
        return power.mean(axis=1) * self.scale

    def changes(self, bridge, measured):
        """How much each sensor's spectrum differs from the usual one, and the frequency where it is strongest."""
        power = self.spectrum(measured)[:, self.band]
        usual = self.usual[bridge]
        self.usual[bridge] = power if usual is None else 0.95 * usual + 0.05 * power
        change = cp.log(power / self.usual[bridge])
        return cp.abs(change).mean(axis=1), self.hertz[power.argmax(axis=1)]


def build(fixed):
    watch = Watch(fixed)
    random = cp.random.RandomState(0)
    shape = SENSORS, PIECES, SAMPLES
    moments = cp.arange(SAMPLES, dtype=cp.float32) / cp.float32(RATE_HZ)
    decks = []
    for bridge in range(BRIDGES):
        sway = cp.sin(cp.float32(2 * cp.pi * (2.1 + bridge)) * moments)
        decks.append(random.standard_normal(shape, dtype=cp.float32) + sway)

    def step(i):
        return [watch.changes(bridge, deck) for bridge, deck in enumerate(decks)]

    return step


if __name__ == "__main__":
    run(build)
