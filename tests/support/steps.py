"""Programs made of steps: ranges one after the other, and what each launches."""

from support.build import kernel, launched, nvtx


def ran(at, begin, end):
    """The launch of a kernel, and that, as long after a time."""
    return launched(at + 1, at + 3, kernel(at + begin, at + end))


def step(name, times, kernel_times):
    """A range, and in it the launch of a kernel, which ran from one time to another."""
    begin, end = times
    return [nvtx(name, begin, end), *launched(begin + 1, begin + 3, kernel(*kernel_times))]


def in_turn(lengths, inside, *, name="step", start=1_000, gap=0, **keys):
    """Ranges one after the other, in each what `inside` makes of its start, place and length."""
    events, at = [], start
    for place, length in enumerate(lengths):
        events += [nvtx(name.format(place), at, at + length, **keys), *inside(at, place, length)]
        at += length + gap
    return events


def loop(lengths, *, gap=10, **keys):
    """Ranges one after the other, with a launch and a kernel in each."""
    return in_turn(lengths, lambda at, _, length: ran(at, 4, length - 1), gap=gap, **keys)


def in_phases(steps):
    """Of each step (start, phases) a range for each phase (name, begin, end) with a launch and a kernel in it."""
    return [
        event
        for start, phases in steps
        for name, begin, end in phases
        for event in step(name, (start + begin, start + end), (start + begin + 4, start + end - 1))
    ]
