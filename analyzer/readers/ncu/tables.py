"""Tables of an ncu report: launches, metrics and rule results.

ncu replays each kernel alone, many times: the duration is that of one replay, and the start time in the program is
unknown. The kernels in `events` are laid end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.counter_model import INSTRUCTIONS, LAUNCH_NUMBERS, METRICS, SOURCE_FILES
from kanalyze.errors import CannotTellError
from kanalyze.model import COMPILED_KERNELS, DEVICES, EVENTS, KERNEL_CONFIG, NOTES, READER_TABLES
from kanalyze.readers.ncu.labels import SECTION_OF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Note = tuple[str, int | None, int | None, str]

#: Launch columns that precede the metrics on ncu's pages.
LAUNCHES: Final[dict[str, type[pl.DataType]]] = {
    "event_id": pl.Int64,
    "name": pl.String,
    "process_id": pl.Int64,
    "process_name": pl.String,
    "device": pl.Int64,
    "context_id": pl.Int64,
    "stream": pl.Int64,
    "compute_capability": pl.String,
    **dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), pl.Int64),
}

_DURATION: Final = "gpu__time_duration.sum"

#: Sections the summary needs, each with a metric that shows it was collected, and what is unknown without it.
_BASIC: Final = {
    "SpeedOfLight": (_DURATION, "how long they ran, and what holds them back, is unknown"),
    "LaunchStats": ("launch__registers_per_thread", "registers and shared memory are unknown"),
}

_SMS: Final = "launch__sm_count"

_CONFIG: Final = {
    "registers_per_thread": "launch__registers_per_thread",
    "static_shared_bytes": "launch__shared_mem_per_block_static",
    "dynamic_shared_bytes": "launch__shared_mem_per_block_dynamic",
    "shared_config_bytes": "launch__shared_mem_config_size",
}

_ATTRIBUTE: Final = "device__attribute_"
_DEVICE: Final = {
    "sm_count": "multiprocessor_count",
    "memory_bytes": "total_memory",
    "l2_bytes": "l2_cache_size",
    "max_warps_per_sm": "max_warps_per_multiprocessor",
    "max_blocks_per_sm": "max_blocks_per_multiprocessor",
    "max_threads_per_block": "max_threads_per_block",
    "registers_per_sm": "max_registers_per_multiprocessor",
    "shared_per_sm_bytes": "max_shared_memory_per_multiprocessor",
    "shared_per_block_bytes": "max_shared_memory_per_block_optin",
    "threads_per_warp": "warp_size",
}

#: Transfers per memory clock, for memory whose clock is reported and not its data rate.
_DOUBLE_RATE: Final = 2
_BITS: Final = 8
_KILO: Final = 1000
_MOST: Final = 1 << 62


@dataclass(frozen=True)
class Measured:
    """Content that a reader extracted from a report.

    Attributes:
        launches: A row per kernel, :data:`LAUNCHES`, in the order of the report; event_id counts them.
        metrics: :data:`kanalyze.counter_model.METRICS`.
        rules: :data:`kanalyze.counter_model.RULE_RESULTS`.
        notes: Health notes, rows of :data:`kanalyze.model.NOTES`.
        instructions: Reads :data:`kanalyze.counter_model.INSTRUCTIONS` on demand, as it is the slowest part.
        files: Reads :data:`kanalyze.counter_model.SOURCE_FILES` on demand.
        numbers: :data:`kanalyze.counter_model.LAUNCH_NUMBERS`; empty if unknown.
    """

    launches: pl.DataFrame
    metrics: pl.DataFrame
    rules: pl.DataFrame
    notes: Sequence[Note] = field(default=())
    instructions: Callable[[], pl.DataFrame] = INSTRUCTIONS.empty
    files: Callable[[], pl.DataFrame] = SOURCE_FILES.empty
    numbers: pl.DataFrame = field(default_factory=LAUNCH_NUMBERS.empty)


class NcuTables:
    """The tables of a report of ncu; see :class:`kanalyze.source.Source`."""

    #: The kinds of events that ncu records.
    kinds: tuple[str, ...] = ("kernel",)

    def __init__(self, path: Path, measured: Measured) -> None:
        """Tables of `measured`, read from `path`."""
        self._path, self._measured = path, _sound(measured)

    def events(self, kind: str) -> pl.DataFrame:
        """The kernels; other kinds are not recorded."""
        if kind not in self.kinds:
            return EVENTS.empty()
        rows = self._measured.launches.join(self._values(_DURATION), on="event_id", how="left", maintain_order="left")
        duration = (pl.col(_DURATION) + 0.5).floor().cast(pl.Int64, strict=False)
        found = rows.with_columns(dur_ns=duration, kind=pl.lit("kernel"))
        ends = pl.col("dur_ns").fill_null(0).cum_sum()
        return EVENTS.select(EVENTS.completed(found.with_columns(start_ns=ends - pl.col("dur_ns").fill_null(0))))

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            "kernel_config": self._kernel_config,
            "devices": lambda: self._devices,
            "processes": self._processes,
            "metrics": lambda: self._measured.metrics,
            "rule_results": lambda: self._measured.rules,
            "instructions": self._measured.instructions,
            "source_files": self._measured.files,
            "launch_numbers": lambda: self._measured.numbers,
            "notes": self._notes,
            COMPILED_KERNELS.name: self._no_capture,
        }
        declared = READER_TABLES[name]
        return declared.select(declared.completed(tables[name]())) if name in tables else declared.empty()

    def close(self) -> None:
        """Release the report from which instructions and source files are read on demand."""
        self._measured = replace(self._measured, instructions=INSTRUCTIONS.empty, files=SOURCE_FILES.empty)

    def _no_capture(self) -> pl.DataFrame:
        raise CannotTellError.without_capture("compiled", self._path)

    def _values(self, *metrics: str) -> pl.DataFrame:
        """One row per kernel that has any of `metrics`, one column per metric; null where not collected."""
        found = self._measured.metrics.filter(pl.col("metric").is_in(metrics))
        return found.group_by("event_id").agg(
            pl.col("value").filter(pl.col("metric") == metric).first().alias(metric) for metric in metrics
        )

    def _kernel_config(self) -> pl.DataFrame:
        rows = self._measured.launches.join(
            self._values(*_CONFIG.values()), on="event_id", how="left", maintain_order="left"
        )
        sizes = pl.col(r"^(grid|block)_[xyz]$")
        rows = rows.with_columns(sizes.cast(pl.Int32, strict=False))  # larger values are impossible
        known = rows.filter(pl.all_horizontal(sizes.is_not_null()))
        columns = {
            ours: pl.col(theirs).cast(KERNEL_CONFIG.schema[ours], strict=False) for ours, theirs in _CONFIG.items()
        }
        return known.with_columns(**columns)

    @cached_property
    def _devices(self) -> pl.DataFrame:
        """The GPUs that ran kernels, each described by its first kernel."""
        attributes = self._measured.metrics.filter(pl.col("metric").str.starts_with(_ATTRIBUTE))
        of_device = attributes.join(self._measured.launches.select("event_id", "device"), on="event_id")
        first = of_device.group_by("device", pl.col("metric").str.strip_prefix(_ATTRIBUTE)).agg(
            pl.col("value").first(), pl.col("text").first()
        )
        told = {device: {"multiprocessor_count": sms} for device, sms in self._sms().iter_rows()}
        names: dict[int, str] = {}
        for device, metric, value, text in first.drop_nulls("device").iter_rows():
            told.setdefault(device, {})[metric] = value
            if metric == "display_name":
                names[device] = text
        ran = self._measured.launches.drop_nulls("device").unique("device", keep="first").sort("device")
        rows = [
            _device_row(device, capability, names.get(device), told.get(device, {}))
            for device, capability in ran.select("device", "compute_capability").iter_rows()
        ]
        return pl.DataFrame(rows, schema=DEVICES.schema, orient="row")

    def _sms(self) -> pl.DataFrame:
        """The number of SMs of each GPU: columns device and sms."""
        rows = self._measured.launches.select("event_id", "device").join(self._values(_SMS), on="event_id")
        return rows.drop_nulls(["device", _SMS]).group_by("device").agg(pl.col(_SMS).first())

    def _processes(self) -> pl.DataFrame:
        rows = self._measured.launches.drop_nulls("process_id").unique(["process_id", "device"], maintain_order=True)
        return rows.with_columns(name=pl.col("process_name"))

    def notes_of_read(self) -> pl.DataFrame:
        """All notes, since everything is read at once."""
        return self._notes()

    def _notes(self) -> pl.DataFrame:
        notes = [*self._measured.notes, *self._missing_sections()]
        return pl.DataFrame(notes, schema=NOTES.schema, orient="row")

    def _missing_sections(self) -> Iterator[Note]:
        """Notes on sections that were not collected for any kernel, and what is unknown without them."""
        every = self._measured.launches.height
        for section, (metric, effect) in _BASIC.items():
            lacking = every - self._values(metric).height
            if lacking:
                told = f"{metric} was not collected of {lacking:,} of {every:,} kernels: {effect}"
                yield f"kernels without {section}", lacking, None, f"{told}; record them with `ncu --section {section}`"


def _sound(found: Measured) -> Measured:
    """Removes implausible values."""
    launches, of_launches = _sound_launches(found.launches)
    metrics, of_metrics = _sound_metrics(found.metrics)
    rules, of_rules = _sound_rules(found.rules)
    notes = [*found.notes, *of_launches, *of_metrics, *of_rules]
    return replace(found, launches=launches, metrics=metrics, rules=rules, notes=notes)


def _device_row(
    device: int, capability: str | None, name: str | None, told: dict[str, float]
) -> tuple[int | str | None, ...]:
    """A row of :data:`kanalyze.model.DEVICES` from the device attributes of a launch."""
    row: dict[str, int | str | None] = {ours: _whole(told.get(theirs)) for ours, theirs in _DEVICE.items()}
    clock, width, memory_clock = (
        told.get(key) for key in ("max_gpu_frequency_khz", "global_memory_bus_width", "max_mem_frequency_khz")
    )
    if width is not None and memory_clock is not None:
        row["memory_bandwidth_bytes_per_s"] = _whole(memory_clock * _KILO * _DOUBLE_RATE * width / _BITS)
    row["clock_hz"] = None if clock is None else _whole(clock * _KILO)
    major, minor = told.get("compute_capability_major"), told.get("compute_capability_minor")
    if major is not None and minor is not None:
        capability = f"{major:.0f}.{minor:.0f}"
    row |= {"device": device, "name": name, "compute_capability": capability}
    return tuple(row.get(column) for column in DEVICES.schema)


def _whole(value: float | None) -> int | None:
    """A count as Int64; None if out of range."""
    return None if value is None or abs(value) >= _MOST else int(value)


def metrics_frame(found: pl.DataFrame) -> pl.DataFrame:
    """Builds :data:`kanalyze.counter_model.METRICS` from columns event_id, metric, value, text, unit (and section).

    Sorted by kernel and metric; our table of sections takes precedence over a given section.
    """
    given = pl.col("section") if "section" in found.columns else pl.lit(None, dtype=pl.String)
    known = pl.col("metric").replace_strict(SECTION_OF, default=None, return_dtype=pl.String)
    unit = pl.when(pl.col("unit") != "").then("unit")
    every = found.with_columns(section=pl.coalesce(known, given), unit=unit)
    return METRICS.select(every.unique(["event_id", "metric"], keep="first").sort("event_id", "metric"))


# Impossible values of a damaged report are removed, and noted in health.

_CYCLES, _CLOCK = "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"

#: Upper bound of any counter: the largest are peaks of operations per second, below 1e17.
_MOST_OF_ANY: Final = 1e18
#: Differences of two measurements can be slightly negative.
_LEAST: Final = -1.0
#: Several times the largest percentage of a peak observed (212 %, of L1).
_MOST_PERCENT: Final = 1000.0
_PERCENT: Final = ".avg.pct_of_peak_sustained_"

#: Metrics with tighter bounds: minimum and maximum.
_LIMITS: Final = {
    _DURATION: (0.0, 1e15),
    _CYCLES: (0.0, 1e16),
    _CLOCK: (1e6, 1e11),
    "sm__cycles_elapsed.avg.per_second": (1e6, 1e11),
    "dram__cycles_elapsed.avg.per_second": (1e6, 1e12),
    "launch__sm_count": (1.0, 4096.0),
    "launch__registers_per_thread": (0.0, 256.0),
    "launch__shared_mem_per_block_static": (0.0, 1e7),
    "launch__shared_mem_per_block_dynamic": (0.0, 1e7),
    "launch__waves_per_multiprocessor": (0.0, 1e12),
    "sm__maximum_warps_per_active_cycle_pct": (0.0, 101.0),
}

#: Duration × clock = cycles: within 1.5 % in all reports examined.
_TOLERANCE: Final = 0.1
_NS: Final = 1e9

_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: Most threads per block on any GPU.
_THREADS: Final = 1024


def _sound_metrics(metrics: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Replaces impossible metric values by text, with notes for health."""
    value, metric = pl.col("value"), pl.col("metric")
    least, most = (
        metric.replace_strict({name: both[end] for name, both in _LIMITS.items()}, default=usual)
        for end, usual in enumerate((_LEAST, _MOST_OF_ANY))
    )
    percent = metric.str.contains(_PERCENT, literal=True) & (value > _MOST_PERCENT)
    wrong = (~value.is_between(least, most) | percent).fill_null(value=False)
    absurd = metrics.filter(wrong).sort("event_id", "metric")
    if absurd.is_empty():
        return metrics, list(_contradictions(metrics))
    left = metrics.with_columns(
        value=pl.when(~wrong).then("value"), text=pl.when(wrong).then(value.cast(pl.String)).otherwise("text")
    )
    first, name, told = absurd.select("event_id", "metric", "value").row(0)
    effect = f"they are left out, as if not collected: the first is {name} = {told:g} of kernel {first}"
    note = ("metrics with values that cannot be", absurd.height, None, effect)
    return left, [note, *_contradictions(left)]


