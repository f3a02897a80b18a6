"""Matching of collectives: which rows of several ranks are one collective, and how that is known.

Definition: docs/definitions.md, section 11, "The same collective".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]
    Keys = npt.NDArray[np.uint64]

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

#: Where a shift is tried before it is tried on all rows, as parts of what two ranks have in common.
_TRIED: Final = (8, 64)
_GOLDEN: Final = 0.618034

#: The part of the shorter sequence that ranks on two clocks must have in common, and the fewest collectives.
_COMMON: Final = 0.5
_FEWEST: Final = 2

#: Shifts with as small a part in common may be the true one as well, where clocks are no farther apart than this.
_POSSIBLE: Final = 0.1
_APART_NS: Final = 100_000_000

#: How many other ranks a rank that does not fit the first is held against.
_OTHERS: Final = 3

#: Beyond all differences of times.
_FAR: Final = 1 << 60

#: Bits of a size in bytes.
_SIZE_BITS: Final = 48

#: What stands for a kind or size that is not recorded.
_UNKNOWN: Final = -1


class Matches(NamedTuple):
    """What was matched.

    Attributes:
        rows: The collectives with `match` (dense, by first start; null for what has no partner) and `how`, by match and
            rank, those without a partner last.
        doubts: Sentences on what could not be matched, with the number of collectives.
    """

    rows: pl.DataFrame
    doubts: list[tuple[str, int, str]]


def matched(collectives: pl.DataFrame) -> Matches:
    """Matches the collectives of all ranks.

    `collectives` has the columns of :data:`kanalyze.reduction.COLLECTIVES` (`id` as a number), with `rank` and `clock`,
    the number of the clock that the rank is timed by. All is done with numbers and sorting, with no loop over rows.
    """
    doubts: list[tuple[str, int, str]] = []
    rows = _in_order(collectives)
    if rows.is_empty():
        return Matches(rows.with_columns(match=_NO_MATCH, how=pl.lit(None, dtype=pl.String)), doubts)
    told = _told(rows)
    key, how = np.zeros(rows.height, dtype=np.uint64), np.zeros(rows.height, dtype=np.int8)
    for level, found in ((_ID, _by_id(rows)), (_SEQUENCE, _by_sequence(rows, told, doubts))):
        own = (key == 0) & (found != 0)
        key[own], how[own] = found[own], level
    del found
    left = np.flatnonzero(key == 0)
    found = _by_order(told, left, doubts)
    key[left] = found
    how[left[found != 0]] = _ORDINAL
    runs = _sorted(key, told.rank)
    bad = _disagreeing(told, key, runs)
    if bad.any():
        count = int(_lengths(runs.first, len(key))[bad].sum())
        doubts.append(("collectives that ranks call by different kinds", count, _DIFFERENT))
    match, order = _numbered(told, key, runs, bad)
    del key, runs
    unnamed = int(((match >= 0) & (how == _ORDINAL) & told.unnamed).sum())
    if unnamed and told.ranks > 2:  # noqa: PLR2004 - two ranks have one group
        doubts.append(("collectives whose group is not recorded", unnamed, _UNNAMED))
    del told
    return Matches(_ordered(rows, match, how, order), doubts)


_NO_MATCH: Final = pl.lit(None, dtype=pl.Int64)
_ID, _SEQUENCE, _ORDINAL = 1, 2, 3
_NAMES: Final = {_ID: BY_ID, _SEQUENCE: BY_SEQUENCE, _ORDINAL: BY_ORDINAL}
_NO_SHIFT: Final = "no shift, or more than one, lets order, kinds, sizes and clocks of ranks agree: no waits are told"
_DIFFERENT: Final = "what one rank calls a collective is another kind or size on another rank, or occurs twice"
_UNNAMED: Final = "all ranks are taken for one group, by the order on their streams; ranks of several may be mixed up"
_SOME_LOST: Final = "several have one number, and ranks have recorded different numbers of them: which is which is open"


class _Told(NamedTuple):
    """What rows tell, as numbers.

    Attributes:
        rank: The rank.
        lane: What a collective is counted in: the group, with its ranks; between two ranks, those; else the stream.
        unnamed: Whether the lane is only that of the stream.
        kind: The kind; of send and recv the same.
        what: Kind and size; -1 where the size is not recorded.
        pair: Whether it is sent from one rank to another.
        even: Whether all ranks have the same size.
        size: Ranks of the group; 0 where that is not recorded.
        start: Start, after the first of all.
        end: End.
        enters: Whether none that leaves can leave before they have entered.
        leaves: Whether they cannot leave before such ones have entered.
        clock: The clock of the rank.
        ranks: How many ranks there are.
    """

    rank: Ints
    lane: Ints
    unnamed: Bools
    kind: Ints
    what: Ints
    pair: Bools
    even: Bools
    size: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    clock: Ints
    ranks: int


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows by rank and start."""
    rank, start = rows.get_column("rank").to_numpy(), rows.get_column("start_ns").to_numpy()
    later = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (start[1:] > start[:-1]))
    return rows if later.all() else rows.sort("rank", "start_ns", "number")


