"""Programs made of steps: ranges one after the other, and what each launches."""

from kanalyze.window import Window
from support.build import LAUNCH, again, host, kernel, launched, nvtx, report


def ran(at, begin, end):
    """The launch of a kernel, and that, as long after a time."""
    return launched(at + 1, at + 3, kernel(at + begin, at + end))


def launching(start, end):
    """A kernel that runs from `start` on, launched in the 10 before."""
    return launched(start - 10, start, kernel(start, end), LAUNCH)


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


def alike(*step, count=5, step_ns=1_000_000, **tables):
    """The report of so many steps with the same events."""
    return in_steps(again(range(0, count * step_ns, step_ns), *step), count, step_ns, **tables)


def shaped(name, start, end, inputs, *, thread=1, **more):
    """An operator with the shapes of its inputs, and perhaps more columns of op_detail."""
    return host("op", name, start, end, thread=thread, side={"input_shapes": inputs, **more})


def operator(name, at, *, took=20_000, of="k", **columns):
    """One of 9 µs, and the kernel that it launches, which runs from 10 µs after its start."""
    made = kernel(at + 10_000, at + 10_000 + took, name=of)
    return [host("op", name, at, at + 9000, side=columns), *launched(at + 1000, at + 8000, made)]


def operators(*each, kernels=(), step_ns=1_000_000, **known):
    """The report of five steps of operators (name, columns of op_detail, ns of the kernel), each after a tenth of one.

    `kernels` are their kernels' names, as far as these matter.
    """
    names, step = dict(enumerate(kernels)), []
    for number, (name, columns, took) in enumerate(each):
        of = names.get(number, f"kernel of {number}")
        step += operator(name, step_ns // 10 * number, took=took, of=of, **columns)
    return alike(*step, step_ns=step_ns, **known)


def of_shapes(*each, types=None, **known):
    """The same of operators (name, shapes of the inputs, ns of the kernel)."""
    known_of = ((name, {"input_shapes": shapes, "input_types": types}, ns) for name, shapes, ns in each)
    return operators(*known_of, **known)


#: What an operator that autograd runs is called, and how long a pass takes.
NODE, _STEP = "autograd::engine::evaluate_function: ", 2_000_000


def passes(*operators, limits=None, threads=()):
    """Five passes of operators: name, shapes of the inputs, kernels (name, ns), perhaps values of the inputs.

    Each has its place as number; of nodes, which run on thread 2, the name ends with that of their operator. `threads`
    are those of others by name.
    """
    events = []
    for at in range(0, 5 * _STEP, _STEP):
        begin = at
        for number, (text, inputs, kernels, *values) in enumerate(operators):
            name, _, of = text.partition("#")
            node = name.startswith(NODE)
            thread = dict(threads).get(name, 2 if node else 1)
            known = {"sequence_number": at // _STEP * 50 + int(of or number), "forward_thread_id": int(node)}
            own = known | ({"input_values": values[0]} if values else {})
            events.append(shaped(name, begin, begin + 90_000, inputs, thread=thread, **own))
            if node:
                events.append(shaped("MmBackward0", begin + 500, begin + 89_000, "[]", thread=thread, **known))
                events.append(host("op", "aten::mm", begin + 1000, begin + 88_000, thread=thread))
            for place, (made, ns) in enumerate(kernels):
                start = begin + 20_000 * place
                launch = kernel(start + 10_000, start + 10_000 + ns, name=made)
                events += launched(start + 1000, start + 8000, launch, thread=thread)
            begin += 100_000
    return in_steps(events, 5, _STEP, limits=limits)
