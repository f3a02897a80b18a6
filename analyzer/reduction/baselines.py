"""Digests: what a comparison needs of one run, reduced to small tables, and the file of a baseline that holds some."""

from __future__ import annotations

import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_type_hints

import polars as pl
import polars.selectors as cs

from kanalyze.errors import BadBaselineError
from kanalyze.schema import Column, Table
from kanalyze.tools import SIDES

#: The layout of a baseline; one of another version is refused, but for the first, whose times are all as recorded.
VERSION: Final = 2
_FIRST: Final = 1

#: The scope of a run whose steady iterations are compared, and of one that is compared as a whole.
STEADY: Final = "steady"
WHOLE: Final = "whole"

#: What told the iterations of a program without marks.
LAUNCHES: Final = "launches"

#: The part of a recording that a digest is of: its steady part, all of it, or the steady part as launches tell it.
Part: TypeAlias = Literal["steady", "whole", "launches"]

#: How the name of a baseline ends.
SUFFIX: Final = ".kz"

_HEAD: Final = "kanalyze-baseline.json"
_LARGEST_BYTES: Final = 256 << 20

#: No time, size or number is larger, nor below 0; as many as a baseline holds can be summed.
_MOST: Final = 1 << 53

#: What reading a damaged archive, or what is in it, ends with.
_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,  # a flag or method that zipfile does not know, or JSON without end
    OSError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)

BUCKETS = Table(
    "digest_buckets",
    "One bucket of the ledger of a run, by detail.",
    (
        Column("bucket", pl.String, "The ledger's bucket."),
        Column("detail", pl.String, "Its detail.", nullable=True),
        Column("ns", pl.Int64, "Time in all iterations."),
    ),
)

STEPS = Table("digest_steps", "One steady iteration of a run.", (Column("dur_ns", pl.Int64, "Its length."),))