def _told(rows: pl.DataFrame) -> _Told:
    told = rows.select("rank", "kind", "group", "size", "ranks", "source", "target", "stream", "in_bytes", "out_bytes")
    pair = pl.col("kind").is_in(POINT_TO_POINT)
    known = pl.col("source").is_not_null() & pl.col("target").is_not_null()
    unnamed = pl.col("group").is_null()
    # what is sent between ranks that are not told is in a lane of its own, that of its rank
    stray = pair & ~known & (pl.col("size").fill_null(0) != 2)  # noqa: PLR2004
    size = told.get_column("size").fill_null(0).to_numpy()
    parts = (
        told.select(pl.col(name).cast(pl.Categorical).to_physical().cast(pl.Int32).fill_null(_UNKNOWN)).to_series()
        for name in ("group", "ranks")
    )
    numbers = (
        told.select(pl.when(wanted).then(name).fill_null(_UNKNOWN)).to_series()
        for name, wanted in (("source", pair & known), ("target", pair & known), ("rank", stray))
    )
    lane = _key(0, size, *(one.to_numpy() for one in (*parts, *numbers)), _streams(told, unnamed)).view(np.int64)
    names = told.get_column("kind").unique().sort().to_list()
    codes = {name: names.index(name) if name not in POINT_TO_POINT else len(names) for name in names}
    kind = told.get_column("kind").replace_strict(codes, return_dtype=pl.Int64).to_numpy()
    bytes_ = told.select(pl.max_horizontal("in_bytes", "out_bytes").fill_null(_UNKNOWN)).to_series().to_numpy()
    start = rows.get_column("start_ns").to_numpy()
    start = start - start.min()
    enters, leaves, _ = shows(rows)
    sized = np.where(bytes_ < 0, _UNKNOWN, (kind << _SIZE_BITS) | bytes_)
    uneven = told.select(pl.col("kind").is_in(_UNEVEN)).to_series().to_numpy()
    return _Told(
        rank=rows.get_column("rank").to_numpy(),
        lane=lane,
        unnamed=told.select(unnamed).to_series().to_numpy(),
        kind=kind,
        what=np.where(uneven, kind << _SIZE_BITS, sized),
        pair=kind == len(names),
        even=told.select(pl.col("kind").is_in(_EVEN)).to_series().to_numpy(),
        size=size,
        start=start,
        end=start + rows.get_column("dur_ns").to_numpy(),
        enters=enters,
        leaves=leaves,
        clock=rows.get_column("clock").to_numpy(),
        ranks=rows.get_column("rank").n_unique(),
    )


def _streams(told: pl.DataFrame, unnamed: pl.Expr) -> Ints:
    """The place of the stream among those of its rank, where no group is recorded; else 0."""
    if not told.get_column("group").null_count():
        return np.zeros(told.height, dtype=np.int64)
    streams = told.select("rank", "stream").unique().with_columns(
        order=pl.col("stream").rank("dense").over("rank").fill_null(0).cast(pl.Int64)
    )  # fmt: skip
    every = told.join(streams, on=["rank", "stream"], how="left", nulls_equal=True, maintain_order="left")
    return every.select(pl.when(unnamed).then("order").fill_null(0)).to_series().to_numpy()


