"""Reduction of a report to what the analysis of a job needs of its ranks, and of many reductions to the tables of one.

A rank is a process on a GPU; one that communicates on several GPUs is a rank on each. Times of a reduction are Unix
times by the clock of its host, so that reports of one host need no correction.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from kanalyze import errors, intervals, outlets
from kanalyze.analyses.communication._matching import NO_ID, NO_SEQUENCE, Ints, Rows, Small, narrow
from kanalyze.analyses.communication._recorded import collectives_of, collectives_on_cpu, exposed_pieces
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules.host_computes import getting_batches
from kanalyze.analyses.idle._attribution import idle_within, window_ledgers
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.iterations import _marks, iterations
from kanalyze.analyses.iterations.phases import SteadyPart, steady_part
from kanalyze.analyses.replay._unprofiled import earliest_starts
from kanalyze.analyses.shared import analysis, statistics, threads
from kanalyze.reduction.tables import COLLECTIVES, IN_LOADER, LATER, RANKS, STEPS, TABLES, Reduction
from kanalyze.report import Report

#: What collectives of one group on a rank have in common.
_GROUP: Final = ("group", "size", "ranks", "stream")

#: Names of kernels that are kept of a rank.
_KERNELS: Final = 64


def reduced(report: Report) -> Reduction:
    """The reduction of all ranks of a report; empty where it records no work on a GPU, and no collectives of gloo."""
    origin = report.meta.origin_unix_ns or 0
    parts = [_of_rank(one) for one in _ranks_on_gpus(report)] or _ranks_on_cpu(report)
    reduction: Reduction = {}
    for name, declared in TABLES.items():
        moved = [pl.col(time) + origin for time in ("start_ns", "end_ns") if time in declared.schema]
        tables = [part[name].with_columns(*moved, member=pl.lit(at)) for at, part in enumerate(parts) if name in part]
        reduction |= {name: pl.concat(map(declared.select, tables))} if tables else {}
    return reduction


def _ranks_on_gpus(report: Report) -> list[Report]:
    """The report narrowed to each of its ranks: processes that use a GPU, of several those that communicate on it."""
    by_rank, talks = operations(report).group_by("process_id", "device"), pl.col("bucket") == "communication"
    used = by_rank.agg(talks=talks.any(), ns=pl.col("dur_ns").sum())
    main = pl.col("ns") == pl.col("ns").max().over("process_id")
    mine = pl.col("talks") | (main & ~pl.col("talks").any().over("process_id"))
    ranks = used.filter(mine).sort("device", "process_id")
    if not ranks.get_column("talks").any():  # one process may only have helped
        ranks = ranks.filter(pl.col("ns") == pl.col("ns").max().over("device"))
    return [report.narrow(process=process, device=device) for process, device in ranks[["process_id", "device"]].rows()]


def _ranks_on_cpu(report: Report) -> list[dict[str, pl.DataFrame]]:
    """The tables of the rank of a report of collectives on the CPU, such as those of gloo; none without any."""
    collectives = collectives_on_cpu(report).sort("start_ns")
    if collectives.is_empty():
        return []
    span = collectives.select(pl.col("start_ns").first(), end_ns=intervals.END.max()).row(0)
    steps = report.steps().select(
        "step",
        index=pl.int_range(pl.len()),
        numbered=pl.lit(value=True),
        name=pl.lit("step"),
        kind=pl.lit("steady"),
        start_ns="start",
        end_ns="end",
    )
    none = [pl.lit(None).alias(name) for name in COLLECTIVES.schema if name not in collectives.columns]
    line = collectives.with_columns(*none).with_columns(number=pl.int_range(pl.len()))
    line = intervals.first_come(line.with_columns(**intervals.OF_EVENTS))
    line = line.with_columns(exposed_ns=pl.col("own_end") - pl.col("own_start"), size=pl.lit(report.meta.world_size))
    own = line.select("number", start="own_start", end="own_end").filter(pl.col("end") > pl.col("start"))
    pieces = _cut_at(own, steps)
    # the ledger of each step: communication, and the rest as the host's
    moved = pieces.group_by(index="step").agg(communication=(pl.col("end_ns") - pl.col("start_ns")).sum())
    ledgers = steps.join(moved, on="index", how="left").with_columns(pl.col("communication").fill_null(0))
    ledgers = ledgers.with_columns(host=pl.col("end_ns") - pl.col("start_ns") - pl.col("communication"))
    ledgers = ledgers.unpivot(["communication", "host"], index="index", variable_name="bucket", value_name="ns")
    return [
        {
            "ranks": _rank(report, span, process_id=collectives.item(0, "process_id")),
            "collectives": line,
            "pieces": pieces,
            "steps": steps,
            "ledgers": ledgers.filter(pl.col("ns") > 0).sort("index", "bucket"),
        }
    ]


def _of_rank(report: Report) -> dict[str, pl.DataFrame]:
    """The tables of a rank, a report narrowed to its process and GPU, in the report's time and without the member."""
    device, process = report.scope.device, report.scope.process
    steady, collectives = steady_part(report), _collectives(report)
    steps = _steps(report, steady)
    spans = steps.rename({"start_ns": "start", "end_ns": "end"})
    on_device, talks = pl.col("device") == device, pl.col("bucket") == "communication"
    window, gpu = (
        windows(report).filter(on_device).select("start", "end"),
        report.devices.filter(on_device).get_column("name"),
    )
    facts = {
        "process_id": process,
        "device": device,
        "gpu": next(iter(gpu), None),
        "communication_ns": int(bucket_sums(report).filter(on_device, talks).get_column("ns").sum()),
        "on_cpu": collectives_on_cpu(report).filter(pl.col("process_id").eq_missing(process)).height,
    }
    work = operations(report).filter(on_device, pl.col("bucket") == "kernel")
    own = collectives.select("number", "exposed_ns", start="own_start", end="own_end")
    # by how much the recorder delayed each collective since its group's previous one on the rank, at most
    timed = collectives.join(earliest_starts(report), on="event_id", how="inner", maintain_order="left")
    end, until = (pl.col(start) + pl.col("dur_ns") for start in ("start_ns", "moved"))
    sides = (("start_ns", end), ("moved", pl.coalesce("until", until)))
    recorded, new = ((pl.col(start) - ends.shift(1).over(_GROUP)).clip(lower_bound=0) for start, ends in sides)
    return {
        "ranks": _rank(report, window.row(0) if window.height else (0, 0), **facts),
        "collectives": collectives,
        "pieces": _cut_at(exposed_pieces(own, work), steps),  # their times sum to exposed_ns
        "before": _before(report, collectives),
        "costs": timed.select("number", delay_ns=(recorded - new).clip(lower_bound=0)).drop_nulls(),
        "steps": steps,
        "ledgers": _in_spans(report, spans, "index"),
        "kernels": _kernels(report, steady),
    }


