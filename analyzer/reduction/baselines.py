"""Digests: what a comparison needs of one run, reduced to small tables, and the file of a baseline that holds some."""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import polars as pl
import polars.selectors as cs

from kanalyze import errors, reduction, schema, tools

#: The layout of a baseline; what one added to the description of a run, or to a table, is unknown in earlier ones.
VERSION: Final = 4

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

#: No time, size or number is larger, nor below 0; as many as a baseline holds can be summed.
_MOST: Final = 1 << 53
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

#: What reading a damaged archive, or what is in it, ends with: zipfile, JSON and polars raise a dozen kinds.
_DAMAGE: Final = (Exception, pl.exceptions.PanicException)

#: The tables of a digest, by the attribute that holds each; times and numbers are of all iterations together.
TABLES: Final = reduction.declared("digest", """
    buckets: One bucket of the ledger of a run, by detail.
        bucket text: The ledger's bucket.
        detail text?: Its detail.
        ns int: Time in all iterations.
    steps: One steady iteration of a run.
        dur_ns int: Its length.
    slots: One operation of a typical iteration: the nth of its name and place, in all iterations together.
        kind text: kernel, graph, memcpy or memset.
        bucket text: The ledger's bucket.
        name text?: Its name.
        shape text?: Grid and block; null for copies.
        range text?: The innermost range that launched it.
        op text?: The operators that launched it, outermost first.
        lane int: Its stream, by the order of first use.
        place float: Its mean place in an iteration.
        count int: How often it ran.
        exclusive_ns int: Device time, each instant counted once.
        bytes int: Bytes that it moved; 0 for kernels.
    ranges: One part of the iterations of a run by the program's own ranges.
        range text: Its name.
        count int: How often.
        ns int: Time in all iterations.
        busy_ns int: Time of it in which the GPU was busy.
    ops: One node of the call tree of operators and annotations.
        path text: The operators around it, outermost first, and itself.
        count int: Calls.
        self_host_ns int: Host time without what it called.
        device_ns int: Device time of what it launched itself, in the window of the buckets.
    calls: One CUDA call.
        name text?: The call.
        blocking bool: Whether it waits for the device.
        count int: How often.
        total_ns int: Sum of its durations.
    memory: One kind of memory.
        memory text?: Device, Pinned, Managed…
        allocations int: Allocations in all iterations.
        peak_bytes int: Most that was in use at once.
    findings: One finding.
        rule text: Its name.
        headline text: What was found.
        where text?: Where it lies.
        at_stake_ns int: Time that it takes in all iterations.
    counters: One counter of the launches of one kernel that ncu measured.
        name text?: The kernel.
        shape text?: Grid and block.
        counter text: The counter, as a column of `counters` or `roofline`.
        launches int: Launches that it was measured of.
        mean float: Its mean.
    engine: One step of a serving engine.
        kind text: Its kind.
        size int?: The power of two that holds its batch.
        requests int?: Its requests.
        tokens int?: Its tokens.
        kv_tokens int?: Tokens whose keys and values it reads.
        ns int: Its time, with the gap before it.
        busy_ns int: Of that, the time in which the GPU ran anything.
""")  # fmt: skip
BUCKETS, STEPS, SLOTS, RANGES, OPS, CALLS, MEMORY, FINDINGS, COUNTERS, ENGINE = TABLES.values()

#: The same as they are stored.
_RUN: Final = schema.Column("run", pl.Int32, "The run, from 0.")
_STORED: Final = {name: replace(table, columns=(*table.columns, _RUN)) for name, table in TABLES.items()}


@dataclass(frozen=True)
class About:
    """Description of a run beside its tables."""

    name: str  # the report, as it was given
    tool: str  # the tool that wrote it, with its version
    scope: str  # ``steady``, ``whole``, or the window that was asked for
    each: str = ""  # what an iteration is called; empty where there is none
    found_by: str = ""  # how the iterations were found
    iterations: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 1  # that the times are of, 1 where there is none
    #: Number of iterations of that name in the recording, of any kind; 0 where there is none.
    recorded_iterations: _Count = 0
    ns: _Count = 0  # length of the window of the device
    gpu: str = ""  # model of the GPU
    driver: str = ""  # version of the driver
    clock_hz: _Count = 0  # highest clock of the GPU
    program: str = ""  # name of the process
    recorded: str = ""  # kinds of events that were recorded
    rank: _Count = 0  # rank of the process among those of the run
    turn: _Count = 0  # place of the run in an interleaved collection, from 1; 0 where it was not interleaved
    collection: str = ""  # identifies that collection
    side: str = ""  # the side of that collection
    unprofiled: bool = False  # whether times are those without the profiler, as a run without it tells them
    least_ns: _Count = 0  # what an iteration takes without the profiler, by estimate; 0 where that is not told
    most_ns: _Count = 0  # the upper end of that range
    #: Kernel time of an iteration by that of all steady ones; 0 where that is not told.
    typical: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    @property
    def tools_name(self) -> str:
        """The tool without its version."""
        return self.tool.partition(" ")[0]

    @property
    def times(self) -> str:
        """Whether times are ``without the profiler`` or ``as recorded``; empty of a tool that records no timeline."""
        if not tools.tool_of(self.tools_name).timed:
            return ""
        return "without the profiler" if self.unprofiled else "as recorded"

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
    engine: pl.DataFrame = field(default_factory=ENGINE.empty)

    def ns_in(self, *buckets: str) -> int:
        """Time of all iterations in some buckets."""
        return int(self.buckets.filter(pl.col("bucket").is_in(buckets)).get_column("ns").sum())