def _key(level: int, *parts: Ints | Keys) -> Keys:
    """A number for what is told by some numbers; different ones get the same by no more than chance, and never 0."""
    key = np.full(len(parts[0]), level * 0x1F83D9ABFB41BD6B, dtype=np.uint64)
    for part in parts:
        key = key * np.uint64(0x2545F4914F6CDD1D) + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in _MIXING:
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return np.maximum(key, np.uint64(1))


#: The steps of splitmix64.
_MIXING: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


class _Runs(NamedTuple):
    """Rows sorted by key, those of a rank together.

    Attributes:
        order: The rows in this order.
        first: Where each key begins.
        run: Where each rank begins in a key.
    """

    order: Ints
    first: Ints
    run: Ints


def _sorted(key: Keys, rank: Ints) -> _Runs:
    order = np.argsort(key, kind="stable")
    keys, ranks = key[order], rank[order]
    new = np.r_[True, keys[1:] != keys[:-1]]
    return _Runs(order, np.flatnonzero(new), np.flatnonzero(new | np.r_[True, ranks[1:] != ranks[:-1]]))


def _by_id(rows: pl.DataFrame) -> Keys:
    """Keys by the name that a collective has on all ranks, a number here; none where it is the name of several."""
    text = rows.get_column("id")
    found = np.zeros(rows.height, dtype=np.uint64)
    known = np.flatnonzero(text.is_not_null().to_numpy())
    if not len(known):
        return found
    key = _key(_ID, text.drop_nulls().to_numpy())
    runs = _sorted(key, rows.get_column("rank").to_numpy()[known])
    several = np.maximum.reduceat(_lengths(runs.run, len(key)).repeat(_lengths(runs.run, len(key))), runs.first) > 1
    key[runs.order[several.repeat(_lengths(runs.first, len(key)))]] = 0
    found[known] = key
    return found


def _lengths(first: Ints, total: int) -> Ints:
    return np.diff(first, append=total)


