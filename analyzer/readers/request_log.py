"""Reads what a client wrote of its requests: CSV, JSON lines, or the results of vLLM's and SGLang's benchmarks.

vLLM's ``bench serve --save-result --save-detailed`` writes an object of lists (start_times, ttfts, itls, input_lens,
output_lens). SGLang's ``bench_serving --output-details`` writes the same but for start_times, without which no request
has a place in a recording.
"""

import io
import json
import re
from os import PathLike
from pathlib import Path
from typing import Any, Final

import polars as pl

from kanalyze import errors, files, schema

REQUEST_LOG: Final = schema.Table(
    "request_log",
    "A request as its client saw it, on the client's clock.",
    schema.columns("""
        request text: Its name, or its place in the file.
        arrival_ns int: When it was sent.
        first_ns int?: When its first token came.
        end_ns int: When its last one came.
        prompt_tokens int?: Tokens of its prompt.
        output_tokens int?: Tokens of its answer.
    """),
)

#: Names of fields, in files of one row a request; times are seconds, or by their size ms, µs or ns of the epoch. Spaces
#: and hyphens are as good as underscores.
_FIELDS: Final = {
    "request": ("request", "request_id", "id"),
    "arrival": ("arrival", "arrival_time", "start", "start_time"),
    "first": ("first", "first_token", "first_token_time"),
    "end": ("end", "end_time", "finish", "finish_time"),
    "ttft": ("ttft", "time_to_first_token"),
    "latency": ("latency", "e2e_latency", "e2el"),
    "prompt": ("prompt_tokens", "prompt_len", "input_len", "input_tokens", "prompt"),
    "output": ("output_tokens", "output_len", "wanted", "output"),
}


_REMEDY: Final = (
    "Give a row for each request, in CSV or JSON lines: request, arrival, first_token, end (docs/serving.md)."
)


def read_requests(path: str | PathLike[str]) -> pl.DataFrame:
    """The requests in a client's log: :data:`REQUEST_LOG`, by arrival.

    Lines without times of arrival and end are left out, as are those that end before they arrive.

    Raises:
        UnreadableReportError: The file cannot be read.
        DamagedReportError: It is no log of requests, or says no times of arrival.
    """
    file = Path(path)
    with files.readable(file):
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    try:
        if text.lstrip()[:1] in ("{", "["):
            rows = _of_json(file, text)
        else:
            rows = pl.read_csv(io.StringIO(text), infer_schema=False).select(pl.all().str.strip_chars()).to_dicts()
    except (ValueError, TypeError, RecursionError, pl.exceptions.PolarsError) as error:
        raise errors.DamagedReportError(f"{file}: no log of requests ({error}).", _REMEDY) from error
    rows = [{re.sub(r"[\s-]+", "_", name.strip().lower()): value for name, value in row.items()} for row in rows]
    _need_first_token(file, {name for row in rows for name in row})
    frame = pl.DataFrame({name: [_first(row, names) for row in rows] for name, names in _FIELDS.items()}, strict=False)
    moment = pl.exclude("request").cast(pl.String).str.replace(" ", "T").str.to_datetime("%+", strict=False)
    of_epoch = moment.dt.epoch("us") / 10**6
    numbers = frame.with_columns(pl.exclude("request").cast(pl.Float64, strict=False).fill_null(of_epoch))
    numbers = numbers.with_columns(pl.when(pl.exclude("request").is_finite()).then(pl.exclude("request")))
    known = numbers.with_columns(pl.coalesce("first", pl.col("arrival") + pl.col("ttft")))
    known = known.with_columns(pl.coalesce("end", pl.col("arrival") + pl.col("latency"))).with_row_index("place", 1)
    named = known.get_column("request").null_count() < known.height  # else a row a request; other rows are of others
    known = known.drop_nulls(["arrival", "end", *(["request"] if named else [])])
    usual = abs(known.select(pl.col("arrival").quantile(0.5).fill_null(0)).item())
    to_ns = next((factor for limit, factor in ((1e11, 1e9), (1e14, 1e6), (1e17, 1e3)) if usual < limit), 1.0)
    times = [_whole(pl.col(name) * to_ns).alias(f"{name}_ns") for name in ("arrival", "first", "end")]
    lengths = [_whole(pl.col(name)).alias(f"{name}_tokens") for name in ("prompt", "output")]
    names = pl.coalesce(pl.col("request").cast(pl.String), pl.col("place").cast(pl.String)).alias("request")
    requests = known.select(names, *times, *lengths).filter(pl.col("end_ns") >= pl.col("arrival_ns"))
    within = pl.col("first_ns").is_between("arrival_ns", pl.col("end_ns") + 1_000_000)  # 1 ms: clocks are rounded
    requests = requests.with_columns(pl.when(within).then("first_ns"))
    if requests.is_empty():
        why = "no request with times of arrival and end, in numbers or ISO 8601 with a zone"
        raise errors.DamagedReportError(f"{file}: {why}.", _REMEDY)
    return REQUEST_LOG.select(requests.sort("arrival_ns", maintain_order=True))


def _whole(number: pl.Expr) -> pl.Expr:
    """The nearest whole number; null where differences of such numbers would not fit."""
    return pl.when(number.abs() < 2.0**62).then((number + 0.5).floor()).cast(pl.Int64)


def _need_first_token(file: Path, names: set[str]) -> None:
    """Refuses fields of which none is a first token, and some have names that say nothing: one of them may be it."""
    others = sorted(names.difference(*_FIELDS.values()))
    if others and names & {*_FIELDS["arrival"]} and not names & {*_FIELDS["first"], *_FIELDS["ttft"]}:
        what = f"{file}: no column is of the first token, and unknown are: {', '.join(others)}."
        raise errors.DamagedReportError(what, "Call it first_token or ttft; if there is none, add an empty column.")


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401 - what a file says
    return next((row[name] for name in names if isinstance(row.get(name), int | float | str)), None)


def _of_json(file: Path, text: str) -> list[dict[str, Any]]:
    """Objects of a list or of lines; those with lists are of vLLM's or SGLang's benchmark, and the last one counts."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = [json.loads(line) for line in text.splitlines() if line.strip()]
    rows = [row for row in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(row, dict)]
    runs = [row for row in rows if isinstance(row.get("ttfts"), list)]
    if not runs:
        return rows
    lists = {name: runs[-1].get(name) or [] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens")}
    if not lists["start_times"]:
        raise errors.DamagedReportError(
            f"{file}: no start_times: of each request it says how long it took, but not when it was sent.",
            "`vllm bench serve --save-result --save-detailed` writes them, of any server with OpenAI's API.",
        )
    lists = {"request": range(1, len(lists["ttfts"]) + 1), **lists}
    names = ("request", "arrival", "ttft", "latency", "input_len", "output_len")
    lists["itls"] = [first + sum(each) for first, each in zip(lists["ttfts"], lists["itls"], strict=True)]
    # requests that failed have no first token, and are not in the steps
    return [dict(zip(names, values, strict=True)) for values in zip(*lists.values(), strict=True) if values[2]]