def dumped(digests: Sequence[Digest]) -> bytes:
    """The file of a baseline: a zip archive of a JSON head and a Parquet file for each table of all digests."""
    head = {"baseline": VERSION, "runs": [asdict(run.about) for run in digests]}
    files = {_HEAD: json.dumps(head, indent=1, ensure_ascii=False).encode(errors="backslashreplace")}
    for name, table in _STORED.items():
        parts = [getattr(run, name).with_columns(run=pl.lit(at, dtype=pl.Int32)) for at, run in enumerate(digests)]
        frame = pl.concat([table.empty(), *parts])
        if frame.height:
            frame.write_parquet(content := io.BytesIO(), compression="zstd", compression_level=19, statistics=False)
            files[f"{name}.parquet"] = content.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, file in files.items():  # without a time, so that equal runs make equal bytes
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), file)
    return buffer.getvalue()


def loaded(content: bytes, path: Path) -> list[Digest]:
    """The digests of a baseline; BadBaselineError if `content` is no baseline, one of another version, or damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()  # the sums of what is in it are checked where that is read
            if other := sorted({*names} - {_HEAD, *(f"{name}.parquet" for name in TABLES)}):
                raise ValueError(f"it holds {other[0]!r}")
            if len({*names}) < len(names):  # a name that is damaged would be a table less
                raise ValueError("it holds a table twice")
            if sum(entry.file_size for entry in archive.infolist()) > (256 << 20):
                raise errors.BadBaselineError.damaged(path, "it is larger than any baseline")
            head = json.loads(archive.read(_HEAD))
            if (version := head.get("baseline")) not in range(1, VERSION + 1):
                raise errors.BadBaselineError.version(path, version, VERSION)
            runs = [_possible(run) for run in msgspec.convert(head["runs"], list[About])]
            frames = {name: _frame(archive, name, len(runs)) for name in TABLES}
    except _DAMAGE as why:
        if isinstance(why, errors.BadBaselineError):
            raise
        raise errors.BadBaselineError.damaged(path, str(why).partition("\n")[0]) from None
    digests = [
        Digest(about, **{name: frame.filter(pl.col("run") == number).drop("run") for name, frame in frames.items()})
        for number, about in enumerate(runs)
    ]
    if not digests or not all(map(_adds_up, digests)):
        raise errors.BadBaselineError.damaged(path, "its buckets do not add up to the time of its runs")
    return digests


def _adds_up(digest: Digest) -> bool:
    """Whether buckets sum to the run, and operations to their buckets."""
    busy = digest.slots.group_by("bucket").agg(pl.col("exclusive_ns").sum()).iter_rows()
    return digest.buckets["ns"].sum() == digest.about.ns and all(ns == digest.ns_in(bucket) for bucket, ns in busy)


def _possible(run: About) -> About:
    """The description of a run, unless it says what cannot be."""
    if run.turn and run.side not in tools.SIDES:
        raise ValueError(f"a run has a turn of {run.side!r}")
    if run.least_ns > run.most_ns:
        raise ValueError("a run takes more at least than at most")
    return run


def _frame(archive: zipfile.ZipFile, name: str, runs: int) -> pl.DataFrame:
    """A table of all runs, each of whose rows is of one of them."""
    if f"{name}.parquet" not in archive.namelist():
        return _STORED[name].empty()
    table = _STORED[name]
    rows = table.completed(pl.read_parquet(archive.read(f"{name}.parquet")))
    frame = table.check(rows.select(*table.schema, pl.exclude(*table.schema)))
    if not frame.get_column("run").is_between(0, runs - 1).all():
        raise ValueError(f"{name} has rows of no run")
    if not frame.select(pl.all_horizontal(cs.numeric().is_between(0, _MOST).all())).item():
        raise ValueError(f"{name} has a number out of range")
    return frame
