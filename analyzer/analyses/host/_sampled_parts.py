"""What host threads did in given times, and in which function, by the scheduler, system calls and samples.

Definitions: docs/definitions.md, section 5, "Host time by state".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import intervals
from kanalyze.analyses.host._thread_timeline import STATES, processor_lines, states_of, system_calls
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, of_thread, overlaid
from kanalyze.columns import nearest, parts_by, rows_at
from kanalyze.report import Report

#: By what a function was found.
EVIDENCE: Final = ("python samples", "call stack", "cpu samples", "trace", "none")

#: Schema of a part of host time: its stack by evidence, or null; samples that tell of it.
PARTS: Final[dict[str, DataType | DataTypeClass]] = {
    "device": pl.Int64,
    "state": pl.Enum(STATES),
    **dict.fromkeys(("waits_on", "waits_for"), pl.String),
    "call": pl.Categorical,
    "evidence": pl.Enum(EVIDENCE),
    "stack_id": pl.Int64,
    "ns": pl.Int64,
    "samples": pl.Int64,
}

_CAST: Final = [pl.col(name).cast(kind) for name, kind in PARTS.items()]

#: What tells parts apart besides their stack.
KEYS: Final = ("device", "state", "waits_on", "waits_for", "call")
_LINES: Final = {**dict.fromkeys((*THREAD, "first", "last", "height"), pl.Int64), "usual": pl.Float64}
_HITS: Final = {"asked": pl.Int64, **{key: PARTS[key] for key in (*KEYS, "stack_id", "samples")}, **_LINES}
#: Samples of a thread from which on the time between them is known; a single one tells of all of its time.
_FEWEST: Final = 2


#: A Python sample tells of at most so many periods before and after it.
_REACH: Final = 2

_EARLIEST: Final = -(1 << 61)
_LATEST: Final = 1 << 61


def told_parts(report: Report, asked_of: Iterable[tuple[ThreadKey, pl.DataFrame]]) -> pl.DataFrame:
    """What threads did in spans (start, end, device, a number, and waits_for, a text): :data:`PARTS`.

    The spans of each item are sorted and disjoint; the rows of a number sum to them.
    """
    found, asked, calls = [pl.DataFrame(schema=PARTS)], [], system_calls(report)
    calls = calls.select("event_id", "waits_on", call="name")
    stacks = report.table("python_samples").filter(pl.col("periodic") & pl.col("stack_id").is_not_null())
    python = parts_by(stacks.select(*THREAD, "stack_id", time="time_ns").sort("time"), THREAD)
    for key, pieces in asked_of:
        spans = states_of(report, key, pieces)
        told = rows_at(calls, spans.get_column("call"))
        spans = spans.with_columns(told.get_columns(), ns=pl.col("end") - pl.col("start"))
        if key in python:
            found.append(_by_nearest(spans, python[key]))
            continue
        inside, off = pl.col("event_id").is_not_null(), pl.col("state").is_in(["runnable", "off processor"])
        # time in system calls, by the stack that nsys took of each; calls without a stack have none
        stacks = spans.filter(inside).join(
            report.table("call_stacks"), on="event_id", how="left", maintain_order="left"
        )
        sums = stacks.group_by(*KEYS, "stack_id", maintain_order=True).agg(pl.col("ns").sum())
        word = pl.when(pl.col("stack_id").is_not_null()).then(pl.lit("call stack")).otherwise(pl.lit("none"))
        found += [
            sums.with_columns(samples=pl.lit(0), evidence=word).select(_CAST),
            _untold(spans.filter(~inside & off)),
        ]
        asked.append((key, spans.filter(~inside & ~off)))  # of which CPU samples may tell
    if asked:
        hits, lines = _hits(report, asked)
        for place, (key, spans) in enumerate(asked):
            line = lines.filter(of_thread(key))
            if line.is_empty():
                found.append(_untold(spans))
            else:
                own = hits.filter(pl.col("asked") == place).drop("asked")
                found.append(_by_counts(spans, own, _each(report, key, line.row(0, named=True))))
    return pl.concat(found).filter(pl.col("ns") > 0)


def _hits(report: Report, asked: Sequence[tuple[ThreadKey, pl.DataFrame]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """CPU samples in the spans of threads, and how each thread was sampled.

    Returns:
        asked (place in `asked`), the columns :data:`KEYS`, stack_id and samples; and process_id, thread_id, first,
        last, height and usual, the usual time between two samples.
    """

    def counted(part: pl.DataFrame) -> pl.DataFrame:
        """Counts a part of the samples: rows of hits, and a row for each thread."""
        threads = {key: own.sort("time_ns") for key, own in parts_by(part, THREAD).items()}
        found = [pl.DataFrame(schema=_HITS)]
        for key in dict.fromkeys(key for key, _ in asked):
            if key in threads:
                time = threads[key].get_column("time_ns")
                line = (*key, time[0], time[-1], len(time), time.diff().median())
                found.append(pl.DataFrame([line], schema=_LINES, orient="row"))
        for number, (key, spans) in enumerate(asked):
            if key in threads and spans.height:
                samples = threads[key].select("stack_id", time="time_ns")
                inside = nearest(samples, spans.select(*KEYS, "start", "end"), ("time", "start"))
                inside = inside.filter(pl.col("time") < pl.col("end"))
                counts = inside.group_by(*KEYS, "stack_id", maintain_order=True).agg(samples=pl.len().cast(pl.Int64))
                found.append(counts.with_columns(asked=pl.lit(number, dtype=pl.Int64)))
        return pl.concat(found, how="diagonal")

    every = report.mapped("cpu_samples", counted)
    lines = every.filter(pl.col("asked").is_null()).group_by(THREAD)
    sampled = lines.agg(
        pl.col("first").min(), pl.col("last").max(), pl.col("height").sum(), pl.col("usual").drop_nulls().first()
    )
    hits = every.drop_nulls("asked").group_by("asked", *KEYS, "stack_id", maintain_order=True)
    return hits.agg(pl.col("samples").sum()), sampled


def _untold(spans: pl.DataFrame) -> pl.DataFrame:
    """Time of which no sample tells."""
    sums = spans.group_by(*KEYS, maintain_order=True).agg(pl.col("ns").sum())
    none = {"evidence": pl.lit("none"), "stack_id": pl.lit(None), "samples": pl.lit(0)}
    return sums.with_columns(**none).select(_CAST)


def _by_counts(spans: pl.DataFrame, counts: pl.DataFrame, each_ns: float) -> pl.DataFrame:
    """Time by `counts` of the samples that lie in it: each stands for `each_ns`, of more than there is an equal part.

    What is left over is told by no sample.
    """
    sums = spans.group_by(*KEYS, maintain_order=True).agg(pl.col("ns").sum())
    told = counts.join(sums, on=KEYS, nulls_equal=True, maintain_order="left").rename({"ns": "whole"})
    asked = pl.col("samples").sum().over(KEYS) * each_ns
    part = pl.min_horizontal(pl.lit(1.0), pl.col("whole") / asked)
    told = told.with_columns(ns=(pl.col("samples") * each_ns * part).floor().cast(pl.Int64))
    # where samples stand for all of the time, the nanoseconds that rounding leaves go to the first stack
    rest = pl.col("whole") - pl.col("ns").sum().over(KEYS)
    first = (pl.int_range(pl.len()).over(KEYS) == 0) & (asked >= pl.col("whole"))
    told = told.with_columns(ns=pl.col("ns") + pl.when(first).then(rest).otherwise(0))
    known = told.group_by(KEYS).agg(told=pl.col("ns").sum())
    left = sums.join(known, on=KEYS, how="left", nulls_equal=True, maintain_order="left")
    left = left.with_columns(ns=pl.col("ns") - pl.col("told").fill_null(0), samples=pl.lit(0), stack_id=pl.lit(None))
    left = left.filter(pl.col("ns") > 0)
    found = {"cpu samples": told, "none": left}
    return pl.concat(part.with_columns(evidence=pl.lit(word)).select(_CAST) for word, part in found.items())


def _by_nearest(spans: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Time by the nearest of the samples that lie in it, at most :data:`_REACH` periods away.

    Python's samples are taken when the thread gives up its interpreter lock, mostly in a short wait for that. So the
    state is the scheduler's, and only the stack is the sample's, of the time around it.
    """
    hits = nearest(samples, spans.select("start", "end"), ("time", "start")).filter(pl.col("time") < pl.col("end"))
    period_ns = samples.select((pl.col("time") - pl.col("time").shift(1)).median()).item()
    reach = _LATEST if period_ns is None else int(min(_REACH * period_ns, _LATEST))
    before = (pl.col("time") - pl.col("time").shift(1)).fill_null(2 * reach)
    after = (pl.col("time").shift(-1) - pl.col("time")).fill_null(2 * reach)
    cells = hits.select(
        "stack_id",
        start=pl.col("time") - pl.min_horizontal(before // 2, reach),
        end=pl.col("time") + pl.min_horizontal(after - after // 2, reach),
    )
    cells = cells.filter(pl.col("end") > pl.col("start"))
    cells = cells.with_columns(start=pl.max_horizontal("start", pl.col("end").shift(1).fill_null(_EARLIEST)))
    cut = overlaid(spans.select(*KEYS, "start", "end"), cells.filter(pl.col("end") > pl.col("start")), "stack_id")
    sums = cut.group_by(*KEYS, "stack_id", maintain_order=True).agg(ns=(pl.col("end") - pl.col("start")).sum())
    counts = hits.group_by("stack_id").agg(every=pl.len())
    # a sample counts for the row of its stack that has most time
    largest = (pl.col("ns") == pl.col("ns").max().over("stack_id")) & pl.col("stack_id").is_not_null()
    told = sums.join(counts, on="stack_id", how="left", maintain_order="left").with_columns(
        samples=pl.when(largest).then("every").otherwise(0),
        evidence=pl.when(pl.col("stack_id").is_null()).then(pl.lit("none")).otherwise(pl.lit("python samples")),
    )
    return told.select(_CAST)


def _each(report: Report, key: ThreadKey, sampled: Mapping[str, Any]) -> float:
    """Time on a processor that one sample of a thread stands for; without the scheduler the usual distance."""
    line = processor_lines(report).get(key)
    if line is None or sampled["height"] < _FEWEST:
        return float(_LATEST) if sampled["usual"] is None else float(sampled["usual"])
    on = intervals.clip(line.filter("runs"), sampled["first"], sampled["last"])
    return intervals.length(on) / (int(sampled["height"]) - 1)
