"""Small reports that hypothesis makes up: few processes, threads and devices, close together."""

from itertools import chain

import pytest
from hypothesis import given, settings, strategies as st

from support.build import call, graph, kernel, memcpy, memset, overhead

#: For what takes several tables at once: half as many examples.
FEWER = settings(max_examples=settings.default.max_examples // 2)


def slow_given(*drawn, **named):
    """A slow property of what is drawn."""
    return lambda test: pytest.mark.slow(given(*drawn, **named)(test))


def few_given(*drawn, **named):
    """A slow property, of fewer examples."""
    return lambda test: FEWER(slow_given(*drawn, **named)(test))


PROCESSES = st.sampled_from([1, 1, 1, 2, 3])
THREADS = st.sampled_from([1, 1, 2])
DEVICES = st.sampled_from([0, 0, 1, 2])
STREAMS = st.sampled_from([7, 7, 7, 8])
CORRELATIONS = st.none() | st.integers(1, 4)
STARTS = st.integers(0, 40)

#: Some events end where they start, a few before.
DURATIONS = st.integers(-1, 12)

CALL_NAMES = st.sampled_from(
    [
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernelExC_v11060",
        "cudaMalloc_v3020",
        "cudaFree_v3020",
        "cuModuleLoadData",
        "cudaStreamSynchronize_v3020",
        "cudaMemcpy_v3020",
        "cudaEventRecord_v3020",
        "cudaGetDevice",
        "cuInit",
        "cudaStreamCreate_v3020",
        None,
    ]
)
OVERHEADS = st.sampled_from(
    ["CUPTI buffer flush", "CUPTI buffer request", "CUDA context created", "Lazy Function Loading"]
)
KERNELS = st.sampled_from(["gemm", "softmax", "ncclDevKernel_AllReduce", None])
DIRECTIONS = st.sampled_from(["Host-to-Device", "Device-to-Host", "Unified Host-to-Device"])


@st.composite
def operations(draw, process, starts, correlations):
    start, dur = draw(starts), draw(DURATIONS)
    keys = {"process": process, "device": draw(DEVICES), "correlation": draw(correlations), "stream": draw(STREAMS)}
    kind = draw(st.sampled_from([kernel, memcpy, graph, memset]))
    if kind is kernel:
        keys["name"] = draw(KERNELS)
    if kind is memcpy:
        keys["direction"] = draw(DIRECTIONS)
    return kind(start, start + dur, **keys)


@st.composite
def calls(draw, process, correlations):
    start = draw(STARTS)
    keys = {"process": process, "thread": draw(THREADS), "correlation": draw(correlations)}
    return call(draw(CALL_NAMES), start, start + draw(DURATIONS), **keys)


@st.composite
def overheads(draw):
    start, keys = draw(STARTS), {"process": draw(PROCESSES), "thread": draw(THREADS)}
    return overhead(draw(OVERHEADS), start, start + draw(DURATIONS), **keys)


@st.composite
def contexts(draw):
    """A call, and the profiler's word that a context was made in it."""
    keys = {"process": draw(PROCESSES), "thread": draw(THREADS)}
    start, made, rest = draw(st.integers(0, 10)), draw(st.integers(0, 8)), draw(st.integers(0, 8))
    making = call(draw(CALL_NAMES), start, start + made + rest, **keys)
    return [making, overhead("CUDA context created", start + made, start + made + draw(st.integers(0, rest)), **keys)]


@st.composite
def launched(draw):
    """A call and the operations that it launched, soon after it began, as a rule."""
    process, correlation = draw(PROCESSES), st.just(draw(st.integers(1, 4)))
    launch = draw(calls(process, correlation))
    soon = st.integers(launch.start - 2, launch.start + 20)
    return [launch, *draw(st.lists(operations(process, soon, correlation), min_size=1, max_size=3))]


GROUPS = st.one_of(
    launched(),
    launched(),
    PROCESSES.flatmap(lambda process: operations(process, STARTS, CORRELATIONS)).map(lambda event: [event]),
    PROCESSES.flatmap(lambda process: calls(process, CORRELATIONS)).map(lambda event: [event]),
    overheads().map(lambda event: [event]),
    contexts(),
)


@st.composite
def events(draw):
    """A few events in any order, or many."""
    groups = draw(st.one_of(st.lists(GROUPS, max_size=4), st.lists(GROUPS, min_size=4, max_size=10)))
    return draw(st.permutations(list(chain.from_iterable(groups))))


EVENTS = events()

#: The user's window, either side may be open.
WINDOWS = st.tuples(st.none() | st.integers(-5, 40), st.none() | st.integers(10, 60)).filter(
    lambda sides: None in sides or sides[0] < sides[1]
)
