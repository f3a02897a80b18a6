"""Results of changes: of a serving engine's batch by the laws of its decode steps, of all else by replays."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.host.engine_marks import DECODE
from kanalyze.analyses.replay import _changes, _host_time
from kanalyze.analyses.replay._whatif import Critical, WhatIf, whatif_of
from kanalyze.analyses.serving.engine_steps import EAGER, GRAPH, PARTLY, captured_sizes, engine_steps
from kanalyze.analyses.serving.step_laws import GPU, HOST, PADDED, read_bytes, steps_by_law, time_at, usual_steps
from kanalyze.analyses.work._configuration import SAME, Configuration, Size
from kanalyze.analyses.work.work import calls_with_work, memory_ns, memory_roofs
from kanalyze.errors import CannotTellError
from kanalyze.report import Report
from kanalyze.units import plural, size, time


def changed(  # noqa: PLR0913 - what is changed, and how that is told
    report: Report,
    changes: _changes.Changes,
    words: Sequence[str],
    *,
    each: bool,
    measured_ns: float | None,
    configuration: Configuration,
) -> WhatIf:
    """Result of a change: another batch alone by the law of the steps of a serving engine, all else by a replay.

    `measured_ns` is what an iteration takes without a profiler, or the window where it is of none; the others as of
    :func:`kanalyze.analyses.replay._whatif.whatif_of`.
    """
    batch, length, window = configuration.batch, configuration.length, report.scope.window
    alone = not each and configuration._replace(batch=None, length=None) == SAME and changes == _changes.Changes()
    if batch is not None and (alone or batch.now is None) and (engine_steps(report).get_column("kind") == DECODE).any():
        if alone:
            return at_batch(report, batch, length, measured_ns)
        if calls_with_work(report).get_column("input_shapes").is_null().all():
            remedy = "The law of steps tells --batch alone; with --gpu or --dtype shapes must: use record_shapes=True."
            raise CannotTellError.without_size(report.meta.path, "batch size", "shapes", remedy)
    whole_ns = measured_ns and measured_ns * ((window.count if window else None) or 1)
    return whatif_of(report, changes, words, each=each, measured_ns=whole_ns, configuration=configuration)


#: What a decode step's time is of, by the laws.
_PARTS: Final = ("weights and requests", "tokens in the cache", "host")

#: What the tokens in the cache take of a step's time, by its law.
_OF_KV: Final = (pl.col("per_kv_token_ns") * pl.col("kv")).fill_null(0)


def at_batch(report: Report, batch: Size, length: Size | None = None, measured_ns: float | None = None) -> WhatIf:
    """A decode step of `batch` requests, with `length` tokens in the cache of each, or as many as in the recording.

    Where either says what it is now, the step it is held against is one of that size, by the law; else the mean of
    those recorded. The batch is padded to the next graph that ran or was captured; beyond the largest it runs without
    one, if there is a law of such steps. `measured_ns` is what a decode step takes without a profiler, from one to the
    next, in the mean of those recorded: the difference is the host's, and stays.

    Raises:
        CannotTellError: There is no law of decode steps.
    """
    steps, modes = _decode_steps(report)
    usual, cached = (steps.filter(part=part).select(pl.col(n).mean()).item() for part, n in ((HOST, "n"), (GPU, "kv")))
    if not usual:
        raise CannotTellError.without_law(report.meta.path, "nothing says how many requests are in a step")
    sizes = (batch.now or usual, batch.then)
    each = [(length and side) or (cached or 0.0) / usual for side in (length and length.now, length and length.then)]
    sides = [_at_mode(report, modes, requests) for requests in sizes]
    now, then = (_times(side, n, side.padded, kv) for n, kv, side in zip(sizes, each, sides, strict=True))
    recorded = _means(steps)
    if not (batch.now or (length and length.now)):
        now = recorded
    side, (nearest, recorded_sizes) = sides[1], _nearest(sides[1])
    last = _times(side, nearest, nearest, each[1])
    near, kept = [_spread(side.of_gpu), _spread(side.of_host)], 1.0
    if measured_ns is not None:
        more = measured_ns - sum(recorded)
        near[1] = _host_time.NEAR
        kept = max(now[-1] + more, 0.0) / max(now[-1], 1.0)
        now[-1], then[-1], last[-1] = (max(side[-1] + more, 0.0) for side in (now, then, last))
    low, high = _bounds(side, nearest, near, then, last)
    critical = [Critical(part, "", int(one), int(other)) for part, one, other in zip(_PARTS, now, then, strict=True)]
    now_ns, then_ns = sum(one.now_ns for one in critical), sum(one.then_ns for one in critical)
    remarks = (
        _rates(plural(batch.then, "request"), batch.then, then_ns, each[1], side),
        _rates(f"Now, with {sizes[0]:,.{0 if batch.now else 1}f}", sizes[0], now_ns),
        recorded_sizes,
        _floor(report, side.of_gpu),
        "" if side.of_kv else "What tokens in the cache take is not known: these steps do not tell.",
    )
    return WhatIf(
        meta=report.meta,
        scope=report.scope,
        changes=(f"--batch {batch}", *([f"--length {length}"] if length else [])),
        iterations=1,
        each="decode step",
        now_ns=now_ns,
        then_ns=then_ns,
        low_ns=max(int(low), 0),
        high_ns=math.ceil(high),
        amdahl_ns=then_ns,
        critical=tuple(one for one in critical if one.now_ns or one.then_ns),
        measured_ns=measured_ns,
        host_kept=kept,
        host_kept_low=kept,
        host_kept_high=kept,
        remark=" ".join(filter(None, remarks)),
    )


def _bounds(side: "_Mode", nearest: float, near: list[float], then: list[float], last: list[float]) -> list[float]:
    """The least and the most of a step (ns), if parts of it are as `near`; `last` is that of the `nearest` batch."""
    beyond = max(side.padded / max(nearest, 1), nearest / side.padded)
    about, about_last = (sum(times[:2]) * near[0] + times[2] * near[1] for times in (then, last))
    low, high = (sum(then) + sign * about * (2 * beyond - 1) for sign in (-1, 1))
    if nearest < side.padded:  # no step is quicker with more in it
        return [max(low, sum(last) - about_last), high]
    return [low, min(high, sum(last) + about_last) if nearest > side.padded else high]


class _Mode(NamedTuple):
    """Steps of the mode in which a batch would run, and what is known of that."""

    of_gpu: pl.DataFrame
    of_host: pl.DataFrame
    of_kv: float  # what a token in the cache takes
    padded: float  # the size of the graph that would run; the batch itself without one, or beyond them
    largest: float  # the largest graph; 0 without any


def _times(side: _Mode, requests: float, padded: float, cached: float) -> list[float]:
    """The times of a step by :data:`_PARTS`, with so many tokens in the cache of each request."""
    return [time_at(side.of_gpu, padded), side.of_kv * cached * requests, time_at(side.of_host, requests)]


def _nearest(side: _Mode) -> tuple[float, str]:
    """The recorded batch that is nearest to one, itself between them, and a remark where it is another."""
    least, most = side.of_gpu.select(least=pl.col("n").min(), most=pl.col("n").max()).row(0)
    remark = "" if least <= side.padded <= most else f"Recorded were {least:,} to {most:,}."
    if 0 < side.largest < side.padded and side.of_gpu.item(0, "mode") != EAGER:
        none = f"No graph is larger than {side.largest:,}, and steps without one have no law: this is that of graphs."
        remark = f"{none} {remark}"
    return min(max(side.padded, least), most), remark


def _at_mode(report: Report, modes: dict[str, list[pl.DataFrame]], batch: float) -> _Mode:
    """Steps by graph up to the largest that ran or was captured, others beyond, as far as there is a law of them."""
    first, last = next(iter(modes)), next(reversed(modes))
    sizes = [*modes[first][0].get_column("n").drop_nulls(), *captured_sizes(report)] if first != EAGER else []
    largest = max(sizes, default=0)
    of_gpu, of_host = modes[first if batch <= largest else last]
    sizes = sizes if of_gpu.item(0, "tokens_are") == PADDED else []
    padded = min((one for one in sizes if one >= batch), default=batch)
    return _Mode(of_gpu, of_host, of_gpu.item(0, "per_kv_token_ns") or 0.0, padded, largest)


def _decode_steps(report: Report) -> tuple[pl.DataFrame, dict[str, list[pl.DataFrame]]]:
    """Decode steps of the GPU with most; by mode, graphs first, what those with laws take of it and the host."""
    steps = steps_by_law(report).filter(pl.col("kind") == DECODE, pl.col("ns") > 0)
    usual = usual_steps(steps)
    steps = steps.join(usual.select("device").unique(), on="device", maintain_order="left")
    modes = {mode: [steps.filter(mode=mode, part=part) for part in (GPU, HOST)] for mode in (GRAPH, PARTLY, EAGER)}
    modes = {mode: parts for mode, parts in modes.items() if all(one["law_ns"].count() for one in parts)}
    if not modes:
        why = f"it has {plural(usual.filter(part=GPU).height, 'decode step')} alone"
        raise CannotTellError.without_law(report.meta.path, why)
    return steps, modes


def _means(steps: pl.DataFrame) -> list[float]:
    """The mean times of some steps by :data:`_PARTS`: by their laws, or as recorded where there is none."""
    parts = steps.select("part", of_cache=_OF_KV, ns=pl.coalesce("size_ns", pl.coalesce("law_ns", "ns") - _OF_KV))
    means = parts.group_by("part").mean().rows_by_key("part", named=True, unique=True)
    return [means[GPU]["ns"], means[GPU]["of_cache"], means[HOST]["ns"]]


def _floor(report: Report, steps: pl.DataFrame) -> str:
    """The least time of a step by what its operators read; empty where their shapes, or the memory, are not known."""
    read = read_bytes(report).join(steps.select("device", "kind", "mode").head(1), on=["device", "kind", "mode"])
    floor = read.join(memory_roofs(report.devices), on="device").with_columns(ns=memory_ns()).drop_nulls("ns")
    if floor.is_empty():
        return ""
    ns, count = floor.select("ns", "bytes").row(0)
    return f"Its operators move {size(count)} a step, for which the memory needs {time(ns)} at the least."


def _spread(steps: pl.DataFrame) -> float:
    """Nine of ten steps are nearer to what is told of them; no recording tells it closer than two runs agree."""
    apart = (pl.col("ns") / pl.coalesce(pl.col("size_ns") + _OF_KV, "law_ns") - 1).abs()
    return max(steps.select(apart.quantile(0.9)).item() or 0.0, _host_time.NEAR)


def _rates(what: str, requests: float, ns: float, each: float = 0.0, side: _Mode | None = None) -> str:
    """Tokens a second, and the time of a token."""
    cached = f" with {each:,.0f} tokens in the cache of each" if each else ""
    graph = f", in a graph of {side.padded}" if side is not None and side.padded > requests else ""
    if side is not None and side.largest and side.of_gpu.item(0, "mode") == EAGER:
        graph = f", without a graph (none is larger than {side.largest:,})"
    return f"{what}{cached}{graph}: {requests / max(ns, 1) * 1e9:,.0f} tokens/s, {time(ns / requests)} a token."
