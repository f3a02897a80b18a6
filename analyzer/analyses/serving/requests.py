"""Where the latency of a client's requests went: before their first step, in steps, between them.

Definitions: docs/serving.md.
"""

from typing import Final, Unpack

import polars as pl

from kanalyze import columns, errors, intervals, schema
from kanalyze.analyses.host.engine_marks import PREFILL
from kanalyze.analyses.serving.engine_steps import engine_steps
from kanalyze.report import Report, Where

TABLE: Final = schema.Table(
    "requests",
    "A client's request: where its latency went. queue, prefill, decode, stall and gaps sum to it, if known.",
    schema.columns("""
        request text: Its name in the client's log.
        arrival_ns int: When it was sent, on the report's clock.
        latency_ns int: From then to its last token.
        queue_ns int?: Until the step began that read the first part of its prompt; null where nothing tells which.
        prefill_ns int?: From then in steps, to its first token.
        decode_ns int?: After that in steps that generate; null without a first token.
        stall_ns int?: After its first token in steps that only read prompts of others.
        gap_ns int?: The rest: between steps, and on the way to the client.
        first_token_ns int?: From arrival to its first token.
        per_token_ns float?: From its first token to its last one, for each token after the first.
        prompt_tokens int?: Tokens of its prompt.
        output_tokens int?: Tokens of its answer.
        steps int?: Steps that it sat in, and those that stalled it.
        first_step int?: The index of the first of them; null as queue_ns.
        last_step int?: That of the last one.
        longest_step int?: That of the longest.
        longest_ns int?: How long that took.
        longest_label text?: Its label.
    """),
    options=("log",),
    purpose="where the latency of requests went",
    telling=("request", "latency_ns", "queue_ns", "prefill_ns", "decode_ns", "stall_ns", "gap_ns", "longest_step"),
)

#: Clocks that are not the report's are brought together where most first tokens follow a step's end this closely.
_NEAR_NS: Final = 200_000
_SEVERAL: Final = 3  # of fewer first tokens or steps one that fits tells the clock

#: How long first tokens may take from a step to the client (ns), each half as long again as the one before.
_LAGS_NS: Final = (0, *(int(250_000 * 1.5**number) for number in range(14)))

#: A time that was read as seconds may be of ms, µs or ns. And a year in the last.
_UNITS: Final = (1, 10**3, 10**6, 10**9)
_YEAR_NS: Final = 365 * 86_400 * 10**9

#: Pairs of a first token and a step that are tried for that: of more requests, some in equal distance.
_MOST_PAIRS: Final = 10**6


