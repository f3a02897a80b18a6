"""Matching of collectives: which rows of several ranks are one, by their names, numbers, or place in the order of all.

Definition: docs/definitions.md, section 11, "The same collective".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from kanalyze.analyses.communication._recorded import BY_PAIRS

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

#: Kinds between two ranks, which are told apart by sender and receiver.
POINT_TO_POINT: Final = ("send", "recv")

#: Kinds that no rank can leave before all have entered; of an all_to_all a rank may get nothing from another one.
_TOGETHER: Final = ("all_reduce", "reduce_scatter", "all_gather", "barrier")

#: Kinds whose sizes may differ between ranks; and kinds of which all ranks give as much.
_UNEVEN: Final = ("all_to_all", "send_recv", "gather", "scatter", "coalesced")
_EVEN: Final = ("all_reduce", "reduce", "broadcast")

#: What stands for a kind or size that is not recorded.
UNKNOWN: Final = -1

#: What stands for a number in the group, or a name, that is not recorded.
NO_SEQUENCE: Final = -(1 << 63)
NO_ID: Final = 0

#: The key of what must not be matched by order either.
_LOST: Final = np.uint64(1)

# The collectives in little memory: of what they say, each rank's different calls once. A job of 1,000 ranks has
# 5,000,000 rows, of which each column takes 40 MB: what can be computed of a row is not kept.

#: What is said of a collective, alike for many of a rank.
_SAID: Final = (
    "member", "kind", "group", "size", "ranks", "own", "source", "target", "in_bytes", "out_bytes", "largest_bytes",
    "stream",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The collectives of all ranks, by member and number."""

    first: Ints  # where those of each member begin, and the number of all
    call: Small  # what is said of each, a row of `calls`
    start: Ints  # in Unix time, by the clock of the rank
    dur: Ints
    exposed: Ints  # time in which the GPU ran nothing else
    inside: Small  # the step that it begins in, as its row among the steps of the rank; -1 outside
    sequence: Ints  # its number in the group; empty where none is recorded of any
    id: Keys  # a number for what the tool calls it on all ranks; empty where it calls none
    calls: pl.DataFrame  # :data:`_SAID` of what some collectives of a rank say the same

    def __len__(self) -> int:
        """All collectives of all ranks."""
        return len(self.start)

    @cached_property
    def member(self) -> Small:
        """The rank of each."""
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))


def rows_of(table: pl.DataFrame, members: int) -> Rows:
    """The collectives of so many ranks; `table` has columns of :data:`COLLECTIVES`, by member."""
    columns, calls = narrow(table, 0)
    first = np.searchsorted(table.get_column("member").to_numpy(), np.arange(members + 1))
    return Rows(first=first, inside=np.full(table.height, -1, dtype=np.int32), calls=calls, **columns)


def narrow(rows: pl.DataFrame, before: int) -> tuple[dict[str, npt.NDArray[Any]], pl.DataFrame]:
    """The columns of :class:`Rows` but `inside`, and its calls, `before` which there are others."""
    # different ones get the same number by no more than chance
    hashes = rows.select(_SAID).hash_rows()
    _, call = np.unique(hashes.to_numpy(), return_inverse=True)
    example = np.empty(int(call.max(initial=-1)) + 1, dtype=np.int64)
    example[call] = np.arange(len(call))
    name = pl.when(pl.col("id").is_not_null()).then(pl.col("id").hash().replace(0, 1)).otherwise(NO_ID)
    columns = {
        "call": (call + before).astype(np.int32),
        "start": rows.get_column("start_ns").to_numpy(),
        "dur": rows.get_column("dur_ns").to_numpy(),
        "exposed": rows.get_column("exposed_ns").to_numpy(),
        "sequence": rows.get_column("sequence").fill_null(NO_SEQUENCE).to_numpy(),
        "id": rows.select(name.cast(pl.UInt64)).to_series().to_numpy(),
    }
    return columns, rows.select(_SAID)[example].cast({"kind": pl.Categorical, "group": pl.Categorical})


