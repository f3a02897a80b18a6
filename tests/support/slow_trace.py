"""A slow reader of torch.profiler traces: json and Decimal, event by event, in plain Python; for valid JSON only.

It says again what analyzer/readers does with columns: which event is of which kind, what its numbers are, what made it.
"""

import json
from collections import Counter
from decimal import Decimal

#: Categories by kind, all that ever were.
CATEGORIES = {
    "kernel": {"kernel", "Kernel"},
    "memcpy": {"gpu_memcpy", "Memcpy"},
    "memset": {"gpu_memset", "Memset"},
    "api": {"Runtime", "mtia_runtime", "glow_runtime"}
    | {f"{maker}_{layer}" for maker in ("cuda", "xpu", "privateuse1") for layer in ("runtime", "driver")},
    "sync": {"cuda_sync"},
    "range": {"user_annotation"},
    "op": {"cpu_op", "Operator"},
    "python": {"python_function"},
    "overhead": {"overhead"},
    "memory": {"cpu_instant_event"},
}
KIND_OF = {category: kind for kind, categories in CATEGORIES.items() for category in categories}

#: In the order of event ids.
KINDS = tuple(CATEGORIES)

ON_DEVICE = ("kernel", "memcpy", "memset", "sync")
WAYS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
SYNCS = {"Event Sync": "Event sync", "Stream Wait Event": "Stream wait sync"}


def parsed(text):
    found = json.loads(text.decode("utf-8-sig"), parse_float=Decimal, strict=False)
    if isinstance(found, list):
        return found, {}
    return found["traceEvents"], {key: value for key, value in found.items() if key != "traceEvents"}


def slow_events(text):
    """The rows of the table `events`, by kind; those without events are left out."""
    events, _ = parsed(text)
    sorted_out = {kind: [] for kind in KINDS}
    for event in events:
        kind = kind_of(event)
        if kind and nanoseconds(event.get("ts")) is not None:
            sorted_out[kind].append(event)
    for some in sorted_out.values():
        some.sort(key=lambda event: nanoseconds(event["ts"]))
    rows = {kind: [row_of(kind, event) for event in some] for kind, some in sorted_out.items()}
    for number, row in enumerate(row for some in rows.values() for row in some):
        row["event_id"] = number
    _own(rows)
    _parents(sorted_out, rows)
    _launching(events, rows["kernel"], rows["op"])
    return {kind: some for kind, some in rows.items() if some}


def kind_of(event):
    if not isinstance(event, dict) or event.get("ph") == "M":
        return None
    if event.get("cat") is None:
        if event.get("ph") == "X":
            return {"CPU functions": "op", "CUDA functions": "kernel"}.get(event.get("pid"))
        return "memory" if event.get("name") == "[memory]" else None
    if event["cat"] == "Operator" and str(event.get("name")).startswith("ProfilerStep#"):
        return "range"
    return KIND_OF.get(event["cat"])


def nanoseconds(value):
    if value is None:
        return None
    found = round(Decimal(value) * 1000)
    return found if abs(found) < 1 << 62 else None


def number(value):
    if isinstance(value, str):
        value = value.removeprefix("stream ").strip()
        return int(value) if value.lstrip("-").isdecimal() else None
    return None if value is None else int(value)


def row_of(kind, event):
    args = event.get("args") or {}
    correlation = number(args.get("correlation"))
    row = dict.fromkeys(("thread_id", "device", "context_id", "stream", "parent_id"))
    row |= {
        "kind": kind,
        "name": name_of(kind, event, args),
        "start_ns": nanoseconds(event["ts"]),
        "dur_ns": nanoseconds(event.get("dur")) or 0,
        "process_id": number(event.get("pid")),
        "correlation_id": correlation if correlation and correlation > 0 else None,
    }
    if kind in ON_DEVICE:
        device, stream = number(args.get("device")), number(args.get("stream"))
        stream = number(event.get("tid")) if stream is None else stream
        row["device"] = number(event.get("pid")) if device is None else device
        row["stream"] = stream if stream is not None and 0 <= stream < 0xFFFFFFFF else None
        row["context_id"] = number(args.get("context"))
        row["process_id"] = None
        if event.get("pid") == "CUDA functions":
            row["device"], row["stream"] = number(event["tid"]), number(event["tid"])
    else:
        row["thread_id"] = number(event.get("tid"))
    if kind == "memory" and number(args.get("Device Type")) in {1, 6, 12}:
        row["device"] = number(args.get("Device Id"))
    return row


def name_of(kind, event, args):
    name = event.get("name") or None
    if kind == "memset":
        return "[CUDA memset]"
    if kind == "memory":
        return "Deallocation" if (number(args.get("Bytes")) or 0) < 0 else "Allocation"
    if kind == "sync":
        return SYNCS.get(name, name and name.replace(" Sync", " sync"))
    if kind == "memcpy" and name and name.startswith(("Memcpy ", "Copy")):
        way = name.removeprefix("Memcpy ").split()[0]
        if len(way) == 4 and way[1:3] == "to" and way[0] in WAYS and way[3] in WAYS:
            return f"[CUDA memcpy {WAYS[way[0]]}-to-{WAYS[way[3]]}]"
    return name


def _own(rows):
    """The process of device events, where all calls are of one process."""
    for kind in ("api", "op", "range", "python"):
        counted = Counter(row["process_id"] for row in rows[kind] if row["process_id"] is not None)
        if counted:
            process = counted.most_common(1)[0][0]
            for row in (row for kind in ON_DEVICE for row in rows[kind]):
                row["process_id"] = process
            return


def _launching(events, kernels, ops):
    """The operator of each kernel in traces of the first profilers: that of its name at the other end of the arrow."""
    ends = {ph: [event for event in events if event.get("cat") == "cpu_to_cuda" and event["ph"] == ph] for ph in "sf"}
    starts = {event["id"]: (number(event["tid"]), nanoseconds(event["ts"])) for event in reversed(ends["s"])}
    for kernel in kernels:
        for end in ends["f"]:
            if (number(end["tid"]), nanoseconds(end["ts"])) == (kernel["device"], kernel["start_ns"]):
                place = starts.get(end["id"])
                for op in ops:
                    if (op["thread_id"], op["start_ns"]) == place and op["name"] == kernel["name"]:
                        kernel["parent_id"] = op["event_id"]


def _parents(events, rows):
    makers, callers, lacking = {}, {}, False
    for kind in ("op", "range"):
        for event, row in zip(events[kind], rows[kind], strict=True):
            makers.setdefault((external_id(event), row["process_id"]), row["event_id"])
    for event, row in zip(events["python"], rows["python"], strict=True):
        callers.setdefault((argument(event, "Python id"), row["process_id"]), row["event_id"])
    for kind in ("api", "kernel", "memcpy", "memset"):
        lacking |= any(external_id(event) is None for event in events[kind])
    for kind in ("kernel", "memcpy", "memset", "api", "sync"):
        for event, row in zip(events[kind], rows[kind], strict=True):
            external = external_id(event)
            own = external == argument(event, "correlation") and (kind == "sync" or not lacking)
            if external and not own:
                row["parent_id"] = makers.get((external, row["process_id"]))
    for event, row in zip(events["python"], rows["python"], strict=True):
        caller = argument(event, "Python parent id")
        row["parent_id"] = None if caller is None else callers.get((caller, row["process_id"]))


def argument(event, name):
    return number((event.get("args") or {}).get(name))


def external_id(event):
    found = argument(event, "External id")
    return argument(event, "external id") if found is None else found
