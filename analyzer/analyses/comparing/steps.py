"""Steps of serving engines compared by kind and size at fixed weights: another mix of requests is no difference.

Steps of one kind and size are compared as of equal numbers of requests and tokens, and of those whose keys and values
they read. Of the sizes that all runs have, each counts for as much as both sides together have steps of it.
"""

from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze import errors, schema
from kanalyze.analyses.comparing._pair import DIFFERENCE, Pair, with_differences
from kanalyze.analyses.host.engine_marks import DECODE
from kanalyze.analyses.serving.step_laws import robust

#: What is compared of a step: all of its time, with the gap before it, and the time in which the GPU ran anything.
PARTS: Final = ("ns", "busy_ns")

COMPARE_STEPS: Final = schema.Table(
    "compare_steps",
    "The steps of a serving engine of one kind and size; without a size all of the kind, at fixed weights.",
    (
        *schema.columns("""
            kind text: The kind of step, as in `engine_steps`.
            size int?: The power of two that holds the batch; null for all sizes together. All runs have steps of it.
            part text: ns: a step with the gap before it; busy_ns: of that, the time in which the GPU ran anything.
            base_count float: Steps in a run of base.
            new_count float: Steps in a run of new.
        """),
        *DIFFERENCE,
    ),
    purpose="steps of a serving engine by kind and size",
    no_rows="no kind and size of a serving engine's steps is in all runs",
    sides=True,
)

#: What a step's time changes with, if it is so many standard errors above none.
_NUMBERS: Final = ("tokens", "requests", "kv_tokens")
_SURE: Final = 3.0


def compare_steps(pair: Pair) -> pl.DataFrame:
    """The steps of both sides by kind and size, those of all sizes of a kind first."""
    rows, keys = _by_run(pair).with_columns(iterations=pl.lit(1)), ("kind", "size")
    parts = [with_differences(pair, rows, keys, (part, "count")).with_columns(part=pl.lit(part)) for part in PARTS]
    return COMPARE_STEPS.select(pl.concat(parts)).sort(*keys, pl.col("part") == PARTS[1], nulls_last=False)


def token_ns(pair: Pair, kind: str) -> tuple[list[float], list[float]]:
    """The time of a token in steps of a kind at fixed weights, for each run of base and of new.

    Raises:
        UnknownNameError: No size of such steps is in all runs, or their labels say no tokens.
    """
    rows = _by_run(pair).filter(pl.col("size").is_null(), pl.col("tokens") > 0)
    own = rows.filter(kind=kind).sort("run")
    if own.is_empty():
        raise errors.UnknownNameError.of("kind of step", kind, rows.get_column("kind").unique().sort().to_list())
    values = own.select(pl.col("ns") / pl.col("tokens")).to_series().to_list()
    at = len(pair.base.digests)
    return values[:at], values[at:]


def alike(pair: Pair) -> Pair:
    """The sides with times of steps as if both had the same mix of kinds and sizes; as they are if no engine's."""
    sizes = _by_run(pair).drop_nulls("size")
    if sizes.is_empty() or not pair.base.about.each.endswith("step"):
        return pair
    at, runs = len(pair.base.digests), sizes.group_by("run").agg(_weighted("ns"))
    usual = sizes.filter(pl.col("run") < at).group_by("kind", "size").agg(pl.col("ns").mean().alias("usual"))
    whole = runs.filter(pl.col("run") < at).select(pl.col("ns").mean()).item()
    times = _adjusted(pair).join(usual, on=["kind", "size"])
    lengths = times.select("run", dur_ns=(pl.col("ns") / pl.col("usual") * whole).cast(pl.Int64))
    digests = [
        replace(one, about=replace(one.about, ns=int(ns * one.about.iterations)), steps=own.select("dur_ns"))
        for one, ns, (_, own) in zip(
            (one for side in pair.sides for one in side.digests),
            runs.sort("run").get_column("ns"),
            lengths.filter(pl.col("dur_ns") > 0).sort("run").group_by("run", maintain_order=True),
            strict=True,
        )
    ]
    sides = [side._replace(digests=some) for side, some in zip(pair.sides, (digests[:at], digests[at:]), strict=True)]
    return replace(pair, base=sides[0], new=sides[1])


def _adjusted(pair: Pair) -> pl.DataFrame:
    """The steps of all runs that have a size, with their `run`, and times as of the usual step of their kind and size.

    Times change with :data:`_NUMBERS` by slopes that are those within the runs of a kind (of decode steps, and sizes),
    as far as steps tell them. Steps that differ from the usual in tokens, of decode steps in those that they read, have
    no time where all steps of each run have as many.
    """
    every = pair.runs("engine").drop_nulls("size").with_columns(pl.col(PARTS).cast(pl.Float64))
    return pl.concat([every.clear(), *map(_as_usual, every.partition_by("kind", maintain_order=True))])


def _as_usual(steps: pl.DataFrame) -> pl.DataFrame:
    """The same of one kind."""
    decodes = steps.item(0, "kind") == DECODE
    known = [name for name in _NUMBERS if not steps.get_column(name).has_nulls()]
    groups = ["run", "size"] if decodes else ["run"]
    within = steps.select(pl.col(known) - pl.col(known).mean().over(groups))
    apart = steps.select(pl.col(known) - pl.col(known).mean().over("size"))
    for part in PARTS:
        beside = steps.select(pl.col(part) - pl.col(part).median().over(groups)).to_series()
        slopes = _slopes(within, beside)
        adjusted = sum((slope * apart.get_column(name) for name, slope in slopes.items()), pl.lit(0.0))
        steps = steps.with_columns(pl.col(part) - adjusted)
    main = "kv_tokens" if decodes else "tokens"
    if main in known and (within.get_column(main) == 0).all():
        # numbers of tokens that differ by less are the same
        same = apart.get_column(main).abs() <= 0.01 * steps.get_column(main)
        steps = steps.with_columns(pl.when(same).then(pl.col(PARTS)))
    return steps


def _slopes(within: pl.DataFrame, apart: pl.Series) -> dict[str, float]:
    """What one more of each takes, where steps tell it: of how far numbers and times are from the usual ones."""
    columns = {one.name: one.to_numpy() for one in within if one.abs().max()}
    while columns:
        slopes, sureness = robust(apart.to_numpy(), columns)
        least = min(columns, key=lambda name: sureness[name])
        if sureness[least] >= _SURE:
            return slopes
        del columns[least]
    return {}


def _by_run(pair: Pair) -> pl.DataFrame:
    """Mean steps of each run by the kinds and sizes that all have: run, kind, size, count, tokens and :data:`PARTS`.

    Without a size the mean of all sizes, each counted for as much as all runs together have steps of it.
    """
    every, number = _adjusted(pair), sum(len(side.digests) for side in pair.sides)
    usual = pl.col("tokens").mean().over("kind", "size")
    every = every.with_columns(usual, weight=pl.len().over("kind", "size"))
    means = pl.col("tokens", *PARTS).mean(), pl.col("weight").first()
    bins = every.drop_nulls(PARTS).group_by("run", "kind", "size").agg(*means, count=pl.len().cast(pl.Float64))
    bins = bins.filter(pl.len().over("kind", "size") == number)
    whole = bins.group_by("run", "kind").agg(*map(_weighted, ("tokens", *PARTS)), pl.col("count").sum())
    return pl.concat([whole, bins], how="diagonal").sort("kind", "size", "run", nulls_last=False)


def _weighted(name: str) -> pl.Expr:
    """The mean of sizes, each counted for as much as all runs together have steps of it."""
    return (pl.col(name) * pl.col("weight")).sum() / pl.col("weight").sum()
