"""Matching of collectives: which rows of several ranks are one collective, and how that is known.

Definition: docs/definitions.md, section 11, "The same collective".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

#: How a match is known, the surest first.
BY_ID: Final = "id"
BY_SEQUENCE: Final = "seq"
BY_ORDINAL: Final = "ordinal"

#: Kinds between two ranks, which are told apart by sender and receiver.
POINT_TO_POINT: Final = ("send", "recv")

#: Kinds that no rank can leave before all have entered.
_TOGETHER: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

#: Kinds whose sizes may differ between ranks.
_UNEVEN: Final = ("all_to_all", "send_recv", "gather", "scatter", "coalesced")

#: How far the clock of one host may drift from that of another, and the error of a time stamp.
DRIFT: Final = 1e-4
STAMP_ERROR_NS: Final = 1_000

#: How far the time stamps of two processes of one host may be apart.
_ONE_HOST_NS: Final = 50_000

#: Rows at the beginning that a shift is tried on before it is tried on all.
_TRIED: Final = 64

#: The least part of the shorter sequence that two ranks must have in common, and the fewest collectives.
_COMMON: Final = 0.5
_FEWEST: Final = 2

#: Beyond all differences of times.
_FAR: Final = 1 << 60

#: What stands for a kind or size that is not recorded.
_UNKNOWN: Final = -1


class Matches(NamedTuple):
    """What was matched.

    Attributes:
        rows: The collectives with `match` (dense, by first start; null for what has no partner) and `how`.
        doubts: Sentences on what could not be matched, with the number of collectives.
    """

    rows: pl.DataFrame
    doubts: list[tuple[str, int, str]]


def matched(collectives: pl.DataFrame) -> Matches:
    """Matches the collectives of all ranks.

    `collectives` has the columns of :data:`kanalyze.reduction.COLLECTIVES`, with `clock`, the number of the clock that
    its rank is timed by.
    """
    doubts: list[tuple[str, int, str]] = []
    rows = collectives.sort("member", "start_ns", "number").with_row_index("at").with_columns(lane=_lane())
    rows = rows.with_columns(key=_by_id(), how=pl.lit(None, dtype=pl.String))
    own_id = pl.col("id").is_not_null() & (pl.len().over("member", "id") == 1).all().over("id")
    rows = rows.with_columns(
        key=pl.when(own_id).then(pl.format("id {}", "id")),
        how=pl.when(own_id).then(pl.lit(BY_ID)),
    )
    by_sequence = pl.col("key").is_null() & pl.col("sequence").is_not_null() & ~pl.col("kind").is_in(POINT_TO_POINT)
    rows = rows.with_columns(nth=pl.int_range(pl.len()).over("member", "lane", "sequence", "kind"))
    rows = rows.with_columns(
        key=pl.when(by_sequence).then(pl.format("seq {} {} {} {}", "lane", "sequence", "kind", "nth")).otherwise("key"),
        how=pl.when(by_sequence).then(pl.lit(BY_SEQUENCE)).otherwise("how"),
    )
    left = rows.filter(pl.col("key").is_null())
    if left.height:
        rows = _with_ordinals(rows, left, doubts)
    return Matches(_numbered(_agreeing(rows, doubts)), doubts)


def _by_id() -> pl.Expr:
    return pl.lit(None, dtype=pl.String)


def _lane() -> pl.Expr:
    """What a collective is counted in: the group, with its ranks; between two ranks, those; else the stream's order."""
    group = pl.format("{}|{}|{}", "group", pl.col("size").fill_null(0), pl.col("ranks").fill_null(""))
    pair = pl.format("{}>{}", "source", "target")
    both = pl.col("kind").is_in(POINT_TO_POINT) & pl.col("source").is_not_null() & pl.col("target").is_not_null()
    order = pl.col("stream").rank("dense").over("member")
    unnamed = pl.format("stream {}", order.fill_null(0))
    return pl.when(both).then(pl.format("{} {}", group.fill_null(""), pair)).otherwise(pl.coalesce(group, unnamed))


