"""All reports of one program: those that a capture holds, one for each tool, or the one at a path."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kanalyze.errors import KanalyzeError
from kanalyze.readers import read, read_capture
from kanalyze.readers.capture_manifest import selections
from kanalyze.readers.ncu_runs import report_of, runs_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

_TRACES: Final = ("torch.json.gz", "torch.json")


def several_tools(path: Path) -> bool:
    """Whether `path` is a capture with a trace of time and reports of further tools."""
    if not read_capture.accepts(path, b"") or not read_capture.reports_in(path):
        return False
    return bool(_traces(path) or runs_in(path, "ncu"))


def _traces(path: Path) -> list[Path]:
    return [path / name for name in _TRACES if (path / name).is_file()]


def every_report(
    path: Path,
    progress: Progress | None = None,
    *,
    cache: bool = True,
    left_out: Callable[[KanalyzeError], object] | None = None,
) -> list[Report]:
    """The reports at `path`: of a folder that `kanalyze collect` wrote that of each tool, nsys first.

    Of a pass that ran several times, the first run. Raises as :func:`kanalyze.readers.read` does; but of a folder's
    further reports, one that cannot be read is left out where `left_out` is given, which is told why.
    """
    first = read(path, progress, cache=cache)  # of a folder that of nsys, or of ncu where there is none
    if not read_capture.accepts(path, b""):
        return [first]
    ways = [partial(read, trace, progress, cache=cache) for trace in _traces(path)[:1]]
    if not first.meta.timeless and (counters := runs_in(path, "ncu")):
        ways.append(partial(report_of, path, counters, progress or (lambda *_: None), selections(path)))
    found = [first]
    for way in ways:
        try:
            found.append(way())
        except KanalyzeError as error:
            if left_out is None:
                raise
            left_out(error)
    return found
