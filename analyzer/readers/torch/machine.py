"""GPUs and processes of a torch.profiler trace."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.device_limits import capabilities, impossible, memory_bandwidth_bytes_per_s, plausible
from kanalyze.model import DEVICES, PROCESSES
from kanalyze.readers.torch.decode.events import MISSING
from kanalyze.readers.torch.decode.old_forms import number
from kanalyze.sample_model import GPU_METRICS
from kanalyze.wording import amd_target, is_amd

if TYPE_CHECKING:
    from kanalyze.readers.torch.frames import Frames

#: Device limits, by their names in deviceProperties.
_LIMITS: Final = {
    "sm_count": "numSms",
    "memory_bytes": "totalGlobalMem",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "regsPerMultiprocessor",
    "shared_per_sm_bytes": "sharedMemPerMultiprocessor",
    "shared_per_block_bytes": "sharedMemPerBlockOptin",
    "threads_per_warp": "warpSize",
}

#: Frames whose events have the process id of the host.
_ON_HOST: Final = ("Call", "Op", "Annotation")

#: Kineto's process name for the timeline of a Meta accelerator.
_ACCELERATOR: Final = re.compile(r"MTIA \d+")


def without_echoes(frames: Frames) -> Frames:
    """`frames` without duplicate calls on an accelerator's own timeline; they are counted as ignored."""
    drawn = [pid for pid, thread, name in frames.names if thread is None and _ACCELERATOR.fullmatch(name)]
    calls = frames.events.get("Call")
    if not drawn or calls is None or calls.is_empty():
        return frames
    echo = pl.col("pid").is_in(drawn).fill_null(value=False)
    apart = calls.filter(echo).select("start_ns", "dur_ns")
    unread = frames.events.get("Unread", apart.clear())
    events = {"Call": calls.filter(~echo), "Unread": pl.concat([unread, apart], how="diagonal_relaxed")}
    return replace(frames, events={**frames.events, **events})


def devices(frames: Frames, used: pl.DataFrame) -> pl.DataFrame:
    """The GPUs used, as :data:`kanalyze.model.DEVICES`; with all that the trace describes if it describes none of them.

    Not so of AMD GPUs, whose numbers in events are others. `used` has the column device, of device events.
    """
    told = frames.properties.get("deviceProperties")
    known = {row["device"]: row for row in map(_device, told if isinstance(told, list) else []) if row}
    active = used.get_column("device").drop_nulls().unique().sort()
    usual = _model(known)
    rows = {device: known.get(device, {**usual, "device": device}) for device in active}
    described = any(len(row) > 1 for row in rows.values())
    if not described and not any(is_amd(row["name"], row["threads_per_warp"]) for row in known.values()):
        rows |= known
    frame = pl.DataFrame([*rows.values()], schema=DEVICES.schema, orient="row").sort("device")
    limits = capabilities().select("compute_capability", blocks="max_blocks_per_sm")
    joined = frame.join(limits, on="compute_capability", how="left", maintain_order="left")
    return DEVICES.select(plausible(joined.with_columns(max_blocks_per_sm=pl.coalesce("max_blocks_per_sm", "blocks"))))


def impossible_limits(frames: Frames) -> int:
    """The number of impossible device limits in the trace."""
    told = frames.properties.get("deviceProperties")
    rows = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    given = [(name, one[key]) for one in rows for name, key in _LIMITS.items() if key in one]
    # each on its own: not every version writes all of them
    return sum(impossible(pl.DataFrame({name: [whole(value)]}, schema={name: pl.Int64})) for name, value in given)


