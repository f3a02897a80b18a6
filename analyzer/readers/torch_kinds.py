"""Which kind of event each frame of a trace holds (:class:`kanalyze.readers.torch_frames.Frames`)."""

from __future__ import annotations

from typing import Final

#: The kinds of :data:`kanalyze.model.EVENTS` by frame, in the order of event ids.
FRAME_KINDS: Final = {
    "Kernel": "kernel",
    "Copy": "memcpy",
    "Memset": "memset",
    "Call": "api",
    "Sync": "sync",
    "Annotation": "range",
    "Op": "op",
    "Python": "python",
    "Overhead": "overhead",
    "Memory": "memory",
}
FRAME_OF: Final = {kind: frame for frame, kind in FRAME_KINDS.items()}

#: The frames of what happens on a device.
ON_DEVICE: Final = ("Kernel", "Copy", "Memset", "Sync")
