"""Idle intervals of each device, split into pieces by what their host threads did: reason, and culprit and range.

Each interval has the operation that ends it and the launch call of that. They are looked at in batches, which keeps
peak memory independent of the size of the report.
Definitions: definitions.md, section 5, rules 5 to 13.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import errors, machinery
from kanalyze.analyses.device._operations import facts_of, launch_rows, nearest_launches
from kanalyze.analyses.device._windows import activity as device_activity
from kanalyze.analyses.host._call_kinds import context_calls, unrecorded_contexts, unseen_starts, unseen_syncs
from kanalyze.analyses.host._range_lines import between_calls, framework_recorded, named, range_lines
from kanalyze.analyses.host._thread_timeline import activity, labels, records_waits, threads
from kanalyze.analyses.host.engine_marks import names_by_kind
from kanalyze.analyses.operators._host_names import host_names
from kanalyze.analyses.shared.analysis import Remembered, named_ranges, once_per_process
from kanalyze.analyses.shared.threads import ThreadKey, by_thread, line_of, on_line, overlaid, touched
from kanalyze.analyses.streams.concurrency import ended_last, event_waits, waited_for
from kanalyze.columns import gathered, in_order, sure
from kanalyze.report import Report
from kanalyze.window import ALL_STEPS, STEP_PREFIX, plain, without_ids

with machinery.late():  # of reports with system calls or the scheduler
    from kanalyze.analyses.host import _causes

#: The smallest batch, in idle intervals, and the most batches of a device: large enough to gain more than threads wait
#: for Python's lock (benchmarks/), small enough to bound memory, and what a short window costs of a long recording.
FEWEST: Final = 1 << 13
MOST: Final = 32

#: Cached answers that every batch looks up: computed beforehand, since batches would otherwise block on them one after
#: the other; and what names of pieces are made of.
_NEEDED: Final[tuple[Remembered[Any], ...]] = (
    *(threads, unrecorded_contexts, context_calls, labels, device_activity, launch_rows),
    *(unseen_starts, unseen_syncs),
)
_NAMES: Final[tuple[Remembered[Any], ...]] = (range_lines, host_names, ended_last, event_waits)


def prepare(report: Report) -> None:
    """Computes what all batches look up."""
    for answer in (*_NEEDED, unnamed):
        answer(report)


@once_per_process
def unnamed(report: Report) -> errors.DamagedReportError | None:
    """Why pieces have no names, where what they are made of is damaged: tables without names do not need it."""
    try:
        for needed in (*_NAMES, range_names, named_waits):
            needed(report)
    except errors.DamagedReportError as error:
        return error
    return None


def require_names(report: Report) -> None:
    """Refuses what needs names of pieces where what they are made of is damaged: a DamagedReportError."""
    if (error := unnamed(report)) is not None:
        raise error


def batches(idle: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits idle intervals into batches of about equal size, in order."""
    number = max(min(idle.height // FEWEST, MOST), 1)
    return [*idle.iter_slices(max(-(-idle.height // number), 1))] or [idle]


def idle_intervals(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Idle intervals within ``[low, high)`` of the device whose operations are `work`, sorted by start.

    Columns: start, end, row (of the operation that ends it; null for the trailing interval) and process_id (of that
    operation; for the trailing interval of the operation that ended last, of equals the highest event_id).
    """
    real = work.select("start", "end", "rank", "row", "process_id")
    real = in_order(real.filter(pl.col("end") > pl.col("start")), "start")
    same = pl.col("start") == pl.col("start").shift(1)
    if real.select((same & (pl.col("rank") < pl.col("rank").shift(1))).any()).item():
        real = real.sort("start", "rank", "row")  # a sort by several columns takes many times as long
    # in this order, the first operation to start after the latest end so far ends an idle interval
    reached = pl.col("end").cum_max().shift(1, fill_value=pl.lit(low, dtype=pl.Int64))
    gaps = real.select("row", "process_id", start=reached, end="start")
    final = real.filter(pl.col("end") == pl.col("end").max()).sort("row").tail(1)
    process, begun = final.select("process_id", "end").row(0) if final.height else (None, low)
    rest = pl.DataFrame([(None, process, begun, high)], schema=gaps.schema, orient="row")
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in (gaps, rest)])


def with_launches(report: Report, idle: pl.DataFrame) -> pl.DataFrame:
    """Splits each of `idle` at the launch call of the operation that ends it: adds begun, returned, late and lost.

    Before `begun` the launch call had not begun, from `begun` to `returned` the thread was in it (both are clipped to
    the interval). `late` is the reason why the operation waits after that: `launch` where the call began within the
    interval, `queued` where it began earlier, `unseen` where the operation waited for work launched before the
    recording began. `lost` is set where the operation itself was launched before the recording began.

    Adds thread_id, call_start and call_end, too. An operation without a launch call, and the trailing interval, get
    null times and the thread of the most recent launch of their process, else of the next one.
    """
    calls = facts_of(report, idle.get_column("row"), "thread_id", "call_start", "call_end")
    missing = calls.get_column("call_start").is_null().arg_true()
    if len(missing):
        points = idle.select("process_id", at="end")[missing]
        before, after = (
            nearest_launches(report, points, "thread_id", later=later, equal=True) for later in (False, True)
        )
        nearest = before.to_series().fill_null(after.to_series())
        calls = calls.with_columns(calls.get_column("thread_id").clone().scatter(missing, nearest))
    unseen = pl.lit(sure(idle.get_column("row").is_in(unseen_starts(report).implode())))
    # without a call both are the end of the interval: min_horizontal and max_horizontal skip nulls
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within, codes = pl.col("call_start") >= pl.col("start"), reasons(report)
    waits = pl.when(unseen).then(_code(codes.unseen)).otherwise(_code(codes.launch))
    return idle.with_columns(*calls).with_columns(
        begun=begun,
        returned=pl.max_horizontal(begun, returned),
        late=pl.when(within).then(waits).otherwise(_code(codes.queued)),
        lost=unseen & pl.col("call_start").is_null(),
    )


#: Buckets of an idle device, in the ledger's order.
IDLE: Final = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")

#: Schema of a piece of idle time of a device: start, end, reason (row of :func:`reasons`), row (of the operation that
#: ends its gap; null for the trailing gap), thread (place in :func:`thread_keys`; null where none is known), culprit,
#: and the innermost range around it.
PIECE: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys(("start", "end"), pl.Int64),
    **dict.fromkeys(("reason", "row", "thread"), pl.UInt32),
    **dict.fromkeys(("culprit", "range"), pl.Categorical),
}

_BUCKET: Final = pl.Enum(IDLE)


class Reasons(NamedTuple):
    """Reasons of idle time by number: the rows of :func:`labels`, and five more.

    The `table` has bucket (:data:`IDLE`) and detail of each; of `launch` (the launching call, and the latency after it)
    the detail is null. The last label is `unseen`, a wait for work from before the recording; `host` is in no call and
    no overhead, `queued` submitted work that waited on the device, `unknown` that no host thread is known, and
    `unrecorded` that the window goes on where the recording does not.
    """

    table: pl.DataFrame
    unseen: int
    host: int
    launch: int
    queued: int
    unknown: int
    unrecorded: int


@once_per_process
def reasons(report: Report) -> Reasons:
    """The reasons of idle time of a report."""
    rows = labels(report).select(pl.col("bucket").cast(_BUCKET), "detail")
    more = pl.DataFrame({"bucket": ["host", "launch", "queued", "unknown", "unknown"]}, schema={"bucket": _BUCKET})
    table = pl.concat([rows, more], how="diagonal")
    return Reasons(table, rows.height - 1, *range(rows.height, table.height))


@once_per_process
def thread_keys(report: Report) -> list[ThreadKey]:
    """Process id and thread id of the host threads, in the order of their codes in pieces."""
    return [*threads(report)]


def split_idle(report: Report, device: int, idle: pl.DataFrame) -> pl.DataFrame:
    """The pieces of idle intervals of a device, of :func:`idle_intervals`: :data:`PIECE`, sorted by start.

    Each interval is split by the activity of the host thread that it is attributed to, and the time before its launch
    call by the innermost range of that thread, too; from the launch call on, the range is the one in which that began.
    """
    parts = [pl.DataFrame(schema=PIECE)]
    for key, gaps in by_thread(with_launches(report, idle)).items():
        if key in threads(report) and key[1] is not None:
            parts += [part for part in _named(report, key, device, _split(report, key, gaps)) if part.height]
        else:
            nowhere = _rows(gaps.with_columns(range=None), reason=_code(reasons(report).unknown))
            parts.append(nowhere.with_columns(pl.lit(None, PIECE[name]).alias(name) for name in [*PIECE][4:]))
    return pl.concat(part.select([*PIECE]) for part in parts).sort("start")


def _split(report: Report, key: ThreadKey, idle: pl.DataFrame) -> pl.DataFrame:
    """Splits intervals that are attributed to one thread by its activity.

    Columns: those of :data:`PIECE` but culprit; range is a row of :func:`named_ranges`.
    """
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", "row", "lost", end="begun")
    line = activity(report, key, idle.select(pl.col("start").min(), pl.col("end").max()).row(0), before)
    spans = line_of(range_lines(report) if unnamed(report) is None else {}, key)
    before = overlaid(before, spans.rename({"row": "range"}), "range")
    idle = idle.with_columns(on_line(spans, idle.get_column("call_start")).alias("range"))
    launched = idle.filter(pl.col("end") > pl.col("begun"))
    above = line.filter(labels(report).get_column("wins")[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    whole = pl.when(pl.col("late") == reasons(report).launch).then("end").otherwise("returned")
    pieces = _from_launches(report, launched.filter(held), pl.col("returned")).sort("start")
    label, codes = pl.col("label"), reasons(report)
    wins = label.is_in(labels(report).get_column("wins").arg_true().implode()).fill_null(value=False)
    unseen = pl.when(pl.col("lost") & ~wins).then(_code(codes.unseen))
    parts = [
        _rows(overlaid(before, line, "label"), reason=unseen.otherwise(label.fill_null(_code(codes.host)))),
        _from_launches(report, launched.filter(~held), whole),
        _rows(overlaid(pieces, above, "label"), reason=pl.coalesce("label", "reason")),
    ]
    return pl.concat(parts).with_columns(thread=pl.lit(thread_keys(report).index(key), dtype=pl.UInt32))


def _from_launches(report: Report, launched: pl.DataFrame, until: pl.Expr) -> pl.DataFrame:
    """Rows of the time from launch calls on: of launch overhead until a time, then of what is waited for after that."""
    overhead = _rows(launched, start="begun", end=until, reason=_code(reasons(report).launch))
    return pl.concat([overhead, _rows(launched, start=until, reason="late")])


def _rows(idle: pl.DataFrame, **columns: pl.Expr | str) -> pl.DataFrame:
    """Start, end, row, range and reason of intervals; leaves out those of length 0."""
    sides: dict[str, pl.Expr | str] = {"start": "start", "end": "end"}
    return idle.select("row", "range", **(sides | columns)).filter(pl.col("end") > pl.col("start"))


def _code(number: int) -> pl.Expr:
    return pl.lit(number, dtype=pl.UInt32)


def _named(report: Report, key: ThreadKey, device: int, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows of :func:`_split` with culprit, and range by name, in any order; without where these are damaged."""
    if unnamed(report) is not None:
        yield rows.with_columns(pl.lit(None, dtype=pl.Categorical).alias(name) for name in ("culprit", "range"))
        return
    codes, reason = reasons(report), rows.get_column("reason")

    def parts(rows: pl.DataFrame, culprit: pl.Series) -> pl.DataFrame:
        ranges = gathered(range_names(report), rows.get_column("range"))
        return rows.with_columns(culprit.alias("culprit"), ranges.alias("range"))

    host, launch, queued = (reason == code for code in (codes.host, codes.launch, codes.queued))
    called, launches, waits = (rows.filter(mask) for mask in (~(host | launch | queued), launch, queued))
    details = codes.table.get_column("detail").cast(pl.Categorical)
    yield parts(called, gathered(details, called.get_column("reason")))
    yield parts(launches, facts_of(report, launches.get_column("row"), "name").to_series())
    yield parts(waits, waited_for(report, device, waits.get_column("row")))
    for part in _named_host(report, key, rows.filter(host)):
        yield parts(part, part.get_column("culprit"))


@once_per_process
def named_waits(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """The waits that name host time; none where what tells of them is damaged, which names can do without."""
    try:
        return _causes.cause_lines(report) if records_waits(report) else {}
    except errors.DamagedReportError:
        return {}


def _named_host(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """Adds `culprit` to host intervals outside CUDA calls; splits them further by operator and Python function."""
    if framework_recorded(report):
        return [named(report, key, pieces)]
    waits, parts = named_waits(report), list[pl.DataFrame]()
    if waits:
        waited, pieces = _told(pieces, line_of(waits, key), _causes.cause_names(report))
        parts.append(waited)
    outside = pieces.get_column("range").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    parts += [inside.with_columns(gathered(range_names(report), inside.get_column("range")).alias("culprit"))]
    of_trace = host_names(report)
    if of_trace.lines and alone.height:
        beside, alone = _told(alone, line_of(of_trace.lines, key), of_trace.names)
        parts.append(beside)
    return [*parts, alone.with_columns(between_calls(report, key, alone).alias("culprit"))] if alone.height else parts


def _told(pieces: pl.DataFrame, line: pl.DataFrame, names: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits `pieces` by a timeline: those that it tells of, with the name of its row as `culprit`, and the others."""
    cut = overlaid(pieces, line.rename({"row": "name"}), "name")
    told, rest = (cut.filter(side) for side in (pl.col("name").is_not_null(), pl.col("name").is_null()))
    culprit = gathered(names, told.get_column("name")).alias("culprit")
    return told.drop("name").with_columns(culprit), rest.drop("name")


@once_per_process
def range_names(report: Report) -> pl.Series:
    """Display name of each row of :func:`named_ranges`, with its domain; one name for all profiler steps.

    And one for all steps of a serving engine that are of one kind, whose labels hardly repeat: ``decode step``.

    The ids that emit_nvtx appends are removed: they make the name of every range unique.
    """
    names = named_ranges(report).get_column("range").cast(pl.Categorical)
    codes = names.unique()
    alone = pl.DataFrame({"name": codes.cast(pl.String)}).select(without_ids(pl.col("name"))).to_series()
    shown = [ALL_STEPS if plain(name).startswith(STEP_PREFIX) else plain(name) or name for name in alone]
    texts = pl.Series("text", shown, dtype=pl.String)
    steps = names_by_kind(report).select(pl.col("range").cast(pl.Categorical), of_kind="name")
    table = pl.DataFrame([codes, texts]).join(steps, on="range", how="left", maintain_order="left")
    table = table.select("range", pl.coalesce("of_kind", "text").cast(pl.Categorical).alias("text"))
    return names.to_frame().join(table, on="range", how="left", maintain_order="left").get_column("text")