def requests(report: Report, log: pl.DataFrame | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The requests of a client's log that overlap the steps of the report, by arrival.

    Prompts are read in order of arrival: where one begins is told by first tokens and the numbers of prompts in steps.

    Args:
        report: Where the steps are.
        log: What :func:`kanalyze.readers.request_log.read_requests` gives of the log.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`; empty where no request overlaps a step.

    Raises:
        CannotTellError: No log is given, or nothing brings its clock together with the report's.
    """
    if log is None:
        raise errors.CannotTellError.without_log(report.meta.path)
    steps = _steps(engine_steps(report, **where))
    if steps.is_empty():
        return TABLE.empty()
    own = _on_report_clock(log, steps, report).sort("arrival_ns", maintain_order=True)
    own = own.filter(pl.col("end_ns") > steps.item(0, "start"), pl.col("arrival_ns") < steps.item(-1, "end"))
    return TABLE.select(_split(_with_begin(own, steps), steps))


def _steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps as spans that do not overlap: index, label, start, end (of the range or of its work).

    reads are the tokens of prompts, alone tells that it generates nothing.
    """
    ended = pl.max_horizontal(pl.col("start_ns") + pl.col("host_ns"), pl.col("gpu_start_ns") + pl.col("dur_ns"))
    spans = steps.group_by("process_id", "index").agg(
        pl.col("label", "kind", "^context_.*$").first(), start=pl.col("start_ns").min(), end=ended.max()
    )
    # ranks of one engine take the same steps: of these the first is read
    texts = spans.sort("index").group_by("process_id").agg(pl.coalesce("label", "kind").str.join("\n").alias("steps"))
    first = texts.sort("process_id").unique("steps", keep="first")
    spans = spans.join(first, on="process_id", how="semi", nulls_equal=True)
    spans = spans.sort("start", "end").with_columns(end=pl.min_horizontal("end", pl.col("start").shift(-1)))
    reads = pl.when(pl.col("kind") == PREFILL).then(pl.coalesce("context_tokens", 1)).otherwise("context_tokens")
    return spans.with_columns(reads=reads.fill_null(0), alone=pl.col("kind") == PREFILL)


def _on_report_clock(log: pl.DataFrame, steps: pl.DataFrame, report: Report) -> pl.DataFrame:
    """The log with times of the report: by the epoch, or so that most first tokens come as a step of prompts ends.

    Of a clock that is neither, the unit and the shift are taken with which first tokens come in :data:`_NEAR_NS` of
    most steps: too large a unit has few in the recording, too small a one all at one step. None, if that is one.
    """
    times, origin_ns = pl.col("arrival_ns", "first_ns", "end_ns"), report.meta.origin_unix_ns
    # counters since a machine's start, in small units, are as large as times of the epoch of other years
    if origin_ns is not None and log.select(((pl.col("arrival_ns") - origin_ns).abs() < _YEAR_NS).all()).item():
        return log.with_columns(times - origin_ns)
    ends = steps.filter(pl.col("reads") > 0).select(to="end")
    firsts = log.select(of="first_ns").drop_nulls()
    firsts = firsts.gather_every(1 + firsts.height * ends.height // _MOST_PAIRS)
    places = [(unit, *_shift(firsts // unit, ends)) for unit in _UNITS]
    unit, shift, count = max(places, key=lambda place: place[-1])
    if not count:
        raise errors.CannotTellError.without_first(report.meta.path)
    return log.with_columns(times // unit + shift)


def _shift(firsts: pl.DataFrame, ends: pl.DataFrame) -> tuple[int, int]:
    """What brings most first tokens together with ends of steps, and of how many steps.

    Of none, if more than a third of the recorded first tokens are not, or, on another clock, at one step of several, as
    any may be, or if three times as many as these are recorded where the log has most in so long a time.
    """
    pairs = ends.join(firsts, how="cross").with_columns(shift=pl.col("to") - pl.col("of")).sort("shift")
    if pairs.is_empty():
        return 0, 0
    shifts = pairs.get_column("shift")
    together = shifts.search_sorted(shifts + _NEAR_NS) - pl.int_range(len(shifts), eager=True)
    best, on_same_clock = together.arg_max() or 0, shifts.is_between(-_NEAR_NS // 2, _NEAR_NS // 2)
    same = on_same_clock.sum() >= together[best]
    shift, near = (0, pairs.filter(on_same_clock)) if same else (shifts[best], pairs.slice(best, together[best]))
    during = firsts.filter((pl.col("of") + shift).is_between(ends.item(0, "to"), ends.item(-1, "to"))).n_unique()
    count, few = near.get_column("to").n_unique(), same or min(firsts.height, ends.height) < _SEVERAL
    times = firsts.get_column("of").unique().sort()
    most = (times.search_sorted(times + ends.item(-1, "to") - ends.item(0, "to"), "right") - times.arg_sort()).max()
    enough = 3 * near.get_column("of").n_unique() >= max(2 * during, int(most or 0))
    return shift, count if enough and (few or count > 1) else 0


def _with_begin(log: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Adds low (the place of the first step of a request) and begin (when that began), null where nothing tells.

    And lag_ns: how long first tokens take from the end of their step to the client, in the median. Of several lags
    those count that tell most requests; where these tell different steps, none does.
    """
    readers = steps.with_row_index("place").filter(pl.col("reads") > 0)
    spans = [_spans(log, readers, lag) for lag in _lags(log, readers)]
    most = max(first.count() for first, _ in spans)
    (first, last), *others = (one for one in spans if one[0].count() == most)
    for other, _ in others:
        first = first.set(first.ne_missing(other), None)
    lags = (log.get_column("first_ns") - columns.gathered(readers.get_column("end"), last)).clip(0)
    low = columns.gathered(readers.get_column("place"), first)
    begin = columns.gathered(steps.get_column("start"), low)
    return log.with_columns(low=low, begin=begin, lag_ns=pl.lit(lags.median() or 0).cast(pl.Int64))


def _lags(log: pl.DataFrame, readers: pl.DataFrame) -> tuple[int, ...]:
    """How long first tokens may take to the client: no time, where nine of ten come as a step of prompts ends."""
    firsts, ends = log.get_column("first_ns").drop_nulls(), readers.get_column("end")
    behind = firsts - columns.gathered(ends, ends.search_sorted(firsts + _NEAR_NS // 2).cast(pl.Int64) - 1)
    at_once = (behind.abs() <= _NEAR_NS // 2).sum() >= 0.9 * len(firsts)
    return _LAGS_NS[:1] if at_once else _LAGS_NS


def _spans(log: pl.DataFrame, readers: pl.DataFrame, lag_ns: int) -> tuple[pl.Series, pl.Series]:
    """Where the prompt of each request begins, null where nothing tells, and ends, if first tokens take so long.

    A step that reads more prompts than end in it reads a part of the next one. So each prompt has a span of steps; of
    the steps from its arrival to its first token each has to read as many prompts as spans hold it.
    """
    number, begun = readers.get_column("context_requests").fill_null(-1), readers.get_column("start")
    firsts = log.get_column("first_ns") - lag_ns
    arrived, after = (begun.search_sorted(at).cast(pl.Int64) for at in (log.get_column("arrival_ns"), firsts))
    last = (after - 1).set(firsts.is_null() | (after == 0), None)  # where a prompt ends

    def up_to(places: pl.Series) -> pl.Series:
        """How many of them are no later than each of the readers."""
        at = pl.int_range(readers.height, eager=True)
        return places.drop_nulls().sort().search_sorted(at, "right").cast(pl.Int64)

    ended, before = up_to(last).shift(fill_value=0), last.cum_max().forward_fill().shift(1)  # where those before it end
    part = columns.gathered(number > up_to(last) - ended, before) | (before == last)
    first = pl.select(pl.max_horizontal(arrived, before + pl.when(part).then(0).otherwise(1))).to_series()
    differs = (up_to(first.set(last.is_null(), None)) - ended != number).cast(pl.Int64)
    wrong = pl.concat([pl.Series([0]), differs]).cum_sum()
    same = (columns.gathered(wrong, last + 1) == wrong.gather(arrived)) & (first <= last)
    same &= _holds(log.get_column("prompt_tokens"), first, last, readers.get_column("reads"))
    return first.set(~same.fill_null(value=False), None), last


def _holds(prompts: pl.Series, first: pl.Series, last: pl.Series, reads: pl.Series) -> pl.Series:
    """Whether the steps of each request read no more tokens than the prompts that are read in them; if not, some lack.

    True where the length of a prompt, or its end, is not known.
    """
    if prompts.has_nulls() or last.has_nulls():
        return pl.repeat(value=True, n=len(first), eager=True)
    begun, ended = (pl.DataFrame({"at": places, "tokens": prompts}).sort("at") for places in (first, last))

    def up_to(spans: pl.DataFrame, at: pl.Series) -> pl.Series:
        """How many tokens the prompts have that begin, or end, no later."""
        sums = pl.concat([pl.Series([0]), spans.get_column("tokens").cum_sum()])
        return sums.gather(spans.get_column("at").search_sorted(at, "right"))

    read = pl.concat([pl.Series([0.0]), reads.cast(pl.Float64).cum_sum()])
    return read.gather(last + 1) - columns.gathered(read, first) <= up_to(begun, last) - up_to(ended, first - 1)


def _split(own: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Requests with the parts of their latency and the steps that they sat in."""
    own = own.with_columns(first=pl.col("first_ns").clip("arrival_ns", "end_ns"))
    own = own.with_columns(pl.col("begin").clip("arrival_ns", "first"))
    # in the engine tokens are there so long before they are at the client
    own = own.with_columns(made=pl.max_horizontal("begin", pl.col("first") - pl.col("lag_ns")))
    own = own.with_columns(done=pl.max_horizontal("made", pl.col("end_ns") - pl.col("lag_ns")))
    begin, first, end = (_covered(own.get_column(at), steps) for at in ("begin", "made", "done"))
    stalled, before = (_covered(own.get_column(at), steps.filter("alone")) for at in ("done", "made"))
    after_first = pl.col("end_ns") - pl.col("first_ns")
    parts: dict[str, pl.Expr | pl.Series] = {
        "latency_ns": pl.col("end_ns") - pl.col("arrival_ns"),
        "queue_ns": pl.col("begin") - pl.col("arrival_ns"),
        "prefill_ns": first - begin,
        "decode_ns": end - first - (stalled - before),
        "stall_ns": stalled - before,
    }
    own = own.with_columns(**parts).with_columns(
        gap_ns=pl.col("latency_ns") - pl.sum_horizontal(list(parts)[1:], ignore_nulls=False),
        first_token_ns=pl.col("first_ns") - pl.col("arrival_ns"),
        per_token_ns=after_first / pl.when(pl.col("output_tokens") > 1).then(pl.col("output_tokens") - 1),
    )
    low = own.get_column("low").cast(pl.Int64)
    high = steps.get_column("start").search_sorted(own.get_column("done")).cast(pl.Int64)
    last, longest = pl.select(pl.when(high > low.fill_null(0)).then(high - 1)).to_series(), _longest(steps, low, high)
    index, label = steps.get_column("index"), steps.get_column("label")
    return own.with_columns(
        steps=(high - low).clip(lower_bound=0),
        first_step=columns.gathered(index, low.set(last.is_null(), None)),
        last_step=columns.gathered(index, last),
        longest_step=columns.gathered(index, longest),
        longest_ns=columns.gathered(steps.get_column("end") - steps.get_column("start"), longest),
        longest_label=columns.gathered(label, longest),
    )


def _covered(points: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """The length of spans before each point; null of null."""
    lengths = intervals.covered_before(points.fill_null(0), spans.select("start", "end"))
    return lengths.set(points.is_null(), None)


def _longest(steps: pl.DataFrame, low: pl.Series, high: pl.Series) -> pl.Series:
    """The row of the longest of the steps from `low` to before `high`, of several the first; null for none."""
    lengths = steps.select(pl.col("end") - pl.col("start")).to_series()
    places = (
        first + int(lengths.slice(first, stop - first).arg_max() or 0) if first is not None and first < stop else None
        for first, stop in zip(low, high, strict=True)
    )
    return pl.Series([*places], dtype=pl.Int64)
