"""Numbers that no computation holds are refused, or answered."""

import pytest

from support.command import ADD, run

HUGE = "1" + 30 * "0"


@pytest.mark.parametrize(
    "line",
    [
        f"show utilisation {{}} --chunks {HUGE}",
        f"show collectives {{}} --one {HUGE}",
        f"show gaps {{}} --threshold {HUGE}s",
        f"show gaps {{}} --threshold {5000 * '1'}s",
        f"summarize {{}} --window 0s..{HUGE}s",
        "whatif {} --faster *=1e-15",
        "whatif {} --faster host=1e-15",
        "whatif {} --faster copies=1e-300",
        "whatif {} --faster calls=1e-4 --each",
        f"whatif {{}} --copies 0.{HUGE}GB/s".replace("0.1", "0.0"),
        f"whatif {{}} --copies {400 * '9'}GB/s",
        f"whatif {{}} --measured {HUGE}s",
        *(f"tree {{}} --min-share={share}" for share in ("1", "much", "-1%")),
    ],
    ids=lambda line: line[:30],
)
def test_what_is_too_large_or_small_is_refused(line):
    ran = run(*(ADD if word == "{}" else word for word in line.split()))
    assert (ran.status, ran.raw) == (2, b"")