def _with_ordinals(rows: pl.DataFrame, left: pl.DataFrame, doubts: list[tuple[str, int, str]]) -> pl.DataFrame:
    """Adds keys to the rows that only their order tells."""
    keys = np.full(rows.height, None, dtype=object)
    for (lane,), part in left.partition_by("lane", as_dict=True, maintain_order=True).items():
        members = _sequences(part)
        places = _aligned(members)
        for member, shift in places.items():
            sequence = members[member]
            for at, place in zip(sequence.at.tolist(), range(shift, shift + len(sequence.at)), strict=True):
                keys[at] = f"nth {lane} {place}"
        lost = [one for one in members if one not in places]
        if lost:
            count = sum(len(members[one].at) for one in lost)
            doubts.append(("collectives without a match", count, _NO_SHIFT))
    found = pl.Series("ordinal", keys.tolist(), dtype=pl.String)
    told = rows.with_columns(found)
    return told.with_columns(
        how=pl.when(pl.col("key").is_null() & pl.col("ordinal").is_not_null())
        .then(pl.lit(BY_ORDINAL))
        .otherwise("how"),
        key=pl.coalesce("key", "ordinal"),
    ).drop("ordinal")


_NO_SHIFT: Final = "no shift, or more than one, lets order, kinds, sizes and clocks of ranks agree: no waits are told"


class _Sequence(NamedTuple):
    """The collectives of one rank in one lane, in their order.

    Attributes:
        at: Their rows.
        what: What they are, as a number; -1 where that is not recorded.
        start: Start.
        end: End.
        enters: Whether none that leaves can leave before they have entered.
        leaves: Whether they cannot leave before such ones have entered.
        clock: The clock of the rank.
        pair: Whether they are sends to one rank, or what that receives.
    """

    at: Ints
    what: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    clock: int
    pair: bool


def _sequences(part: pl.DataFrame) -> dict[int, _Sequence]:
    """The sequence of each member of a lane."""
    pair = pl.col("kind").is_in(POINT_TO_POINT)
    kind = pl.when(pair).then(pl.lit("send or recv")).otherwise("kind")
    size = pl.max_horizontal("in_bytes", "out_bytes")
    text = (
        pl.when(pl.col("kind").is_in(_UNEVEN)).then(kind).when(size.is_not_null()).then(pl.format("{} {}", kind, size))
    )
    told = part.with_columns(text=text)
    numbers = {one: at for at, one in enumerate(told.get_column("text").drop_nulls().unique().sort())}
    found = {}
    for (member,), own in told.partition_by("member", as_dict=True, maintain_order=True).items():
        what = own.get_column("text").replace_strict(numbers, default=_UNKNOWN, return_dtype=pl.Int64)
        start = own.get_column("start_ns").to_numpy()
        found[int(str(member))] = _Sequence(
            own.get_column("at").cast(pl.Int64).to_numpy(),
            what.to_numpy(),
            start,
            start + own.get_column("dur_ns").to_numpy(),
            *shows(own)[:2],
            own.item(0, "clock"),
            own.item(0, "kind") in POINT_TO_POINT,
        )
    return found


def shows(rows: pl.DataFrame) -> tuple[Bools, Bools, Bools]:
    """Whether no other can leave before each row has entered; whether it cannot leave before such ones; and both."""
    together = pl.col("kind").is_in(_TOGETHER)
    root_out = (pl.col("kind") == "broadcast") & (pl.col("own") == pl.col("source"))
    others_in = (pl.col("kind") == "broadcast") & (pl.col("own") != pl.col("source"))
    root_in = (pl.col("kind") == "reduce") & (pl.col("own") == pl.col("target"))
    others_out = (pl.col("kind") == "reduce") & (pl.col("own") != pl.col("target"))
    enters = together | root_out | others_out | (pl.col("kind") == "send")
    leaves = together | others_in | root_in | (pl.col("kind") == "recv")
    told = rows.select(
        enters.fill_null(value=False).alias("enters"),
        leaves.fill_null(value=False).alias("leaves"),
        together.alias("together"),
    )
    return tuple(told.get_column(name).to_numpy() for name in told.columns)  # type: ignore[return-value]


def _aligned(members: dict[int, _Sequence]) -> dict[int, int]:
    """The place of the first collective of each rank in the order of the lane; a rank that fits no other has none.

    Each rank is held against the longest sequence; one that does not fit it, against those that do.
    """
    order = sorted(members, key=lambda one: (-len(members[one].at), one))
    first = order[0]
    places = {first: 0}
    left = order[1:]
    for base in order[:1] + order[1:4]:
        if base not in places:
            continue
        still = []
        for one in left:
            shift = _shift(members[base], members[one])
            if shift is None:
                still.append(one)
            else:
                places[one] = places[base] + shift
        left = still
    return places


