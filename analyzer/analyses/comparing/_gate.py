"""A gate: whether a time of new exceeds that of base by more than a share, or whether that cannot be judged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._comparison import alone, quick_values
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.errors import UnknownNameError
from kanalyze.units import change, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.comparing._pair import Pair
    from kanalyze.reduction.baselines import Digest

#: What may be measured; the last two by a name after the colon.
METRICS: Final = ("step", "quick", "busy", "bucket:", "kernel:")

#: What refuses a judgement unless it is allowed.
KINDS: Final = ("runs", "cold", "gpu", "driver", "clocks", "tool", "flags", "steps", "whole", "ranks")


class Gate(NamedTuple):
    """The outcome of a gate.

    Attributes:
        state: Whether new is within the limit, beyond it, or neither can be said.
        metric: What was measured.
        limit: The share by which new may be longer.
        ratio: New by base; None where base has none.
        low: Lower end of its interval; None without one.
        high: Upper end.
        reason: Why it cannot be judged; empty where it can.
    """

    state: Literal["held", "failed", "cannot judge"]
    metric: str
    limit: float
    ratio: float | None
    low: float | None
    high: float | None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The gate in a sentence."""
        told = "" if self.ratio is None else f" {change(self.ratio)}"
        if self.low is not None and self.high is not None:
            told += f" ({change(self.low)} to {change(self.high)})"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}: {self.metric}{told}, at most +{percent(self.limit)} allowed{reason}."


def gate_of(found: Comparison, limit: float, metric: str, allowed: Collection[str]) -> Gate:
    """Judges one metric of a comparison.

    Args:
        found: The comparison.
        limit: The share by which new may be longer.
        metric: One of :data:`METRICS`.
        allowed: Of :data:`KINDS` those that do not refuse a judgement.

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
    refused = _refused(found, allowed)
    gate = Gate("cannot judge", metric, limit, ratio, low, high, refused)
    if refused:
        return gate
    if ratio is None:
        return gate._replace(state="failed" if after else "held", reason="base has none of it" if after else "")
    least, most = (ratio, ratio) if low is None or high is None else (low, high)
    if least > 1 + limit:
        return gate._replace(state="failed")
    if most <= 1 + limit:
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
    if metric == "step":
        return np.array(pair.base.values_ns), np.array(pair.new.values_ns)
    if metric == "quick":
        base, new = quick_values(pair) or ([], [])
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