def _rank(report: Report, span: tuple[int, int], **facts: object) -> pl.DataFrame:
    """The row of :data:`RANKS` of a rank whose window is `span`."""
    meta = report.meta
    row = {
        "rank": meta.rank,
        "world_size": meta.world_size,
        "report": outlets.name(meta.path),
        "tool": meta.tool,
        "origin_ns": meta.origin_unix_ns or 0,
        "start_ns": span[0],
        "end_ns": span[1],
        "communication_ns": 0,
        "on_cpu": 0,
        "recorded": analysis.recorded_kinds(report),
        "corrected": meta.slower is not None,
        **facts,
    }
    return pl.DataFrame([row], schema=RANKS.schema)


def _collectives(report: Report) -> pl.DataFrame:
    """The collectives of a rank, with the part of each that no earlier one covers: own_start, own_end."""
    work = exclusive_operations(report).filter(pl.col("bucket") == "communication")
    line = intervals.first_come(work.sort("began", "event_id"))
    described = line.with_columns(collectives_of(report, line).drop("event_id"))
    return described.with_columns(
        number=pl.int_range(pl.len()),
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
        exposed_ns="exclusive_ns",
    )


def _cut_at(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The pieces cut where steps begin or end, with the step that each lies in."""
    spans = steps.select(start="start_ns", end="end_ns", step="index").sort("start")
    cut = threads.overlaid(pieces.sort("start"), spans, "step")
    return cut.select("number", "step", start_ns="start", end_ns="end").sort("number", "start_ns")


def _before(report: Report, collectives: pl.DataFrame) -> pl.DataFrame:
    """The ledger from the end of the group's previous collective on the rank to the start of each.

    What the host was in DataLoader of the bucket host is in rows of its own.
    """
    since = intervals.END.shift(1).over(_GROUP)
    spans = collectives.select("number", start=since, end="start_ns").filter(pl.col("end") > pl.col("start"))
    ledgers = _in_spans(report, spans, "number").with_columns(detail=pl.lit(None, dtype=pl.String))
    batches = getting_batches(report) if spans.height else pl.DataFrame()
    idle = idle_within(report, batches).get(report.scope.device or 0) if batches.height else None
    if idle is None:
        return ledgers
    waits = intervals.union(idle.filter(pl.col("bucket") == "host").select("start", "end"))
    loads = spans.select("number", bucket=pl.lit("host"), inside=intervals.covered(spans, waits))
    loads = loads.filter(pl.col("inside") > 0)
    rest = ledgers.join(loads, on=["number", "bucket"], how="left")
    rest = rest.with_columns(ns=pl.col("ns") - pl.col("inside").fill_null(0)).filter(pl.col("ns") > 0)
    loads = loads.rename({"inside": "ns"}).with_columns(detail=pl.lit(IN_LOADER))
    return pl.concat([one.select(ledgers.columns) for one in (rest, loads)]).sort("number", maintain_order=True)


def _in_spans(report: Report, spans: pl.DataFrame, key: str) -> pl.DataFrame:
    """The ledger of the rank in each of `spans` (start, end), a row per bucket with any time: `key`, bucket, ns."""
    sums = window_ledgers(report, spans.select("start", "end")).filter(pl.col("device") == report.scope.device)
    wide = spans.select(key).with_row_index("window").join(sums, on="window", how="inner", maintain_order="left")
    columns = [f"{bucket}_ns" for bucket in statistics.BUCKETS]
    long = wide.unpivot(columns, index=key, variable_name="bucket", value_name="ns").filter(pl.col("ns") > 0)
    return long.with_columns(pl.col("bucket").str.strip_suffix("_ns")).sort(key, maintain_order=True)


def _steps(report: Report, steady: SteadyPart | None) -> pl.DataFrame:
    """The steps of a rank by when the GPU did their work."""
    if steady is None:
        return STEPS.empty()
    rows = steady.rows.filter(pl.col("name") == steady.each).sort("start_ns")
    work = _marks.launched_work(report)
    ends = rows.get_column("start_ns") + rows.get_column("dur_ns")
    number = pl.col("window").str.extract(r"^step:(\d+)$").cast(pl.Int64)
    marked = rows.select(
        "name",
        "kind",
        step=pl.coalesce(number, "index"),
        numbered=number.is_not_null(),
        start_ns=iterations.done_before(work, rows.get_column("start_ns")),
        end_ns=iterations.done_before(work, ends),
    )
    return marked.filter(pl.col("end_ns") > pl.col("start_ns")).with_columns(index=pl.int_range(pl.len()))


def _kernels(report: Report, steady: SteadyPart | None) -> pl.DataFrame:
    """The kernels that took longest, by name, and all others as one, in the steady part, or in all of the recording."""
    part = report if steady is None else report.narrow(window=steady.window)
    work = exclusive_operations(part).filter(pl.col("kind").cast(pl.String).is_in(["kernel", "graph"]))
    sums = work.group_by("name").agg(count=pl.len(), ns=(pl.col("end") - pl.col("start")).sum())
    best = sums.with_columns(pl.col("name").cast(pl.String)).sort("ns", "name", descending=[True, False])
    others = best.slice(_KERNELS).select(pl.lit(None, dtype=pl.String).alias("name"), pl.col("count", "ns").sum())
    kept = pl.concat([best.head(_KERNELS), others.filter(pl.col("count") > 0)])
    return kept.with_columns(per_step=pl.lit(None) if steady is None else pl.col("count") / steady.number)


# Many reductions as one job, read in turns, so that not all is in memory at once: their ranks; their collectives and
# what is short; then the tables of :data:`LATER`.

#: Gives the reductions of a job with these tables, each time in the same order, in one or more: many at once.
Turn: TypeAlias = Callable[[Collection[str]], Iterable[Reduction]]

#: The host in the name that PyTorch's handler gives a trace.
_HOST: Final = re.compile(r"^(.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


def numbered_ranks(read: Turn, doubts: list[tuple[str, int, str]], *, one_host: bool) -> tuple[pl.DataFrame, Ints]:
    """The ranks of the job, each once, with host, clock and number, sorted by number; `member` is their row.

    And the member of each rank that was read; -1 of those that are left out. Without any rank, a NoJobError.
    """
    batches = enumerate(read(["ranks"]))
    parts = [one["ranks"].with_columns(batch=pl.lit(number)) for number, one in batches if "ranks" in one]
    if not any(map(len, parts)):
        raise errors.NoJobError.empty()
    rows = pl.concat(parts).with_row_index("read")
    hosts = [
        host or ((match := _HOST.match(PurePath(report).name)) and match[1])
        for host, report in rows.select("host", "report").iter_rows()
    ]
    # ranks are numbered as recorded, else by the next number that is free, in the order of the reports
    recorded = rows.get_column("rank").to_list()
    free = (number for number in count() if number not in {*recorded})
    numbers = [next(free) if one is None else one for one in recorded]
    ranks = rows.with_columns(host=pl.Series(hosts, dtype=pl.String), rank=pl.Series(numbers, dtype=pl.Int64))
    # a path may be of another file on each host
    clock = pl.lit("one") if one_host else pl.coalesce("host", pl.format("{}:{}:{}", "batch", "reduction", "report"))
    ranks = _of_one_time(ranks.with_columns(clock=clock), doubts).sort("rank")
    names = {name: at for at, name in enumerate(ranks.get_column("clock").unique(maintain_order=True))}
    clock = pl.col("clock").replace_strict(names, default=None, return_dtype=pl.Int64)
    members = np.full(rows.height, -1)
    members[ranks.get_column("read").to_numpy()] = np.arange(ranks.height)
    return ranks.with_columns(clock, member=pl.int_range(pl.len(), dtype=pl.Int64)), members


def _of_one_time(ranks: pl.DataFrame, doubts: list[tuple[str, int, str]]) -> pl.DataFrame:
    """Each rank once: of several reports of a rank, such as cycles of a profiler, those of the time that most have.

    What has no report of that time is left out, since its collectives are others.
    """
    number = ranks.get_column("rank").n_unique()
    if number == ranks.height:
        return ranks
    starts, ends = (np.sort(ranks.get_column(name).to_numpy()) for name in ("start_ns", "end_ns"))
    running = np.searchsorted(starts, starts, side="right") - np.searchsorted(ends, starts, side="right")
    time = int(starts[int(np.argmax(running))])
    kept = ranks.filter((pl.col("start_ns") <= time) & (pl.col("end_ns") > time))
    kept = (kept if kept.height else ranks).unique("rank", keep="first", maintain_order=True)  # none did anything
    since = datetime.fromtimestamp(time // 10**9, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    doubts.append(("further reports of ranks", ranks.height - number, _TWICE.format(since)))
    if kept.height < number:
        doubts.append(("ranks recorded at other times only", number - kept.height, _LEFT_OUT))
    return kept


_LEFT_OUT: Final = "they are left out: what they did has no partner in what is read"
_TWICE: Final = "of several reports of a rank, as of cycles of a profiler, those are read that ran at {} UTC"


def _batches(read: Turn, names: Sequence[str], members: Ints) -> Iterator[dict[str, pl.DataFrame]]:
    """The tables `names` of some reductions at a time, by member of the job, without ranks that are left out."""
    before = 0
    for batch in read(["ranks", *names]):  # as they were when ranks were numbered
        own, before = members[before:], before + batch["ranks"].height
        tables = {name: batch.get(name, TABLES[name].empty()) for name in names}
        yield {
            name: table.with_columns(member=pl.Series(own[table["member"].to_numpy()])).filter(pl.col("member") >= 0)
            for name, table in tables.items()
        }


def put_together(read: Turn, members: Ints, ranks: pl.DataFrame) -> tuple[Rows, dict[str, pl.DataFrame]]:
    """The collectives of all ranks, their steps and kernels; a BadReductionError where they are not numbered through.

    Steps have the ledger of each, by bucket with ``_ns``, and hidden_ns, the time of collectives beside kernels.
    """
    tables: dict[str, list[pl.DataFrame]] = {"steps": [], "kernels": []}
    columns: list[dict[str, npt.NDArray[Any]]] = []
    calls: list[pl.DataFrame] = []
    counts = np.zeros(ranks.height, dtype=np.int64)
    for batch in _batches(read, ("collectives", "steps", "ledgers", "kernels"), members):
        steps, number = _numbered(batch["steps"], ranks, "index")
        _check(batch["ledgers"], "ledgers", ("index", number), ranks)
        rows, heights = _numbered(batch["collectives"], ranks, "number")
        counts += heights
        own, new_calls = narrow(rows, sum(one.height for one in calls))
        calls.append(new_calls)
        # the row of the step of its rank that each begins in; -1 outside
        line = steps.select("member", "end_ns", step="index", begin_ns="start_ns").sort("begin_ns")
        starts = rows.select("member", "start_ns").with_row_index("row").sort("start_ns")
        placed = starts.join_asof(line, left_on="start_ns", right_on="begin_ns", by="member", check_sortedness=False)
        step = pl.when(pl.col("start_ns") < pl.col("end_ns")).then("step").fill_null(-1).cast(pl.Int32)
        inside = placed.sort("row").select(step).to_series()
        own |= {"inside": inside.to_numpy(), "member": rows.get_column("member").cast(pl.Int32).to_numpy()}
        columns.append(own)
        key = ["member", "index"]
        sums = {f"{name}_ns": pl.when(pl.col("bucket") == name).then("ns") for name in statistics.BUCKETS}
        wide = batch["ledgers"].select(*key, **sums).group_by(key).agg(pl.all().sum())
        beside = rows.select("member", index=inside.cast(pl.Int64), hidden_ns=pl.col("dur_ns") - pl.col("exposed_ns"))
        for by_step in (wide, beside.group_by(key).agg(pl.all().sum())):
            steps = steps.join(by_step, on=key, how="left", maintain_order="left")
        tables["steps"].append(steps.with_columns(pl.col(*sums, "hidden_ns").fill_null(0)))
        tables["kernels"].append(batch["kernels"])
    at = np.argsort(np.concatenate([own.pop("member") for own in columns]), kind="stable")
    ordered = {}
    for name in [*columns[0]]:
        column = np.concatenate([own.pop(name) for own in columns])
        untold = name in _UNTOLD and (column == _UNTOLD[name]).all()
        ordered[name] = column[:0] if untold else column[at]
    rows_of_all = Rows(first=np.r_[0, np.cumsum(counts)], calls=pl.concat(calls), **ordered)
    return rows_of_all, {name: pl.concat(parts) for name, parts in tables.items()}


#: What columns of collectives are where nothing is recorded; without any other value they are empty.
_UNTOLD: Final = {"sequence": NO_SEQUENCE, "id": NO_ID}


def _numbered(rows: pl.DataFrame, ranks: pl.DataFrame, number: str) -> tuple[pl.DataFrame, Ints]:
    """The rows by member and their `number`, which has to count from 0 on; and how many each rank has."""
    member = rows.get_column("member").to_numpy()
    counts = np.bincount(member, minlength=ranks.height)
    place = (np.cumsum(counts) - counts)[member] + rows.get_column(number).to_numpy()
    if (place == np.arange(rows.height)).all():
        return rows, counts
    order = np.argsort(place, kind="stable")
    wrong = np.flatnonzero((place[order] != np.arange(rows.height)) | (member[order] != np.sort(member)))
    if len(wrong):
        raise _damaged(ranks, int(member[order[wrong[0]]]), f"{number} is not a number from 0 on in each rank's rows")
    return rows[order], counts


def _check(table: pl.DataFrame, name: str, numbers: tuple[str, Ints], ranks: pl.DataFrame) -> None:
    """Refuses rows whose number, a column, is that of no collective or step: of each rank there are so many."""
    number, counts = numbers
    member = table.get_column("member").to_numpy()
    values = table.get_column(number).to_numpy()
    wrong = np.flatnonzero((values < 0) | (values >= counts[member]))
    if len(wrong):
        raise _damaged(ranks, int(member[wrong[0]]), f"{name} has rows of another {number} than there are")


def _damaged(ranks: pl.DataFrame, member: int, why: str) -> errors.BadReductionError:
    return errors.BadReductionError.damaged(Path(ranks.item(member, "report")), why)


def later(read: Turn, members: Ints, ranks: pl.DataFrame, rows: Rows) -> Iterator[dict[str, tuple[pl.DataFrame, Ints]]]:
    """The tables of :data:`LATER` of some reductions each, with the collective of each row, as its row in `rows`.

    Raises:
        BadReductionError: They are of no collective.
    """
    for batch in _batches(read, LATER, members):
        for name, table in batch.items():
            _check(table, name, ("number", np.diff(rows.first)), ranks)
        yield {name: (table, rows.first[table["member"]] + table["number"].to_numpy()) for name, table in batch.items()}


def step_of(steps: pl.DataFrame, member: Small, inside: Small) -> pl.Series:
    """The number of the step of each member that is in its row `inside`; null where that is -1."""
    place = places(steps, member, inside)
    return steps.get_column("step").gather(pl.Series(place).set(pl.Series(inside < 0), None))


def places(steps: pl.DataFrame, member: Small | Ints, index: Small | Ints) -> Ints:
    """Rows of the steps of members in `steps`, by their place in those of the member."""
    members = steps.get_column("member").to_numpy()
    firsts = np.searchsorted(members, np.arange(int(member.max(initial=-1)) + 1))
    return np.asarray(firsts[member] + index, dtype=np.int64)
