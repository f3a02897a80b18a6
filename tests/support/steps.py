"""Programs made of steps: ranges one after the other, and what each launches."""

from kanalyze.window import Window
from support.build import host, kernel, launched, nvtx, report


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


def in_steps(events, count=10, step_ns=1_000_000, **tables):
    """The report of so many steps."""
    return report(events, **tables).narrow(window=Window(0, count * step_ns, count=count, each="step"))


def operator(name, at, *, took=20_000, of="k"):
    """One of 9 µs, and the kernel that it launches, which runs from 10 µs after its start."""
    made = kernel(at + 10_000, at + 10_000 + took, name=of)
    return [host("op", name, at, at + 9000), *launched(at + 1000, at + 8000, made)]


def operators(*each, kernels=(), **known):
    """The report of five steps of operators (name, columns of op_detail, ns of the kernel), 100 µs apart.

    `kernels` are their kernels' names, as far as these matter.
    """
    names = dict(enumerate(kernels))
    events, details = [], []
    for begin in range(0, 5_000_000, 1_000_000):
        for number, (name, columns, took) in enumerate(each):
            details.append({"event_id": len(events), **columns})
            events += operator(name, begin + 100_000 * number, took=took, of=names.get(number, f"kernel of {number}"))
    return in_steps(events, 5, op_detail=details, **known)