SLOTS = Table(
    "digest_slots",
    "One operation of a typical iteration: the nth of its name and place, in all iterations together.",
    (
        Column("kind", pl.String, "kernel, graph, memcpy or memset."),
        Column("bucket", pl.String, "The ledger's bucket."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column("shape", pl.String, "Grid and block; null for copies.", nullable=True),
        Column("range", pl.String, "The innermost range that launched it.", nullable=True),
        Column("op", pl.String, "The operators that launched it, outermost first.", nullable=True),
        Column("lane", pl.Int64, "Its stream, by the order of first use."),
        Column("place", pl.Float64, "Its mean place in an iteration."),
        Column("count", pl.Int64, "How often it ran."),
        Column("exclusive_ns", pl.Int64, "Device time, each instant counted once."),
        Column("bytes", pl.Int64, "Bytes that it moved; 0 for kernels."),
    ),
)

RANGES = Table(
    "digest_ranges",
    "One part of the iterations of a run by the program's own ranges.",
    (
        Column("range", pl.String, "Its name."),
        Column("count", pl.Int64, "How often."),
        Column("ns", pl.Int64, "Time in all iterations."),
        Column("busy_ns", pl.Int64, "Time of it in which the GPU was busy."),
    ),
)

OPS = Table(
    "digest_ops",
    "One node of the call tree of operators and annotations.",
    (
        Column("path", pl.String, "The operators around it, outermost first, and itself."),
        Column("count", pl.Int64, "Calls."),
        Column("self_host_ns", pl.Int64, "Host time without what it called."),
        Column("device_ns", pl.Int64, "Device time of what it launched itself, in the window of the buckets."),
    ),
)

CALLS = Table(
    "digest_calls",
    "One CUDA call.",
    (
        Column("name", pl.String, "The call.", nullable=True),
        Column("blocking", pl.Boolean, "Whether it waits for the device."),
        Column("count", pl.Int64, "How often."),
        Column("total_ns", pl.Int64, "Sum of its durations."),
    ),
)

MEMORY = Table(
    "digest_memory",
    "One kind of memory.",
    (
        Column("memory", pl.String, "Device, Pinned, Managed…", nullable=True),
        Column("allocations", pl.Int64, "Allocations in all iterations."),
        Column("peak_bytes", pl.Int64, "Most that was in use at once."),
    ),
)

FINDINGS = Table(
    "digest_findings",
    "One finding.",
    (
        Column("rule", pl.String, "Its name."),
        Column("headline", pl.String, "What was found."),
        Column("where", pl.String, "Where it lies.", nullable=True),
        Column("at_stake_ns", pl.Int64, "Time that it takes in all iterations."),
    ),
)

COUNTERS = Table(
    "digest_counters",
    "One counter of the launches of one kernel that ncu measured.",
    (
        Column("name", pl.String, "The kernel.", nullable=True),
        Column("shape", pl.String, "Grid and block.", nullable=True),
        Column("counter", pl.String, "The counter, as a column of `counters` or `roofline`."),
        Column("launches", pl.Int64, "Launches that it was measured of."),
        Column("mean", pl.Float64, "Its mean."),
    ),
)

#: The tables of a digest, by the attribute that holds each.
TABLES: Final = {
    table.name.removeprefix("digest_"): table
    for table in (BUCKETS, STEPS, SLOTS, RANGES, OPS, CALLS, MEMORY, FINDINGS, COUNTERS)
}


@dataclass(frozen=True)
class About:
    """Description of a run beside its tables."""

    name: str  # the report, as it was given
    tool: str  # the tool that wrote it, with its version
    scope: str  # ``steady``, ``whole``, or the window that was asked for
    each: str = ""  # what an iteration is called; empty where there is none
    found_by: str = ""  # how the iterations were found
    iterations: int = 1  # number of iterations that the times are of, 1 where there is none
    #: Number of iterations of that name in the recording, of any kind; 0 where there is none.
    recorded_iterations: int = 0
    ns: int = 0  # length of the window of the device
    gpu: str = ""  # model of the GPU
    driver: str = ""  # version of the driver
    clock_hz: int = 0  # highest clock of the GPU
    program: str = ""  # name of the process
    recorded: str = ""  # kinds of events that were recorded
    rank: int = 0  # rank of the process among those of the run
    turn: int = 0  # place of the run among those of an interleaved collection, from 1; 0 where it was not interleaved
    collection: str = ""  # identifies that collection
    side: str = ""  # the side of that collection
    unprofiled: bool = False  # whether times are those without the profiler, as a run without it tells them

    @property
    def iteration_ns(self) -> float:
        """The mean time of an iteration."""
        return self.ns / self.iterations


@dataclass(frozen=True)
class Digest:
    """One run of one process, reduced to what a comparison needs: :data:`TABLES`, and what the run was.

    Buckets sum to the time of the run, `about.ns`, and operations to the busy buckets.
    """

    about: About
    buckets: pl.DataFrame = field(default_factory=BUCKETS.empty)
    steps: pl.DataFrame = field(default_factory=STEPS.empty)
    slots: pl.DataFrame = field(default_factory=SLOTS.empty)
    ranges: pl.DataFrame = field(default_factory=RANGES.empty)
    ops: pl.DataFrame = field(default_factory=OPS.empty)
    calls: pl.DataFrame = field(default_factory=CALLS.empty)
    memory: pl.DataFrame = field(default_factory=MEMORY.empty)
    findings: pl.DataFrame = field(default_factory=FINDINGS.empty)
    counters: pl.DataFrame = field(default_factory=COUNTERS.empty)

    def ns_in(self, *buckets: str) -> int:
        """Time of all iterations in some buckets."""
        return int(self.buckets.filter(pl.col("bucket").is_in(buckets)).get_column("ns").sum())


def dumped(digests: Sequence[Digest]) -> bytes:
    """The file of a baseline: a zip archive of a JSON head and a Parquet file for each table of all digests."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        head = {"baseline": VERSION, "runs": [asdict(one.about) for one in digests]}
        _add(archive, _HEAD, json.dumps(head, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
        for name, declared in TABLES.items():
            parts = [
                getattr(one, name).with_columns(run=pl.lit(number, dtype=pl.Int32))
                for number, one in enumerate(digests)
            ]
            frame = pl.concat([_with_run(declared).empty(), *parts])
            if frame.height:
                table = io.BytesIO()
                frame.write_parquet(table, compression="zstd", compression_level=19, statistics=False)
                _add(archive, f"{name}.parquet", table.getvalue())
    return made.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds a file without a time, so that equal runs make equal bytes."""
    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)


