"""Prices options in CuPy from market data that NumPy made, and so in float64."""

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "float64"
ALSO = ()

OPTIONS = 16_777_216

price = cp.ElementwiseKernel(
    "T spot, T strike, T years, T rate, T volatility",
    "T call",
    """
    T spread = volatility * sqrt(years);
    T d1 = (log(spot / strike) + (rate + volatility * volatility / 2) * years) / spread;
    T d2 = d1 - spread;
    call = spot * normcdf(d1) - strike * exp(-rate * years) * normcdf(d2);
    """,
    "black_scholes",
)


def build(fixed):
    rng = np.random.default_rng(0)
    dtype = np.float32 if fixed else np.float64  # fault
    spot = cp.asarray(rng.uniform(10, 100, OPTIONS).astype(dtype))  # fault
    strike = cp.asarray(rng.uniform(10, 100, OPTIONS).astype(dtype))  # fault
    years = cp.asarray(rng.uniform(0.1, 5, OPTIONS).astype(dtype))  # fault
    rate, volatility = dtype(0.02), dtype(0.3)

    def step(i):
        calls = price(spot, strike, years, rate, volatility)  # fault
        return calls.sum()

    return step


if __name__ == "__main__":
    run(build)
