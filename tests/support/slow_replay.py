"""A simulator of host threads, streams, events and waits, written apart from the replay: programs, and their reports.

A program is a list of turns, each of one thread, that are taken one after the other. Everything that is not said to
last takes a constant time.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from support.build import call, host, kernel, nvtx, report

CALL, APART, HANDOVER = 3, 1, 7
LAUNCH, STREAM, EVENT, RETURN = 4, 1, 2, 5


class Host(NamedTuple):
    """The host works, in a range ``work``."""

    ns: int


class Launch(NamedTuple):
    """A kernel on a stream."""

    name: str
    ns: int
    stream: int


class Event(NamedTuple):
    """One stream waits for what another was given so far."""

    of: int
    by: int


class Sync(NamedTuple):
    """The thread waits for one stream, or for all (None)."""

    stream: int | None


_STREAMS = st.sampled_from([1, 2, 3])
_NS = st.integers(1, 60).map(lambda number: 4 * number)
_INSTRUCTION = st.one_of(
    st.builds(Host, _NS),
    st.builds(Launch, st.sampled_from(["a", "b"]), _NS, _STREAMS),
    st.builds(Launch, st.sampled_from(["a", "b"]), _NS, _STREAMS),
    st.builds(Event, _STREAMS, _STREAMS),
    st.builds(Sync, st.one_of(st.none(), _STREAMS)),
)
TURNS = st.lists(st.tuples(st.sampled_from([1, 2]), st.lists(_INSTRUCTION, min_size=1, max_size=12)), max_size=5)


class Simulated(NamedTuple):
    """When the program ended, and what a profiler records of it."""

    end: int
    report: object


#: Every kind of wait once, so that what each takes can be seen.
PROLOGUE = [
    *(Launch("a", 400, 1), Launch("a", 400, 1), Event(1, 2), Launch("b", 400, 2), Sync(2), Launch("b", 40, 1)),
    *(Sync(None), Host(8)),
]


class Machine:
    """What a program does to host and device, instruction by instruction."""

    def __init__(self, kernel_ns, host_ns):
        """Nothing has happened; kernels and host work last what the functions say."""
        self.kernel_ns, self.host_ns = kernel_ns, host_ns
        self.now = 0
        self.ended = {}
        self.pending = {}
        self.events = []
        self.records = []
        self.number = 0

    def call(self, name, thread, ns=CALL):
        """A call from now on; its correlation id."""
        self.number += 1
        self.events.append(call(name, self.now, self.now + ns, thread=thread, correlation=self.number))
        self.now += ns
        return self.number

    def do(self, what, thread):
        """One instruction."""
        if isinstance(what, Host):
            self.events.append(nvtx("work", self.now, self.now + self.host_ns(what), thread=thread))
            self.now += self.host_ns(what)
        elif isinstance(what, Launch):
            self._launch(what, thread)
        elif isinstance(what, Event):
            self._event(what, thread)
        elif isinstance(what, Sync):
            self._sync(what, thread)
        self.now += APART

    def _launch(self, what, thread):
        number = self.call("cudaLaunchKernel", thread)
        start = self.now + LAUNCH
        if what.stream in self.ended:
            start = max(start, self.ended[what.stream] + STREAM)
        if what.stream in self.pending:
            start = max(start, self.pending.pop(what.stream) + EVENT)
        end = start + self.kernel_ns(what)
        self.ended[what.stream] = end
        self.events.append(kernel(start, end, name=what.name, stream=what.stream, correlation=number))

    def _event(self, what, thread):
        if what.of == what.by or what.by in self.pending or what.of not in self.ended:
            return
        recording = self.call("cudaEventRecord", thread)
        self.now += APART
        begun = self.now
        waiting = self.call("cudaStreamWaitEvent", thread)
        keys = {
            "process_id": 1,
            "context_id": 1,
            "stream": what.of,
            "correlation_id": recording,
            "record_id": recording,
        }
        self.records.append(keys)
        side = {"record_id": recording}
        told = host(
            "sync",
            "Stream wait",
            begun,
            self.now,
            stream=what.by,
            context=1,
            correlation=waiting,
            thread=None,
            side=side,
        )
        self.events.append(told)
        self.pending[what.by] = self.ended[what.of]

    def _sync(self, what, thread):
        ends = self.ended.values() if what.stream is None else [self.ended.get(what.stream, 0)]
        begun = self.now
        until = max([begun, *ends]) + RETURN
        name = "cudaDeviceSynchronize" if what.stream is None else "cudaStreamSynchronize"
        number = self.call(name, thread, until - begun)
        if what.stream is not None:
            self.events.append(
                host(
                    "sync", "Stream sync", begun, until, stream=what.stream, context=1, correlation=number, thread=None
                )
            )


def simulated(turns, kernel_ns=lambda one: one.ns, host_ns=lambda one: one.ns):
    """Runs the turns (thread, instructions) after the prologue; the last thing is a wait for the device."""
    machine = Machine(kernel_ns, host_ns)
    for thread, what in [(1, PROLOGUE), *turns, (1, [Sync(None)])]:
        for one in what:
            machine.do(one, thread)
        machine.now += HANDOVER
    end = machine.now - HANDOVER - APART
    return Simulated(end, report(machine.events, event_records=machine.records))
