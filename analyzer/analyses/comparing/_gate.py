"""Limits of changes: a gate, which holds, fails or cannot be judged, and the noise floor of runs of one program."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
import polars as pl

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._comparison import Comparison, Gate, alone, quick_values
from kanalyze.analyses.comparing._matching import slots_of
from kanalyze.analyses.comparing._pair import LEAST_SHARE, Pair
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.errors import BadBaselineError, IncomparableError, UnknownNameError

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._statistics import NoiseFloor
    from kanalyze.reduction.baselines import Digest

#: What may be measured; the last two by a name after the colon.
METRICS: Final = ("step", "quick", "busy", "bucket:", "kernel:")

#: What refuses a judgement unless it is allowed.
KINDS: Final = ("runs", "cold", "gpu", "driver", "clocks", "tool", "flags", "steps", "whole", "ranks")


def gate_of(found: Comparison, limit: float, metric: str, allowed: Collection[str]) -> Gate:
    """Judges whether one of :data:`METRICS` is longer in new by more than `limit`, whatever doubts are `allowed`.

    Raises:
        UnknownNameError: There is no such metric, bucket or kernel.
    """
    pair = found.timed if metric in ("step", "quick") else found.pair
    base, new = _values(pair, metric)
    if not base.size:
        few = "a run has fewer than five iterations"
        return Gate("cannot judge", metric, limit, None, None, None, few)
    if pair.repeated:
        estimate = statistics.ratio_of_runs(base.tolist(), new.tolist(), paired=pair.paired)
    else:
        estimate = alone(pair) if metric == "step" else None
    before, after = base.mean(), new.mean()
    ratio = estimate.ratio if estimate is not None else float(after / before) if before else None
    low, high = (None, None) if estimate is None else (estimate.low, estimate.high)
    gate = Gate("cannot judge", metric, limit, ratio, low, high, _refused(found, allowed))
    if gate.reason:
        return gate
    if ratio is None:
        return gate._replace(state="failed" if after else "held", reason="base has none of it" if after else "")
    if (ratio if low is None else low) > 1 + limit:
        return gate._replace(state="failed")
    if (ratio if high is None else high) <= 1 + limit:
        return gate._replace(state="held")
    return gate._replace(reason=f"the interval reaches beyond the limit{_more_runs(base, new, limit, pair)}")


def _refused(found: Comparison, allowed: Collection[str]) -> str:
    """The reasons against a judgement, and what judges even so."""
    reasons = [(one.kind, one.text) for one in found.doubts]
    if not found.pair.repeated:
        reasons.insert(0, ("runs", "too few runs: two or more of each side are needed"))
    if found.reason:
        reasons.append(("whole", f"no common iterations: {found.reason}"))
    against = [(kind, text) for kind, text in reasons if kind not in allowed]
    options = " ".join(f"--allow {kind}" for kind in dict.fromkeys(kind for kind, _ in against))
    return "; ".join([*(text for _, text in against), f"to judge even so: {options}"]) if against else ""


def _more_runs(base: np.ndarray, new: np.ndarray, limit: float, pair: Pair) -> str:
    """The number of runs that would tell, where that is known."""
    if not pair.repeated or not base.all() or not new.all():
        return ""
    distance = abs(math.log(new.mean() / base.mean()) - math.log1p(limit))
    effect = math.expm1(distance)
    runs = statistics.repeats_needed(base.tolist(), new.tolist(), effect=effect, paired=pair.paired) if effect else None
    return "" if runs is None else f"; {runs} runs of each side would tell"


def _values(pair: Pair, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The time of the metric in an iteration of each run."""
    kind, _, name = metric.partition(":")
    if metric in ("step", "quick"):
        steps = pair.base.values_ns, pair.new.values_ns
        base, new = steps if metric == "step" else quick_values(pair) or ([], [])
        return np.array(base), np.array(new)
    if metric == "busy":
        return _per_iteration(pair, lambda one: one.ns_in(*BUSY_BUCKETS))
    if kind == "bucket" and name:
        known = sorted({*pair.base.digests[0].buckets["bucket"], *pair.new.digests[0].buckets["bucket"]})
        if name not in known:
            raise UnknownNameError.of("bucket", name, known)
        return _per_iteration(pair, lambda one: one.ns_in(name))
    if kind == "kernel" and name:
        known = sorted({one for side in pair.slots for one in side.rows["name"].drop_nulls()})
        if not any(name in one for one in known):
            raise UnknownNameError.of("kernel", name, known)
        chosen = pl.col("name").fill_null("").str.contains(name, literal=True)
        return _per_iteration(pair, lambda one: int(one.slots.filter(chosen).get_column("exclusive_ns").sum()))
    raise UnknownNameError.of("metric", metric, ("step", "quick", "busy", "bucket:NAME", "kernel:NAME"))


def _per_iteration(pair: Pair, ns: Callable[[Digest], int]) -> tuple[np.ndarray, np.ndarray]:
    """What `ns` gives of a run, in an iteration of each run of base and of new."""
    base, new = (
        np.array([ns(one) / one.about.iterations for one in side.digests], np.float64) for side in (pair.base, pair.new)
    )
    return base, new


#: The layout of a stored floor.
VERSION: Final = 1

#: What a stored floor is called, and the option that makes one.
_MADE: Final = ("noise floor", "--noise -o FILE.json")

#: The part of all kernels whose noise is below that of the floor for single kernels.
_MOST: Final = 0.95


@dataclass(frozen=True)
class Noise:
    """How much runs of one program differ."""

    kind: ClassVar[Literal["noise"]] = "noise"

    name: str  # the first of the runs
    each: str  # what an iteration is called; ``whole`` where there is none
    mean_ns: float  # mean time of an iteration
    step: NoiseFloor  # the floor of an iteration
    buckets: dict[str, tuple[float, NoiseFloor]]  # that of each bucket of the ledger, with its mean time
    kernels: dict[str, tuple[float, NoiseFloor]]  # that of each kernel, with its mean time
    rows: float  # two single runs of one program differ by less than this part in 95 of 100 kernels

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
    mean_ns, about, slots = float(np.mean(times)), digests[0].about, slots_of(digests)
    names = dict.fromkeys(name for one in digests for name in one.buckets.get_column("bucket"))
    buckets = {name: np.array([one.ns_in(name) / one.about.iterations for one in digests]) for name in names}
    kernels: dict[str, np.ndarray] = {}
    for name, row in zip(slots.rows.get_column("name"), slots.ns, strict=True):
        if name is not None:
            kernels[name] = kernels.get(name, 0) + row
    floors = _floors(kernels, LEAST_SHARE * mean_ns)
    ratios = [floor.least_ratio - 1 for _, floor in floors.values()]
    rows = float(np.quantile(ratios, _MOST)) if ratios else step.least_ratio - 1
    return Noise(about.name, about.each or about.scope, mean_ns, step, _floors(buckets, 0.0), floors, rows)


def _floors(values: Mapping[str, np.ndarray], least_ns: float) -> dict[str, tuple[float, NoiseFloor]]:
    """The floor of each row that took at least so long, the longest first."""
    means = {name: float(np.mean(times)) for name, times in values.items()}
    found = {}
    for name in sorted(means, key=lambda name: (-means[name], name)):
        floor = statistics.noise_floor(values[name].tolist()) if means[name] >= least_ns else None
        if floor is not None:
            found[name] = means[name], floor
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
