"""Compares the instances of a range, and steps of a profiler: a ledger for each, spread, outliers and warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import polars as pl

from kanalyze import intervals, tools
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, in_device_scope, used_devices
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.shared.analysis import analysis, once_per_process, require
from kanalyze.analyses.shared.statistics import BUCKETS, median_of, spread
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import having, nearest, of_parts
from kanalyze.report import Meta, Report
from kanalyze.schema import Column, Table
from kanalyze.units import plural, time, times
from kanalyze.window import EVERY, STEPS, Scope, Window, parsed, step_name

#: Maximum number of odd instances, and of processes, named in a sentence.
_NAMED: Final = 3

#: Keys of comparable instances: of one process, on one device that it used.
_KEYS: Final = ("process_id", "device")

#: The instances that median, spread and shares are computed from.
USUAL: Final = ~pl.col("warm_up") & ~pl.col("odd")

INSTANCES: Final = Table(
    "instances",
    "One instance of a range on one device, with its ledger.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`: one that the process of the range used."),
        Column("process_id", pl.Int64, "The process whose range it is.", nullable=True),
        Column("instance", pl.Int64, "Its number, from 1 on, in the order of starts."),
        Column("window", pl.String, "What gives it alone as a window: step#3; step:5 for a step of a profiler."),
        Column("start_ns", pl.Int64, "Start of the range."),
        Column("dur_ns", pl.Int64, "Its length, which the buckets add up to."),
        *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket}.") for bucket in BUCKETS),
        Column("warm_up", pl.Boolean, "Whether it is a profiler's step that only warms up; the others are the usual."),
        Column("odd", pl.Boolean, "Whether it is far from the median of the usual instances."),
        Column("cause", pl.String, "Of an odd one: the bucket that differs most from its own median.", nullable=True),
    ),
)

SPREAD: Final = Table(
    "instance_spread",
    "One bucket over the instances of a range of one process, on one device, that neither warm up nor are odd.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("process_id", pl.Int64, "The process whose ranges they are.", nullable=True),
        Column("bucket", pl.String, "A bucket of the ledger, or total."),
        Column("median_ns", pl.Float64, "Median over these instances."),
        Column("min_ns", pl.Int64, "Least."),
        Column("max_ns", pl.Int64, "Most."),
        Column("stddev_ns", pl.Float64, "Sample standard deviation."),
        Column("total_ns", pl.Int64, "Sum over them."),
        Column("share", pl.Float64, "Part of their time."),
    ),
)


@dataclass(frozen=True)
class Instances:
    """All instances of one range, compared: :data:`INSTANCES` and :data:`SPREAD`, with one or two sentences first."""

    #: Of page, so that a renderer need not import the others to distinguish them.
    kind: ClassVar[Literal["instances"]] = "instances"

    meta: Meta
    scope: Scope  # its window spans all instances
    name: str  # the range, or ``steps``
    answer: str  # the sentences
    instances: pl.DataFrame
    spread: pl.DataFrame  # the largest bucket of each device first, its total last
    zero_ns: int = 0  # the origin of the times shown


def compare(parts: Sequence[Report]) -> Instances:
    """Compares the instances of a range, given as the report narrowed to each, sorted by start."""
    first = parts[0]
    windows = [part.scope.window or Window() for part in parts]
    group = windows[0].group
    steps, name = group == STEPS, group or parsed(windows[0].name or "")[0]
    rows = _ledgers(first, windows)
    busy = rows.filter(pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS) > 0)
    rows = rows.join(busy, on="device", how="semi") if busy.height else rows  # else of all devices
    rows = rows.sort(*_KEYS, "instance")
    of_each = rows.partition_by("process_id", maintain_order=True) if steps else []
    usual = pl.lit(value=False).alias("warm_up"), pl.lit(None, dtype=pl.String).alias("evidence")
    marked = [part.with_columns(warmed_up(first, part)) for part in of_each] or [rows.with_columns(usual)]
    rows = judged(pl.concat(marked), keys=_KEYS)
    # a step of an engine is as long as its batch makes it
    served = pl.col("start_ns").is_in(engine_marks(first).get_column("start").implode())
    rows = rows.with_columns(pl.col("odd") & ~served, cause=pl.when(~served).then("cause"))
    start, ends = windows[0].start_ns, [window.end_ns or 0 for window in windows]
    scope = replace(first.scope, window=Window(start, max(ends), group or f"{name}#{EVERY}"))
    sentences = answer(name, rows, steps=steps)
    return Instances(first.meta, scope, name, sentences, INSTANCES.select(rows), _spread(rows), first.zero_ns)


def _ledgers(report: Report, windows: Sequence[Window]) -> pl.DataFrame:
    sides = [(window.start_ns or 0, window.end_ns or 0, window.name, window.process) for window in windows]
    schema = {"start": pl.Int64, "end": pl.Int64, "name": pl.String, "process_id": pl.Int64}
    spans = pl.DataFrame(sides, schema=schema, orient="row")
    ledgers = window_ledgers(report, spans)
    at = ledgers.get_column("window")
    own = spans.select("process_id", start_ns="start", dur_ns=pl.col("end") - pl.col("start"), window="name")
    rows = ledgers.drop("window").hstack(own.select(pl.all().gather(at))).with_columns(instance=at.cast(pl.Int64) + 1)
    if rows.get_column("process_id").n_unique() <= 1:
        return rows
    ran = rows.join(used_devices(report), on=["device", "process_id"], how="semi", nulls_equal=True)
    return ran if ran.height else rows


def _spread(rows: pl.DataFrame) -> pl.DataFrame:
    columns = {**{f"{bucket}_ns": bucket for bucket in BUCKETS}, "dur_ns": "total"}
    usual = rows.filter(USUAL)
    long = usual.unpivot(list(columns), index=[*_KEYS, "instance"], variable_name="bucket", value_name="ns")
    sums = long.group_by(*_KEYS, "bucket").agg(*spread("ns", "", "_ns"), total_ns=pl.col("ns").sum())
    last = pl.col("bucket") == "total"
    named = sums.with_columns(pl.col("bucket").replace_strict(columns)).filter((pl.col("total_ns") > 0) | last)
    whole = pl.col("total_ns").filter(last).first().over(_KEYS)
    shares = named.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole).otherwise(0.0))
    return SPREAD.select(shares.sort(*_KEYS, last, "total_ns", "bucket", descending=[False, False, False, True, False]))


def answer(name: str, rows: pl.DataFrame, *, steps: bool = False) -> str:
    """One or two sentences on the instances of a range in `rows` (of :func:`judged`, with device, window and instance).

    They refer only to the first device of each process.
    """
    parts = rows.partition_by("process_id", maintain_order=True)
    if len(parts) > 1:
        texts = [f"Process {part.item(0, 'process_id')}: {answer(name, part, steps=steps)}" for part in parts[:_NAMED]]
        return " ".join(texts) + (f" And {plural(len(parts) - _NAMED, 'process')} more." if len(parts) > _NAMED else "")
    if rows.is_empty():
        return f"{name}: the report holds nothing that a GPU did."
    device = rows.filter(pl.col("device").eq_missing(pl.col("device").first()))
    usual, count = device.filter(USUAL), device.filter(~pl.col("warm_up")).height
    median = median_of(usual, "dur_ns")
    least, most = usual.select(pl.col("dur_ns").min(), most=pl.col("dur_ns").max()).row(0)
    text = plural(count, "step") if steps else f"{plural(count, 'instance')} of {name}"
    text += f": {time(median)}" + (f" in the median, from {time(least)} to {time(most)}" if usual.height > 1 else "")
    odd = rows.filter("odd").unique("window", keep="first", maintain_order=True)
    odd = odd.sort((pl.col("dur_ns") - median).abs(), descending=True, maintain_order=True)
    named = pl.col("window") if steps or EVERY in name else pl.format("#{}", "instance")
    outliers = [
        f"{window} takes {times(ns / max(median, 1))} that{f' ({cause})' if cause else ''}"
        for window, ns, cause in odd.head(_NAMED).select(named, "dur_ns", "cause").iter_rows()
    ]
    if outliers:
        more = f" and {odd.height - len(outliers)} more" if odd.height > len(outliers) else ""
        text += f" without the odd ones: {', '.join(outliers)}{more}"
    text += "."
    warm = device.filter("warm_up").select("window", "evidence")
    left_out = [f"{window} ({why})" for window, why in warm.iter_rows()]
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return text + (f" Left out as warm-up: {', '.join(left_out[:_NAMED])}{more}." if left_out else "")


# Detects warm-up steps: longer than the later ones, because of one-time work.
#
# Of the steps of one process on one device, the first ones are warm-up as long as each exceeds the median of the steps
# after it by a tenth, and at least half of the excess is one-time work: loading and contexts, allocation, profiler
# overhead and slow launches (by the device's ledger), and compilation (reported by torch.compile). What of such work is
# usual is the median of the steps after it; where these are more than 8, of up to 8 in the middle of the last half of
# all steps. The 65th step and later ones are compared with the last half of all. At most the first half of them is
# warm-up.

#: Minimum excess over the later steps, as a share of these, and the minimum share of it that is one-time work.
_LONGER: Final = 0.1
_ONCE_SHARE: Final = 0.5

#: The ledger's buckets of one-time work, and their names in the evidence.
_ONCE: Final = {"loading": "loading", "allocation": "allocation", "profiler": "the profiler", "launch": "launches"}
_COMPILING: Final = "compiling"

#: Of more later steps, so many tell how much of such work is usual: to attribute the time of all takes far longer.
_COMPARED: Final = 8

#: Steps from this one on are compared with the last half of all, which takes one median for all of them.
_MANY: Final = 64


def warmed_up(report: Report, rows: pl.DataFrame) -> list[pl.Series]:
    """The columns `warm_up` and `evidence` (a sentence; null if no warm-up) for the steps in `rows`.

    `rows` are the steps of one process, sorted by device, then by start: device, start_ns, dur_ns, and a column per
    bucket of the ledger (null where there is no device, and for steps that are not :func:`looked_at`).
    """
    ends = (rows.get_column("start_ns") + rows.get_column("dur_ns")).alias("end_ns")
    compiling = intervals.overlap(rows.get_column("start_ns"), ends, compile_spans(report))
    with_compiling = rows.with_columns(compiling.alias(f"{_COMPILING}_ns"))
    evidence: list[str | None] = []
    for part in with_compiling.partition_by("device", maintain_order=True):
        reasons: list[str | None] = []
        for place, longer in enumerate(_longer(part)):
            reason = _evidence(part.row(place, named=True), longer, part.slice(*_among_later(part, place)))
            if reason is None:
                break
            reasons.append(reason)
        evidence += [*reasons, *[None] * (part.height - len(reasons))]
    sentences = pl.Series("evidence", evidence, dtype=pl.String)
    return [sentences.is_not_null().alias("warm_up"), sentences]


#: Annotations of compiling, and of a module of one instruction, which XLA's autotuner makes.
_COMPILES: Final = r" \(dynamo_timed\)$|^(?:TSL:)?(?:XlaCompile:|XlaModule:#hlo_module=[a-z][a-z0-9_-]*\.\d+[,#])"
_JITTED: Final = r"hlo_module=(?:jit|pjit|pmap)_"  # of the program's functions, whatever these are called


@once_per_process
def _compilations(report: Report) -> pl.DataFrame:
    """The intervals in which threads compiled, by annotations of torch.compile (dynamo_timed) or XLA.

    Those of XLA are of all threads of the process: what compiles waits for them, and tries kernels with several. Where
    nsys lost the name of one, the modules that it tries tell: they are called after an instruction.
    """
    events = pl.concat([report.kind(kind).select(*THREAD, "name", "start_ns", "dur_ns") for kind in ("op", "range")])
    names = events.get_column("name")
    own = events.filter(having(names, _COMPILES) & ~having(names, _JITTED))
    of_thread = pl.when(~pl.col("name").cast(pl.String).str.contains("XlaCompile:")).then("thread_id")
    return own.select("process_id", of_thread.alias("thread_id"), **intervals.OF_EVENTS)


def compile_spans(report: Report) -> pl.DataFrame:
    """The intervals in which the program compiled, as a span set."""
    return intervals.union(_compilations(report).select("start", "end"))


def while_compiling(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Whether the thread of each of `spans` (:data:`THREAD`, start, end) compiled meanwhile."""
    compilations = _compilations(report)

    def meanwhile(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        process, thread = (pl.lit(number, dtype=pl.Int64) for number in key)
        own = pl.col("thread_id").is_null() | (pl.col("thread_id") == thread)
        compiled = intervals.union(compilations.filter((pl.col("process_id") == process) & own))
        return intervals.covered(part, compiled) > 0

    return of_parts(spans.select(*THREAD, "start", "end"), THREAD, pl.Boolean, meanwhile)


def looked_at(steps: pl.DataFrame) -> list[tuple[int, int]]:
    """The steps of one device whose ledgers :func:`warmed_up` looks at: first place and number, of one run or two."""
    longer = len(_longer(steps))
    if not longer:
        return []
    if steps.height - 1 <= _COMPARED:
        return [(0, steps.height)]
    low, number = _among_later(steps, longer - 1)
    return [(0, longer), (low, number)] if low > longer else [(0, low + number)]


def _longer(steps: pl.DataFrame) -> list[float]:
    """By how much the first steps, as long as they are longer, exceed the median of those after each, in ns."""
    lengths, half, excess_ns = steps.get_column("dur_ns"), steps.height // 2, list[float]()
    of_last = median_of(steps.slice(half), "dur_ns")
    for place, length in enumerate(lengths.head(half)):
        usual = median_of(steps.slice(place + 1), "dur_ns") if place < _MANY else of_last
        if length - usual <= _LONGER * usual:
            break
        excess_ns.append(length - usual)
    return excess_ns


def _among_later(steps: pl.DataFrame, place: int) -> tuple[int, int]:
    """Those after a step that tell what is usual: first place and number."""
    later = steps.height - place - 1
    if later <= _COMPARED:
        return place + 1, later
    half = steps.height - steps.height // 2
    number = min(_COMPARED, half)
    return steps.height // 2 + (half - number) // 2, number


def _evidence(step: dict[str, Any], longer: float, later: pl.DataFrame) -> str | None:
    columns = {f"{name}_ns": word for name, word in _ONCE.items()} | {f"{_COMPILING}_ns": _COMPILING}
    usual = later.select(pl.col("host_ns", *columns).median()).row(0, named=True)
    more = {word: (step[name] or 0) - (usual[name] or 0) for name, word in columns.items()}
    if step["host_ns"] is not None:  # only compilation that the device waited for counts
        more[_COMPILING] = min(more[_COMPILING], step["host_ns"] - usual["host_ns"])
    once = {word: ns for word, ns in more.items() if ns > 0}
    if sum(once.values()) < _ONCE_SHARE * longer:
        return None
    largest = sorted(once.items(), key=lambda part: (-part[1], part[0]))
    parts = [f"{word} {time(ns)}" for word, ns in largest if ns >= 0.1 * longer]
    return f"{time(longer)} longer than later steps, of which {', '.join(parts)}"


# Outliers among the instances of a range, or the iterations of a program: those far from the median.

#: An instance is odd if it differs from the median by more than this factor times the median absolute deviation (3
#: standard deviations of a normal distribution), and by at least this share of the median.
_FAR: Final = 3 * 1.4826
_NOTABLE: Final = 0.1
#: Minimum number of instances for an outlier test.
_FEWEST: Final = 4


def far_from_others(values: pl.Expr, usual: pl.Expr, notable: float) -> pl.Expr:
    """Whether `values` are far from the median of the `usual` ones: by :data:`_FAR`, and `notable` of the median."""
    middle = values.filter(usual).median()
    away = (values - middle).abs()
    return (away > _FAR * away.filter(usual).median()) & (away > notable * middle) & (usual.sum() >= _FEWEST)


def judged(rows: pl.DataFrame, *, keys: Sequence[str] = ("device",)) -> pl.DataFrame:
    """Adds `odd` and `cause` to `rows` (dur_ns, warm_up, and a column per bucket), compared within `keys`."""
    return with_changes(with_odd(rows, keys=keys), keys=keys).with_columns(cause=pl.when("odd").then("most"))


def with_odd(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `odd`: whether a row (dur_ns, warm_up) takes another time than those of its `keys` that do not warm up."""
    usual = ~pl.col("warm_up")
    odd = far_from_others(pl.col("dur_ns"), usual, _NOTABLE) & usual
    return rows.with_columns(odd.over(keys).fill_null(value=False).alias("odd"))


def with_changes(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `most`: the bucket that differs most from its median, the way that a row's length does."""
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up")
    sign = pl.when(length > length.filter(usual).median()).then(1).otherwise(-1)
    buckets = [pl.col(f"{name}_ns") for name in BUCKETS]
    changes = [((bucket - bucket.filter(usual).median()) * sign).over(keys) for bucket in buckets]
    most = rows.select(pl.concat_list(changes).list.arg_max()).to_series()
    return rows.with_columns(pl.Series(BUCKETS).gather(most).alias("most"))


STEPS_TABLE: Final = Table(
    "steps",
    "One step of a framework's profiler on one device: its ledger, and what the work that it launched did there.",
    (
        Column("step", pl.Int64, "Its number; --window step:NUMBER looks at it alone."),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("device", pl.Int64, "A GPU that the process used; null where it used none.", nullable=True),
        Column("start_ns", pl.Int64, "Start of the profiler's range on the host."),
        Column("dur_ns", pl.Int64, "Its length, which the buckets add up to."),
        Column("busy_ns", pl.Int64, "Time in it in which the device ran anything.", nullable=True),
        Column("busy_share", pl.Float64, "That as a part of the step.", nullable=True),
        *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket}.", nullable=True) for bucket in BUCKETS),
        Column(
            "idle_in",
            pl.Enum(IDLE),
            "The bucket that took most of the time in which the device was idle; of equal ones the first.",
            nullable=True,
        ),
        Column("operations", pl.Int64, "Kernels, copies and memsets that were launched in it, by any thread."),
        Column("gpu_start_ns", pl.Int64, "When the first of these started.", nullable=True),
        Column("gpu_end_ns", pl.Int64, "When the last of these ended.", nullable=True),
        Column("gpu_busy_ns", pl.Int64, "How long at least one of these ran, at any time.", nullable=True),
        Column("late_ns", pl.Int64, "How much of that was after the end of the step on the host.", nullable=True),
        Column(
            "warm_up", pl.Boolean, "Whether it only warms up: among the first, and longer through what is done once."
        ),
        Column("evidence", pl.String, "Of one that warms up: what it took longer for.", nullable=True),
        Column("odd", pl.Boolean, "Whether its length is far from the median of those that do not warm up."),
        Column("cause", pl.String, "Of an odd one: the bucket that differs most from its own median.", nullable=True),
    ),
    purpose="each step of the profiler, with its ledger",
    no_rows="the framework's profiler marked no step; `iterations` has what repeats",
    telling=("step", "dur_ns", "busy_share", "kernel_ns", "launch_ns", "sync_ns", "host_ns", "warm_up", "odd"),
    tools=tools.recorders("step"),
)


@analysis
def steps(report: Report) -> pl.DataFrame:
    """The steps of the framework's profiler that overlap the window, in full.

    A step's window is the range that the profiler marks on the host, so that the ledgers of steps never overlap. Its
    operations may run on after its end (`late_ns`): that time is in the ledger of the next step.

    Returns:
        :data:`STEPS_TABLE`, by process, device and start; empty if the program has no steps.

    Raises:
        CannotTellError: The report records neither ranges nor operators.
    """
    require(report, STEPS_TABLE, "range", "op")
    in_window = intervals.overlapping(report.steps(), report.scope.sides).with_row_index("window")
    if in_window.is_empty():  # without steps nothing else is read
        return STEPS_TABLE.empty()
    rows = in_window.join(used_devices(report).select(_KEYS), on="process_id", how="left", nulls_equal=True)
    rows = in_device_scope(report, rows)
    rows = rows.join(window_ledgers(report, in_window.select("start", "end")), on=["window", "device"], how="left")
    rows = rows.join(_launched_in(report, in_window), on=["window", "device"], how="left")
    busy = pl.sum_horizontal((f"{bucket}_ns" for bucket in BUSY_BUCKETS), ignore_nulls=False)
    most = pl.max_horizontal(f"{bucket}_ns" for bucket in IDLE)
    largest = [pl.when(pl.col(f"{bucket}_ns") == most).then(pl.lit(bucket)) for bucket in IDLE]
    length = pl.col("end") - pl.col("start")
    rows = rows.with_columns(
        start_ns="start",
        dur_ns=length,
        busy_ns=busy,
        busy_share=pl.when(length > 0).then(busy / length),
        idle_in=pl.when(most > 0).then(pl.coalesce(largest)),
        operations=pl.col("operations").fill_null(0),
    ).sort(*_KEYS, "start", "event_id")
    if rows.is_empty():
        return STEPS_TABLE.empty()
    parts = rows.partition_by("process_id", maintain_order=True)
    numbered = pl.concat([part.with_columns(warmed_up(report, part)) for part in parts])
    return STEPS_TABLE.select(judged(numbered, keys=_KEYS))


def in_words(rows: pl.DataFrame) -> str:
    """A summary of the steps in `rows` (of :func:`steps`), on the first device; empty without rows."""
    if rows.is_empty():
        return ""
    names = pl.Series("window", [step_name(number) for number in rows.get_column("step")], dtype=pl.String)
    text = answer(STEPS, rows.with_columns(names), steps=True)
    device = rows.filter((pl.struct("process_id", "device") == pl.struct("process_id", "device").first()) & USUAL)
    late = median_of(device, "late_ns")
    if late < 0.1 * median_of(device, "dur_ns"):
        return text
    took = time(median_of(device, "gpu_busy_ns"))
    whose, ends = ("Its", "it ends") if device.height == 1 else ("Their", "they end")
    return f"{text} {whose} work on the GPU goes on for {time(late)} after {ends}; a step keeps it busy for {took}."


def _launched_in(report: Report, marked: pl.DataFrame) -> pl.DataFrame:
    """Sums over the operations launched in each step, by window and device.

    An operation belongs to the latest step of its process that started before its launching call, if that had not ended
    by then.
    """
    work = device_operations(report, "call_start").select("device", "process_id", "start", "end", at="call_start")
    begun = marked.select("process_id", "window", began="start", ended="end")
    inside = nearest(work.drop_nulls("at"), begun, ("at", "began"), ["process_id"]).filter(
        pl.col("at") < pl.col("ended")
    )
    # the time that no earlier operation of the step covers, summed by start, is the union of their run times
    inside = inside.sort("start", "end").with_columns(
        pl.col("end").cum_max().shift(1).over("window", "device").fill_null(pl.col("start")).alias("reached")
    )
    begin = pl.max_horizontal("start", "reached")
    late = pl.max_horizontal(begin, "ended")
    return inside.group_by("window", "device").agg(
        pl.len().cast(pl.Int64).alias("operations"),
        pl.col("start").min().alias("gpu_start_ns"),
        pl.col("end").max().alias("gpu_end_ns"),
        (pl.col("end") - begin).clip(lower_bound=0).sum().alias("gpu_busy_ns"),
        (pl.col("end") - late).clip(lower_bound=0).sum().alias("late_ns"),
    )