def _model(known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Properties of a GPU that has none listed: of AMD GPUs, those that all listed ones share.

    ROCm's tracer numbers a machine's processors, the CPUs first; the properties go by HIP's numbers, from 0 on.
    """
    models = [{**row, "device": None} for row in known.values()]
    alike = bool(models) and all(model == models[0] for model in models)
    return models[0] if alike and is_amd(models[0]["name"], models[0]["threads_per_warp"]) else {}


def _device(told: Any) -> dict[str, Any] | None:  # noqa: ANN401 - what a file says
    device = whole(told.get("id")) if isinstance(told, dict) else None
    if device is None:
        return None
    row: dict[str, Any] = {name: _positive(told.get(key)) for name, key in _LIMITS.items()}
    row["device"] = device
    row["name"] = told["name"] if isinstance(told.get("name"), str) else None
    row["memory_bandwidth_bytes_per_s"] = memory_bandwidth_bytes_per_s(row["name"])
    major, minor = whole(told.get("computeMajor")), whole(told.get("computeMinor"))
    threads, warp = _positive(told.get("maxThreadsPerMultiprocessor")), row["threads_per_warp"]
    if is_amd(row["name"], warp):
        row["compute_capability"] = amd_target(row["name"], major, minor)
    elif major is not None and minor is not None:
        row["compute_capability"] = f"{major}.{minor}"
    row["max_warps_per_sm"] = threads // warp if threads and warp else None
    return row


def whole(value: object) -> int | None:
    """An int64 from a property, also if written as text or with decimals; None if it is not one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    found = MISSING if isinstance(value, bool) else number(value)
    return None if found == MISSING else found


def _positive(value: object) -> int | None:
    found = whole(value)
    return found if found is not None and found > 0 else None


def processes(frames: Frames, used: pl.DataFrame) -> pl.DataFrame:
    """Processes of the trace with the GPUs that they used, as :data:`kanalyze.model.PROCESSES`.

    `used` has the pairs of both: process_id and device.
    """
    found = (
        used.drop_nulls()
        .unique()
        .sort("process_id", "device")
        .select("process_id", cuda_ordinal="device", device="device")
    )
    named = pl.DataFrame(
        [(pid, name) for pid, thread, name in frames.names if thread is None],
        schema={"process_id": pl.Int64, "name": pl.String},
        orient="row",
    ).unique("process_id", keep="last")
    hosts = [frames.events[name].select(process_id="pid") for name in _ON_HOST if name in frames.events]
    every = (
        pl.concat([found.select("process_id"), *hosts, used.select("process_id")])
        .unique()
        .drop_nulls()
        .sort("process_id")
    )
    rows = every.join(found, on="process_id", how="left", maintain_order="left")
    return PROCESSES.select(rows.join(named, on="process_id", how="left", maintain_order="left"))


#: A counter's name and the unit in brackets behind it (:class:`kanalyze.readers.torch.decode.events.Counter`).
_METRIC: Final = r"^(.*?)(?: \((W|C|%|MHz)\))?$"

#: A sample counts for at most so many times the usual distance; what is longer is a hole in the recording.
_HOLE: Final = 2


def gpu_metrics(samples: pl.DataFrame) -> pl.DataFrame:
    """The sampled counters of GPUs, as :data:`kanalyze.sample_model.GPU_METRICS`; each holds until the next sample."""
    if samples.is_empty():
        return GPU_METRICS.empty()
    name = pl.col("name").cast(pl.String)
    unit = name.str.extract(_METRIC, 2)
    told = samples.with_columns(
        metric=name.str.extract(_METRIC, 1).cast(pl.Categorical),
        unit=unit.fill_null("").cast(pl.Categorical),
        value=pl.when(unit == "MHz").then(pl.col("value") * 1e6).otherwise("value"),
        samples=pl.lit(1, dtype=pl.Int64),
    ).sort("device", "metric", "start_ns", maintain_order=True)
    follows = (pl.col("start_ns").shift(-1) - pl.col("start_ns")).over("device", "metric")
    usual = follows.filter(follows > 0).median().over("device", "metric").fill_null(1).cast(pl.Int64)
    lasting = pl.when(follows <= _HOLE * usual).then(follows).otherwise(usual)
    return GPU_METRICS.select(told.with_columns(dur_ns=lasting).filter(pl.col("value").is_finite()))