def _contradictions(metrics: pl.DataFrame) -> Iterator[Note]:
    names = (_DURATION, _CYCLES, _CLOCK)
    rows = metrics.filter(pl.col("metric").is_in(names)).select("event_id", "metric", "value")
    wide = rows.pivot(on="metric", on_columns=list(names), index="event_id", values="value", aggregate_function="first")
    by_clock = pl.col(_CYCLES) / pl.col(_CLOCK) * _NS
    odd = wide.filter((pl.col(_DURATION) / by_clock - 1).abs() > _TOLERANCE)
    if odd.height:
        effect = f"{_DURATION} is not {_CYCLES} by {_CLOCK}: one of these is wrong, and what is computed of it"
        yield ("durations that contradict cycles and clock", odd.height, None, effect)


def _sound_launches(launches: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Removes grids and blocks that no GPU accepts, with notes for health."""
    sizes = pl.col(_SIZES)
    threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
    effect = "a grid or block of 0, or a block of more threads than a GPU takes: they are left out, as if unknown"
    wrong = pl.any_horizontal(sizes < 1) | (threads > _THREADS)
    return _without(launches, sizes, wrong, ("launch shapes that cannot be", effect))


def _sound_rules(rules: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Removes rule estimates outside of 0 to 100 %, with notes for health."""
    share = pl.col("speedup_share")
    effect = "no part of a duration: they are left out"
    return _without(rules, share, ~share.is_between(0, 1), ("estimates that cannot be", effect))


def _without(
    frame: pl.DataFrame, columns: pl.Expr, wrong: pl.Expr, told: tuple[str, str]
) -> tuple[pl.DataFrame, list[Note]]:
    """Removes the values of `columns` in rows that are `wrong`; the note says what was `told` of them."""
    wrong = wrong.fill_null(value=False)
    count = frame.select(wrong.sum()).item()
    if not count:
        return frame, []
    check, effect = told
    return frame.with_columns(pl.when(~wrong).then(columns)), [(check, count, None, effect)]
