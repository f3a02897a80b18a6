"""Launches of each process in the order of their calls, with codes that are equal for equal work.

Beside them those by which a library times kernels to choose among them, as torch.compile and Triton do.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import launch_shapes, launches_of, launching_by_start, operations, with_facts
from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.iterations._marks import HALF, of_process
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.columns import count_up_to, gathered, in_order, mixed, parts_by, positions, rows_at
from kanalyze.intervals import AFTER_ALL
from kanalyze.report import Report

#: Names of copies between host and device.
_HOST_COPY: Final = r"Host-to-Device|Device-to-Host"

#: How many values a thread of a PyTorch kernel loads at once, which the address of the data decides; and what runs the
#: same function where it allows none but one.
_WIDTH: Final = r"(vectorized\w*kernel\w*<)(?:\(int\))?\d+"
_ARRAY: Final = r", (?:std::array|at::detail::Array)<"
_ALIGNED: Final = rf"(vectorized_elementwise_kernel<)#, (.*?){_ARRAY}.*"
_UNALIGNED: Final = rf"unrolled_elementwise_kernel<(.*?){_ARRAY}.*LoadWithoutCast.*"

#: Columns that a launch takes from the first of its operations, and sums over all of them.
_FIRST: Final = ("thread_id", "device", "since", "until", "copies", "input", "optimizer", "fill")
_SUMMED: Final = ("ns", "work_ns", "exact", "alike", "loose", "blocks")

#: Names of kernels with which a training step ends, and those of others among them: of lists of tensors that are
#: copied, cleared, scaled or measured.
_OPTIMIZER: Final = r"(?i)adam|sgd|lamb_|adagrad|rmsprop|optimizer|multi_tensor_apply"
_NO_OPTIMIZER: Final = r"(?i)hadamard|multi_tensor_apply.*(?:copy|zero|norm|unscale|non_?finite)"

#: Fewest launches that are timed after fills of one size, and most launches between two fills.
_FEWEST: Final = 50
_TIMED: Final = 16

#: A fill by PyTorch, of which a block writes so many values at least; the least values in one that may clear a cache.
_CLEARS: Final = "FillFunctor"
_BLOCK: Final = 512
_VALUES: Final = 1 << 20

#: A run that is followed by the next one after more than so many times the usual distance ends with its last event.
_PAUSE: Final = 3

_RECORDS: Final = re.compile(r"(?:cuda|cu)EventRecord")
#: Calls that no such run has: waits, copies, and graphs, which hold many kernels.
_OTHERS: Final = re.compile(r"(?:cuda|cu)(?:StreamWaitEvent|(?:Event|Stream|Device|Ctx)Synchronize|Memcpy|GraphLaunch)")

_RUNS: Final = {"process_id": pl.Int64, "start": pl.Int64, "end": pl.Int64}


def launch_lines(report: Report) -> dict[int | None, pl.DataFrame]:
    """Launches by process, in the order of their calls, with everything that one call launched as one launch.

    Columns: thread_id, device, since and until (its call; the operation itself in a process whose calls are unknown),
    ns (summed durations of its operations), work_ns (of its kernels and graphs), exact (number for names and shapes),
    alike (for names alone), loose (for names without the numbers in them), blocks (of its kernels), copies (between
    host and device), input (a copy to the device), optimizer (a kernel that updates parameters), fill (of memory),
    graph (or several operations at once), waited (how often the host waited for the device, or a copy, before).
    """
    names = names_that(report, lambda name: bucket_of(name) == "sync")
    waits, lines = report.kind("api").filter(pl.col("name").is_in(names)).select("process_id", at="start_ns"), {}
    for (process,), part in parts_by(_coded(report), ["process_id"]).items():
        line, at = _line(part), waits.filter(of_process(process)).get_column("at").sort()
        waited = count_up_to(at, line.get_column("since"), equal=False)
        lines[process] = line.with_columns(waited.alias("waited"))
    return lines


def _coded(report: Report) -> pl.DataFrame:
    """Every operation with its call, its codes and its size: without what unified memory moved by itself."""
    work, kind = operations(report), pl.col("kind")
    work = work.hstack(_attributes(work.get_column("name")))
    work = work.filter(~pl.col("unified")) if work.get_column("unified").any() else work
    work = with_facts(report, work, "call_row", "thread_id", "call_start", "call_end", "shape", "size_bytes")
    codes = work.select(kind.to_physical(), "shape", "size_bytes", "named", "masked").select(
        exact=mixed(("kind", "named", "shape", "size_bytes")),
        alike=mixed(("kind", "named")),
        loose=mixed(("kind", "masked")),
    )
    grid = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    blocks = gathered(launch_shapes(report).select(blocks=grid).to_series(), work.get_column("shape"))
    ns, ran = pl.col("dur_ns").clip(lower_bound=0).fill_null(0), kind.is_in(("kernel", "graph"))
    return work.select(
        *("row", "start", "end", "process_id", "device", "call_row", "thread_id", "fill"),
        *codes.get_columns(),
        blocks.fill_null(0),
        since="call_start",
        until="call_end",
        ns=ns,
        work_ns=pl.when(ran).then(ns).otherwise(0),
        copies=pl.col("copies") & (kind == "memcpy"),
        input=pl.col("input") & (kind == "memcpy"),
        optimizer=pl.col("optimizer") & ran,
        graph=kind == "graph",
    )


def _attributes(names: pl.Series) -> pl.DataFrame:
    """Of each name its number, that of the name without the numbers in it, and which patterns it has.

    Each different name is looked at once. Columns: named, masked, unified, copies, input, optimizer, fill.
    """
    different = names.unique().drop_nulls().alias("name").to_frame().sort(pl.col("name").to_physical())
    name = pl.col("name").cast(pl.String)
    named = name.str.replace(_WIDTH, "${1}#").str.replace(_ALIGNED, "${1}${2}")
    named = named.str.replace(_UNALIGNED, "vectorized_elementwise_kernel<${1}")
    patterns = {"unified": r"Unified", "copies": _HOST_COPY, "input": r"Host-to-Device", "fill": r"(?i)fill|memset"}
    told = different.select(
        named.rank("dense").cast(pl.UInt32).alias("named"),
        named.str.replace_all(r"\d+", "#").rank("dense").cast(pl.UInt32).alias("masked"),
        (name.str.contains(_OPTIMIZER) & ~name.str.contains(_NO_OPTIMIZER)).alias("optimizer"),
        *(name.str.contains(like).alias(key) for key, like in patterns.items()),
    )
    at = positions(different.get_column("name").to_physical(), names.to_physical())
    return rows_at(told, at).with_columns(
        pl.col("named", "masked").fill_null(0), pl.col("optimizer", *patterns).fill_null(value=False)
    )


def _line(part: pl.DataFrame) -> pl.DataFrame:
    """The launches of one process."""
    called = part.get_column("since").is_not_null()
    if called.sum() < HALF * part.height:
        part = part.with_columns(since="start", until="end", call_row="row")
    elif not called.all():
        part = part.filter(called)
    part = in_order(part.with_columns(pl.max_horizontal("since", "until").alias("until")), "since")
    call = part.get_column("call_row")
    if (call == call.shift(1)).any():
        # nodes of one graph may run in any order: sums do not depend on it
        together = part.group_by("call_row", maintain_order=True)
        part = together.agg(pl.col(*_FIRST).first(), pl.col(*_SUMMED).sum(), pl.col("graph").first() | (pl.len() > 1))
    return part.drop("call_row", "start", "end", "row", "process_id", strict=False)


def with_begins(line: pl.DataFrame) -> pl.DataFrame:
    """Adds what tells where an iteration begins: gap, fresh, updated and returned.

    The time from the end of the call before to the start of each launch's own, in ns; whether a copy to the device
    begins with it; and whether an update, or a copy to the host, ended before it.
    """
    out = pl.col("copies") & ~pl.col("input")
    before = pl.when(out).then(None).otherwise("optimizer").forward_fill().shift(1, fill_value=False)
    return line.with_columns(
        gap=(pl.col("since") - pl.col("until").shift(1)).clip(lower_bound=0),
        fresh=pl.col("input") & ~pl.col("input").shift(1, fill_value=False),
        updated=~pl.col("optimizer") & ~out & before.fill_null(value=False),
        returned=~out & out.shift(1, fill_value=False),
    )


def without_timed(line: pl.DataFrame) -> pl.DataFrame:
    """A line of launches without those that are timed; the line itself where there are none.

    Before each of them the cache is cleared, by a fill of always the same size. What is between two such fills is timed
    if it is short, and the same as before the first or after the second of them: each kernel is timed several times.
    """
    counts = line.filter("fill").get_column("exact").value_counts(name="number")
    for code in counts.filter(pl.col("number") >= _FEWEST).get_column("exact").sort():
        number = (line.get_column("exact") == code).cum_sum().alias("fill")
        after = line.select(number, "exact").filter(pl.col("fill") > 0)
        parts = after.group_by("fill", maintain_order=True).agg(pl.len(), word=pl.col("exact").sum())
        same = (pl.col("word") == pl.col("word").shift(1)) | (pl.col("word") == pl.col("word").shift(-1))
        timed = parts.filter((pl.col("len") <= _TIMED + 1) & same).get_column("fill")
        line = line if len(timed) < _FEWEST else line.filter(~number.is_in(timed.implode()))
    return line


@once_per_process
def timed_runs(report: Report) -> pl.DataFrame:
    """The runs of kernels that were timed, by the calls of the host: process_id, start and end, sorted.

    A run begins with a fill by PyTorch of at least :data:`_VALUES` values, and ends where the next one begins, or, if
    that is far, with its last event. After the fill come up to :data:`_TIMED` launches, with CUDA events recorded
    before and after them, as `triton.testing.do_bench` and autotuners do, and none of the calls :data:`_OTHERS`. There
    are at least :data:`_FEWEST` runs of a process with the same fill.
    """
    found, recording = [pl.DataFrame(schema=_RUNS)], names_that(report, _RECORDS.match)
    names = operations(report).get_column("name").unique() if recording else pl.Series(dtype=pl.String)
    names = names.filter(names.cast(pl.String).str.contains(_CLEARS, literal=True).fill_null(value=False))
    fills = operations(report).filter(pl.col("name").is_in(names.implode())).select("row", "process_id")
    fills = with_facts(report, fills, "call_start").drop_nulls("call_start")
    if fills.height < _FEWEST:
        return found[0]
    calls = report.kind("api").select("process_id", "name", at="start_ns")
    records, others = (
        calls.filter(pl.col("name").is_in(own)) for own in (recording, names_that(report, _OTHERS.match))
    )
    recorded = 0  # after so many fills their process records an event before it launches more
    for process in launching_by_start(report):
        own = fills.filter(of_process(process)).get_column("call_start")
        at = records.filter(of_process(process)).get_column("at").sort()
        recorded += int((_next(at, own) < _next(launches_of(report, process, "call_start").to_series(), own)).sum())
    for process, launches in launch_lines(report).items() if recorded >= _FEWEST else ():
        own = fills.filter(of_process(process)).get_column("call_start")
        clears = pl.col("since").is_in(own.implode()) & (pl.col("blocks") * _BLOCK >= _VALUES)
        line = launches.with_columns(clears=clears)
        times = [some.filter(of_process(process)).get_column("at").sort() for some in (records, others)]
        many = line.filter("clears").group_by("exact").len().filter(pl.col("len") >= _FEWEST)
        for code in many.get_column("exact").sort():
            runs = _runs(line, (line.get_column("exact") == code) & line.get_column("clears"), *times)
            if runs.height >= _FEWEST:
                found.append(runs.select(process_id=pl.lit(process, dtype=pl.Int64), start="start", end="end"))
    return pl.concat(found).sort("process_id", "start")


def _next(times: pl.Series, after: pl.Series) -> pl.Series:
    """The first of `times`, which are sorted, after each of `after`; :data:`AFTER_ALL` for none."""
    ends = pl.Series([AFTER_ALL], dtype=pl.Int64)
    return pl.concat([times, ends]).gather(count_up_to(times, after, equal=True))


def _runs(line: pl.DataFrame, clears: pl.Series, records: pl.Series, others: pl.Series) -> pl.DataFrame:
    """Start and end of the runs after the fills `clears`; `records` and `others` are times of calls."""
    fills = clears.arg_true()
    stops = fills.shift(-1, fill_value=line.height)
    short = (stops - fills).is_between(2, _TIMED + 1)
    fills, stops = fills.filter(short), stops.filter(short)
    since, until = (line.get_column(side) for side in ("since", "until"))
    then = gathered(since, stops.set(stops == line.height, None)).fill_null(AFTER_ALL)
    ended, first = until.gather(stops - 1), since.gather(fills + 1)
    before, after = _next(records, until.gather(fills) - 1), _next(records, ended - 1)
    runs = pl.DataFrame({"start": since.gather(fills), "then": then, "after": after})
    calm = count_up_to(others, after, equal=False) == count_up_to(others, since.gather(fills), equal=False)
    runs = runs.filter((before < first) & (after < then) & calm)
    distance = pl.col("then") - pl.col("start")
    near = distance <= _PAUSE * distance.median()
    return runs.select("start", end=pl.when(near).then("then").otherwise("after"))