def _shift(base: _Sequence, other: _Sequence) -> int | None:
    """By how many collectives `other` begins later than `base`; None if no shift fits, or several do."""
    lengths = len(base.at), len(other.at)
    least = max(1, min(_FEWEST, *lengths), int(_COMMON * min(lengths)))
    shifts = sorted(range(least - lengths[1], lengths[0] - least + 1), key=lambda one: (abs(one), one))
    found = [shift for shift in shifts if _fits(base, other, shift, _TRIED) and _fits(base, other, shift, None)]
    if base.pair and base.clock == other.clock and found:
        return _latest_sends(base, other, found)
    return found[0] if len(found) == 1 else None


def _latest_sends(base: _Sequence, other: _Sequence, shifts: list[int]) -> int | None:
    """Of the shifts that let no receive end before its send began, the one that pairs receives with the latest sends.

    Sends may end long before they are received, so that earlier ones would do as well; but a receive that waited
    ended with its own send, and one must have, or nothing is told.
    """
    sends = bool(base.enters.all())
    shift = max(shifts) if sends else min(shifts)
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    mine, theirs = slice(low, high), slice(low - shift, high - shift)
    begun, sent = (base.start[mine], base.end[mine]) if sends else (other.start[theirs], other.end[theirs])
    received = other.end[theirs] if sends else base.end[mine]
    return shift if (np.abs(received - sent) <= sent - begun).any() else None


def _fits(base: _Sequence, other: _Sequence, shift: int, most: int | None) -> bool:
    """Whether kinds and sizes agree, and some offset of the clocks lets each rank leave after the other entered."""
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    if most is not None:
        high = min(high, low + most)
    mine, theirs = slice(low, high), slice(low - shift, high - shift)
    left, right = base.what[mine], other.what[theirs]
    if not ((left == right) | (left == _UNKNOWN) | (right == _UNKNOWN)).all():
        return False
    after, before = base.leaves[mine] & other.enters[theirs], other.leaves[theirs] & base.enters[mine]
    if (base.pair and base.clock != other.clock) or not (after | before).any():  # as if nothing could be buffered
        after, before = np.ones_like(after), np.ones_like(before)
    least = int((other.start[theirs] - base.end[mine]).max(where=after, initial=-_FAR))
    greatest = int((other.end[theirs] - base.start[mine]).min(where=before, initial=_FAR))
    if base.clock == other.clock:
        return least <= _ONE_HOST_NS and greatest >= -_ONE_HOST_NS
    span = int(base.end[mine].max() - base.start[mine].min())
    return least <= greatest + 2 * STAMP_ERROR_NS + int(DRIFT * span)


def _agreeing(rows: pl.DataFrame, doubts: list[tuple[str, int, str]]) -> pl.DataFrame:
    """Takes the key from rows that are no one collective: of several kinds, twice on a rank, or of a rank alone."""
    pair = pl.col("kind").is_in(POINT_TO_POINT)
    kind = pl.when(pair).then(pl.lit("send or recv")).otherwise("kind")
    bad = (kind.n_unique().over("key") > 1) | (pl.len().over("key", "member") > 1).any().over("key")
    known = pl.col("key").is_not_null()
    wrong = rows.select(bad.fill_null(value=False) & known).to_series()
    if wrong.any():
        doubts.append(("collectives that ranks call by different kinds", int(wrong.sum()), _DIFFERENT))
    told = rows.with_columns(key=pl.when(~wrong).then("key"), how=pl.when(~wrong).then("how"))
    alone = (pl.len().over("key") == 1) & pl.col("key").is_not_null() & (pl.col("size").fill_null(2) > 1)
    return told.with_columns(key=pl.when(~alone).then("key"), how=pl.when(~alone).then("how"))


_DIFFERENT: Final = "what one rank calls a collective is another kind on another rank, or occurs twice: not matched"


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `match`, dense from 0 on by first start, in place of the key."""
    firsts = rows.drop_nulls("key").group_by("key").agg(pl.col("start_ns").min()).sort("start_ns", "key")
    numbers = firsts.select("key", match=pl.int_range(pl.len(), dtype=pl.Int64))
    return rows.join(numbers, on="key", how="left", maintain_order="left").drop("key", "lane", "nth", "at")
