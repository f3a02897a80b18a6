"""Where in the program's own code the time of each device comes from: by line, or by Python function."""

from typing import Any, Final

import polars as pl

from kanalyze import intervals, model, outlets
from kanalyze.analyses.device._operations import BUSY_BUCKETS, compiled_from, exclusive_operations, facts_of
from kanalyze.analyses.device._windows import share_of_window
from kanalyze.analyses.host import _captures, _range_lines
from kanalyze.analyses.idle._attribution import bucket_of, by_thread, idle_pieces
from kanalyze.analyses.shared.analysis import analysis, once_per_process, once_per_report, require, source_lines
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, innermost_lines, key_columns, on_line, overlaid
from kanalyze.columns import gathered, of_parts, parts_by
from kanalyze.errors import CannotTellError
from kanalyze.report import Report
from kanalyze.schema import Table, columns

#: What a piece of a device's time is, by the ledger's bucket; every other is the host's.
_PARTS: Final = {**dict.fromkeys(BUSY_BUCKETS, "work"), "launch": "launch", **dict.fromkeys(("sync", "queued"), "wait")}
PARTS: Final = ("host", "launch", "wait", "work")

#: What a line is known by.
PLACE: Final = ("file", "line", "function")

TABLE: Final = Table(
    "code",
    "One line of the program's own code, or what comes from none: over all of them the columns sum to the window.",
    columns("""
        device int: The GPU, as in `devices`.
        file category?: The file; null for what comes from none of the program's lines.
        line int?: The line; that of the function where only functions were recorded.
        function category?: The function that it lies in.
        place text?: The file by as much of its path as tells it apart, and the line.
        host_ns int: Idle time in which its thread ran the program's own code, and calls but the next.
        launch_ns int: Idle time for launches that it made.
        wait_ns int: Idle time in which it waited for the device, or work that it submitted did.
        work_ns int: What the device did of what it launched; kernels that torch.compile made of one line alone are
            those of that line, where `collect` saw its code.
        captured_ns int: What the device did of CUDA graphs that the line captured, or that such kernels are of; it is
            part of the work_ns of the lines that launched them, and not of the sum.
        share float: The sum of these as a part of the device's window.
        text category?: What stands in that line.
    """),
    purpose="the time of each line of the program's code",
    telling=("place", "host_ns", "launch_ns", "wait_ns", "work_ns", "text"),
)

#: A place by the name that traces have for the call of a function.
_AS_RECORDED: Final = pl.format("{}({}): {}", *PLACE)

_STRETCH: Final = {**dict.fromkeys(THREAD, pl.Int64), "start": pl.Int64, "end": pl.Int64, "place": pl.UInt32}


@analysis
def code(report: Report) -> pl.DataFrame:
    """Time of each device by the line of the program that it comes from.

    The line is the one that the thread was in: of idle time by the thread that it is attributed to, of launches and of
    the device's work where the launch was made. What other threads launch, as autograd's does, comes from the line that
    the program's main thread was in. Without lines it is Python functions, where those were recorded.

    Returns:
        :data:`TABLE`, by device, the costliest first.

    Raises:
        CannotTellError: The report records no device operations, or neither lines nor Python functions.
    """
    require(report, TABLE, *model.DEVICE_KINDS)
    if not has_lines(report):
        raise CannotTellError.without_lines(TABLE.name, report.meta.path)
    sums = [pl.col("ns").filter(pl.col("part") == part).sum().alias(f"{part}_ns") for part in PARTS]
    by_place = placed_pieces(report).group_by("device", "place").agg(*sums, ns=pl.col("ns").sum())
    inside = captured_places(report)
    by_place = by_place.join(inside, on=["device", "place"], how="full", coalesce=True, nulls_equal=True)
    by_place = by_place.with_columns(pl.exclude("device", "place").fill_null(0))
    order = by_place.sort("device", "ns", "captured_ns", "place", descending=[False, True, True, False])
    return TABLE.select(placed_with_text(report, order).with_columns(share_of_window(report)))


def has_lines(report: Report) -> bool:
    """Whether it is known where in the program's code its threads were."""
    return not _places(report).is_empty()


