"""Matching of collectives: which rows of several ranks are one collective, and how that is known.

Definition: docs/definitions.md, section 11, "The same collective".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._rows import NO_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from kanalyze.analyses.communication._rows import Rows

    Ints = npt.NDArray[np.int64]
    Small = npt.NDArray[np.int32]
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

#: The part of what two ranks have in common that must be in steps of one number; what is at an edge may begin outside.
_SAME_STEPS: Final = 0.9

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
    """Matched calls; collectives are numbered by first start.

    Attributes:
        match: The number of the collective of each row; -1 for what has no partner.
        how: How each collective was matched: an index of :data:`HOW`.
        order: The rows by collective and member, those without a partner last.
        first: Where the rows of each collective begin in `order`, and where those without a partner do.
        begun: When each began, in Unix time: the first start.
        doubts: Sentences on what could not be matched, with the number of collectives.
    """

    match: Small
    how: npt.NDArray[np.int8]
    order: Small
    first: Ints
    begun: Ints
    doubts: list[tuple[str, int, str]]

    @property
    def number(self) -> int:
        """How many collectives were matched."""
        return len(self.begun)

    def slices(self, cuts: Ints) -> Iterator[Slice]:
        """The collectives from each cut to the next one."""
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            begin, end = self.first[low], self.first[high]
            counts = np.diff(self.first[low : high + 1])
            yield Slice(
                low,
                self.order[begin:end],
                self.first[low:high] - begin,
                counts,
                np.repeat(np.arange(high - low, dtype=np.int32), counts),
            )


class Slice(NamedTuple):
    """Some collectives, one after the other.

    Attributes:
        low: The first of them.
        at: Their rows.
        first: Where the rows of each begin.
        counts: How many rows each has.
        which: The collective of each row, from 0 on.
    """

    low: int
    at: Small
    first: Ints
    counts: Ints
    which: Small

    def most(self, values: Ints) -> Ints:
        """The most of each collective."""
        return np.asarray(np.maximum.reduceat(values, self.first))

    def least(self, values: Ints) -> Ints:
        """The least of each collective."""
        return np.asarray(np.minimum.reduceat(values, self.first))

    def sums(self, values: Ints) -> Ints:
        """The sum of each collective."""
        return np.asarray(np.add.reduceat(values, self.first))


def matched(rows: Rows, clock: Ints, steps: Callable[[Ints], Ints] | None = None) -> Matches:
    """Matches the collectives of all ranks, of which `clock` tells by member the clock that each is timed by.

    All is done with numbers and sorting, with no loop over rows. `steps` gives of rows the number that the program
    itself has for the step, -1 outside of steps; None where it has none.
    """
    doubts: list[tuple[str, int, str]] = []
    if not len(rows):
        none = np.zeros(0, dtype=np.int32)
        return Matches(none, none.astype(np.int8), none, np.zeros(1, dtype=np.int64), none.astype(np.int64), doubts)
    told = _told(rows, clock)._replace(steps=steps)
    key, how = np.zeros(len(rows), dtype=np.uint64), np.zeros(len(rows), dtype=np.int8)
    for level, names in ((_ID, _by_id), (_SEQUENCE, _by_sequence)):
        found = names(rows, told, doubts)
        own = (key == 0) & (found != 0)
        key[own], how[own] = found[own], level
        del found, own
    left = told.walk[key[told.walk] == 0]
    found = _by_order(rows, told, left, doubts)
    key[left] = found
    how[left[found != 0]] = _ORDINAL
    del left, found
    runs = _sorted(key, rows.member)
    bad = _disagreeing(rows, told, key, runs)
    if bad.any():
        count = int(_lengths(runs.first, len(key))[bad].sum())
        doubts.append(("collectives that ranks call by different kinds", count, _DIFFERENT))
    match, order, first, begun = _numbered(rows, told, key, runs, bad)
    del key, runs
    unnamed = int(((match >= 0) & (how == _ORDINAL) & told.unnamed[rows.call]).sum()) if told.unnamed.any() else 0
    if unnamed and np.count_nonzero(np.diff(rows.first)) > 2:  # noqa: PLR2004 - two ranks have one group
        doubts.append(("collectives whose group is not recorded", unnamed, _UNNAMED))
    return Matches(match, how[order[first[:-1]]], order, first, begun, doubts)


_ID, _SEQUENCE, _ORDINAL = 1, 2, 3
HOW: Final = pl.Series([None, BY_ID, BY_SEQUENCE, BY_ORDINAL], dtype=pl.Enum([BY_ID, BY_SEQUENCE, BY_ORDINAL]))
_NO_SHIFT: Final = "no shift, or more than one, lets order, kinds, sizes and clocks of ranks agree: no waits are told"
_DIFFERENT: Final = "what one rank calls a collective is another kind or size on another rank, or occurs twice"
_UNNAMED: Final = "all ranks are taken for one group, by the order on their streams; ranks of several may be mixed up"
_SOME_LOST: Final = "several have one number, and ranks have recorded different numbers of them: which is which is open"


class _Told(NamedTuple):
    """Attributes of calls as numbers, and the order of rows by call.

    Attributes:
        lane: What a collective is counted in: the group, with its ranks; between two ranks, those; else the stream.
        unnamed: Whether the lane is only that of the stream.
        kind: The kind; of send and recv the same.
        what: Kind and size; -1 where the size is not recorded.
        pair: Whether it is sent from one rank to another.
        even: Whether all ranks have the same size.
        size: Ranks of the group; 0 where that is not recorded.
        enters: Whether none that leaves can leave before they have entered.
        leaves: Whether they cannot leave before such ones have entered.
        clock: The clock, by member.
        walk: The rows by member and start.
        steps: Gives the program's number of the step of rows; None where it has none.
    """

    lane: Ints
    unnamed: Bools
    kind: Ints
    what: Ints
    pair: Bools
    even: Bools
    size: Ints
    enters: Bools
    leaves: Bools
    clock: Ints
    walk: Ints
    steps: Callable[[Ints], Ints] | None = None


def _told(rows: Rows, clock: Ints) -> _Told:
    told = rows.calls
    pair = pl.col("kind").is_in(POINT_TO_POINT)
    known = pl.col("source").is_not_null() & pl.col("target").is_not_null()
    unnamed = pl.col("group").is_null()
    # what is sent between ranks that are not told is in a lane of its own, that of its rank
    stray = pair & ~known & (pl.col("size").fill_null(0) != 2)  # noqa: PLR2004
    size = rows.said("size", 0)
    parts = (
        told.select(pl.col(name).cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(_UNKNOWN)).to_series()
        for name in ("group", "ranks")
    )
    paired = (pair | (pl.col("kind") == "send_recv")) & known
    numbers = (
        told.select(pl.when(wanted).then(name).fill_null(_UNKNOWN)).to_series()
        for name, wanted in (("source", paired), ("target", paired), ("member", stray))
    )
    lanes = _key(0, size, *(one.to_numpy() for one in (*parts, *numbers)), _streams(told, unnamed))
    names = told.get_column("kind").cast(pl.String).unique().sort().to_list()
    codes = {name: names.index(name) if name not in POINT_TO_POINT else len(names) for name in names}
    kind = told.get_column("kind").cast(pl.String).replace_strict(codes, return_dtype=pl.Int64).to_numpy()
    bytes_ = told.select(pl.max_horizontal("in_bytes", "out_bytes").fill_null(_UNKNOWN)).to_series().to_numpy()
    enters, leaves, _ = shows(told)
    sized = np.where(bytes_ < 0, _UNKNOWN, (kind << _SIZE_BITS) | bytes_)
    uneven = told.select(pl.col("kind").is_in(_UNEVEN)).to_series().to_numpy()
    return _Told(
        lane=np.unique(lanes, return_inverse=True)[1],
        unnamed=told.select(unnamed).to_series().to_numpy(),
        kind=kind,
        what=np.where(uneven, kind << _SIZE_BITS, sized),
        pair=kind == len(names),
        even=told.select(pl.col("kind").is_in(_EVEN)).to_series().to_numpy(),
        size=size,
        enters=enters,
        leaves=leaves,
        clock=clock,
        walk=_in_order(rows),
    )


def _in_order(rows: Rows) -> Ints:
    """The rows by member and start."""
    later = rows.start[1:] > rows.start[:-1]
    later[rows.first[(rows.first > 0) & (rows.first < len(rows))] - 1] = True
    return np.arange(len(rows)) if later.all() else np.lexsort((rows.start, rows.member))


def _streams(told: pl.DataFrame, unnamed: pl.Expr) -> Ints:
    """The place of the stream among those of its rank, where no group is recorded; else 0."""
    order = pl.col("stream").rank("dense").over("member").fill_null(0).cast(pl.Int64)
    return told.select(pl.when(unnamed).then(order).otherwise(0)).to_series().to_numpy()


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


def _sorted(key: Keys, rank: Small) -> _Runs:
    order = np.argsort(key, kind="stable")
    keys, ranks = key[order], rank[order]
    new = np.r_[True, keys[1:] != keys[:-1]]
    return _Runs(order, np.flatnonzero(new), np.flatnonzero(new | np.r_[True, ranks[1:] != ranks[:-1]]))


def _by_id(rows: Rows, told: _Told, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys by the name that a collective has on all ranks, a number here; none where it is the name of several."""
    del told, doubts
    found = np.zeros(len(rows), dtype=np.uint64)
    known = np.flatnonzero(rows.id)
    if not len(known):
        return found
    key = _key(_ID, rows.id[known])
    runs = _sorted(key, rows.member[known])
    lengths = _lengths(runs.run, len(key))
    if lengths.max() > 1:
        several = np.maximum.reduceat(lengths.repeat(lengths), runs.first) > 1
        key[runs.order[several.repeat(_lengths(runs.first, len(key)))]] = 0
    found[known] = key
    return found


