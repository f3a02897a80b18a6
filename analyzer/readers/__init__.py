"""Readers: a file in, a :class:`kanalyze.report.Report` out. They know the tools' formats and no analysis.

Each subpackage belongs to a tool, or is shared by several. A reader is a module in it named ``read_<format>``, or after
several formats (``read_csv_rep``), with two functions; adding the file adds the reader:

``accepts(path: Path, head: bytes) -> bool``
    Whether the file at `path`, with the first bytes `head`, is in this format; for a folder `head` is empty.
``open_report(path: Path, progress: Progress, *, cache: bool) -> Report``
    Opens the report; tables are read on demand. A slow opening reports progress, and may store its result in the
    user's cache, or load it from there if `cache` allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.errors import KanalyzeError, ReportNotFoundError, UnknownFormatError
from kanalyze.files.regular import readable
from kanalyze.machinery import modules
from kanalyze.readers.archives import GZIP, inflated, unpacked
from kanalyze.report import Report

if TYPE_CHECKING:
    from os import PathLike


#: Told what is being done, and which share of it is done.
Progress = Callable[[str, float], object]

_HEAD_BYTES: Final = 64

_UNFINISHED: Final = ".qdstrm"


def read(path: str | PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """The report in the file or folder at `path`, whatever tool wrote it.

    Args:
        path: A file or folder written by a tool.
        progress: Called during slow steps with a description and the share done: the export of a report in NVIDIA's own
            format, or decoding of a large trace.
        cache: Whether cached results of an earlier opening may be used.

    Raises:
        ReportNotFoundError: There is no such file.
        UnreadableReportError: The operating system refuses to read it.
        UnknownFormatError: It is not a report that kanalyze reads.
        DamagedReportError: Part of it is missing or invalid.
        ExportError: It is in NVIDIA's own format, and cannot be exported here.
    """
    given = Path(path)
    said = progress or (lambda *_: None)
    head = _first_bytes(given)
    path = unpacked(given)
    head = head if path == given else _first_bytes(path)
    with readable(path):
        if head:
            _refuse_other_programs(path)
        name = _reader(path, head)
        if name is not None:
            report: Report = import_module(name).open_report(path, said, cache=cache and path == given)
            return report if path == given else replace(report, meta=replace(report.meta, path=given))
    raise _unknown_format(path, head)


def accepted(path: Path) -> bool:
    """Whether a reader opens the file or folder at `path`, by its first bytes; damage shows when it is read."""
    return room_at(path) is not None


def room_at(path: Path) -> str | None:
    """The room of the reader that opens the file or folder at `path`: ``nsys``, ``torch``, ``ncu`` or ``capture``.

    None where no reader does, judged by the first bytes; damage shows when it is read.
    """
    try:
        path = unpacked(path)
        head = _first_bytes(path)
    except KanalyzeError:
        return None
    with readable(path):
        name = _reader(path, head)
    return name and name.split(".")[-2]


def _reader(path: Path, head: bytes) -> str | None:
    """The reader module that opens the file or folder at `path`, which begins with `head`.

    The one for the file's suffix is tried first, so that others are not imported.
    """
    found = sorted(
        (f"{room}_{name.removeprefix('read_')}", module)
        for room, name, module in modules(__name__, __path__)
        if name.startswith("read_")
    )
    ending = {*path.suffix.removeprefix(".").split("-")} - {""}
    found.sort(key=lambda one: not ending.issubset(one[0].split("_")))
    return next((module for _, module in found if import_module(module).accepts(path, head)), None)


def _first_bytes(path: Path) -> bytes:
    with readable(path):
        try:
            if path.is_dir():
                return b""
            if path.exists() and not path.is_file():
                raise UnknownFormatError.of(path, "a pipe or a device")
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
        except FileNotFoundError as error:
            raise ReportNotFoundError.at(path) from error


def _unknown_format(path: Path, head: bytes) -> UnknownFormatError:
    if path.is_dir():
        if import_module("kanalyze.reduction.tables").reductions_at(path):  # with polars, for mistakes only
            remedy = f"See it with `{outlets.command('kanalyze', 'ranks', path)}`, or give the reports themselves."
            return UnknownFormatError.of(path, "what `kanalyze reduce` left", remedy)
        return UnknownFormatError.of(path, "a folder without tables")
    if not head:
        return UnknownFormatError.of(path, "an empty file")
    if path.suffix == _UNFINISHED:
        remedy = f"Finish it with `{outlets.command('QdstrmImporter', '-i', path)}`, which comes with Nsight Systems."
        return UnknownFormatError.of(path, "an unfinished Nsight Systems recording", remedy)
    if path.suffix == import_module("kanalyze.reduction.baselines").SUFFIX:  # as above
        remedy = f"Compare a run with it: `{outlets.command('kanalyze', 'compare', path)} REPORT`."
        return UnknownFormatError.of(path, "a baseline, which has figures of a run and no events", remedy)
    return UnknownFormatError.of(path, "a file in an unknown format")


# Files of other programs, told by their content, and how to get from each program what kanalyze reads.
#
# The signatures are of what the programs' own sources write: rocprofiler-sdk (source/lib/output), XLA (xplane.proto),
# PyTorch (torch/csrc/cuda/memory_snapshot.cpp; c10d/FlightRecorder.hpp), NCCL (plugins/profiler/inspector), Triton
# (third_party/proton/csrc/lib/Data), Perfetto (trace.proto, trace_packet.proto), Chakra (et_def.proto).

#: Bytes of a file that are looked at.
_WINDOW_BYTES: Final = 1 << 18

_NSYS: Final = "Record the program with Nsight Systems instead: `nsys profile --trace=cuda,nvtx …`."
_TORCH: Final = "Give a trace of torch.profiler of the program: `prof.export_chrome_trace(...)`"
_AMD: Final = f"{_TORCH}, which records AMD's GPUs, too."

#: What a program's file is (a noun phrase), what to do, and the expression that its first bytes match.
_SIGNATURES: Final = (
    ("a database of AMD's rocprofv3 (rocpd)", _AMD, rb"SQLite format 3\0.*CREATE \w+ [`\"']?rocpd_"),
    ("a result of AMD's rocprofv3", _AMD, rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:'),
    ("a table of AMD's rocprofv3", _AMD, rb'"Kind","(?:Agent_Id|Domain|Operation)"|"Domain","Function",'),
    (
        "a memory snapshot of PyTorch",
        f"Open it at https://pytorch.org/memory_viz. {_TORCH}, recorded with profile_memory=True.",
        rb"\x80[\x02-\x05].*(?:segments.*device_traces|device_traces.*segments)",
    ),
    (
        "a dump of PyTorch's flight recorder",
        f"Read it with `torchfrtrace`. {_TORCH}, of each rank.",
        rb"(?:\x80[\x02-\x05]|\s*\{)(?!.*traceEvents)(?=.*pg_config)(?=.*(?:pg_status|entries|nccl_version))",
    ),
    (
        "output of the NCCL inspector",
        f"{_TORCH}, of each rank, or reports of nsys.",
        rb'\s*\{.*"inspector_output_format_version"\s*:',
    ),
    ("a profile of Triton's Proton (hatchet)", _NSYS, rb'\s*\[\s*\{\s*"children"\s*:.*"metrics"\s*:'),
    ("a profile of Triton's Proton (hatchet)", _NSYS, rb'\s*\[\s*\{\s*"(?:frame|metrics)"\s*:\s*\{'),
    (
        "a Chrome trace of Triton's Proton",
        _NSYS,
        (
            rb'\s*\{\s*(?:"displayTimeUnit"\s*:\s*"\w+"\s*,\s*)?"traceEvents"\s*:\s*\['
            rb'(?:(?!"External id|"correlation").)*"call_stack"\s*:'
        ),
    ),
    ("a profile of JAX or XLA (xplane.pb)", _NSYS, rb"\n.{1,5}(?:\x08.{1,10})?\x12.(?:/host:|/device:|Task Env)"),
    (
        "a trace of Perfetto",
        f"{_TORCH}, or give a report of nsys.",
        rb"\n[\x01-\xff].{0,3}(?:\x40|\x50|\x58|\x5a|\x32[\x00-\xff]{2}\x08|[\xe2-\xe3]\x03|\xca\x05|\xa2\x02\x10|\x8a\x02)",
    ),
    (
        "an execution trace of Chakra",
        f"{_TORCH}, from which Chakra's traces are made, too.",
        rb'.{1,3}\n[\x03-\x10]\d+\.\d+\.\d+|\s*\{\s*"schema"\s*:\s*"[^"]*chakra',
    ),
    (
        "a table of `nsys stats`",
        "Give the report that it was made of: the .nsys-rep, or the .sqlite beside it.",
        rb"(?:\s*\"?Time \(%\)\"?,\"?Total Time|\s*\"?Start \(ns\)\"?,\"?Duration \(ns\)\"?,|\s*\"?Total \(MB\)\"?,)",
    ),
)


def _refuse_other_programs(path: Path) -> None:
    """Raise :class:`UnknownFormatError`, which names the program, if another one wrote the file at `path`.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(_WINDOW_BYTES)
    if text.startswith(GZIP):
        text = inflated(text, _WINDOW_BYTES)
    for what, remedy, content in _SIGNATURES:
        if re.match(content, text, re.DOTALL):
            raise UnknownFormatError.of(path, what, remedy)