class Matches(NamedTuple):
    """Matched calls; collectives are numbered by first start."""

    match: Small  # the number of the collective of each row; -1 for what has no partner
    how: npt.NDArray[np.int8]  # how each collective was matched: an index of :data:`HOW`
    order: Small  # the rows by collective and member, those without a partner last
    first: Ints  # where the rows of each collective begin in `order`, and where those without a partner do
    begun: Ints  # when each began, in Unix time: the first start
    doubts: list[tuple[str, int, str]]  # sentences on what could not be matched, with the number of collectives

    @property
    def number(self) -> int:
        """How many collectives were matched."""
        return len(self.begun)

    def slices(self, cuts: Ints) -> "Iterator[Slice]":
        """The collectives from each cut to the next one."""
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            begin, end = self.first[low], self.first[high]
            counts = np.diff(self.first[low : high + 1])
            which = np.repeat(np.arange(high - low, dtype=np.int32), counts)
            yield Slice(low, self.order[begin:end], self.first[low:high] - begin, counts, which)


class Slice(NamedTuple):
    """Some collectives, one after the other."""

    low: int  # the first of them
    at: Small  # their rows
    first: Ints  # where the rows of each begin
    counts: Ints  # how many rows each has
    which: Small  # the collective of each row, from 0 on

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
    facts = _told(rows, clock, steps)
    key = _by_id(rows)
    how = np.where(key != 0, _ID, 0).astype(np.int8)
    numbered = _by_sequence(rows, facts, doubts)
    fresh = (key == 0) & (numbered != 0)
    key[fresh], how[fresh] = numbered[fresh], _SEQUENCE
    left = facts.walk[key[facts.walk] == 0]
    key[left] = _by_order(rows, facts, left, doubts)
    how[left[key[left] != 0]] = _ORDINAL
    match, order, first, begun = _numbered(rows, facts, key, _sorted(key, rows.member), doubts)
    unnamed = int(((match >= 0) & (how == _ORDINAL) & facts.unnamed[rows.call]).sum())
    if unnamed and np.count_nonzero(np.diff(rows.first)) > 2:  # noqa: PLR2004 - two ranks have one group
        doubts.append(("collectives whose group is not recorded", unnamed, _UNNAMED))
    return Matches(match, how[order[first[:-1]]], order, first, begun, doubts)


_ID, _SEQUENCE, _ORDINAL = 1, 2, 3
#: How a match is known, the surest first.
HOW: Final = pl.Series([None, "id", "seq", "ordinal"], dtype=pl.Enum(["id", "seq", "ordinal"]))
_NO_SHIFT: Final = "no shift, or more than one, lets order, kinds, sizes and clocks of ranks agree: no waits are told"
_DIFFERENT: Final = "what one rank calls a collective is another kind or size on another rank, or occurs twice"
_UNNAMED: Final = "all ranks are taken for one group, by the order on their streams; ranks of several may be mixed up"
_SOME_LOST: Final = "several have one number, and ranks have recorded different numbers of them: which is which is open"


class _Told(NamedTuple):
    """Attributes of calls as numbers, and the order of rows by call."""

    lane: Ints  # what a collective is counted in: the group, with its ranks; between two ranks, those; else the stream
    unnamed: Bools  # whether the lane is only that of the stream
    kind: Ints  # the kind; of send and recv the same
    what: Ints  # kind and size, of which the lower bits are 0 where it is not recorded, or may differ between ranks
    by_pairs: Bools  # whether it runs as a kernel of sends and receives, which a rank without any does not run
    pairs: Bools  # whether it is sent from one rank to another
    even: Bools  # whether all ranks have the same size
    size: Ints  # ranks of the group; 0 where that is not recorded
    enters: Bools  # whether none that leaves can leave before they have entered
    leaves: Bools  # whether they cannot leave before such ones have entered
    clock: Ints  # the clock, by member
    walk: Ints  # the rows by member and start
    steps: Callable[[Ints], Ints] | None  # the program's own number of the step of rows


