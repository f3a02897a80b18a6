"""Small traces of a framework that hypothesis makes up: operators, calls and kernels of two threads, close together."""

from hypothesis import strategies as st

from support.build import call, host, kernel, memcpy, report

#: Names that several kinds share, some that torch treats in a way of its own.
NAMES = st.sampled_from(["a", "a", "b", "c", "ProfilerStep#1", "ProfilerStep#2", "aten::is_leaf"])
THREADS = st.sampled_from([1, 1, 1, 2])
STARTS = st.integers(0, 30)
DURATIONS = st.one_of(st.integers(0, 4), st.integers(0, 30))


@st.composite
def framework_events(draw):
    kind, start = draw(st.sampled_from(["op", "op", "op", "range", "python"])), draw(STARTS)
    return host(kind, draw(NAMES), start, start + draw(DURATIONS), thread=draw(THREADS))


@st.composite
def traces(draw):
    """Events, and the external ids of the operators and annotations among them by event_id."""
    events = [host("op", "first", 0, draw(DURATIONS)), *draw(st.lists(framework_events(), max_size=8))]
    operators = [
        place for place, event in enumerate(events) if event.kind in ("op", "range") and event.name != "aten::is_leaf"
    ]
    numbers = draw(st.permutations(range(1, len(operators) + 1)))
    maker = st.none() | st.sampled_from(operators)
    events.append(kernel(50, 51, parent=0))  # some operator's number is known: nothing is guessed by time
    correlations = draw(st.lists(st.integers(1, 12), unique=True, max_size=8))
    for correlation in correlations:
        start, made_by = draw(STARTS), draw(maker)
        keys = {"correlation": correlation, "parent": made_by}
        thread = events[made_by].thread if made_by is not None else draw(THREADS)
        events.append(call("cudaLaunchKernel", start, start + draw(st.integers(0, 6)), thread=thread, **keys))
        for _ in range(draw(st.integers(0, 2))):
            begin = start + draw(st.integers(0, 20))
            make = draw(st.sampled_from([kernel, kernel, memcpy]))
            events.append(make(begin, begin + draw(st.integers(0, 9)), device=draw(st.sampled_from([0, 0, 1])), **keys))
    return events, dict(zip(operators, numbers, strict=True))


def trace_report(events, external_ids, **more):
    """The report of a trace; `more` are columns of op_detail by event_id."""
    ids = {event_id for event_id, event in enumerate(events) if event.kind in ("op", "range")}
    rows = [
        {"event_id": event_id, "external_id": external_ids.get(event_id), **more.get(f"of_{event_id}", {})}
        for event_id in sorted(ids)
    ]
    return report(events, op_detail=rows, kinds=("kernel", "memcpy", "memset", "api", "op", "range"))