@once_per_report
def placed_pieces(report: Report) -> pl.DataFrame:
    """Pieces of the time of each device in scope: device, start, end, ns, part (of :data:`PARTS`), place, own.

    The ns of each device sum to its window: of operations at the same time they are what each adds. `own` is whether
    the place is that of the piece's own thread.
    """
    work = exclusive_operations(report, "call_start", "thread_id").filter(pl.col("exclusive_ns") > 0)
    places = place_at(report, work.select(*THREAD, at="call_start"))
    if not (compiled := _compiled_places(report, work)).is_null().all():
        of_graph = gathered(_captures.capture_rows(report), work.get_column("row")).is_not_null()
        places = places.zip_with(of_graph, compiled.fill_null(places))
    columns = pl.col("device"), pl.col("start"), pl.col("end"), pl.col("exclusive_ns").alias("ns")
    ran = work.select(*columns, pl.lit("work").alias("part"), places, _have_lines(report, work))
    idle = (
        _of_idle(report, pieces).with_columns(pl.lit(device, dtype=pl.Int64).alias("device"))
        for device, pieces in idle_pieces(report).items()
    )
    return pl.concat([ran, *(part.select(ran.columns) for part in idle)])


def function_around(report: Report, spans: pl.DataFrame) -> str:
    """The innermost recorded function of the main thread that runs in nine tenths of some `spans`; empty for none."""
    functions = parts_by(_range_lines.program_functions(report), THREAD).values()
    if not functions or spans.is_empty():
        return ""
    calls = max(functions, key=len)
    held = intervals.covered(calls, spans).alias("held")
    sums = calls.select(name=pl.col("name").cast(pl.String), whole=pl.col("end") - pl.col("start")).with_columns(held)
    sums = sums.group_by("name").sum().filter(pl.col("held") >= 0.9 * intervals.length(spans))
    places = _places(report).with_columns(name=_AS_RECORDED).join(sums, on="name")
    inner = places.filter(pl.col("function") != "<module>").sort("whole", "place")
    return str(place_texts(report)[inner.item(0, "place")]) if inner.height else ""


def captured_places(report: Report) -> pl.DataFrame:
    """The time of CUDA graphs' operations by the place that captured them: device, place and captured_ns."""
    work, source = exclusive_operations(report), _captures.capture_source(report)
    row = gathered(_captures.capture_rows(report), work.get_column("row"))
    places = place_at(source, _captures.captures(report).select(*THREAD, at="since"))
    if source is not report:  # whose places have other numbers
        own, others = (_places(of).with_columns(pl.col("file", "function").cast(pl.String)) for of in (report, source))
        numbers = others.select(PLACE).join(own, on=PLACE, how="left", maintain_order="left").get_column("place")
        places = gathered(numbers, places)
    compiled = _compiled_places(report, work).zip_with(row.is_not_null(), row.clear(len(row)))
    inside = work.select("device", "exclusive_ns", place=compiled.fill_null(gathered(places, row))).drop_nulls("place")
    return inside.group_by("device", "place").agg(captured_ns=pl.col("exclusive_ns").sum())


def _compiled_places(report: Report, work: pl.DataFrame) -> pl.Series:
    """The place that each kernel of torch.compile was made of; null for several, and for all other operations."""
    kernels = _compiled_lines(report).join(_places(report), on=["file", "line"]).unique("kernel", keep="first")
    if kernels.is_empty():
        return pl.Series("place", [None], dtype=pl.UInt32).new_from_index(0, work.height)
    names = work.select(pl.col("name").cast(pl.String).alias("kernel"))
    return names.join(kernels, on="kernel", how="left", maintain_order="left").get_column("place")


@once_per_report
def _compiled_lines(report: Report) -> pl.DataFrame:
    """The kernels that were compiled from one line alone: kernel, file and line."""
    parts = pl.col("lines").str.extract_groups(r"^(?<file>[^,]*):(?<line>\d{1,9})$").struct.unnest()
    lines = compiled_from(report).select("kernel", parts).drop_nulls()
    return lines.with_columns(pl.col("line").cast(pl.Int64), pl.col("file").cast(pl.Categorical))


