"""Tables of an ncu report: launches, metrics and rule results.

ncu replays each kernel alone, many times: the duration is that of one replay, and the start time in the program is
unknown. The kernels in `events` are laid end to end.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from kanalyze.counter_model import INSTRUCTIONS, LAUNCH_NUMBERS, METRICS, SOURCE_FILES
from kanalyze.errors import DamagedReportError
from kanalyze.model import EVENTS, KERNEL_CONFIG, NOTES, Note, reader_table

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

#: Columns of instructions, each with its per-instruction metric and its heading on the source page.
COUNTED: Final = {
    "samples": ("smsp__pcsamp_sample_count", "# Samples"),
    "instructions": ("inst_executed", "Instructions Executed"),
    "thread_instructions": ("thread_inst_executed_true", "Predicated-On Thread Instructions Executed"),
    "sectors": ("memory_l2_theoretical_sectors_global", "L2 Theoretical Sectors Global"),
    "ideal_sectors": ("memory_l2_theoretical_sectors_global_ideal", "L2 Theoretical Sectors Global Ideal"),
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

#: Metrics of which each kernel's value is needed.
_OF_KERNELS: Final = (_DURATION, _SMS, *_CONFIG.values())

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
_DOUBLE_RATE, _BITS, _KILO = 2, 8, 1000

#: Attributes of devices that are read.
_ATTRIBUTES: Final = (
    *_DEVICE.values(),
    *("max_gpu_frequency_khz", "global_memory_bus_width", "max_mem_frequency_khz"),
    *("compute_capability_major", "compute_capability_minor"),
)


@dataclass(frozen=True)
class Measured:
    """Content that a reader extracted from a report."""

    launches: pl.DataFrame  # A row per kernel, :data:`LAUNCHES`, in the order of the report; event_id counts them
    metrics: pl.DataFrame  # :data:`kanalyze.counter_model.METRICS`
    rules: pl.DataFrame  # :data:`kanalyze.counter_model.RULE_RESULTS`
    notes: Sequence[Note] = field(default=())  # health notes, rows of :data:`kanalyze.model.NOTES`
    #: reads :data:`kanalyze.counter_model.INSTRUCTIONS` on demand, as it is the slowest part
    instructions: Callable[[], pl.DataFrame] = INSTRUCTIONS.empty
    #: reads :data:`kanalyze.counter_model.SOURCE_FILES` on demand
    files: Callable[[], pl.DataFrame] = SOURCE_FILES.empty
    #: :data:`kanalyze.counter_model.LAUNCH_NUMBERS`; empty if unknown
    numbers: pl.DataFrame = field(default_factory=LAUNCH_NUMBERS.empty)


class NcuTables:
    """The tables of a report of ncu; see :class:`kanalyze.schema.Source`."""

    #: The kinds of events that ncu records.
    kinds: tuple[str, ...] = ("kernel",)

    def __init__(self, path: Path, measured: Measured) -> None:
        """Tables of `measured`, read from `path`."""
        self._path, self._measured = path, _sound(measured)

    def events(self, kind: str) -> pl.DataFrame:
        """The kernels; other kinds are not recorded."""
        if kind not in self.kinds:
            return EVENTS.empty()
        duration = (pl.col(_DURATION) + 0.5).floor().cast(pl.Int64, strict=False)
        kernels = self._launches.with_columns(dur_ns=duration, kind=pl.lit("kernel"))
        ends = pl.col("dur_ns").fill_null(0).cum_sum()
        return EVENTS.select(EVENTS.completed(kernels.with_columns(start_ns=ends - pl.col("dur_ns").fill_null(0))))

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            "kernel_config": self._kernel_config,
            "devices": self._devices,
            "processes": lambda: (
                self._measured.launches.drop_nulls("process_id")
                .unique(["process_id", "device"], maintain_order=True)
                .with_columns(name=pl.col("process_name"))
            ),
            "metrics": lambda: self._measured.metrics,
            "rule_results": lambda: self._measured.rules,
            "instructions": self._measured.instructions,
            "source_files": self._measured.files,
            "launch_numbers": lambda: self._measured.numbers,
            "notes": self.notes_of_read,
        }
        return reader_table(name, tables, self._path)

    def close(self) -> None:
        """Release the report from which instructions and source files are read on demand."""
        self._measured = replace(self._measured, instructions=INSTRUCTIONS.empty, files=SOURCE_FILES.empty)

    @cached_property
    def _launches(self) -> pl.DataFrame:
        """The kernels, with a column for each metric that tables need; null where it was not collected."""
        groups = self._measured.metrics.filter(pl.col("metric").is_in(_OF_KERNELS)).group_by("event_id")
        wide = groups.agg(pl.col("value").filter(pl.col("metric") == name).first().alias(name) for name in _OF_KERNELS)
        return self._measured.launches.join(wide, on="event_id", how="left", maintain_order="left")

    def _kernel_config(self) -> pl.DataFrame:
        sizes = pl.col(r"^(grid|block)_[xyz]$")
        rows = self._launches.with_columns(sizes.cast(pl.Int32, strict=False))  # larger values are impossible
        return rows.filter(pl.all_horizontal(sizes.is_not_null())).with_columns(
            pl.col(theirs).cast(KERNEL_CONFIG.schema[ours], strict=False).alias(ours)
            for ours, theirs in _CONFIG.items()
        )

    def _devices(self) -> pl.DataFrame:
        """The GPUs that ran kernels, each described by its first kernel."""
        attribute = pl.col("metric").str.strip_prefix(_ATTRIBUTE)
        of_kernels = self._measured.metrics.filter(pl.col("metric").str.starts_with(_ATTRIBUTE))
        values = of_kernels.join(self._measured.launches.select("event_id", "device"), on="event_id")
        described = (
            values.with_columns(attribute)
            .group_by("device")
            .agg(
                *(pl.col("value").filter(pl.col("metric") == name).first().alias(name) for name in _ATTRIBUTES),
                name=pl.col("text").filter(pl.col("metric") == "display_name").first(),
            )
        )
        used = self._launches.drop_nulls("device")
        ran = used.group_by("device").agg(pl.col("compute_capability").first(), pl.col(_SMS).drop_nulls().first())
        version = (f"compute_capability_{part}" for part in ("major", "minor"))
        bandwidth = pl.col("max_mem_frequency_khz") * _KILO * _DOUBLE_RATE * pl.col("global_memory_bus_width") / _BITS
        limits = {ours: pl.col(theirs) for ours, theirs in _DEVICE.items()} | {
            "sm_count": pl.coalesce("multiprocessor_count", _SMS),
            "memory_bandwidth_bytes_per_s": bandwidth,
            "clock_hz": pl.col("max_gpu_frequency_khz") * _KILO,
        }
        return (
            ran.join(described, on="device", how="left")
            .sort("device")
            .select(
                "device",
                "name",
                pl.coalesce(
                    pl.format("{}.{}", *(pl.col(name).cast(pl.Int64, strict=False) for name in version)),
                    "compute_capability",
                ).alias("compute_capability"),
                **{name: made.cast(pl.Int64, strict=False) for name, made in limits.items()},
            )
        )

    def notes_of_read(self) -> pl.DataFrame:
        """All notes, since everything is read at once."""
        notes, kernel_count = [*self._measured.notes], self._measured.launches.height
        for section, (metric, effect) in _BASIC.items():
            if lacking := kernel_count - self._measured.metrics.filter(metric=metric).get_column("event_id").n_unique():
                sentence = f"{metric} was not collected of {lacking:,} of {kernel_count:,} kernels: {effect}"
                remedy = f"record them with `ncu --section {section}`"
                notes.append((f"kernels without {section}", lacking, None, f"{sentence}; {remedy}"))
        return pl.DataFrame(notes, schema=NOTES.schema, orient="row")


def damaged(path: Path, where: str, what: str) -> DamagedReportError:
    """Error: `what` is wrong in the ncu file at `path`, at `where` (page or file)."""
    return DamagedReportError(
        f"{path}: damaged at {where}: {what}.",
        "Copy the file again, or print it again: `ncu --import REPORT --csv --page details --print-units base`.",
    )


def metrics_frame(rows: pl.DataFrame) -> pl.DataFrame:
    """Builds :data:`kanalyze.counter_model.METRICS` from columns event_id, metric, section, value, text, unit.

    Sorted by kernel and metric, of which the first value counts; our table of sections precedes a given section.
    """
    known = pl.col("metric").replace_strict(SECTION_OF, default=None, return_dtype=pl.String)
    every = rows.with_columns(section=pl.coalesce(known, "section"), unit=pl.when(pl.col("unit") != "").then("unit"))
    return METRICS.select(every.unique(["event_id", "metric"], keep="first").sort("event_id", "metric"))


# Impossible values of a damaged report are removed, and noted in health.

_CYCLES, _CLOCK = "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"

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
_TOLERANCE, _NS = 0.1, 1e9

_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: Most threads per block on any GPU.
_THREADS: Final = 1024


def _sound(measured: Measured) -> Measured:
    """Replaces what cannot be by null, with notes for health."""
    size, share = pl.col(_SIZES), pl.col("speedup_share")
    threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
    of_launches = "a grid or block of 0, or a block of more threads than a GPU takes: they are left out, as if unknown"
    of_rules = "no part of a duration: they are left out"
    launches, odd_launches = _without(measured.launches, size, pl.any_horizontal(size < 1) | (threads > _THREADS))
    rules, odd_rules = _without(measured.rules, share, ~share.is_between(0, 1))
    metrics, odd_metrics = _sound_metrics(measured.metrics)
    names = (_DURATION, _CYCLES, _CLOCK)
    held = metrics.filter(pl.col("metric").is_in(names)).select("event_id", "metric", "value")
    wide = held.pivot(on="metric", on_columns=list(names), index="event_id", values="value", aggregate_function="first")
    by_clock = pl.col(_CYCLES) / pl.col(_CLOCK) * _NS
    contradicting = wide.filter((pl.col(_DURATION) / by_clock - 1).abs() > _TOLERANCE).height
    of_durations = f"{_DURATION} is not {_CYCLES} by {_CLOCK}: one of these is wrong, and what is computed of it"
    odd: list[Note] = [
        ("launch shapes that cannot be", odd_launches, None, of_launches),
        *odd_metrics,
        ("durations that contradict cycles and clock", contradicting, None, of_durations),
        ("estimates that cannot be", odd_rules, None, of_rules),
    ]
    notes = [*measured.notes, *(note for note in odd if note[1])]
    return replace(measured, launches=launches, metrics=metrics, rules=rules, notes=notes)


def _without(frame: pl.DataFrame, columns: pl.Expr, wrong: pl.Expr) -> tuple[pl.DataFrame, int]:
    """Removes the values of `columns` in rows that are `wrong`; and how many those are."""
    wrong = wrong.fill_null(value=False)
    return frame.with_columns(pl.when(~wrong).then(columns)), frame.select(wrong.sum()).item()


def _sound_metrics(metrics: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Replaces impossible metric values by text, with a note for health."""
    value, metric = pl.col("value"), pl.col("metric")
    # differences of two measurements can be slightly negative; the largest are peaks of operations/s, below 1e17
    least, most = (
        metric.replace_strict({name: both[end] for name, both in _LIMITS.items()}, default=usual)
        for end, usual in enumerate((-1.0, 1e18))
    )
    # several times the largest percentage of a peak observed (212 %, of L1)
    percent = metric.str.contains(".avg.pct_of_peak_sustained_", literal=True) & (value > 1000.0)  # noqa: PLR2004
    wrong = (~value.is_between(least, most) | percent).fill_null(value=False)
    absurd = metrics.filter(wrong).sort("event_id", "metric")
    if absurd.is_empty():
        return metrics, []
    first, name, example = absurd.select("event_id", "metric", "value").row(0)
    effect = f"they are left out, as if not collected: the first is {name} = {example:g} of kernel {first}"
    left = metrics.with_columns(
        value=pl.when(~wrong).then("value"), text=pl.when(wrong).then(value.cast(pl.String)).otherwise("text")
    )
    return left, [("metrics with values that cannot be", absurd.height, None, effect)]


# Section and metric labels of the details page, mapped to ncu section and metric names.

_PRINTED: Final = tomllib.loads(Path(__file__).with_name("labels.toml").read_text(encoding="utf-8"))
#: Section identifiers, as for `ncu --section`, by the name printed on the details page.
SECTIONS: Final[dict[str, str]] = _PRINTED["sections"]
#: Metric names by section and label, including labels of older versions.
LABELS: Final[dict[str, dict[str, str]]] = _PRINTED["labels"]

#: The section of each metric: the first one that prints it.
SECTION_OF: Final = {
    "lts__average_gcomp_input_sector_success_rate.pct": "MemoryWorkloadAnalysis",
    "lts__average_gcomp_output_sector_compression_achieved_rate.ratio": "MemoryWorkloadAnalysis",
} | {metric: section for section, labels in reversed(LABELS.items()) for metric in labels.values()}
