"""A machine of one host thread and several streams, to run programs on: with some of what they do, and without it.

What a finding says can be gained at most is held against it: a program is run as it is, and again with what the
finding is about mended, in any way that mending can come out.
"""

from dataclasses import dataclass, replace

from support.build import call, kernel, memcpy


@dataclass(frozen=True)
class Task:
    """One thing that the host does.

    Attributes:
        kind: ``host`` (its own work), ``kernel``, ``copy`` (of pinned memory), ``pageable`` (a copy whose call returns
            when it is done), ``synchronous`` (the same by a call that waits for any copy), or ``wait`` (for all
            streams).
        call_ns: How long the host is in it, or at least.
        work_ns: How long the device is.
        stream: On which stream.
        blocks: Whether its call lasts until the device is done.
        to_host: Whether a copy is to the host.
    """

    kind: str
    call_ns: int
    work_ns: int = 0
    stream: int = 7
    blocks: bool = False
    to_host: bool = False

    def mended(self, call_ns, work_ns):
        """The same, in no more time, and without waiting, but for what a synchronous copy brings to the host."""
        waits = self.kind == "synchronous" and self.to_host
        return replace(self, call_ns=min(call_ns, self.call_ns), work_ns=min(work_ns, self.work_ns), blocks=waits)


_CALLS = {"kernel": "cudaLaunchKernel", "wait": "cudaDeviceSynchronize", "synchronous": "cudaMemcpy"}


def run(tasks, starts_at=100):
    """The events of a program, and how long its window is: from its first call to the end of all."""
    at, free, events, number = starts_at, {}, [], 0
    for task in tasks:
        begun = at
        at += task.call_ns
        if task.kind == "host":
            continue
        number += 1
        name = _CALLS.get(task.kind, "cudaMemcpyAsync")
        if task.kind == "wait":
            at = max([at, *free.values()])
        else:
            # the device begins when the call is half done
            start = max(begun + task.call_ns // 2, free.get(task.stream, 0))
            end = free[task.stream] = start + task.work_ns
            at = max(at, end) if task.blocks else at
            memory = "Pinned" if task.kind == "copy" else "Pageable"
            keys = {"correlation": number, "stream": task.stream}
            if task.kind == "kernel":
                events.append(kernel(start, end, **keys))
            else:
                ends = (memory, "Device")[:: -1 if task.to_host else 1]
                side = dict(zip(("source_memory", "target_memory"), ends, strict=True))
                way = "Device-to-Host" if task.to_host else "Host-to-Device"
                events.append(memcpy(start, end, direction=way, side=side, size_bytes=1 << 20, **keys))
        events.append(call(name, begun, at, correlation=number))
    times = [(one.start, one.end) for one in events]
    return events, max(end for _, end in times) - min(start for start, _ in times) if times else 0