def _of_idle(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """The idle time of a device by place: of launches and queued work that of the launch, else that of its thread."""
    buckets = bucket_of(report, pieces).alias("bucket")
    parts = buckets.cast(pl.String).replace_strict(_PARTS, default="host").alias("part")
    named = pieces.select("start", "end", "row", "thread", parts, buckets)
    launched = named.filter(pl.col("bucket").is_in(["launch", "queued"]))
    calls = facts_of(report, launched.get_column("row"), *THREAD, "call_start").rename({"call_start": "at"})
    rest = named.filter(~pl.col("bucket").is_in(["launch", "queued"]))
    placed = [
        overlaid(part.sort("start"), _line_of(report, key), "place").with_columns(own=pl.lit(key in _lines(report)))
        for key, part in by_thread(report, rest)
    ]
    launches = launched.hstack([place_at(report, calls), _have_lines(report, calls)])
    rows = pl.concat([part.select("start", "end", "part", "place", "own") for part in (launches, *placed)])
    return rows.with_columns(ns=pl.col("end") - pl.col("start"))


def _have_lines(report: Report, rows: pl.DataFrame) -> pl.Series:
    """Whether the thread of each row is one whose lines are known."""
    threads = pl.DataFrame([*_lines(report)], dict.fromkeys(THREAD, pl.Int64), orient="row").drop_nulls()
    threads = threads.with_columns(own=pl.lit(value=True))
    joined = rows.select(*THREAD).join(threads, on=[*THREAD], how="left", maintain_order="left")
    return joined.get_column("own").fill_null(value=False)


def place_at(report: Report, points: pl.DataFrame) -> pl.Series:
    """The place of each of `points` (process_id, thread_id, at): a number in :func:`places`, or null."""

    def places(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        return on_line(_line_of(report, (key[0], key[1])).rename({"place": "row"}), part.get_column("at"))

    return of_parts(points.select(*THREAD, "at"), THREAD, pl.UInt32, places).alias("place")


@once_per_process
def place_texts(report: Report) -> pl.Series:
    """The text of each place: ``model.py:41``, the file by as much of its path as tells it apart."""
    places = _places(report)
    files = places.get_column("file").cast(pl.String).to_list()
    return places.select(pl.format("{}:{}", pl.Series(outlets.short_paths(files), dtype=pl.String), "line")).to_series()


def line_that_reads(report: Report, pattern: str, least: int) -> str:
    """The only line of the program that a thread was in so often and whose text matches; empty for none or several."""
    often = _stretches(report).group_by("place").len().filter(pl.col("len") >= least)
    reading = _places(report).filter(pl.col("text").cast(pl.String).str.contains(pattern))
    lines = reading.join(often, on="place", how="semi")
    return str(place_texts(report)[lines.get_column("place").item()]) if lines.height == 1 else ""


def placed_with_text(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the number of a `place`: its text in place of that, and file, line, function and what stands there."""
    texts = gathered(place_texts(report), rows.get_column("place")).alias("told")
    placed = rows.with_columns(texts).join(_places(report), on="place", how="left", maintain_order="left")
    return placed.with_columns(place="told")


def _line_of(report: Report, key: ThreadKey) -> pl.DataFrame:
    """Where a thread was, as sorted, disjoint stretches (start, end, place); else where its main thread was."""
    lines = _lines(report)
    nothing = pl.DataFrame(schema=_STRETCH).drop(THREAD)
    return lines[key] if key in lines else lines.get((key[0], None), nothing)


@once_per_process
def _lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """The stretches of each thread, by process and thread; with thread None those of the one with most of them."""
    lines: dict[ThreadKey, pl.DataFrame] = {}
    for key, part in sorted(parts_by(_stretches(report), THREAD).items(), key=lambda item: -item[1].height):
        lines[key] = part.drop(THREAD)
        lines.setdefault((key[0], None), lines[key])
    return lines


@once_per_process
def _places(report: Report) -> pl.DataFrame:
    """Each place once, those of compiled kernels as well: place (its number), file, line, function, text."""
    rows = source_lines(report)
    if rows.is_empty():
        names = _range_lines.program_functions(report).get_column("name").unique().drop_nulls().cast(pl.String)
        parts = names.str.extract_groups(r"^(?<file>.*)\((?<line>\d{1,9})\): (?<function>.*)$").struct.unnest()
        rows = parts.drop_nulls("file").with_columns(pl.col("line").cast(pl.Int64), text=pl.lit(None, dtype=pl.String))
    places = rows.group_by(PLACE, maintain_order=True).agg(pl.col("text").first().cast(pl.String).replace("", None))
    places = places.with_columns(pl.col("file").cast(pl.Categorical))
    if places.height:
        compiled = _compiled_lines(report).select("file", "line").unique(maintain_order=True)
        places = pl.concat([places, compiled.join(places, on=["file", "line"], how="anti")], how="diagonal")
    return places.with_columns(pl.col("file", "function", "text").cast(pl.Categorical)).with_row_index("place")


@once_per_process
def _stretches(report: Report) -> pl.DataFrame:
    """Where each thread was: :data:`_STRETCH`, by thread and start."""
    rows = source_lines(report)
    if rows.height:
        placed = rows.join(_places(report), on=PLACE, nulls_equal=True)
        return placed.select(*THREAD, **intervals.OF_EVENTS, place="place").sort(*THREAD, "start")
    functions = _range_lines.program_functions(report).with_row_index("row")
    texts = functions.get_column("name").cast(pl.String)
    by_name = _places(report).select("place", name=_AS_RECORDED)
    places = texts.to_frame("name").join(by_name, on="name", how="left", maintain_order="left").get_column("place")
    lines = (
        line.select(**key_columns(key), start="start", end="end", place=gathered(places, line.get_column("row")))
        for key, line in innermost_lines(functions).items()
    )
    return pl.concat([pl.DataFrame(schema=_STRETCH), *lines])
