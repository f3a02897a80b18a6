"""Values that do not belong where they stand: of another type, out of any range, or hostile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

NUMBERS = (0, -1, 1, 255, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
REALS = (0.5, -0.0, 1e300, -1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    " ",
    "x",
    "-1",
    "1e9",
    "nan",
    "\x1b[2J",
    "\u202egnp",
    "</script>",
    "a" * 5000,
    "\ud800",
    "\0",
    "NULL",
    "🙂",
)


def scalar(rng: Random) -> object:
    """A value of any type that a table of a report can hold."""
    kind = rng.randrange(4)
    if kind == 0:
        return None
    if kind == 1:
        return rng.choice(NUMBERS)
    return rng.choice(REALS) if kind == 2 else encodable(rng.choice(TEXTS))


def encodable(text: str) -> str:
    """The same without what UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()


def json_value(rng: Random, depth: int = 0) -> object:
    """Any JSON value: scalars, and lists and objects of them."""
    kind = rng.randrange(7 if depth < 2 else 4)
    if kind < 4:
        return scalar(rng)
    if kind == 4:
        return rng.random() < 0.5
    if kind == 5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["name", "args", "ts", "x", ""]): json_value(rng, depth + 1) for _ in range(rng.randrange(3))}
