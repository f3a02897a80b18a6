"""Make a large torch.profiler trace of a real one: every event again and again, later, with ids of its own.

    python benchmarks/make_trace.py trace.json big.json --copies 141

The text of each event stays as the profiler wrote it, but for its time, correlation id, External id and flow id.
"""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

_EVENTS = b'"traceEvents": ['
_METADATA = b'\n  {\n    "name": "process_name", "ph": "M"'
_NUMBERS = re.compile(rb'("ts": |"correlation": |"External id": ?|"Sequence number": |"id": )(\d+)(?:\.(\d{3}))?')
_STEP = re.compile(rb"ProfilerStep#(\d+)")


def main() -> None:
    """Read the arguments and write the trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--copies", type=int, default=141)
    options = parser.parse_args()
    data = options.source.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    begin = text.index(_EVENTS) + len(_EVENTS)
    end = text.index(_METADATA, begin) if _METADATA in text else text.rindex(b"\n  ]")
    pieces, changes = _template(text[begin:end])
    times = [number for kind, number in changes if kind == b'"ts": ']
    period_ns = max(times) - min(times) + 1_000_000
    ids = max(number for kind, number in changes if kind != b'"ts": ') + 1
    with options.target.open("wb") as out:
        out.write(text[:begin])
        for copy in range(options.copies):
            out.write(_STEP.sub(_later(copy), _filled(pieces, changes, copy * period_ns, copy * ids)))
        out.write(text[end:])


def _template(events: bytes) -> tuple[list[bytes], list[tuple[bytes, int]]]:
    """The text between the numbers that change, and these numbers (times in ns) with what stands before them."""
    pieces, changes, last = [], [], 0
    for match in _NUMBERS.finditer(events):
        kind, whole, decimals = match.groups()
        if kind == b'"ts": ':
            changes.append((kind, int(whole) * 1000 + int(decimals or 0)))
        else:
            changes.append((kind, int(whole)))
        pieces.append(events[last : match.end(1)])
        last = match.end()
    return [*pieces, events[last:]], changes


def _filled(pieces: list[bytes], changes: list[tuple[bytes, int]], later_ns: int, ids: int) -> bytes:
    parts = []
    for piece, (kind, number) in zip(pieces, changes, strict=False):
        parts.append(piece)
        if kind == b'"ts": ':
            time = number + later_ns
            parts.append(b"%d.%03d" % (time // 1000, time % 1000))
        else:
            parts.append(b"%d" % (number + ids if number else 0))
    return b"".join([*parts, pieces[-1]])


def _later(copy: int):  # noqa: ANN202 - what re.sub takes
    return lambda match: b"ProfilerStep#%d" % (int(match[1]) + 100 * copy)


if __name__ == "__main__":
    main()
