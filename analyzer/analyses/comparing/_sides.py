"""The runs of one side of a comparison: which of them count, and what keeps two sides from being compared."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.analyses.comparing._statistics import cold_runs
from kanalyze.digest import LAUNCHES, STEADY
from kanalyze.turns import Turn, interleaved, pairs
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.digest import About, Digest

#: Numbers of iterations that differ by more than this part are no longer the same work.
_OTHER_NUMBER: Final = 0.1

#: The part of the launches of an iteration that both sides have, where they were found in different ways.
_SAME_LAUNCHES: Final = 0.75

#: From here on one side's iteration may be another thing than the other's.
_OTHER_UNIT: Final = 1.5


class LeftOut(NamedTuple):
    """A run that does not count, and why."""

    name: str
    reason: str


class Doubt(NamedTuple):
    """A difference between the sides beside the program: a name to allow it by, and a sentence."""

    kind: str
    text: str


class Side(NamedTuple):
    """The runs of one side that count, of one rank.

    Attributes:
        digests: The runs.
        left_out: Runs that do not count.
    """

    digests: list[Digest]
    left_out: list[LeftOut]

    @property
    def values_ns(self) -> list[float]:
        """The time of an iteration of each run."""
        return [one.about.iteration_ns for one in self.digests]

    @property
    def about(self) -> About:
        """Description of the first run."""
        return self.digests[0].about

    @property
    def turns(self) -> list[Turn | None]:
        """The place of each run in an interleaved collection."""
        every = [one.about for one in self.digests]
        return [Turn(one.collection, one.side, one.turn) if one.turn else None for one in every]


def sides_of(base: Sequence[Digest], new: Sequence[Digest]) -> tuple[Side, Side, bool]:
    """The runs of one rank of both sides without those that began cold; and whether they were interleaved.

    Interleaved runs are in the order of their pairs.
    """
    return in_pairs(_warm(base), _warm(new))


def in_pairs(first: Side, second: Side) -> tuple[Side, Side, bool]:
    """Both sides in the order of their pairs, and True, where the runs were interleaved; else as they are."""
    if not interleaved(first.turns, second.turns):
        return first, second, False
    neighbours = pairs(first.turns, second.turns)
    sides = ([side.digests[pair[at]] for pair in neighbours] for at, side in enumerate((first, second)))
    one, other = sides
    return first._replace(digests=one), second._replace(digests=other), True


def _warm(digests: Sequence[Digest]) -> Side:
    whole = [one.about.iteration_ns for one in digests]
    loading = [_loading_ns(one) / one.about.iterations for one in digests]
    cold = cold_runs(loading, whole)
    usual = median(ns for run, ns in enumerate(loading) if run not in cold)
    also = "" if digests[0].about.scope == STEADY else " and host"
    left_out = [
        LeftOut(digests[run].about.name, f"cold: {time(loading[run])} of loading{also}, {time(usual)} in the others")
        for run in cold
    ]
    return Side([one for run, one in enumerate(digests) if run not in cold], left_out)


def _loading_ns(digest: Digest) -> int:
    """Time that cold runs have more of: loading, and the host time of a whole recording."""
    cold = ("loading",) if digest.about.scope == STEADY else ("loading", "host")
    return sum(ns for bucket, ns in digest.buckets.select("bucket", "ns").rows() if bucket in cold)


def found_otherwise(base: Sequence[Digest], new: Sequence[Digest]) -> str:
    """The ways in which the steady iterations of both sides were found, where these differ; else empty."""
    ways = [sorted({one.about.found_by.partition(" ")[0] for one in runs} - {""}) for runs in (base, new)]
    if ways[0] == ways[1] or not all(ways):
        return ""
    return f"iterations were found by {' and '.join(ways[0])} in base, by {' and '.join(ways[1])} in new"


def same_launches(base: Sequence[Digest], new: Sequence[Digest]) -> bool:
    """Whether iterations that were found in different ways are the same thing: most of their launches are the same.

    Of an iteration that is two of the other side's, half of the launches at most are.
    """
    sides = [_launches(runs) for runs in (base, new)]
    both = sum(min(number, sides[1].get(launch, 0.0)) for launch, number in sides[0].items())
    return both >= _SAME_LAUNCHES * max(sum(side.values()) for side in sides)


def _launches(runs: Sequence[Digest]) -> dict[tuple[object, ...], float]:
    """How often a mean iteration launches what has one kind, name and shape."""
    found: dict[tuple[object, ...], float] = {}
    for one in runs:
        for *launch, number in one.slots.select("kind", "name", "shape", "count").iter_rows():
            key = tuple(launch)
            found[key] = found.get(key, 0.0) + number / one.about.iterations / len(runs)
    return found


def steps_in_common(base: Sequence[Digest], new: Sequence[Digest]) -> str:
    """The reason why the iterations of both sides cannot be compared; empty where they can."""
    for name, runs in (("base", base), ("new", new)):
        missing = [one for one in runs if one.about.scope != STEADY]
        if missing:
            return f"nothing repeats steadily in {plural(len(missing), 'run')} of {name}"
    numbers = [median(one.about.recorded_iterations for one in runs) for runs in (base, new)]
    if otherwise := found_otherwise(base, new):
        return otherwise
    if max(numbers) > _OTHER_UNIT * min(numbers) and base[0].about.found_by == LAUNCHES:
        return (
            f"an iteration may be another thing on each side ({count(int(numbers[0]))} {base[0].about.each} in base, "
            f"{count(int(numbers[1]))} {new[0].about.each} in new)"
        )
    return ""


def doubts(base: Side, new: Side) -> list[Doubt]:
    """Differences between the sides beside the program, the runs that began cold among them."""
    found = []
    for kind, what, told in _TOLD:
        said = [{told(one.about) for one in side.digests} - {""} for side in (base, new)]
        if said[0] and said[1] and (said[0] != said[1] or len(said[0]) > 1):
            before, after = (" and ".join(sorted(some)) for some in said)
            found.append(Doubt(kind, f"{what}: {before} in base, {after} in new"))
    numbers = [[one.about.recorded_iterations for one in side.digests] for side in (base, new)]
    least, most = (f(min(numbers[0]), min(numbers[1])) for f in (min, max))
    if most - least > _OTHER_NUMBER * most and base.about.scope == STEADY:
        each = base.about.each
        found.append(
            Doubt("steps", f"number of iterations ({each}): {min(numbers[0]):,} in base, {min(numbers[1]):,} in new")
        )
    for name, side in (("base", base), ("new", new)):
        found += [Doubt("cold", f"left out of {name}: {one.name} ({one.reason})") for one in side.left_out]
    return found


_TOLD: Final[tuple[tuple[str, str, Callable[[About], str]], ...]] = (
    ("gpu", "GPU", lambda about: about.gpu),
    ("driver", "driver", lambda about: about.driver),
    ("clocks", "highest clock", lambda about: f"{about.clock_hz / 1e6:.0f} MHz" if about.clock_hz else ""),
    ("tool", "tool", lambda about: about.tool),
    ("flags", "recorded", lambda about: about.recorded),
)