def _told(rows: Rows, clock: Ints, steps: Callable[[Ints], Ints] | None) -> _Told:
    kind, pairs = pl.col("kind"), pl.col("kind").is_in(POINT_TO_POINT)
    between, unnamed = pl.col("source").is_not_null() & pl.col("target").is_not_null(), pl.col("group").is_null()
    paired = (pairs | (kind == "send_recv")) & between
    # what is sent between ranks that are not told is in a lane of its own, that of its rank
    stray = pairs & ~between & (pl.col("size").fill_null(0) != 2)  # noqa: PLR2004
    # the place of the stream among those of its rank
    stream = pl.col("stream").rank("dense").over("member").fill_null(0).cast(pl.Int64)
    names = rows.calls.get_column("kind").cast(pl.String).unique().sort().to_list()
    codes = {name: len(names) if name in POINT_TO_POINT else code for code, name in enumerate(names)}
    bytes_ = pl.when(~kind.is_in(_UNEVEN)).then(pl.max_horizontal("in_bytes", "out_bytes") + 1).fill_null(0)
    lanes = rows.calls.select(
        pl.col("size").fill_null(0),
        pl.col("group", "ranks").cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(UNKNOWN),
        *(pl.when(paired).then(name).fill_null(UNKNOWN).alias(name) for name in ("source", "target")),
        pl.when(stray).then("member").fill_null(UNKNOWN).alias("stray"),
        pl.when(unnamed).then(stream).otherwise(0).alias("stream"),
    )
    code = kind.cast(pl.String).replace_strict(codes, return_dtype=pl.Int64)
    numbers = rows.calls.select(
        pl.col("size").fill_null(0),
        unnamed=unnamed,
        kind=code,
        what=code * (1 << SIZE_BITS) + bytes_,
        by_pairs=kind.is_in(("send_recv", *BY_PAIRS)),
        pairs=pairs,
        even=kind.is_in(_EVEN),
    )
    enters, leaves, _ = shows(rows.calls)
    return _Told(
        lane=np.unique(_key(0, *(one.to_numpy() for one in lanes)), return_inverse=True)[1],
        **{one.name: one.to_numpy() for one in numbers},
        enters=enters,
        leaves=leaves,
        clock=clock,
        walk=np.lexsort((rows.start, rows.member)),
        steps=steps,
    )


def _key(level: int, *parts: Ints | Keys) -> Keys:
    """A number for what is told by some numbers; different ones get the same by no more than chance, and never 0."""
    key = np.full(len(parts[0]), level * 0x1F83D9ABFB41BD6B, dtype=np.uint64)
    for part in parts:
        key = key * np.uint64(0x2545F4914F6CDD1D) + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        # the steps of splitmix64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return np.maximum(key, np.uint64(1))


class _Runs(NamedTuple):
    """Rows sorted by key, those of a rank together."""

    order: Ints  # the rows in this order
    first: Ints  # where each key begins
    counts: Ints  # rows of each key
    run: Ints  # where each rank begins in a key
    lengths: Ints  # rows of each of these


def _sorted(key: Keys, rank: Small) -> _Runs:
    order = np.argsort(key, kind="stable")
    keys, ranks = key[order], rank[order]
    new = np.r_[True, keys[1:] != keys[:-1]]
    first, run = np.flatnonzero(new), np.flatnonzero(new | np.r_[True, ranks[1:] != ranks[:-1]])
    return _Runs(order, first, np.diff(first, append=len(key)), run, np.diff(run, append=len(key)))


def _by_id(rows: Rows) -> Keys:
    """Keys by the name that a collective has on all ranks, a number here; none where it is the name of several."""
    keys = np.zeros(len(rows), dtype=np.uint64)
    named = np.flatnonzero(rows.id)
    if len(named):
        key = _key(_ID, rows.id[named])
        runs = _sorted(key, rows.member[named])
        several = np.maximum.reduceat(runs.lengths.repeat(runs.lengths), runs.first) > 1
        key[runs.order[several.repeat(runs.counts)]] = 0
        keys[named] = key
    return keys