def loaded(content: bytes, path: Path) -> list[Digest]:
    """The digests of a baseline.

    Raises:
        BadBaselineError: `content` is no baseline, one of another version, or damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()  # the sums of what is in it are checked where that is read
            if other := sorted({*names} - {_HEAD, *(f"{name}.parquet" for name in TABLES)}):
                raise ValueError(f"it holds {other[0]!r}")
            if len({*names}) < len(names):  # a name that is damaged would be a table less
                raise ValueError("it holds a table twice")
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_BYTES:
                raise BadBaselineError.damaged(path, "it is larger than any baseline")
            head = json.loads(archive.read(_HEAD))
            if head.get("baseline") not in (_FIRST, VERSION):
                raise BadBaselineError.version(path, head.get("baseline"), VERSION)
            runs = [_about(run if head["baseline"] == VERSION else run | {"unprofiled": False}) for run in head["runs"]]
            frames = {name: _frame(archive, name, len(runs)) for name in TABLES}
    except _DAMAGE as why:
        raise BadBaselineError.damaged(path, str(why).partition("\n")[0]) from None
    found = [
        Digest(about, **{name: frame.filter(pl.col("run") == number).drop("run") for name, frame in frames.items()})
        for number, about in enumerate(runs)
    ]
    if not found or not all(map(_adds_up, found)):
        raise BadBaselineError.damaged(path, "its buckets do not add up to the time of its runs")
    return found


def _adds_up(digest: Digest) -> bool:
    """Whether buckets sum to the run, and operations to their buckets."""
    sums = dict(digest.buckets.group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    busy = digest.slots.group_by("bucket").agg(pl.col("exclusive_ns").sum()).iter_rows()
    return sum(sums.values()) == digest.about.ns and all(ns == sums.get(bucket, 0) for bucket, ns in busy)


def _about(said: dict[str, object]) -> About:
    types = get_type_hints(About)
    known = {one.name for one in fields(About)}
    wrong = {name for name, value in said.items() if name not in known or type(value) is not types[name]}
    if wrong := wrong | (known - {*said}):
        raise ValueError(f"a run has no {', '.join(sorted(wrong))} of that type")
    far = [name for name, value in said.items() if isinstance(value, int) and not 0 <= value <= _MOST]
    if far:
        raise ValueError(f"the {far[0]} of a run is out of range")
    about = About(**said)  # type: ignore[arg-type]  # checked above
    if about.turn and about.side not in SIDES:
        raise ValueError(f"a run has a turn of {about.side!r}")
    if about.iterations < 1:
        raise ValueError("a run has no iterations")
    return about


def _frame(archive: zipfile.ZipFile, name: str, runs: int) -> pl.DataFrame:
    declared = _with_run(TABLES[name])
    if f"{name}.parquet" not in archive.namelist():
        return declared.empty()
    frame = declared.check(pl.read_parquet(io.BytesIO(archive.read(f"{name}.parquet"))))
    if not frame.get_column("run").is_between(0, runs - 1).all():
        raise ValueError(f"{name} has rows of no run")
    if not frame.select(pl.all_horizontal(cs.numeric().is_between(0, _MOST).all())).item():
        raise ValueError(f"{name} has a number out of range")
    return frame


def _with_run(declared: Table) -> Table:
    return Table(declared.name, declared.doc, (*declared.columns, Column("run", pl.Int32, "The run, from 0.")))
