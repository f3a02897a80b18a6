"""Opens every report of one program: all reports of a capture, of each tool, or the single report at a path."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kanalyze.errors import KanalyzeError
from kanalyze.readers import read
from kanalyze.readers.capture import read_capture
from kanalyze.readers.capture.read_capture import counters_of, traces_in
from kanalyze.readers.ncu.runs import runs_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def several_tools(path: Path) -> bool:
    """Whether `path` is a capture with a timeline (nsys or torch) and reports of further tools."""
    if not read_capture.accepts(path, b""):
        return False
    timed, counters = (read_capture.reports_in(path), traces_in(path)), runs_in(path, "ncu")
    return all(timed) or (any(timed) and bool(counters))


def every_report(
    path: Path,
    progress: Progress | None = None,
    *,
    cache: bool = True,
    runs: bool = False,
    left_out: Callable[[KanalyzeError], object] | None = None,
) -> list[Report]:
    """Opens the reports at `path`; of a capture folder those of each tool, nsys first.

    The traces of torch.profiler are those of all ranks and cycles. Of several nsys runs only the first one is opened,
    with `runs` all of them. Raises as :func:`kanalyze.readers.read` does; with `left_out`, further reports of a folder
    that fail to open are skipped and their errors passed to it.
    """
    if not read_capture.accepts(path, b""):
        return [read(path, progress, cache=cache)]
    recorded, traces = read_capture.reports_in(path), traces_in(path)
    ways: list[Callable[[], Report]] = []
    if recorded:
        ways.append(partial(read, path, progress, cache=cache))
        ways += [partial(read_capture.run_of, path, run) for run in recorded[1:] if runs]
    ways += [partial(_trace, path, trace, progress, cache=cache) for trace in traces]
    if counters := runs_in(path, "ncu"):
        ways.append(partial(counters_of, path, counters, progress))
    found = []
    for way in ways or [partial(read, path, progress, cache=cache)]:  # which says what is missing
        try:
            found.append(way())
        except KanalyzeError as error:
            if left_out is None or not found:
                raise
            left_out(error)
    return found


def counters_at(path: Path, progress: Progress | None = None, *, cache: bool = True) -> Report:
    """Opens the report at `path`, of a capture its ncu report; raises as :func:`kanalyze.readers.read`."""
    if not read_capture.accepts(path, b"") or not (counters := runs_in(path, "ncu")):
        return read(path, progress, cache=cache)
    return counters_of(path, counters, progress)


def _trace(folder: Path, trace: Path, progress: Progress | None, *, cache: bool) -> Report:
    found = read(trace, progress, cache=cache)
    return replace(found, meta=replace(found.meta, capture=folder))
