"""Files of other programs, told by their content, and how to get from each program what kanalyze reads.

The signatures are of what the programs' own sources write: rocprofiler-sdk (source/lib/output), XLA (xplane.proto),
PyTorch (torch/csrc/cuda/memory_snapshot.cpp; c10d/FlightRecorder.hpp), NCCL (plugins/profiler/inspector), Triton
(third_party/proton/csrc/lib/Data), Perfetto (trace.proto, trace_packet.proto), Chakra (et_def.proto).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.shared.archives import GZIP, inflated

if TYPE_CHECKING:
    from pathlib import Path

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


def refuse_other_programs(path: Path) -> None:
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
