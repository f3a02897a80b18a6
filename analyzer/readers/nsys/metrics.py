"""Counters that nsys sampled of GPUs and of network adapters.

A row of GPU_METRICS holds until the next sample of the same counter: on a known program the sample that begins 2 µs
before a kernel has the kernel's values, and the one before it has none. Samples of equal value in a row become one row
here, batch by batch, so that tens of millions of them, most of them the same, take little memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.sample_model import GPU_METRICS, NETWORK_METRICS

if TYPE_CHECKING:
    from kanalyze.readers.storage import TableFile

_TABLE, _NAMES, _GENERIC = "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "GENERIC_EVENTS"

#: A metric's name and the unit in brackets behind it.
_NAME: Final = r"^(.*?)(?:\s*\[([^\[\]]*)\])?$"

#: The GPU in a typeId.
_GPU: Final = 0xFF

#: nsys stores some averages in one byte with a sign, so that 128 warps read -128.
_BYTE: Final = 256

#: A sample counts for at most so many times the usual distance; what is longer is a hole in the recording.
_HOLE: Final = 2

#: Samples that tell the usual distance.
_ENOUGH: Final = 1 << 16

_KEYS: Final = ("typeId", "metricId")

_RUNS: Final = {**dict.fromkeys((*_KEYS, "start_ns", "end_ns", "samples", "value"), pl.Int64)}


def gpu_metrics(database: TableFile, undecoded: dict[str, int]) -> pl.DataFrame:
    """The sampled counters of GPUs, as :data:`kanalyze.sample_model.GPU_METRICS`; counts events that are not JSON."""
    if database.last_row(_TABLE):
        runs = database.integers(_TABLE, ("timestamp", *_KEYS, "value"), _runs)
        columns = {**dict.fromkeys(_KEYS, pl.Int64), "metricName": pl.String}
        names = database.frame(_NAMES, columns).drop_nulls(_KEYS).unique(_KEYS, keep="first", maintain_order=True)
    elif database.last_row(_GENERIC) and "data" in database.columns(_GENERIC):
        runs, names = _of_generic_events(database, undecoded)
    else:
        return GPU_METRICS.empty()
    return _named(_lasting(runs), names)


def _runs(raw: pl.DataFrame) -> pl.DataFrame:
    """Samples of one batch, those of equal value in a row together: :data:`_RUNS`.

    `end_ns` is the time of the last one of a run, which lasts until the next sample begins.
    """
    known = raw.drop_nulls().sort(*_KEYS, "timestamp", maintain_order=True)
    same = (*_KEYS, "value")
    new = pl.any_horizontal((pl.col(name) != pl.col(name).shift(1)).fill_null(value=True) for name in same)
    step = pl.col("timestamp").diff()
    hole = (step > _HOLE * step.filter(step > 0).median()).fill_null(value=False)
    runs = known.with_columns(run=(new | hole).cum_sum()).group_by("run", maintain_order=True)
    return runs.agg(
        pl.col(*_KEYS, "value").first(),
        start_ns=pl.col("timestamp").first(),
        end_ns=pl.col("timestamp").last(),
        samples=pl.len().cast(pl.Int64),
    ).select(*_RUNS)


def _lasting(runs: pl.DataFrame) -> pl.DataFrame:
    """Adds `dur_ns`: until the next sample of the counter, or the usual distance where that is late or missing."""
    ordered = runs.sort(*_KEYS, "start_ns", maintain_order=True)
    usual = _usual(ordered)
    follows = pl.col("start_ns").shift(-1).over(_KEYS) - pl.col("end_ns")
    last = pl.when(follows.is_between(1, _HOLE * usual)).then(follows).otherwise(usual)
    return ordered.with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns") + last)


def _usual(runs: pl.DataFrame) -> int:
    """The usual distance of two samples of a counter: the median over runs, of those of one sample to the next."""
    inside = (pl.col("end_ns") - pl.col("start_ns")) / (pl.col("samples") - 1)
    between = pl.col("start_ns").shift(-1).over(_KEYS) - pl.col("end_ns")
    distance = pl.when(pl.col("samples") > 1).then(inside).otherwise(between)
    found = runs.head(_ENOUGH).select(distance.filter(distance > 0).median()).item()
    return max(int(found or 0), 1)


def _named(runs: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Names of the counters instead of their ids; one without a name is left out."""
    told = names.select(
        *_KEYS,
        pl.col("metricName").str.extract(_NAME, 1).cast(pl.Categorical).alias("metric"),
        pl.col("metricName").str.extract(_NAME, 2).cast(pl.Categorical).alias("unit"),
    )
    value = pl.when((pl.col("value") < 0) & (pl.col("value") >= -_BYTE // 2)).then(pl.col("value") + _BYTE)
    made = runs.join(told, on=_KEYS, maintain_order="left").select(
        "metric",
        "unit",
        "start_ns",
        "dur_ns",
        "samples",
        device=pl.col("typeId") & _GPU,
        value=value.otherwise("value").cast(pl.Float64),
    )
    return GPU_METRICS.select(made.filter(pl.col("value") >= 0))


def _of_generic_events(database: TableFile, undecoded: dict[str, int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs and names of exports before 2023, which have one JSON text with all counters per sample."""
    columns = {"timestamp": pl.Int64, "typeId": pl.Int64, "data": pl.String}
    numbers: dict[str, int] = {}
    rows, lost = [], 0
    for time, kind, text in database.frame(_GENERIC, columns).drop_nulls().iter_rows():
        told = _counters(text)
        lost += told is None
        for name, value in (told or {}).items():
            rows.append((time, kind, numbers.setdefault(name, len(numbers)), value))
    undecoded["samples of counters that cannot be decoded"] = lost
    raw = pl.DataFrame(rows, schema=dict.fromkeys(("timestamp", *_KEYS, "value"), pl.Int64), orient="row")
    named = pl.DataFrame(
        {"metricId": [*numbers.values()], "metricName": [*numbers]},
        schema={"metricId": pl.Int64, "metricName": pl.String},
    )
    return _runs(raw), raw.select(_KEYS).unique().join(named, on="metricId")


def _counters(text: str) -> dict[str, int] | None:
    """The counters of one event: values that are numbers, or texts of whole numbers; None where it is no JSON."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    found = {}
    for name, value in told.items() if isinstance(told, dict) else ():
        if isinstance(value, str) and value.removeprefix("-").isdecimal():
            value = int(value)  # noqa: PLW2901 - the number that the text is
        if isinstance(value, int) and not isinstance(value, bool) and name.lower() not in ("timestamp", "rawtimestamp"):
            found[name] = value
    return found


#: Tables of network counters, and the source that each is.
_NETWORK: Final = {"NET_NIC_METRIC": "nic", "NET_IB_SWITCH_METRIC": "switch"}


def network_metrics(database: TableFile) -> pl.DataFrame:
    """The sampled counters of network devices, as :data:`kanalyze.sample_model.NETWORK_METRICS`."""
    keys = ("metricsListId", "metricsIdx")
    named = {**dict.fromkeys(keys, pl.Int64), "name": pl.String, "unit": pl.String}
    names = database.frame("TARGET_INFO_NETWORK_METRICS", named).drop_nulls(keys)
    names = names.unique(keys, keep="first", maintain_order=True)
    adapters = _adapters(database)
    found = [NETWORK_METRICS.empty()]
    for table, source in _NETWORK.items():
        if database.last_row(table):
            columns = dict.fromkeys(("start", "end", "globalId", "portId", *keys), pl.Int64)
            raw = database.frame(table, {**columns, "value": pl.Float64}).drop_nulls(["start", "value"])
            told = raw.join(names, on=keys, how="left", maintain_order="left")
            told = told.join(adapters, on="globalId", how="left", maintain_order="left")
            made = told.select(
                "value",
                "unit",
                source=pl.lit(source),
                adapter=pl.coalesce("adapter", pl.col("globalId").cast(pl.String)).fill_null(""),
                port="portId",
                metric="name",
                start_ns="start",
                dur_ns=pl.col("end") - pl.col("start"),
            )
            found.append(NETWORK_METRICS.select(made))
    return pl.concat(found)


def _adapters(database: TableFile) -> pl.DataFrame:
    """Names of network adapters by the id that counters have: globalId and adapter."""
    names = database.frame("TARGET_INFO_NIC_INFO", {"nicId": pl.Int64, "name": pl.String}).drop_nulls()
    ids = database.frame("NIC_ID_MAP", {"nicId": pl.Int64, "globalId": pl.Int64}).drop_nulls()
    known = ids.join(names.unique("nicId", keep="first", maintain_order=True), on="nicId")
    return known.select("globalId", adapter="name").unique("globalId", keep="first", maintain_order=True)