def _by_sequence(rows: Rows, facts: _Told, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys by the number in the group, and the place among those of one number."""
    keys = np.zeros(len(rows), dtype=np.uint64)
    numbered = rows.sequence != NO_SEQUENCE
    if not numbered.any():
        return keys
    walked = facts.walk[(numbered & ~facts.pairs[rows.call])[facts.walk]]
    key = _key(_SEQUENCE, _key(0, facts.lane, facts.kind)[rows.call[walked]], rows.sequence[walked])
    runs = _sorted(key, rows.member[walked])
    nth = np.arange(len(key)) - runs.run.repeat(runs.lengths)
    each = runs.lengths.repeat(runs.lengths)
    uneven = np.minimum.reduceat(each, runs.first) != np.maximum.reduceat(each, runs.first)
    lost, again = runs.order[uneven.repeat(runs.counts)], runs.order[nth > 0]
    key[again] = _key(_SEQUENCE, key[again], nth[nth > 0])
    if len(lost):
        doubts.append(("collectives of which a rank lost some", len(lost), _SOME_LOST))
    key[lost] = _LOST
    keys[walked] = key
    return keys


def _by_order(rows: Rows, facts: _Told, left: Ints, doubts: list[tuple[str, int, str]]) -> Keys:
    """Keys of the rows `left` by their place in the order of their lane.

    Where ranks do not fit, as where one runs fewer kernels of sends and receives than others, the order of these and
    that of all else are taken apart, if more ranks fit then.
    """
    key = np.zeros(len(left), dtype=np.uint64)
    for lane, members in _lanes(rows, facts, left):
        best = _placed([members])
        if sum(len(at) for at, _ in best) < sum(len(sequence.at) for sequence in members.values()):
            apart = [{rank: sequence.of(own) for rank, sequence in members.items()} for own in (True, False)]
            best = max(best, _placed(apart), key=lambda one: sum(len(at) for at, _ in one))
        for at, place in best:
            key[at] = _key(_ORDINAL, np.full(len(at), lane), place)
    if lost := int((key == 0).sum()):
        doubts.append(("collectives without a match", lost, _NO_SHIFT))
    return key


def _placed(parts: "list[dict[int, Sequence]]") -> list[tuple[Ints, Ints]]:
    """The rows of ranks that fit others, each with its place in the order of its part, which no other part has."""
    fits = []
    for number, part in enumerate(parts):
        members = {rank: sequence for rank, sequence in part.items() if len(sequence.at)}
        for rank, place in aligned(members).items():
            at = members[rank].at
            fits.append((at, (place + np.arange(len(at))) * len(parts) + number))
    return fits


def _lanes(rows: Rows, facts: _Told, left: Ints) -> "Iterator[tuple[int, dict[int, Sequence]]]":
    """The sequences of each lane by rank."""
    if not len(left):
        return
    lane = facts.lane[rows.call[left]]
    order = np.argsort(lane.astype(np.min_scalar_type(lane.max())), kind="stable")
    lane, rank = lane[order], rows.member[left[order]]
    new = np.flatnonzero(np.r_[True, (lane[1:] != lane[:-1]) | (rank[1:] != rank[:-1])])
    base = rows.start.min()
    members: dict[int, Sequence] = {}
    for low, high in zip(new.tolist(), [*new[1:].tolist(), len(left)], strict=True):
        own = left[order[low:high]]
        call, start = rows.call[own], rows.start[own] - base
        members[int(rank[low])] = Sequence(
            order[low:high],
            facts.what[call],
            start,
            start + rows.dur[own],
            enters=facts.enters[call],
            leaves=facts.leaves[call],
            by_pairs=facts.by_pairs[call],
            pairs=facts.pairs[call],
            clock=int(facts.clock[rank[low]]),
            steps=None if facts.steps is None else partial(facts.steps, own),
        )
        if high == len(left) or lane[high] != lane[low]:
            yield int(lane[low]), members
            members = {}


def shows(rows: pl.DataFrame) -> tuple[Bools, Bools, Bools]:
    """Whether no other can leave before each row has entered; whether it cannot leave before such ones; and both."""
    kind, own = pl.col("kind"), pl.col("own")
    together, broadcast, reduce = kind.is_in(_TOGETHER), kind == "broadcast", kind == "reduce"
    sends, receives = own == pl.col("source"), own == pl.col("target")
    enters = together | (broadcast & sends) | (reduce & ~receives) | (kind == "send")
    leaves = together | (broadcast & ~sends) | (reduce & receives) | (kind == "recv")
    masks = rows.select(enters=enters, leaves=leaves, together=together).fill_null(value=False)
    return tuple(mask.to_numpy() for mask in masks)  # type: ignore[return-value]


def _numbered(
    rows: Rows, facts: _Told, key: Keys, runs: _Runs, doubts: list[tuple[str, int, str]]
) -> tuple[Small, Small, Ints, Ints]:
    """Match, order, first and begun of :class:`Matches`."""
    call, counts = rows.call[runs.order], runs.counts
    size, keyed = np.maximum.reduceat(facts.size[call], runs.first), key[runs.order[runs.first]] > _LOST

    def differ(values: Ints) -> Bools:
        return np.asarray(np.minimum.reduceat(values, runs.first) != np.maximum.reduceat(values, runs.first))

    # no one collective: twice on a rank, more than the group has, of several kinds or sizes
    ranks = np.diff(np.searchsorted(runs.run, np.r_[runs.first, len(key)]))
    sized = np.where(facts.even & (facts.what & SIZES > 0), facts.what, UNKNOWN)[call]
    sized = np.where(sized == UNKNOWN, np.maximum.reduceat(sized, runs.first).repeat(counts), sized)
    bad = (ranks != counts) | ((size > 0) & (counts > size)) | differ(facts.kind[call]) | differ(sized)
    if several := int(counts[bad & keyed].sum()):
        doubts.append(("collectives that ranks call by different kinds", several, _DIFFERENT))
    real = keyed & ((counts > 1) | (size == 1)) & ~bad
    begun = np.minimum.reduceat(rows.start[runs.order], runs.first)
    keys = np.lexsort((runs.order[runs.first], begun))
    keys = keys[real[keys]]
    number = np.full(len(counts), -1, dtype=np.int32)
    number[keys] = np.arange(len(keys))
    match = np.empty(len(key), dtype=np.int32)
    match[runs.order] = number.repeat(counts)
    first = np.r_[0, np.cumsum(counts[keys])]
    places = np.arange(first[-1]) + (runs.first[keys] - first[:-1]).repeat(counts[keys])
    order = np.r_[runs.order[places], facts.walk[match[facts.walk] < 0]].astype(np.int32)
    return match, order, first, begun[keys]


# Alignment of ranks: where the collectives of each begin in the order of all.

#: How far the clock of one host may drift from that of another, and the error of a time stamp.
DRIFT: Final = 1e-4
STAMP_ERROR_NS: Final = 1_000

#: How far the time stamps of two processes of one host may be apart.
_ONE_HOST_NS: Final = 50_000

#: Where a shift is tried before it is tried on all rows, as parts of what two ranks have in common.
_TRIED: Final = (8, 64)
_GOLDEN: Final = 0.618034

#: The part of the shorter sequence that ranks on two clocks must have in common, and the fewest collectives; and the
#: part of that which must be in steps of one number, since what is at an edge may begin outside.
_COMMON: Final = 0.5
_FEWEST: Final = 2
_SAME_STEPS: Final = 0.9

#: Shifts with as small a part in common may be the true one as well, where clocks are no farther apart than this.
_POSSIBLE: Final = 0.1
_APART_NS: Final = 100_000_000

#: How many other ranks a rank that does not fit the first is held against.
_OTHERS: Final = 3

#: Beyond all differences of times and all offsets, and far from overflow.
FAR: Final = 1 << 60

#: Bits of a size in bytes, which is counted from 1 on.
SIZE_BITS: Final = 48
SIZES: Final = (1 << SIZE_BITS) - 1


class Sequence(NamedTuple):
    """The collectives of one rank in one lane, in their order, and the program's number of the step of each."""

    at: Ints
    what: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    by_pairs: Bools
    pairs: Bools
    clock: int
    steps: Callable[[], Ints] | None

    @property
    def pair(self) -> bool:
        """Whether all are between two ranks."""
        return bool(self.pairs.all())

    def of(self, by_pairs: bool) -> "Sequence":  # noqa: FBT001 - a value
        """Those that run as a kernel of sends and receives, or the others."""
        own, steps = self.by_pairs == by_pairs, self.steps
        parts: dict[str, Any] = {name: getattr(self, name)[own] for name in self._fields[:8]}
        return self._replace(**parts, steps=None if steps is None else lambda: steps()[own])


def aligned(members: dict[int, Sequence]) -> dict[int, int]:
    """The place of the first collective of each rank in the order of the lane; a rank that fits no other has none.

    Each rank is held against the longest sequence of its clock, and those against the longest of all; what does not fit
    it, against some others.
    """
    if not members:
        return {}
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


def _shift(base: Sequence, other: Sequence) -> int | None:
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
    fitting = [*islice((shift for shift in shifts.tolist() if _fits(base, other, shift)), 2)]
    if len(fitting) != 1:
        return _by_steps(base, other, shifts) if fitting else None
    ours, _ = _common(base, other, fitting[0])
    enough = one_clock or ours.stop - ours.start >= max(_FEWEST, _COMMON * min(lengths))
    return fitting[0] if enough else None


def _common(base: Sequence, other: Sequence, shift: int) -> tuple[slice, slice]:
    """What two ranks have in common where `other` begins so many collectives later, in each of them."""
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    return slice(low, high), slice(low - shift, high - shift)


def _by_steps(base: Sequence, other: Sequence, shifts: Ints) -> int | None:
    """Of several shifts that fit, the one that leaves collectives in the same steps, by the program's own numbers."""
    if base.steps is None or other.steps is None:
        return None
    mine, theirs = base.steps(), other.steps()
    agreeing = []
    for shift in shifts.tolist():
        ours, others = _common(base, other, shift)
        left, right = mine[ours], theirs[others]
        inside = (left >= 0) & (right >= 0)
        if inside.any() and (left == right)[inside].mean() >= _SAME_STEPS and _fits(base, other, shift):
            agreeing.append(shift)
    return agreeing[0] if len(agreeing) == 1 else None


def _latest_sends(base: Sequence, other: Sequence, shifts: Ints) -> int | None:
    """Of the shifts that let no receive end before its send began, the one that pairs receives with the latest sends.

    Sends may end long before they are received, so that earlier ones would do as well; but a receive that waited
    ended with its own send, and one must have, or nothing is told.
    """
    sends = bool(base.enters.all())
    shift = next((one for one in (shifts[::-1] if sends else shifts).tolist() if _fits(base, other, one)), None)
    if shift is None:
        return None
    mine, theirs = _common(base, other, shift)
    begun, sent = (base.start[mine], base.end[mine]) if sends else (other.start[theirs], other.end[theirs])
    received = other.end[theirs] if sends else base.end[mine]
    return shift if (np.abs(received - sent) <= sent - begun).any() else None


def _may_fit(base: Sequence, other: Sequence, shifts: Ints, number: int) -> Bools:
    """Whether each shift fits at so many places of what the two have in common."""
    parts = np.arange(number) * _GOLDEN % 1
    low = np.maximum(0, shifts)
    common = np.minimum(len(base.at), len(other.at) + shifts) - low
    mine = low[:, None] + (parts[None, :] * common[:, None]).astype(np.int64)
    return _agree(base, other, mine, mine - shifts[:, None])


def _fits(base: Sequence, other: Sequence, shift: int) -> bool:
    """Whether kinds and sizes agree, and some offset of the clocks lets each rank leave after the other entered."""
    ours, _ = _common(base, other, shift)
    mine = np.arange(ours.start, ours.stop)[None, :]
    return bool(_agree(base, other, mine, mine - shift)[0])


def _agree(base: Sequence, other: Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether kinds and sizes agree, and clocks can be right."""
    left, right = base.what[mine], other.what[theirs]
    unsized = (left & SIZES == 0) | (right & SIZES == 0)
    same = ((left == right) | (unsized & (left >> SIZE_BITS == right >> SIZE_BITS))).all(axis=1)
    # most shifts fail here, before the times are looked up
    same[same] = _in_time(base, other, mine[same], theirs[same])
    return np.asarray(same)


def _in_time(base: Sequence, other: Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether clocks can be right."""
    after, before = base.leaves[mine] & other.enters[theirs], other.leaves[theirs] & base.enters[mine]
    # as if nothing could be buffered
    nothing = ~np.any(after | before, axis=1, keepdims=True) | (base.pair and base.clock != other.clock)
    after, before = after | nothing, before | nothing
    least = (other.start[theirs] - base.end[mine]).max(axis=1, where=after, initial=-FAR)
    greatest = (other.end[theirs] - base.start[mine]).min(axis=1, where=before, initial=FAR)
    if base.clock == other.clock:
        return np.asarray((least <= _ONE_HOST_NS) & (greatest >= -_ONE_HOST_NS))
    span = base.end[mine].max(axis=1) - base.start[mine].min(axis=1)
    return np.asarray(least <= greatest + 2 * STAMP_ERROR_NS + (DRIFT * span).astype(np.int64))
