"""The noise floor: how much runs of one program differ on a machine, and how many repeats show a change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._matching import slots_of
from kanalyze.analyses.comparing._pair import LEAST_SHARE
from kanalyze.errors import BadBaselineError, IncomparableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kanalyze.analyses.comparing._statistics import NoiseFloor
    from kanalyze.reduction.baselines import Digest

#: The layout of a stored floor.
VERSION: Final = 1

#: What a stored floor is called, and the option that makes one.
_MADE: Final = ("noise floor", "--noise -o FILE.json")

#: The part of all kernels whose noise is below that of the floor for single kernels.
_MOST: Final = 0.95


@dataclass(frozen=True)
class Noise:
    """How much runs of one program differ.

    Attributes:
        name: The first of the runs.
        each: What an iteration is called; ``whole`` where there is none.
        mean_ns: Mean time of an iteration.
        step: The floor of an iteration.
        buckets: That of each bucket of the ledger, with its mean time.
        kernels: That of each kernel, with its mean time.
        rows: Two single runs of one program differ by less than this part in 95 of 100 kernels.
    """

    kind: ClassVar[Literal["noise"]] = "noise"

    name: str
    each: str
    mean_ns: float
    step: NoiseFloor
    buckets: dict[str, tuple[float, NoiseFloor]]
    kernels: dict[str, tuple[float, NoiseFloor]]
    rows: float

    @property
    def floor(self) -> float:
        """Between two single runs of the program, the part by which the time of an iteration differs."""
        return self.step.least_ratio - 1


def noise_of(digests: Sequence[Digest]) -> Noise:
    """The noise floor of runs of one program.

    Raises:
        IncomparableError: There are fewer than two runs, or one took no time.
    """
    times = [one.about.iteration_ns for one in digests]
    step = statistics.noise_floor(times) if len(times) > 1 else None
    if step is None:
        raise IncomparableError.few_runs(len(times))
    mean_ns = float(np.mean(times))
    buckets = {
        bucket: [one.ns_in(bucket) / one.about.iterations for one in digests]
        for bucket in dict.fromkeys(name for one in digests for name in one.buckets.get_column("bucket"))
    }
    slots = slots_of(digests)
    kernels: dict[str, Any] = {}
    for name, row in zip(slots.rows.get_column("name"), slots.ns, strict=True):
        if name is not None:
            kernels[name] = kernels.get(name, 0) + row
    told = _floors({name: list(values) for name, values in kernels.items()}, LEAST_SHARE * mean_ns)
    ratios = [floor.least_ratio - 1 for _, floor in told.values()]
    rows = float(np.quantile(ratios, _MOST)) if ratios else step.least_ratio - 1
    about = digests[0].about
    return Noise(about.name, about.each or about.scope, mean_ns, step, _floors(buckets, 0.0), told, rows)


def _floors(values: dict[str, list[float]], least_ns: float) -> dict[str, tuple[float, NoiseFloor]]:
    """The floor of each row that took at least so long, the longest first."""
    found = {}
    for name, times in sorted(values.items(), key=lambda item: (-float(np.mean(item[1])), item[0])):
        floor = statistics.noise_floor(times) if min(times) > 0 else None
        if floor is not None and np.mean(times) >= least_ns:
            found[name] = (float(np.mean(times)), floor)
    return found


def stored(noise: Noise) -> bytes:
    """The floor as a file for ``compare --floor``."""
    told = {
        "floor": VERSION,
        "name": noise.name,
        "runs": noise.step.runs,
        "step": noise.floor,
        "rows": noise.rows,
        "repeats": {f"{effect:.0%}": number for effect, number in noise.step.repeats.items()},
    }
    return (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def read_floor(content: bytes, path: Path) -> tuple[float, float]:
    """The floors of an iteration and of single rows.

    Raises:
        BadBaselineError: `content` is no stored floor.
    """
    try:
        told = json.loads(content)
        if told["floor"] != VERSION:
            raise BadBaselineError.damaged(path, f"of version {told['floor']}, not {VERSION}", *_MADE)
        step, rows = float(told["step"]), float(told["rows"])
    except (ValueError, TypeError, KeyError) as why:
        raise BadBaselineError.damaged(path, str(why), *_MADE) from None
    if not (0 <= step < np.inf and 0 <= rows < np.inf):
        raise BadBaselineError.damaged(path, "its floors are no shares", *_MADE)
    return step, rows
