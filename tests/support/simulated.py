"""Programs of streams, events, launches and threads, made up by hypothesis and run by a simulator, as reports.

Times come from a rule each: a call begins when its thread gets there; an operation when its call is over, and what is
before it in its stream, and the work behind the event for which its stream waits; each with a lag.
"""

from hypothesis import strategies as st

from support.build import call, host, kernel, report

_LAG = st.integers(1, 5)
_LENGTH = st.integers(1, 60)

#: What a thread does next: its own code, a launch, a synchronisation, an event that is recorded or waited for.
_STEPS = st.one_of(
    st.tuples(st.just("host"), _LENGTH, st.just(0)),
    st.tuples(st.just("launch"), _LENGTH, st.integers(7, 9)),
    st.tuples(st.just("launch"), _LENGTH, st.integers(7, 9)),
    st.tuples(st.just("sync"), _LAG, st.integers(7, 9)),
    st.tuples(st.just("record"), _LAG, st.integers(7, 9)),
    st.tuples(st.just("wait"), _LAG, st.integers(7, 9)),
)

PROGRAMS = st.lists(st.tuples(st.integers(1, 2), _STEPS), min_size=2, max_size=24)


def run(program):
    """The report of a program, and what released each operation: the row of another one, or ``launch``."""
    clocks, streams, pending, events, released = {1: 0, 2: 0}, {}, {}, [], []
    recorded, records, correlation, work = None, [], 0, 0
    for thread, (what, length, stream) in program:
        now = max(clocks.values()) if what != "host" else clocks[thread]
        begin = max(clocks[thread], now if events else 0)
        if what == "host":
            clocks[thread] += length
            continue
        correlation += 1
        keys = {"thread": thread, "correlation": correlation}
        end = begin + 3
        if what == "launch":
            events.append(call("cudaLaunchKernel", begin, end, **keys))
            ready = [(end + 1, "launch")]
            if stream in streams:
                ready.append((streams[stream][0] + 1, streams[stream][1]))
            if stream in pending:
                ready.append(pending.pop(stream))
            start = max(at for at, _ in ready)
            latest = [one for one in ready if one[0] == start]
            events.append(kernel(start, start + length, name=f"k{work}", stream=stream, correlation=correlation))
            released.append({why for _, why in latest})
            streams[stream] = (start + length, work)
            work += 1
        elif what == "sync":
            end = max(begin + 2, streams.get(stream, (0, None))[0] + length)
            events.append(call("cudaStreamSynchronize", begin, end, **keys))
            events.append(host("sync", "Stream sync", begin, end, stream=stream, context=1, **keys))
        elif what == "record":
            events.append(call("cudaEventRecord", begin, end, **keys))
            recorded = (correlation, streams.get(stream))
            records.append(
                {
                    "process_id": 1,
                    "context_id": 1,
                    "stream": stream,
                    "correlation_id": correlation,
                    "record_id": correlation,
                }
            )
        elif recorded is not None:
            number, behind = recorded
            events.append(call("cudaStreamWaitEvent", begin, end, **keys))
            side = {"record_id": number}
            events.append(host("sync", "Stream wait sync", begin, end, stream=stream, context=1, side=side, **keys))
            if behind is not None:
                before = pending.get(stream, (0, None))
                pending[stream] = max(before, (behind[0] + 1, behind[1]), key=lambda one: one[0])
        clocks[thread] = end
    return report(events, event_records=records), released