def _lengths(first: Ints, total: int) -> Ints:
    return np.diff(first, append=total)


def _by_sequence(rows: Rows, told: _Told, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys by the number in the group, and the place among those of one number."""
    found = np.zeros(len(rows), dtype=np.uint64)
    if not len(rows.sequence):
        return found
    known = told.walk[((rows.sequence != NO_SEQUENCE) & ~told.pair[rows.call])[told.walk]]
    if not len(known):
        return found
    key = _key(_SEQUENCE, _key(0, told.lane, told.kind)[rows.call[known]], rows.sequence[known])
    runs = _sorted(key, rows.member[known])
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


def _by_order(rows: Rows, told: _Told, left: Ints, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys of the rows `left` by their place in the order of their lane."""
    key = np.zeros(len(left), dtype=np.uint64)
    lost = 0
    for lane, members in _lanes(rows, told, left):
        places = _aligned(members)
        for rank, place in places.items():
            at = members[rank].at
            key[at] = _key(_ORDINAL, np.full(len(at), lane), place + np.arange(len(at)))
        lost += sum(len(one.at) for rank, one in members.items() if rank not in places)
    if lost:
        doubts.append(("collectives without a match", lost, _NO_SHIFT))
    return key


class _Sequence(NamedTuple):
    """The collectives of one rank in one lane, in their order; the arrays are those of :class:`_Told`.

    `steps` gives the program's number of the step of each.
    """

    at: Ints
    what: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    clock: int
    pair: bool
    steps: Callable[[], Ints] | None


def _lanes(rows: Rows, told: _Told, left: Ints) -> Iterator[tuple[int, dict[int, _Sequence]]]:
    """The sequences of each lane by rank."""
    if not len(left):
        return
    lane = told.lane[rows.call[left]]
    order = np.argsort(lane.astype(np.min_scalar_type(lane.max())), kind="stable")
    lane, rank = lane[order], rows.member[left[order]]
    new = np.flatnonzero(np.r_[True, (lane[1:] != lane[:-1]) | (rank[1:] != rank[:-1])])
    base = rows.start.min()
    members: dict[int, _Sequence] = {}
    for low, high in zip(new.tolist(), [*new[1:].tolist(), len(left)], strict=True):
        own = left[order[low:high]]
        call, start = rows.call[own], rows.start[own] - base
        members[int(rank[low])] = _Sequence(
            order[low:high],
            told.what[call],
            start,
            start + rows.dur[own],
            told.enters[call],
            told.leaves[call],
            int(told.clock[rank[low]]),
            bool(told.pair[call].all()),
            None if told.steps is None else partial(told.steps, own),
        )
        if high == len(left) or lane[high] != lane[low]:
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
                return _by_steps(base, other, shifts)
    if not found:
        return None
    common = min(lengths[0], lengths[1] + found[0]) - max(0, found[0])
    enough = one_clock or common >= max(_FEWEST, _COMMON * min(lengths))
    return found[0] if enough else None


def _by_steps(base: _Sequence, other: _Sequence, shifts: Ints) -> int | None:
    """Of several shifts that fit, the one that leaves collectives in the same steps, by the program's own numbers."""
    if base.steps is None or other.steps is None:
        return None
    mine, theirs = base.steps(), other.steps()
    found = []
    for shift in shifts.tolist():
        low, high = max(0, shift), min(len(mine), len(theirs) + shift)
        left, right = mine[low:high], theirs[low - shift : high - shift]
        inside = (left >= 0) & (right >= 0)
        if inside.any() and (left == right)[inside].mean() >= _SAME_STEPS and _fits(base, other, shift):
            found.append(shift)
    return found[0] if len(found) == 1 else None


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
    # most shifts fail here, before the times are looked up
    same[same] = _in_time(base, other, mine[same], theirs[same])
    return np.asarray(same)


def _in_time(base: _Sequence, other: _Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether clocks can be right."""
    after, before = base.leaves[mine] & other.enters[theirs], other.leaves[theirs] & base.enters[mine]
    # as if nothing could be buffered
    nothing = ~np.any(after | before, axis=1, keepdims=True) | (base.pair and base.clock != other.clock)
    after, before = after | nothing, before | nothing
    least = (other.start[theirs] - base.end[mine]).max(axis=1, where=after, initial=-_FAR)
    greatest = (other.end[theirs] - base.start[mine]).min(axis=1, where=before, initial=_FAR)
    if base.clock == other.clock:
        return np.asarray((least <= _ONE_HOST_NS) & (greatest >= -_ONE_HOST_NS))
    span = base.end[mine].max(axis=1) - base.start[mine].min(axis=1)
    return np.asarray(least <= greatest + 2 * STAMP_ERROR_NS + (DRIFT * span).astype(np.int64))


def _disagreeing(rows: Rows, told: _Told, key: Keys, runs: _Runs) -> Bools:
    """The keys of what is no one collective: of several kinds or sizes, twice on a rank, or more than the group has."""
    counts = _lengths(runs.first, len(key))
    call = rows.call[runs.order]

    def differ(values: Ints) -> Bools:
        return np.asarray(np.minimum.reduceat(values, runs.first) != np.maximum.reduceat(values, runs.first))

    ranks = np.diff(np.searchsorted(runs.run, np.r_[runs.first, len(key)]))
    size = np.maximum.reduceat(told.size[call], runs.first)
    bad = (ranks != counts) | ((size > 0) & (counts > size)) | differ(told.kind[call])
    sized = np.where(told.even, told.what, _UNKNOWN)[call]
    if (sized == _UNKNOWN).any():
        some = np.maximum.reduceat(sized, runs.first).repeat(counts)
        sized = np.where(sized == _UNKNOWN, some, sized)
    bad |= differ(sized)
    return np.asarray(bad & (key[runs.order[runs.first]] > _LOST))


#: Kinds of which all ranks give as much.
_EVEN: Final = ("all_reduce", "reduce", "broadcast")


def _numbered(rows: Rows, told: _Told, key: Keys, runs: _Runs, bad: Bools) -> tuple[Small, Small, Ints, Ints]:
    """Match, order, first and begun of :class:`Matches`."""
    counts = _lengths(runs.first, len(key))
    size = np.maximum.reduceat(told.size[rows.call[runs.order]], runs.first)
    real = (key[runs.order[runs.first]] > _LOST) & ((counts > 1) | (size == 1)) & ~bad
    begun = np.minimum.reduceat(rows.start[runs.order], runs.first)
    keys = np.lexsort((runs.order[runs.first], begun))
    keys = keys[real[keys]]
    number = np.full(len(counts), -1, dtype=np.int32)
    number[keys] = np.arange(len(keys))
    match = np.empty(len(key), dtype=np.int32)
    match[runs.order] = number.repeat(counts)
    first = np.r_[0, np.cumsum(counts[keys])]
    places = np.arange(first[-1]) + (runs.first[keys] - first[:-1]).repeat(counts[keys])
    order = np.r_[runs.order[places], told.walk[match[told.walk] < 0]].astype(np.int32)
    return match, order, first, begun[keys]
