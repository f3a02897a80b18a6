"""Collects profiles: builds the tools' commands, runs them, and saves everything in a capture folder with a manifest.

One file per tool in :mod:`~kanalyze.collectors.tools` knows that tool's flags and messages, and nothing else does.
torch and triton are imported when they are used.

>>> from kanalyze.collectors import dry_run
>>> commands = dry_run("add", output="add-capture", passes=("nsys",))
>>> commands[-1]
'nsys export --type=sqlite --include-blobs=true --output=add-capture/nsys.sqlite add-capture/nsys.nsys-rep'
"""

from kanalyze.collectors.options import Options
from kanalyze.collectors.process import Event
from kanalyze.collectors.run.collect import Capture, Captures, collect, collect_against, dry_run
from kanalyze.collectors.time_cuda import Timing, time_cuda
from kanalyze.collectors.tools.found import Examined, doctor
from kanalyze.collectors.torch_profile import TorchCapture, torch_profile
from kanalyze.collectors.workload import Reference, Workload, references
from kanalyze.redact import redact

__all__ = [
    "Capture",
    "Captures",
    "Event",
    "Examined",
    "Options",
    "Reference",
    "Timing",
    "TorchCapture",
    "Workload",
    "collect",
    "collect_against",
    "doctor",
    "dry_run",
    "redact",
    "references",
    "time_cuda",
    "torch_profile",
]
