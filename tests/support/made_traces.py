"""Chrome traces made by hand or by hypothesis, in every layout that a writer of them has; and their reports."""

import gzip
import json
from decimal import Decimal
from itertools import count

from hypothesis import strategies as st

from kanalyze.readers.torch.read_json import open_report

#: How the parts of a trace are joined: between keys, after a colon, between events, and at both ends of an event.
LAYOUTS = {
    "kineto": (", ", ": ", ",\n  ", "{\n    ", "\n  }"),
    "kineto 2026": (",\n    ", ": ", ",\n  ", "{\n    ", "\n  }"),
    "compact": (", ", ": ", ", ", "{", "}"),
    "tight": (",", ":", ",", "{", "}"),
    "line by line": (", ", ": ", ",\n", "{", "}"),
    "indented": (",\n      ", ": ", ",\n    ", "{\n      ", "\n    }"),
    "spread": (" ,\t", " : ", " ,\n\n", "{ ", " }"),
}


def dumps(value, separator=", ", colon=": "):
    """JSON with numbers as they are: a Decimal keeps its digits."""
    if isinstance(value, dict):
        inside = (f"{json.dumps(key)}{colon}{dumps(one, separator, colon)}" for key, one in value.items())
        return "{" + separator.join(inside) + "}"
    if isinstance(value, list):
        return "[" + separator.join(dumps(one, separator, colon) for one in value) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def trace(  # noqa: PLR0913 - all that a trace can be
    events, layout="kineto", head=None, tail=None, *, bare=False, crlf=False, mark=False
):
    """The text of a trace, its properties before (`head`) and after the events (`tail`)."""
    separator, colon, between, opening, closing = LAYOUTS[layout]

    def written(event):
        if not isinstance(event, dict):
            return dumps(event)
        keys = (f"{json.dumps(key)}{colon}{dumps(value, ', ', colon)}" for key, value in event.items())
        return opening + separator.join(keys) + closing

    first = between.lstrip(" ,")
    listed = "[" + first + between.join(map(written, events)) + first + "]"
    if not bare:
        before, after = (dumps(part or {})[1:-1] for part in (head, tail))
        listed = "{" + ", ".join(part for part in (before, f'"traceEvents"{colon}{listed}', after) if part) + "}"
    text = listed.replace("\n", "\r\n") if crlf else listed
    return (b"\xef\xbb\xbf" if mark else b"") + text.encode()


_NUMBERS = count()


def written_to(folder, text, *, compressed=False):
    path = folder / f"trace{next(_NUMBERS)}.json{'.gz' if compressed else ''}"
    path.write_bytes(gzip.compress(text, 1) if compressed else text)
    return path


def report_of(folder, text, *, compressed=False):
    """The report in a file with this text, read anew."""
    path = written_to(folder, text, compressed=compressed)
    try:
        return open_report(path, lambda *_: None, cache=False)
    finally:
        path.unlink()


def counted(report):
    """The reader's notes: how many by what was looked at."""
    return dict(report.table("notes").select("check", "count").iter_rows())


def x(category, name, start, length, args=None, pid=4000, tid=4001, **more):  # noqa: PLR0913
    """A complete event, its times in microseconds."""
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, **more}
    return event if args is None else {**event, "args": args}


#: What is hard to tell from the end of an event.
NASTY = (
    '}, {"ph": "X"', "}, {", '"}]', "]", '\\"', "a\\", "\n  },\n  {",
    '{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}', "[[[", "}}}", '"traceEvents": [', "é\u2028😀", "N/A, NaN", "",
)  # fmt: skip
TEXTS = st.sampled_from(NASTY) | st.text(max_size=6)
NAMES = (
    st.sampled_from(["aten::mm", "gemm", "ProfilerStep#3", "Memcpy HtoD (Pageable -> Device)", "Stream Sync"]) | TEXTS
)
SMALL = st.integers(0, 3)
IDS = st.none() | SMALL | st.integers(-1, 1 << 40) | SMALL.map(str)


@st.composite
def decimals(draw, *, wide=False):
    """A time in microseconds with 0 to 3 decimals."""
    largest = (1 << 57) // 1000 if wide else 5000  # sums of all of a trace fit 62 bits, or it is refused
    whole = draw(st.integers(-largest if wide else 0, largest))
    digits = draw(st.integers(0, 3))
    return Decimal(f"{whole}.{draw(st.integers(0, 10**digits - 1)):0{digits}}") if digits else whole


VALUES = st.recursive(
    st.none() | st.booleans() | SMALL | TEXTS | decimals(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=6,
)

_ARGS = {
    "kernel": ("correlation", "External id", "device", "context", "stream"),
    "gpu_memcpy": ("correlation", "External id", "device", "context", "stream", "bytes"),
    "gpu_memset": ("correlation", "device", "context", "stream", "bytes"),
    "cuda_runtime": ("correlation", "External id"), "cuda_driver": ("correlation", "External id"),
    "cuda_sync": ("correlation", "External id", "stream", "device", "context"),
    "cpu_op": ("External id", "Sequence number"), "user_annotation": ("External id",),
    "python_function": ("Python id", "Python parent id"), "overhead": (),
    "cpu_instant_event": ("Bytes", "Device Type", "Device Id"), "ac2g": (), "Trace": (),
    "of another tool": ("correlation",),
}  # fmt: skip


@st.composite
def events(draw, times=None):
    """Any event, with odd arguments besides and its keys in any order."""
    category = draw(st.sampled_from(list(_ARGS)))
    times = decimals() if times is None else times
    event = {
        "ph": "X",
        "cat": category,
        "name": draw(NAMES),
        "pid": draw(st.sampled_from([7, 7, 7, "7"])) if category != "Trace" else "Spans",
        "tid": draw(st.sampled_from([1, 2, "2", "stream 7", -1])),
        "ts": draw(times),
    }
    if draw(st.integers(0, 9)):
        event["dur"] = draw(times)
    args = {key: value for key in _ARGS[category] if (value := draw(IDS)) is not None}
    args |= draw(st.dictionaries(st.sampled_from(["Input Dims", "odd", "Call stack"]), VALUES, max_size=2))
    if draw(st.integers(0, 5)):
        event["args"] = args
    keys = list(event) if draw(st.booleans()) else draw(st.permutations(list(event)))
    return {key: event[key] for key in keys}


#: Properties that a trace may have before or after its events.
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "schemaVersion": st.just(1),
        "deviceProperties": st.lists(st.fixed_dictionaries({"id": SMALL, "name": TEXTS}), max_size=2),
        "distributedInfo": st.fixed_dictionaries(
            {"rank": SMALL, "groups": st.lists(st.just({"ph": "X", "cat": "kernel"}))}
        ),
        "traceName": TEXTS,
        "displayTimeUnit": st.just("ms"),
    },
)


@st.composite
def traces(draw, times=None):
    """The text of any trace; with events, one at least is of torch, or it is refused as another program's."""
    listed = draw(st.lists(events(times), max_size=12))
    return trace(
        [*listed, x("cpu_op", "aten::mm", 0, 1, pid=7, tid=1)] if listed else [],
        draw(st.sampled_from(list(LAYOUTS))),
        draw(PROPERTIES),
        {f"{key} behind": value for key, value in draw(PROPERTIES).items()},
        bare=draw(st.integers(0, 4)) == 0,
        crlf=draw(st.booleans()),
        mark=draw(st.booleans()),
    )
