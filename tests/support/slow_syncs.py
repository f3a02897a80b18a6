"""Which calls block and what each waited for, said a second time: call by call.

Written from definitions.md, section 5, "Blocking calls".
"""

from dataclasses import replace

from hypothesis import strategies as st

from support.build import call, host
from support.slow_gaps import STREAMS, SlowGaps, gap_reports, stream_of
from support.slow_model import thread_of

WAITING = {
    "cudaDeviceSynchronize": "device", "cudaStreamSynchronize": "stream", "cudaStreamSynchronize_v3020": "stream",
    "cudaEventSynchronize": "event", "cudaMemcpy_v3020": "copy", "cudaFree_v3020": "free",
}  # fmt: skip


class SlowSyncs(SlowGaps):
    def rows(self):
        """Each call with what it waits for, its range, its device, what ran meanwhile, and what it waited for."""
        found = []
        for item in sorted(self.calls, key=lambda item: (item.start, item.event_id)):
            copies = self._copies(item)
            pageable = any(copy.event.side.get("target_memory") == "Pageable" for copy in copies)
            scope = WAITING.get(item.event.name, "copy" if pageable else None)
            if scope is None:
                continue
            device, behind = self._device(item, copies), self._waited_for(item, scope, copies)
            busy = None
            if device is not None:
                busy = sum(self.owner(device, at) is not None for at in range(item.start, item.end))
            found.append(
                (
                    item.start,
                    item.event.end - item.start,
                    self.shown(item),
                    scope,
                    self.innermost(thread_of(item), item.start),
                    device,
                    None if busy is None else item.end - item.start - busy,
                    busy,
                    behind and behind.event.name,
                    behind and behind.event.stream,
                    behind and item.event.end - behind.event.end,
                )
            )
        return found

    def _copies(self, item):
        return [copy for copy in self.operations if copy.event.kind == "memcpy" and self.launch_of(copy) is item]

    def _sync(self, item):
        key = (item.event.process, item.event.correlation)
        own = [sync for sync in self.syncs if (sync.event.process, sync.event.correlation) == key]
        return own[0] if own and None not in key else None

    def _device(self, item, copies):
        sync, theirs = self._sync(item), [op for op in self.operations if op.event.process == item.event.process]
        if copies:
            return self._last_copy(copies).event.device
        if sync and (there := [op for op in theirs if op.event.context == sync.event.context]):
            return there[0].event.device
        if len(devices := {op.event.device for op in theirs}) == 1:
            return devices.pop()
        launched = [(self.launch_of(op), op) for op in theirs]
        recent = [(launch.start, op) for launch, op in launched if launch and thread_of(launch) == thread_of(item)]
        before = [(at, op.event_id, op.event.device) for at, op in recent if at <= item.start]
        return max(before, default=(None, None, None))[2]

    def _last_copy(self, copies):
        return max(copies, key=lambda copy: (copy.event.end, copy.event_id))

    def _waited_for(self, item, scope, copies):
        sync = self._sync(item)
        if scope == "event":
            return self._pending(item, self._recorded(sync))
        theirs = [op for op in self.operations if op.event.process == item.event.process]
        if scope in ("device", "free"):
            device = self._device(item, copies)
            own = [op for op in theirs if op.event.device == device]
        elif copies:
            own = [op for op in theirs if stream_of(op) == stream_of(self._last_copy(copies))]
        else:
            own = [op for op in theirs if sync and stream_of(op) == stream_of(sync)]
        ended = [
            op for op in own if op.event.end <= item.event.end and (scope in ("device", "free") or op.event.stream)
        ]
        return self._pending(item, max(ended, key=lambda op: (op.event.end, op.event_id), default=None))

    def _recorded(self, sync):
        number = sync and sync.event.side["record_id"]
        record = next((row for row in self.records if row["record_id"] == number), None)
        if record is None or record["process_id"] != sync.event.process:
            return None
        recorded = self._call(record["process_id"], record["correlation_id"])
        return self._last((record["process_id"], record["context_id"], record["stream"]), recorded.start)

    def _pending(self, item, behind):
        return behind if behind and behind.event.end > item.start else None


@st.composite
def _wait(draw, number, records):
    """A blocking call, as a rule with a record of what it waited for."""
    start, process = draw(st.integers(0, 50)), draw(st.sampled_from([1, 1, 2]))
    name = draw(st.sampled_from(["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"]))
    end, thread = start + draw(st.integers(0, 20)), draw(st.sampled_from([1, 1, 2]))
    made = call(name, start, end, process=process, thread=thread, correlation=500 + number)
    if draw(st.integers(0, 3)) == 0:
        return [made]
    event = draw(st.sampled_from(range(records))) if name == "cudaEventSynchronize" and records else None
    keys = {"process": process, "context": draw(st.sampled_from([1, 2])), "correlation": 500 + number}
    stream = None if name == "cudaDeviceSynchronize" else draw(STREAMS)
    return [made, host("sync", "Event sync", start, end, stream=stream, **keys, side={"record_id": event})]


def _into(event, memory):
    return replace(event, side={"target_memory": memory})


@st.composite
def sync_reports(draw):
    """The reports of gaps, with blocking calls and copies into pageable memory; and the records of events."""
    made, records = draw(gap_reports())
    memory = st.sampled_from(["Pageable", "Pinned", None])
    events = [_into(event, draw(memory)) if event.kind == "memcpy" else event for event in made]
    waits = [draw(_wait(number, len(records))) for number in range(draw(st.integers(0, 4)))]
    return draw(st.permutations([*events, *(event for own in waits for event in own)])), records
