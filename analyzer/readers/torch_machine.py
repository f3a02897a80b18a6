"""The machine in a trace of torch.profiler: its GPUs and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.capabilities import capabilities, memory_bandwidth_bytes_per_s
from kanalyze.model import DEVICES, PROCESSES

if TYPE_CHECKING:
    from kanalyze.readers.torch_frames import Frames

#: Limits as deviceProperties has them.
_LIMITS: Final = {
    "sm_count": "numSms",
    "memory_bytes": "totalGlobalMem",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "regsPerMultiprocessor",
    "shared_per_sm_bytes": "sharedMemPerMultiprocessor",
    "shared_per_block_bytes": "sharedMemPerBlockOptin",
    "threads_per_warp": "warpSize",
}


def devices(frames: Frames) -> pl.DataFrame:
    """The GPUs that did anything, as :data:`kanalyze.model.DEVICES`; all of the machine where none did."""
    told = frames.properties.get("deviceProperties")
    known = {row["device"]: row for row in map(_device, told if isinstance(told, list) else []) if row}
    used = _used(frames)
    rows = [known.get(device, {"device": device}) for device in sorted(used)] or list(known.values())
    frame = pl.DataFrame(rows, schema=DEVICES.schema, orient="row")
    limits = capabilities().select("compute_capability", blocks="max_blocks_per_sm")
    joined = frame.join(limits, on="compute_capability", how="left", maintain_order="left")
    return DEVICES.select(joined.with_columns(max_blocks_per_sm=pl.coalesce("max_blocks_per_sm", "blocks")))


def _device(told: Any) -> dict[str, Any] | None:  # noqa: ANN401 - what a file says
    if not isinstance(told, dict) or not isinstance(told.get("id"), int):
        return None
    row: dict[str, Any] = {name: _positive(told.get(key)) for name, key in _LIMITS.items()}
    row["device"] = told["id"]
    row["name"] = told["name"] if isinstance(told.get("name"), str) else None
    row["memory_bandwidth_bytes_per_s"] = memory_bandwidth_bytes_per_s(row["name"])
    major, minor = told.get("computeMajor"), told.get("computeMinor")
    if isinstance(major, int) and isinstance(minor, int):
        row["compute_capability"] = f"{major}.{minor}"
    threads, warp = _positive(told.get("maxThreadsPerMultiprocessor")), row["threads_per_warp"]
    row["max_warps_per_sm"] = threads // warp if threads and warp else None
    return row


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _used(frames: Frames) -> set[int]:
    found: set[int] = set()
    for name in ("Kernel", "Copy", "Memset"):
        frame = frames.events.get(name)
        if frame is not None:
            found.update(frame.select(pl.coalesce("device", "pid").unique()).to_series().drop_nulls())
    return found


def processes(frames: Frames, main: int | None) -> pl.DataFrame:
    """The processes of the trace and the GPUs that they used, as :data:`kanalyze.model.PROCESSES`.

    `main` is the process that device events belong to.
    """
    found: set[int] = set() if main is None else {main}
    for name in ("Call", "Op", "Annotation"):
        frame = frames.events.get(name)
        if frame is not None:
            found.update(frame.get_column("pid").unique().drop_nulls())
    names = {pid: name for pid, thread, name in frames.names if thread is None}
    used = sorted(_used(frames)) or [None]
    rows = [
        (pid, names.get(pid), device, device) for pid in sorted(found) for device in (used if pid == main else [None])
    ]
    return PROCESSES.select(pl.DataFrame(rows, schema=PROCESSES.schema, orient="row"))
