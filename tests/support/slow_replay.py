"""A simulator of host threads, streams, events and waits, written apart from the replay: programs, and their reports.

A program is a list of turns, each of one thread, that are taken one after the other. Everything that is not said to
last takes a constant time.
"""

from typing import NamedTuple

from hypothesis import strategies as st

from support.build import RECORD, call, host, kernel, nvtx, report, rows_of

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
    #: Of each kernel what released it, or what else would have by then: the rows of other kernels, or ``launch``.
    released: list


#: Every kind of wait once, so that what each takes can be seen.
PROLOGUE = [
    *(Launch("a", 400, 1), Launch("a", 400, 1), Event(1, 2), Launch("b", 400, 2), Sync(2), Launch("b", 40, 1)),
    *(Sync(None), Host(8)),
]


class Machine:
    """What a program does to host and device, instruction by instruction."""

    def __init__(self, kernel_ns, host_ns, lags):
        """Nothing has happened; kernels and host work last what the functions say, and begin some lags later."""
        self.kernel_ns, self.host_ns, self.lags = kernel_ns, host_ns, lags
        self.now = 0
        self.released = []
        self.ended = {}
        self.pending = {}
        self.events = []
        self.records = []
        self.number = 0

    def call(self, name, thread, ns=CALL):
        self.number += 1
        self.events.append(call(name, self.now, self.now + ns, thread=thread, correlation=self.number))
        self.now += ns
        return self.number

    def do(self, what, thread):
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
        launch, stream, event = self.lags
        ready = [(self.now + launch, "launch")]
        if what.stream in self.ended:
            ready.append((self.ended[what.stream][0] + stream, self.ended[what.stream][1]))
        if what.stream in self.pending:
            ended, row = self.pending.pop(what.stream)
            ready.append((ended + event, row))
        start = max(at for at, _ in ready)
        end = start + self.kernel_ns(what)
        self.ended[what.stream] = (end, len(self.released))
        self.released.append({why for at, why in ready if at == start})
        self.events.append(kernel(start, end, name=what.name, stream=what.stream, correlation=number))

    def _event(self, what, thread):
        if what.of == what.by or what.by in self.pending or what.of not in self.ended:
            return
        recording = self.call("cudaEventRecord", thread)
        self.now += APART
        begun = self.now
        waiting = self.call("cudaStreamWaitEvent", thread)
        self.records += rows_of(RECORD, (1, 1, what.of, recording, recording))
        self._synced("Stream wait", begun, what.by, waiting, side={"record_id": recording})
        self.pending[what.by] = self.ended[what.of]

    def _sync(self, what, thread):
        ends = [end for stream, (end, _) in self.ended.items() if what.stream in (None, stream)]
        begun = self.now
        until = max([begun, *ends]) + RETURN
        name = "cudaDeviceSynchronize" if what.stream is None else "cudaStreamSynchronize"
        number = self.call(name, thread, until - begun)
        if what.stream is not None:
            self._synced("Stream sync", begun, what.stream, number)

    def _synced(self, name, begun, stream, number, **more):
        """What is recorded of a wait that is over."""
        keys = {"stream": stream, "context": 1, "correlation": number, "thread": None}
        self.events.append(host("sync", name, begun, self.now, **keys, **more))


def simulated(turns, kernel_ns=lambda one: one.ns, host_ns=lambda one: one.ns, lags=(LAUNCH, STREAM, EVENT)):
    """Runs the turns (thread, instructions) after the prologue; the last thing is a wait for the device."""
    machine = Machine(kernel_ns, host_ns, lags)
    for thread, what in [(1, PROLOGUE), *turns, (1, [Sync(None)])]:
        for one in what:
            machine.do(one, thread)
        machine.now += HANDOVER
    end = machine.now - HANDOVER - APART
    return Simulated(end, report(machine.events, event_records=machine.records), machine.released)
