"""Calls of a communication library that a kernel was launched for, summed by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Kinds that run as a kernel of sends and receives.
BY_PAIRS: Final = ("send", "recv", "all_to_all", "gather", "scatter")


def sums_of_calls(calls: pl.DataFrame, kernels: pl.DataFrame, more: Sequence[str] = ()) -> pl.DataFrame:
    """Sums of the calls of each kernel: event_id, kind, group, size, own, source, target, in_bytes, out_bytes.

    `calls` has the thread (process_id, thread_id), start_ns, kind, group, size, own, peer, root and bytes; `kernels`
    the thread, event_id, device, kind and call_start. Columns `more` of calls are told too, of the first.
    """
    joined = _joined(calls, kernels)
    fits = (pl.col("kind") == pl.col("kind_of_kernel")) | (
        pl.col("kind").is_in(BY_PAIRS) & (pl.col("kind_of_kernel") == "send_recv")
    )
    return joined.filter(fits).group_by("event_id").agg(*_of_calls(), pl.col(more).first())


def _joined(calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The calls, each with the kernel that it is part of, in their order.

    Each call belongs to the next kernel that its thread launched: at once, or where the group of calls ends. What a
    thread calls for several GPUs before it launches a kernel on each goes in equal parts to them, as they come.
    """
    told = calls.sort("start_ns").with_columns(at="start_ns", called=pl.lit(value=True))
    launched = kernels.drop_nulls("call_start").select(
        *THREAD, "event_id", "device", kind_of_kernel="kind", at="call_start", called=pl.lit(value=False)
    )
    begins = pl.col("called") & ~pl.col("called").shift(1, fill_value=False).over(THREAD)
    lines = (
        pl.concat([told, launched], how="diagonal")
        .sort("at", maintain_order=True)
        .with_columns(batch=begins.cast(pl.Int64).cum_sum().over(THREAD))
    )
    key = [*THREAD, "batch"]
    place = pl.int_range(pl.len(), dtype=pl.Int64).over(key)
    own = lines.filter("called").select(*told.columns, "batch").with_columns(place=place, number=pl.len().over(key))
    own = own.with_columns(pl.col("number").cast(pl.Int64))
    ran = lines.filter(~pl.col("called")).select(*key, "event_id", "device", "kind_of_kernel").with_columns(
        kernel=place, ran=pl.len().cast(pl.Int64).over(key), devices=pl.col("device").n_unique().over(key)
    )  # fmt: skip
    sums = ran.group_by(key).agg(pl.col("ran", "devices").first())
    shared = (pl.col("devices") == pl.col("ran")) & (pl.col("number") % pl.col("ran") == 0)
    kernel = (
        pl.when(pl.col("devices") == 1)
        .then(0)
        .when(shared)
        .then(pl.col("place") // (pl.col("number") // pl.col("ran")).clip(lower_bound=1))
    )
    numbered = own.join(sums, on=key, how="inner").with_columns(kernel=kernel.cast(pl.Int64)).drop("ran", "devices")
    return numbered.join(ran.select(*key, "kernel", "event_id", "kind_of_kernel"), on=[*key, "kernel"], how="inner")


def _of_calls() -> list[pl.Expr]:
    """Sums of the calls of one kernel."""
    kind, bytes_ = pl.col("kind"), pl.col("bytes")
    sends, receives = kind == "send", kind == "recv"
    single = pl.len() == 1
    alike = (kind.n_unique() == 1) & (single | ~(sends | receives).any())
    gives, gets = ~receives & (kind != "reduce_scatter"), ~sends & ~kind.is_in(["all_gather", "all_to_all"])
    own, peer, root, size = (pl.col(name).first() for name in ("own", "peer", "root", "size"))
    elsewhere = pl.col("peer") != pl.col("own")
    partners = [pl.col("peer").filter(way & elsewhere).n_unique() + 1 for way in (sends, receives)]
    # two ranks do so in a pipeline, too, but neither sends anything to itself there
    exchange = (sends | receives).all() & (pl.min_horizontal(partners) == size) & ((size > 2) | (~elsewhere).any())  # noqa: PLR2004
    # what a rank keeps is a part, too, also where it does not send it to itself
    kept = exchange & elsewhere.all()
    up, down = (pl.when(kept).then(ranks).otherwise(1) for ranks in (size, size - 1))
    times = pl.when((kind == "all_to_all").first()).then(size).otherwise(1)
    # what goes between the same two ranks in both directions is between the lower and the higher one
    between = (sends | receives).all() & (pl.col("peer").n_unique() == 1) & ~single
    low, high = pl.min_horizontal(own, peer), pl.max_horizontal(own, peer)
    both = between & own.is_not_null() & peer.is_not_null()
    sent, got = single & sends.first(), single & receives.first()
    source = pl.when(sent).then(own).when(got).then(peer).when(both).then(low).otherwise(root)
    target = pl.when(got).then(own).when(sent).then(peer).when(both).then(high).otherwise(root)
    return [
        pl.when(alike)
        .then(kind.first())
        .when(exchange)
        .then(pl.lit("all_to_all"))
        .otherwise(pl.lit("send_recv"))
        .alias("kind"),
        pl.col("group", "size", "own").first(),
        source.alias("source"),
        target.alias("target"),
        pl.when(gives.any()).then(bytes_.filter(gives).sum() * times * up // down).alias("in_bytes"),
        pl.when(gets.any()).then(bytes_.filter(gets).sum() * up // down).alias("out_bytes"),
    ]