def _by_sequence(rows: pl.DataFrame, told: _Told, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys by the number in the group, and the place among those of one number."""
    number = rows.get_column("sequence")
    found = np.zeros(rows.height, dtype=np.uint64)
    pair = rows.get_column("kind").is_in(POINT_TO_POINT)
    known = np.flatnonzero((number.is_not_null() & ~pair).to_numpy())
    if not len(known):
        return found
    key = _key(_SEQUENCE, told.lane[known], number.fill_null(0).to_numpy()[known], told.kind[known])
    runs = _sorted(key, told.rank[known])
    lengths = _lengths(runs.run, len(key))
    if lengths.max() == 1:
        found[known] = key
        return found
    nth = np.arange(len(key)) - runs.run.repeat(lengths)
    each = lengths.repeat(lengths)
    uneven = np.minimum.reduceat(each, runs.first) != np.maximum.reduceat(each, runs.first)
    lost = runs.order[uneven.repeat(_lengths(runs.first, len(key)))]
    again = runs.order[nth > 0]
    key[again] = _key(_SEQUENCE, key[again], nth[nth > 0])
    if len(lost):
        doubts.append(("collectives of which a rank lost some", len(lost), _SOME_LOST))
    key[lost] = _LOST
    found[known] = key
    return found


#: The key of what must not be matched by order either.
_LOST: Final = np.uint64(1)


def _by_order(told: _Told, left: Ints, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys of the rows `left` by their place in the order of their lane."""
    key = np.zeros(len(left), dtype=np.uint64)
    lost = 0
    for lane, members in _lanes(told, left):
        places = _aligned(members)
        for rank, place in places.items():
            at = members[rank].at
            key[at] = _key(_ORDINAL, np.full(len(at), lane), place + np.arange(len(at)))
        lost += sum(len(one.at) for rank, one in members.items() if rank not in places)
    if lost:
        doubts.append(("collectives without a match", lost, _NO_SHIFT))
    return key


class _Sequence(NamedTuple):
    """The collectives of one rank in one lane, in their order; the arrays are those of :class:`_Told`."""

    at: Ints
    what: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    clock: int
    pair: bool


def _lanes(told: _Told, left: Ints) -> Iterator[tuple[int, dict[int, _Sequence]]]:
    """The sequences of each lane by rank."""
    if not len(left):
        return
    order = np.argsort(told.lane[left], kind="stable")
    rows = left[order]
    lane, rank = told.lane[rows], told.rank[rows]
    new = np.flatnonzero(np.r_[True, (lane[1:] != lane[:-1]) | (rank[1:] != rank[:-1])])
    members: dict[int, _Sequence] = {}
    for low, high in zip(new.tolist(), [*new[1:].tolist(), len(rows)], strict=True):
        own = rows[low:high]
        members[int(rank[low])] = _Sequence(
            order[low:high],
            told.what[own],
            told.start[own],
            told.end[own],
            told.enters[own],
            told.leaves[own],
            int(told.clock[own[0]]),
            bool(told.pair[own].all()),
        )
        if high == len(rows) or lane[high] != lane[low]:
            yield int(lane[low]), members
            members = {}


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

    Each rank is held against the longest sequence of its clock, and those against the longest of all; what does not fit
    it, against some others.
    """
    order = sorted(members, key=lambda one: (-len(members[one].at), one))
    heads: dict[int, int] = {}
    for one in order:
        heads.setdefault(members[one].clock, one)
    places = {order[0]: 0}
    for one in [*heads.values(), *order]:
        if one in places:
            continue
        head = heads[members[one].clock]
        bases = dict.fromkeys([*([head] if head in places else []), order[0], *list(places)[1 : 1 + _OTHERS]])
        for base in bases:
            shift = _shift(members[base], members[one])
            if shift is not None:
                places[one] = places[base] + shift
                break
    return places


def _shift(base: _Sequence, other: _Sequence) -> int | None:
    """By how many collectives `other` begins later than `base`; None if no shift fits, or several do."""
    lengths = len(base.at), len(other.at)
    one_clock = base.clock == other.clock
    least = 1 if one_clock else max(1, int(_POSSIBLE * min(lengths)))
    shifts = np.arange(least - lengths[1], lengths[0] - least + 1)
    if not one_clock:
        low = np.maximum(0, shifts)
        much = np.minimum(lengths[0], lengths[1] + shifts) - low >= _COMMON * min(lengths)
        shifts = shifts[much | (np.abs(other.start[low - shifts] - base.start[low]) < _APART_NS)]
    for number in _TRIED:
        shifts = shifts[_may_fit(base, other, shifts, number)]
    if base.pair and one_clock:
        return _latest_sends(base, other, shifts)
    found = []
    for shift in shifts.tolist():
        if _fits(base, other, shift):
            found.append(shift)
            if len(found) > 1:
                return None
    if not found:
        return None
    common = min(lengths[0], lengths[1] + found[0]) - max(0, found[0])
    enough = one_clock or common >= max(_FEWEST, _COMMON * min(lengths))
    return found[0] if enough else None


def _latest_sends(base: _Sequence, other: _Sequence, shifts: Ints) -> int | None:
    """Of the shifts that let no receive end before its send began, the one that pairs receives with the latest sends.

    Sends may end long before they are received, so that earlier ones would do as well; but a receive that waited
    ended with its own send, and one must have, or nothing is told.
    """
    sends = bool(base.enters.all())
    shift = next((one for one in (shifts[::-1] if sends else shifts).tolist() if _fits(base, other, one)), None)
    if shift is None:
        return None
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    mine, theirs = slice(low, high), slice(low - shift, high - shift)
    begun, sent = (base.start[mine], base.end[mine]) if sends else (other.start[theirs], other.end[theirs])
    received = other.end[theirs] if sends else base.end[mine]
    return shift if (np.abs(received - sent) <= sent - begun).any() else None


def _may_fit(base: _Sequence, other: _Sequence, shifts: Ints, number: int) -> Bools:
    """Whether each shift fits at so many places of what the two have in common."""
    parts = np.arange(number) * _GOLDEN % 1
    low = np.maximum(0, shifts)
    common = np.minimum(len(base.at), len(other.at) + shifts) - low
    mine = low[:, None] + (parts[None, :] * common[:, None]).astype(np.int64)
    return _agree(base, other, mine, mine - shifts[:, None])


def _fits(base: _Sequence, other: _Sequence, shift: int) -> bool:
    """Whether kinds and sizes agree, and some offset of the clocks lets each rank leave after the other entered."""
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    mine = np.arange(low, high)[None, :]
    return bool(_agree(base, other, mine, mine - shift)[0])


def _agree(base: _Sequence, other: _Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether kinds and sizes agree, and clocks can be right."""
    left, right = base.what[mine], other.what[theirs]
    same = ((left == right) | (left == _UNKNOWN) | (right == _UNKNOWN)).all(axis=1)
    after, before = base.leaves[mine] & other.enters[theirs], other.leaves[theirs] & base.enters[mine]
    # as if nothing could be buffered
    nothing = ~np.any(after | before, axis=1, keepdims=True) | (base.pair and base.clock != other.clock)
    after, before = after | nothing, before | nothing
    least = (other.start[theirs] - base.end[mine]).max(axis=1, where=after, initial=-_FAR)
    greatest = (other.end[theirs] - base.start[mine]).min(axis=1, where=before, initial=_FAR)
    if base.clock == other.clock:
        return np.asarray(same & (least <= _ONE_HOST_NS) & (greatest >= -_ONE_HOST_NS))
    span = base.end[mine].max(axis=1) - base.start[mine].min(axis=1)
    return np.asarray(same & (least <= greatest + 2 * STAMP_ERROR_NS + (DRIFT * span).astype(np.int64)))


def _disagreeing(told: _Told, key: Keys, runs: _Runs) -> Bools:
    """The keys of what is no one collective: of several kinds or sizes, twice on a rank, or more than the group has."""
    counts = _lengths(runs.first, len(key))

    def differ(values: Ints) -> Bools:
        return np.asarray(np.minimum.reduceat(values, runs.first) != np.maximum.reduceat(values, runs.first))

    begins = np.zeros(len(key), dtype=np.int64)
    begins[runs.run] = 1
    ranks = np.add.reduceat(begins, runs.first)
    size = np.maximum.reduceat(told.size[runs.order], runs.first)
    bad = (ranks != counts) | ((size > 0) & (counts > size)) | differ(told.kind[runs.order])
    sized = np.where(told.even, told.what, _UNKNOWN)[runs.order]
    some = np.maximum.reduceat(sized, runs.first).repeat(counts)
    bad |= differ(np.where(sized == _UNKNOWN, some, sized))
    return np.asarray(bad & (key[runs.order[runs.first]] > _LOST))


#: Kinds of which all ranks give as much.
_EVEN: Final = ("all_reduce", "reduce", "broadcast")


def _numbered(told: _Told, key: Keys, runs: _Runs, bad: Bools) -> tuple[Ints, Ints]:
    """The number of the collective of each row, dense from 0 on by first start; -1 for what has no partner.

    And the rows in the order of these numbers and of ranks, those without a partner last.
    """
    counts = _lengths(runs.first, len(key))
    size = np.maximum.reduceat(told.size[runs.order], runs.first)
    real = (key[runs.order[runs.first]] > _LOST) & ((counts > 1) | (size == 1)) & ~bad
    begun = np.minimum.reduceat(told.start[runs.order], runs.first)
    keys = np.lexsort((runs.order[runs.first], begun))
    keys = keys[real[keys]]
    number = np.full(len(counts), -1)
    number[keys] = np.arange(len(keys))
    match = np.empty(len(key), dtype=np.int64)
    match[runs.order] = number.repeat(counts)
    ends = np.cumsum(counts[keys])
    places = np.arange(ends[-1] if len(ends) else 0) + (runs.first[keys] - (ends - counts[keys])).repeat(counts[keys])
    return match, np.r_[runs.order[places], np.flatnonzero(match < 0)]


def _ordered(rows: pl.DataFrame, match: Ints, how: npt.NDArray[np.int8], order: Ints) -> pl.DataFrame:
    """The rows by match and rank, what has no partner last."""
    told = rows.drop("ranks", "id", "sequence")[order].with_columns(
        match=pl.Series(match[order]), how=pl.Series(how[order])
    )
    known = pl.col("match") >= 0
    names = pl.col("how").replace_strict(_NAMES, default=None, return_dtype=pl.Enum([*_NAMES.values()]))
    return told.with_columns(match=pl.when(known).then("match"), how=pl.when(known).then(names))
