"""Programs made of launches, with known iterations: what each iteration launches, and when its calls are made."""

from dataclasses import dataclass, field
from typing import NamedTuple

from support.build import call, graph, kernel, memcpy, memset, report

CALL_NS = 4_000
PAUSE_NS = 3_000


class Launch(NamedTuple):
    """One launch; `pause` is the host's time before its call."""

    name: str
    blocks: int = 1
    ns: int = 10_000
    pause: int = PAUSE_NS
    thread: int = 1


def copy_in(pause=PAUSE_NS):
    return Launch("Host-to-Device", pause=pause)


def copy_out(pause=PAUSE_NS):
    return Launch("Device-to-Host", pause=pause)


@dataclass
class Program:
    """Launches in the order of their calls, and the call times at which iterations begin and how much they launch."""

    process: int = 1
    device: int = 0
    jitter: object = None
    now: int = 1_000
    events: list = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    correlation: int = 0

    def iterations(self, *each):
        """Iterations that are to be found, and what each of them launches."""
        for launches in each:
            before = len(self.events)
            self.then(launches)
            self.begun.append(self.events[before].start)
            self.sizes.append(len(launches))
        return self

    def then(self, launches):
        """Launches of no iteration."""
        for one in launches:
            self._launch(one)
        return self

    def beside(self, launches, thread):
        """Launches by another thread since the beginning, which do not wait for those of the first one."""
        until, self.now = self.now, 1_000
        for one in launches:
            if self.now >= until:
                break
            self._launch(one._replace(thread=thread))
        self.now = max(until, self.now)
        return self

    def waits(self, ns=20_000):
        self.events.append(call("cudaStreamSynchronize", self.now, self.now + ns, process=self.process))
        self.now += ns
        return self

    def _launch(self, one):
        pause = one.pause if self.jitter is None else int(one.pause * self.jitter.uniform(0.7, 1.4))
        start, self.correlation = self.now + pause, self.correlation + 1
        keys = {"process": self.process, "correlation": self.correlation}
        name = "cudaMemcpyAsync" if "Host" in one.name else "cudaLaunchKernel"
        self.now = start + CALL_NS
        if one.name.startswith("cuda"):
            self.events.append(call(one.name, start, self.now, thread=one.thread, **keys))
            return
        ran = (self.now + 1_000, self.now + 1_000 + one.ns)
        self.events.append(call(name, start, self.now, thread=one.thread, **keys))
        keys["device"] = self.device
        if "Host" in one.name:
            self.events.append(memcpy(*ran, direction=one.name, size_bytes=one.blocks, **keys))
        elif one.name == "memset":
            self.events.append(memset(*ran, **keys))
        elif one.name.startswith("[CUDA graph"):
            self.events.append(graph(*ran, name=one.name, **keys))
        else:
            self.events.append(kernel(*ran, name=one.name, grid=(one.blocks, 1, 1), **keys))


def report_of(*programs):
    return report([event for program in programs for event in program.events])


def layer(number_of, name="layer", size=6, ns=10_000):
    return [Launch(f"{name} {part}", ns=ns) for part in range(size)] * number_of


def training_step(layers=6, *, data=True, optimizer="update"):
    """Forward, backward, and an update of the parameters."""
    start = [copy_in(pause=60_000)] if data else []
    forward = [Launch("embedding", pause=40_000), *layer(layers, "forward"), Launch("head"), Launch("loss")]
    backward = [Launch("loss backward"), *layer(layers, "backward", 9), Launch("embedding backward")]
    return [*start, *forward, *backward, *[Launch(f"{optimizer} {part}") for part in range(3)]]


def random_launches(random, names, weights, number):
    return [Launch(name) for name in random.choices(names, weights, k=number)]


def launches(names, *, apart=100_000, thread=1, first=0, process=1):
    """A launch of each of `names`, `apart` from one another, 10 µs each; each kernel runs at once for 1 µs."""
    found = []
    for number, name in enumerate(names):
        at = first + number * apart
        ids = {"correlation": 1_000 * thread + number, "process": process}
        found += [call("cudaLaunchKernel", at, at + 10_000, thread=thread, **ids)]
        found += [kernel(at + 10_000, at + 11_000, name=name, **ids)]
    return found
