"""What a step of a serving engine takes by what is in it: t = a + b·tokens + c·KV, fitted for each kind of step.

The time of the GPU and that of the host have laws of their own: a profiler makes the second longer, and hardly the
first. Definitions: docs/serving.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.host.engine_marks import DECODE
from kanalyze.analyses.serving.engine_steps import engine_steps, steps_in_scope
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.analyses.work.work import memory_ns, memory_roofs, required_calls
from kanalyze.columns import as_of, rows_at
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Table, columns
from kanalyze.units import percent, time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

#: Parts of the time of a step and of the gap before it.
GPU, HOST = "gpu", "host"
PADDED: Final = "padded"

TABLE: Final = Table(
    "step_laws",
    "What steps of a kind take of the GPU or the host: fixed_ns + per_token_ns·tokens + per_kv_token_ns·KV.",
    columns("""
        device int: The GPU, as in `devices`.
        kind text: The kind of step, as in `engine_steps`.
        mode text: graph, partly or eager, as there.
        part text: gpu (it works, or goes to what was launched already) or host (the rest of the step and of the gap
            before it).
        count int: Steps.
        tokens_are text: What tokens are in it: tokens; padded, the places of the graph that ran; requests, of the host,
            and where no label says tokens.
        fixed_ns float?: What a step takes whatever is in it (a); null: there is no law.
        per_token_ns float?: What a token more takes (b); null: these steps do not tell.
        per_kv_token_ns float?: What a token more in the cache takes (c), which attention reads; null as before.
        error_share float?: Half of the steps are nearer to the law than this part of their time.
        within_share float?: Nine of ten are nearer than this.
        slow int: Steps that take a quarter more than the law says, and are far from it for their kind.
        slow_ns int: How much more than by the law these take in all.
        least_tokens float?: Fewest tokens of a step.
        most_tokens float?: Most of them; the law is told by steps between.
        most_kv_tokens float?: Most tokens in the cache.
        reads_bytes float?: The memory can give so many bytes in fixed_ns: weights are no more; null of the host.
        kv_bytes float?: The same of per_kv_token_ns: keys and values of a token.
        floor_ns float?: The memory needs so long for what the operators of a step read and write, in the median, by
            their shapes: weights, and keys and values where attention is an operator with a model.
        why text?: Why there is no law.
    """),
    purpose="what an engine's steps take, by their tokens",
    no_rows="no step of a serving engine is there, by label or by what runs",
    telling=("kind", "mode", "part", "count", "fixed_ns", "per_token_ns", "per_kv_token_ns", "within_share"),
)

#: Fewest steps of a law; how many standard errors a coefficient has to be above none.
_FEWEST: Final = 8
_SURE: Final = 2.0

#: So many steps of one size tell its time by themselves: of three the middle one is no stray.
_FEW_OF_SIZE: Final = 3

#: Columns that differ from sums of others by less than so much of their size are no others.
_APART: Final = 1e-4

#: Steps farther from the law than so many times the usual distance count less (Huber, 1964); rounds until it settles.
_HUBER: Final = 1.345
_ROUNDS: Final = 20
_NORMAL: Final = 1.4826  # median distance to standard deviation

#: A slow step takes so much of what the law says, and is so many standard deviations away.
_SLOW: Final = 1.25
_FAR: Final = 5.0

_COEFFICIENTS: Final = ("fixed_ns", "per_token_ns", "per_kv_token_ns")
_KEYS: Final = ["device", "kind", "mode", "part", "tokens_are"]


@analysis
def step_laws(report: Report) -> pl.DataFrame:
    """The laws of steps by device, kind and mode, the GPU's first.

    Least squares of relative distances, in which steps far away count less; a coefficient stays if it is two standard
    errors above none, so that what steps do not tell is null.

    Returns:
        :data:`TABLE`; empty without any step.

    Raises:
        CannotTellError: The report records no device operations.
    """
    rows = laws(report)
    if rows.is_empty():
        return TABLE.empty()
    rows = rows.join(read_bytes(report), on=_KEYS[:3], how="left", maintain_order="left")
    rows = rows.join(memory_roofs(report.devices), on="device", how="left", maintain_order="left")
    of_gpu, per_ns = pl.col("part") == GPU, pl.col("bytes_per_s") / 1e9
    rows = rows.with_columns(
        reads_bytes=pl.when(of_gpu).then(pl.col("fixed_ns") * per_ns),
        kv_bytes=pl.when(of_gpu).then(pl.col("per_kv_token_ns") * per_ns),
        floor_ns=pl.when(of_gpu).then(memory_ns()),
    )
    return TABLE.select(rows)


def laws(report: Report) -> pl.DataFrame:
    """The laws of steps: :data:`_KEYS` and the columns of :data:`TABLE` but those of bytes."""
    ns, timed = pl.col("ns"), pl.col("ns") > 0
    apart, few = ns - pl.col("law_ns"), timed.sum() < _FEWEST
    steps = steps_by_law(report).group_by(_KEYS, maintain_order=True)
    return steps.agg(
        pl.col(_COEFFICIENTS).first(),
        count=pl.len().cast(pl.Int64),
        error_share=(apart / ns).abs().median(),
        within_share=(apart / ns).abs().quantile(0.9, "linear"),
        slow=pl.col("slow").sum().cast(pl.Int64),
        slow_ns=apart.filter("slow").sum().cast(pl.Int64),
        least_tokens=pl.col("n").filter(timed).min(),
        most_tokens=pl.col("n").filter(timed).max(),
        most_kv_tokens=pl.col("kv").filter(timed).max(),
        why=pl.when(few).then(pl.format(f"{{}} of {_FEWEST} steps that are needed", timed.sum())),
    )


def read_bytes(report: Report) -> pl.DataFrame:
    """Bytes that the operators of a step move at least, where shapes tell: device, kind, mode, bytes (median)."""
    columns = ("device", "kind", "mode", "gpu_start_ns", "dur_ns", "index", "kv_tokens")
    rows = engine_steps(report).drop_nulls("device").select(columns)
    try:
        calls = required_calls(report, TABLE).filter(pl.col("bytes") > 0)
    except CannotTellError:
        return rows.clear().select("device", "kind", "mode", bytes=pl.lit(None, dtype=pl.Float64))
    calls = calls.select("device", "start_ns", "bytes", "token_bytes").sort("start_ns")
    near = as_of(calls.select("device", at="start_ns"), rows.select("device", at="gpu_start_ns"))
    inside = calls.hstack(rows_at(rows.drop("device"), near))
    inside = inside.filter(pl.col("start_ns") < pl.col("gpu_start_ns") + pl.col("dur_ns"))
    moved = pl.col("bytes") + pl.col("token_bytes").fill_null(0) * pl.col("kv_tokens").fill_null(0)
    sums = inside.group_by("device", "kind", "mode", "index").agg(bytes=moved.sum())
    return sums.group_by("device", "kind", "mode").agg(pl.col("bytes").median())


def timed_parts(report: Report) -> pl.DataFrame:
    """What each step with the gap before it took of the GPU and of the host: :data:`_KEYS`, index, ns, n and kv.

    n are the tokens, kv those in the cache. A first step, before which there is no gap, has no time of the host.
    """
    require(report, TABLE, *DEVICE_KINDS)
    spent = pl.col("dur_ns") + pl.col("gap_ns").fill_null(0)
    steps = steps_in_scope(report).filter(pl.col("device").is_not_null(), spent > 0)
    # labels may say no size where nothing was padded
    known = pl.col("padded").is_not_null().any().over("device", "kind", "mode") & (pl.col("mode") == "graph")
    counted = pl.col("tokens").is_not_null().any().over("device", "kind", "mode")  # not by SGLang of drafts
    of = pl.when(known).then(pl.lit(PADDED)).when(counted).then(pl.lit("tokens")).otherwise(pl.lit("requests"))
    n = pl.when(known).then(pl.coalesce("padded", "tokens")).when(counted).then("tokens").otherwise("requests")
    on_gpu = steps.with_columns(part=pl.lit(GPU), tokens_are=of, ns="gpu_ns", n=n, kv="kv_tokens")
    on_host = steps.drop_nulls("gap_ns").with_columns(
        part=pl.lit(HOST),
        tokens_are=pl.lit("requests"),
        ns=spent - pl.col("gpu_ns"),
        n="requests",
        kv=pl.lit(None, dtype=pl.Int64),
    )
    every = pl.concat([on_gpu, on_host]).sort("device", "kind", "mode", "part", "index")
    return every.select(*_KEYS, "index", "label", "ns", "n", "kv")


def law_points(report: Report) -> pl.DataFrame:
    """Steps of one kind that have a law, decoding first, as points of a picture.

    Columns: device, kind, mode, tokens_are, index, ns of the GPU, n, kv and law_ns, what the law says. Else no rows.
    """
    steps = usual_steps(steps_by_law(report)).filter(part=GPU).drop_nulls("law_ns")
    return steps.select("device", "kind", "mode", "tokens_are", "index", "ns", "n", "kv", "law_ns")


def usual_steps(parts: pl.DataFrame) -> pl.DataFrame:
    """Of :func:`timed_parts` those of the kind, mode and device of most steps that take time, decoding first."""
    timed = parts.filter(pl.col("ns") > 0)
    sizes = timed.group_by("device", "kind", "mode").len()
    most = sizes.sort(pl.col("kind") != DECODE, "len", "device", descending=[False, True, False]).head(1)
    return timed.join(most, on=["device", "kind", "mode"], how="semi", maintain_order="left")


def fitted(steps: pl.DataFrame) -> tuple[dict[str, float | None], Numbers] | None:
    """The :data:`_COEFFICIENTS` of steps of one kind and part (ns, n, kv), and what they say of each; None for too few.

    Graphs of each size have a time of their own, since other kernels run at another size: so what the cache takes is
    told by steps of one size, and the line over sizes is fitted to the rest.
    """
    if steps.height < _FEWEST:
        return None
    import numpy as np  # noqa: PLC0415 - of reports with steps alone

    times, ones = steps.get_column("ns").to_numpy().astype(float), np.ones(steps.height)
    values = {
        name: steps.get_column(name).to_numpy().astype(float)
        for name in ("n", "kv")
        if not steps.get_column(name).has_nulls() and steps.get_column(name).n_unique() > 1
    }
    columns: dict[Any, Numbers] = {"": ones, **values}
    if by_size := steps.item(0, "tokens_are") == PADDED and "n" in values:
        columns = {size: (values["n"] == size) * 1.0 for size in np.unique(values["n"])} | values
        del columns["n"]
    each = line = _coefficients(times, times, columns)
    if by_size:
        of_cache = each.get("kv", 0.0) * values.get("kv", 0 * ones)
        line = _coefficients(times - of_cache, times, {"": ones, "n": values["n"]})
    law = dict(zip(_COEFFICIENTS, (line.get("", 0.0), line.get("n"), each.get("kv")), strict=True))
    return law, sum((each[name] * columns[name] for name in each), 0 * ones)


@once_per_report
def steps_by_law(report: Report) -> pl.DataFrame:
    """The :func:`timed_parts` with coefficients of their law, law_ns, what it says, and whether they are slow.

    Null without a law, and law_ns of what takes no time. And size_ns and bent, as :func:`_of_sizes` has them.
    """
    parts = timed_parts(report)
    return pl.concat([_with_law(parts.clear()), *map(_with_law, parts.partition_by(_KEYS, maintain_order=True))])


def _with_law(steps: pl.DataFrame) -> pl.DataFrame:
    """The same of one kind and part."""
    timed = steps.filter(pl.col("ns") > 0)
    law, says = fitted(timed) or ({}, [None] * timed.height)
    timed = timed.with_columns(pl.Series("law_ns", says, dtype=pl.Float64))
    apart = pl.col("ns") - pl.col("law_ns")
    usual = _FAR * _NORMAL * (apart / pl.col("ns")).abs().median()
    slow = (pl.col("ns") > _SLOW * pl.col("law_ns")) & (apart / pl.col("ns") > usual)
    coefficients = {name: pl.lit(law.get(name), pl.Float64) for name in _COEFFICIENTS}
    timed = timed.with_columns(slow=slow, **coefficients).with_columns(_of_sizes())
    steps = pl.concat([timed, steps.filter(ns=0).with_columns(**coefficients)], how="diagonal")
    return steps.with_columns(pl.col("slow").fill_null(value=False))


def _of_sizes() -> list[pl.Expr]:
    """What steps of a size take with nothing in the cache, size_ns, and whether that is off the line, bent.

    Of graphs by the law, which has a time for each size; else by the line, or the median of its own steps, where they
    are two standard errors apart. Null for a size of few steps between others.
    """
    n, ns, count, kv = pl.col("n"), pl.col("ns"), pl.len().over("n"), pl.col("kv").fill_null(0)
    fixed, slope, of_kv = (pl.col(name).fill_null(0) for name in _COEFFICIENTS)
    line, alone, many = fixed + slope * n, ns - of_kv * kv, count >= _FEW_OF_SIZE
    # steps of one size are as far from each other as chance brings them
    others = (alone.sum().over("n") - alone) / (count - 1)
    chance = _NORMAL * ((alone - others) / line).abs().filter(many).median()
    median, padded = alone.median().over("n"), pl.col("tokens_are") == PADDED
    bent = (many & ((median / line - 1).abs() > _SURE * chance / count.sqrt())).fill_null(value=False)
    between = n.is_between(n.filter(many).min(), n.filter(many).max())
    law = pl.when(many | ~between.fill_null(value=False) | padded).then(pl.col("law_ns") - of_kv * kv)
    return [pl.when(bent & ~padded).then(median).otherwise(law).alias("size_ns"), bent.alias("bent")]


def time_at(steps: pl.DataFrame, tokens: float) -> float:
    """Time of a step (ns) with nothing in the cache, by the law of `steps`, of :func:`steps_by_law` one kind and part.

    Between two sizes it is between theirs. Beyond them it goes on with the line, or, where that is bent at the last two
    sizes, as from the one nearest to half of the last, or twice.
    """
    fixed, slope = (steps.item(0, name) or 0.0 for name in _COEFFICIENTS[:2])
    points = steps.select("n", "size_ns", "bent").drop_nulls().unique("n").sort("n").rows() or [(0, fixed, False)]
    below = max((one for one in points if one[0] <= tokens), default=points[0])
    above = min((one for one in points if one[0] >= tokens), default=points[-1])
    beyond, last = below == above, points[-2:] if below[0] < tokens else points[:2]
    if beyond and all(bent for _, _, bent in last):
        half = below[0] / 2 if below[0] < tokens else below[0] * 2
        above = min(points, key=lambda one: abs(one[0] - half))
    if below != above:
        slope = (above[1] - below[1]) / (above[0] - below[0])
        slope = max(slope, 0.0) if beyond else slope  # no step is quicker with more in it
    return float(max(below[1] + slope * (tokens - below[0]), 0.0))


def _coefficients(target: Numbers, times: Numbers, columns: dict[Any, Numbers]) -> dict[Any, float]:
    """What each column adds to the target, of those whose part the steps tell; all but n and kv are told as they are.

    Distances are parts of the times. Of columns that go together n is told.
    """
    import numpy as np  # noqa: PLC0415 - of reports with steps alone

    chosen = {name: column / times for name, column in columns.items()}
    while True:
        scaled = np.stack([column / column.max() for column in chosen.values()], axis=1)
        apart = np.linalg.matrix_rank(scaled, tol=_APART * np.sqrt(len(times))) == len(chosen)
        coefficients, sureness = robust(target / times, chosen)
        weak = [name for name in ("kv", "n") if name in chosen and (sureness[name] < _SURE or not apart)]
        if not weak and min(coefficients.values()) < 0 and len(chosen) > 1:
            weak = [""] if "" in chosen else ["kv"]  # time goes with what is in a step, down to none
        if not weak:
            return coefficients
        chosen.pop(min(weak, key=lambda name: sureness[name]) if apart else weak[0])
        chosen = chosen or {"": columns[""] / times}  # of what is in a step nothing is told


def robust(target: Numbers, columns: dict[Any, Numbers]) -> tuple[dict[Any, float], dict[Any, float]]:
    """Coefficients of columns, and how many standard errors each is above 0."""
    import numpy as np  # noqa: PLC0415 - of reports with steps alone

    scale = np.array([max(column.max(), 1e-300) for column in columns.values()])
    rows, weights = np.stack([*columns.values()], axis=1) / scale, np.ones(len(target))
    coefficients, inverse, spread = np.zeros(len(scale)), np.eye(len(scale)), 0.0
    for _ in range(_ROUNDS):
        inverse = np.linalg.pinv(rows.T @ (rows * weights[:, None]))
        coefficients = inverse @ (rows.T @ (weights * target))
        apart = np.abs(target - rows @ coefficients)
        spread = max(_NORMAL * float(np.median(apart)), 1e-9)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(apart, 1e-12))
    errors = np.sqrt(np.maximum(np.diag(inverse), 1e-30)) * spread
    values, sureness = (dict(zip(columns, map(float, coefficients / by), strict=True)) for by in (scale, errors))
    return values, sureness


def in_words(laws: pl.DataFrame) -> str:
    """What a decode step, or else a step of the kind with most, takes of the GPU by its law; empty without any."""
    has_slope = pl.col("per_token_ns").is_not_null() | pl.col("per_kv_token_ns").is_not_null()
    of_gpu = laws.filter(pl.col("part") == GPU, has_slope)
    first = of_gpu.sort("device", pl.col("kind") != DECODE, "count", descending=[False, False, True]).head(1)
    return "".join(map(_sentence, first.to_dicts()))


def _sentence(row: dict[str, Any]) -> str:
    what = f"{row['kind']} step" + (" by graph" if row["mode"] == "graph" else "")
    each = {PADDED: "place of its graph", "tokens": "token", "requests": "request"}[row["tokens_are"]]
    parts = [time(row["fixed_ns"])] if row["fixed_ns"] else []
    parts += [f"{time(row['per_token_ns'])} for each {each}"] if row["per_token_ns"] else []
    parts += [f"{time(1000 * row['per_kv_token_ns'])} for 1,000 tokens in the cache"] if row["per_kv_token_ns"] else []
    near = f"nine of ten of {row['count']:,} are within {percent(row['within_share'])}"
    return f"A {what} takes the GPU {' and '.join(parts)}; {near}."
