"""What a profiler costs the host: the part of its time that is left without one, fitted or estimated by tool.

Definitions: docs/definitions.md, section 12, "Without the profiler".
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, NamedTuple

#: Two runs of a program differ by such a part: no replay tells a window closer.
NEAR: Final = 0.03

#: So far from a recorded event the host is slower (ns): a profiler's own work, and what it drives out of caches.
_REACH_NS: Final = 100_000.0

#: Where it is known what a window took, the nearest of these reaches that explains it with so much left is taken.
_REACHES_NS: Final = (10_000.0, 30_000.0, _REACH_NS)
_ENOUGH: Final = 0.5

#: A window that takes longer by less than this part tells nothing of the profiler; how near a replay comes.
_NOTABLE: Final = 0.01
_CLOSE: Final = 0.002

#: No profiler makes the host slower than by this; what is far from recorded events, such as a process that starts
#: under it, may be.
_LEAST: Final = 0.1
_LEAST_FAR: Final = 0.01

#: Without a profiler the host of one program takes longer or shorter by such a part, from one run to another.
HOSTS_DIFFER: Final = 0.12


class HostTime(NamedTuple):
    """What is left of the host's time: a part of what is within `reach_ns` of a recorded event, and one of all else."""

    kept: float = 1.0
    reach_ns: float = _REACH_NS
    far: float = 1.0


#: The host's time as it was recorded.
AS_RECORDED: Final = HostTime()


class Unslowed(NamedTuple):
    """What is left of the host's time without the profiler: usually, at least and at most."""

    usual: HostTime
    least: HostTime
    most: HostTime


#: Nothing is changed.
UNCHANGED: Final = Unslowed(AS_RECORDED, AS_RECORDED, AS_RECORDED)


def _estimate(kept: float, reach_ns: float, far: float) -> Unslowed:
    """What is usually left, and the host's time shorter and longer by as much as runs of these programs differ."""
    parts = (1, 1 - HOSTS_DIFFER, 1 + HOSTS_DIFFER)
    return Unslowed(*(HostTime(kept * part, reach_ns, far * part) for part in parts))


#: What is left without a tool, by tool: of programs whose host is the limit, on hosts of H100 and H200 (docs/whatif.md
#: has the programs). What is far from events, such as work on the processor, is slower under nsys, too.
BY_TOOL: Final = {"nsys": _estimate(0.65, _REACH_NS, 0.9), "torch.profiler": _estimate(0.55, _REACHES_NS[0], 1.0)}

#: Operations of a GPU take longer or shorter by such a part from one run to another, as its clocks do.
DEVICES_DIFFER: Final = 0.08

#: As much as a profiler costs the host of any program of docs/whatif.md: no more than so much is left near an event.
COSTLIEST: Final = HostTime(0.4, _REACH_NS)


def fitted(
    took: Callable[[HostTime], float], measured_ns: float, near: float, usual: HostTime = AS_RECORDED
) -> Unslowed:
    """What is left of the host's time where a window takes `measured_ns` without the profiler.

    `took` gives what the window takes (ns) with so much left. By the part `near` two runs of a program differ: `least`
    and `most` explain what was measured to there.

    All is left where the recording takes hardly longer, as that of a program that its device limits: that tells little
    of the host; and all is longer by one part where the recording was quicker, by no more than hosts differ.
    Where shorter times near events do not explain it, as much is left there as is `usual`, and less of what is far from
    any, such as a process that starts under the profiler; where that does not, all of the host's time is taken to be
    shorter; and where that does not, as much shorter as still makes a difference.
    """
    recorded_ns = took(AS_RECORDED)
    shapes = [(partial(HostTime, reach_ns=ns), (_LEAST, 1.0), _ENOUGH) for ns in _REACHES_NS]
    if usual != AS_RECORDED:
        shapes.append((partial(HostTime, usual.kept, usual.reach_ns), (_LEAST_FAR, 1.0), _LEAST_FAR))
    explain = (one for one in shapes if took(one[0](one[2])) <= measured_ns)
    whole = partial(HostTime, reach_ns=inf)
    if measured_ns > recorded_ns * (1 + near):
        shape, (least, greatest) = whole, (1.0, 1 + HOSTS_DIFFER)
    else:
        shape, (least, greatest), _ = next(explain, (whole, (_LEAST, 1.0), _LEAST))
    shortest_ns = took(shape(least)) * (1 + _CLOSE)

    def most(ns: float) -> HostTime:
        """The most that is left where the window takes no more than `ns`; the least where it always takes more."""
        low, high = least, greatest
        if took(shape(high)) <= ns:
            return shape(high)
        while high - low > _CLOSE:
            middle = (low + high) / 2
            low, high = (middle, high) if took(shape(middle)) <= ns else (low, middle)
        return shape(low)

    notable_ns = measured_ns * (1 + _NOTABLE)
    told_ns = notable_ns if recorded_ns <= notable_ns and greatest == 1 else measured_ns
    highest_ns = max(measured_ns, shortest_ns) * (1 + near)
    return Unslowed(*map(most, (max(told_ns, shortest_ns), measured_ns * (1 - near), highest_ns)))
