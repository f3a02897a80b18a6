"""Matches the operations of a typical iteration of one side with those of the other, in the order of launch.

Definitions: docs/definitions.md, section 10, "Comparing".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.shared.alignment import aligned
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import OTHER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kanalyze.reduction.baselines import Digest

    Numbers = NDArray[np.int64]

#: How an operation changed.
SAME: Final = "same"
SHAPE: Final = "other shape"
KERNEL: Final = "other kernel"
FUSED: Final = "fused"
SPLIT: Final = "split"
NEW: Final = "new"
GONE: Final = "gone"

#: Families whose kernels do one recognisable thing, so that another kernel of the family does the same one.
_DISTINCT: Final = frozenset({
    "gemm", "conv", "attention", "softmax", "normalization", "embedding", "loss", "pooling", "resample", "fft",
    "linalg", "rnn", "communication", "sort", "scan", "random",
})  # fmt: skip

#: What operations have in common that match, in the order in which matches are sought.
_ALIKE: Final = (("range", "op", "name", "shape"), ("name", "shape"), ("name",))

#: What matches nothing beside a run of weak matches is this times as long, for it to be a part of that.
_WEAK: Final = 2

#: What tells an operation from others of its kind and name.
_KEY: Final = ("kind", "bucket", "name", "shape", "range", "op", "lane")


class Slots(NamedTuple):
    """The operations of a typical iteration of one side."""

    rows: pl.DataFrame  # one for each: the columns of :data:`SLOTS`, in the order of launch on each stream
    ns: NDArray[np.float64]  # its device time in an iteration, a column for each run
    counts: NDArray[np.float64]  # how often an iteration had it, likewise


class Block(NamedTuple):
    """Operations of base and those that new has in their place, by rows of :class:`Slots`; a side may be empty."""

    change: str
    base: list[int]
    new: list[int]


class Matches(NamedTuple):
    """Operations of base matched with those of new; each operation is in one pair or one block."""

    base: Numbers  # rows of base that have a row of new
    new: Numbers  # that row
    blocks: list[Block]  # all others


def slots_of(digests: Sequence[Digest]) -> Slots:
    """The operations of all runs of a side: the nth of one name and place is the same one in each run."""
    nth = pl.int_range(pl.len()).over(_KEY).alias("nth")
    parts = [
        one.slots.with_columns(
            nth,
            pl.col("count", "exclusive_ns").cast(pl.Float64) / one.about.iterations,
            run=pl.lit(run, dtype=pl.Int64),
        )
        for run, one in enumerate(digests)
    ]
    every = pl.concat(parts)
    rows = every.group_by(*_KEY, "nth").agg(pl.col("place").mean())
    rows = rows.sort("lane", "place", *_KEY, "nth", nulls_last=True).with_row_index("slot")
    placed = every.join(rows.select("slot", *_KEY, "nth"), on=(*_KEY, "nth"), how="left", nulls_equal=True)
    at = (placed.get_column("slot").to_numpy(), placed.get_column("run").to_numpy())
    found = []
    for column in ("exclusive_ns", "count"):
        matrix = np.zeros((rows.height, len(digests)))
        matrix[at] = placed.get_column(column).to_numpy()
        found.append(matrix)
    return Slots(rows.drop("slot"), *found)


def matches(base: pl.DataFrame, new: pl.DataFrame) -> Matches:
    """Operations of base matched with those of new that do the same.

    Per stream the sequences are aligned by place, name and launch shape, and what is left between two matches by name
    and shape, by name, and by family and type; then block by block. What is left of one name and shape in other places
    has moved.
    """
    tokens = [_tokens(base, new, columns) for columns in _ALIKE]
    tokens.append(_families(base, new))
    lanes = [side.get_column("lane").to_numpy() for side in (base, new)]
    pairs: list[tuple[Numbers, Numbers]] = []
    left: list[Block] = []
    for lane in np.union1d(*lanes):
        rows = (np.flatnonzero(lanes[0] == lane), np.flatnonzero(lanes[1] == lane))
        places = _without_weak(rows, _aligned_places(rows, tokens), tokens[1])
        pairs.append((rows[0][places[0]], rows[1][places[1]]))
        left += [
            _block(rows[0][low:high].tolist(), rows[1][start:end].tolist())
            for low, high, start, end in _between(rows, *places)
        ]
    moved = _moved([one for one in left if not (one.base and one.new)], tokens[1])
    blocks = [part for one in left if one.base and one.new for part in _by_range(base, new, one)]
    sides = [np.concatenate([pair[side] for pair in (*pairs, moved[:2])]) for side in (0, 1)]
    return Matches(sides[0], sides[1], [*blocks, *moved[2]])


def _tokens(base: pl.DataFrame, new: pl.DataFrame, columns: Sequence[str]) -> tuple[Numbers, Numbers]:
    """A number for each row of both, equal where all `columns` and the kind are."""
    chosen = [side.select("kind", *columns) for side in (base, new)]
    every = pl.concat(chosen)
    numbers = every.join(
        every.unique().with_row_index("token"), on=every.columns, how="left", nulls_equal=True, maintain_order="left"
    )
    values = numbers.get_column("token").cast(pl.Int64).to_numpy()
    return values[: base.height], values[base.height :]


def _families(base: pl.DataFrame, new: pl.DataFrame) -> tuple[Numbers, Numbers]:
    """A number for each row of both, equal for kernels of one distinct family and type; else of its own."""
    names = pl.concat([base.get_column("name"), new.get_column("name")])
    known: dict[tuple[str, str], int] = {}
    numbers: dict[str | None, int] = {}
    for name in names.unique():
        said = decode(name) if name else None
        if said is not None and said.family in _DISTINCT and said.family != OTHER:
            numbers[name] = known.setdefault((said.family, said.dtype or ""), len(known) + 1)
    own = np.fromiter((numbers.get(name, -1 - at) for at, name in enumerate(names)), np.int64, len(names))
    return own[: base.height], own[base.height :]


def _aligned_places(
    rows: tuple[Numbers, Numbers], tokens: Sequence[tuple[Numbers, Numbers]]
) -> tuple[Numbers, Numbers]:
    """The places in `rows`, those of one stream, that match: first by the first tokens, then what is left between."""
    (base, new), mine, theirs = rows, np.zeros(0, np.int64), np.zeros(0, np.int64)
    for before, after in tokens:
        more = [
            (np.asarray(one) + low, np.asarray(other) + start)
            for low, high, start, end in _between(rows, mine, theirs)
            if high > low and end > start
            for one, other in [aligned(before[base[low:high]], after[new[start:end]])]
        ]
        mine = np.sort(np.concatenate([mine, *(one for one, _ in more)]))
        theirs = np.sort(np.concatenate([theirs, *(other for _, other in more)]))
    return mine, theirs


def _without_weak(
    rows: tuple[Numbers, Numbers], places: tuple[Numbers, Numbers], tokens: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers]:
    """The matches without those of other names or shapes that stand alone in what was replaced: a part of it.

    These are runs of such matches, less than half as long as what matches nothing on either side of the run.
    """
    (base, new), (at, to) = rows, places
    weak = tokens[0][base[at]] != tokens[1][new[to]]
    if not weak.any():
        return at, to
    free = np.diff(np.concatenate([[-1], at, [len(base)]])) + np.diff(np.concatenate([[-1], to, [len(new)]])) - 2
    begins = np.flatnonzero(weak & np.concatenate([[True], ~weak[:-1] | (free[1:-1] > 0)]))
    run = np.cumsum(np.isin(np.arange(len(weak)), begins)) - 1
    lengths = np.bincount(run[weak], minlength=len(begins))
    ends = begins + lengths
    dropped = (free[begins] > 0) & (free[ends] > 0) & (_WEAK * lengths < free[begins] + free[ends])
    kept = ~(weak & dropped[np.maximum(run, 0)])
    return at[kept], to[kept]


def _between(rows: tuple[Numbers, Numbers], at: Numbers, to: Numbers) -> Iterator[tuple[int, int, int, int]]:
    """What is left between matches and at both ends: first and last place of base, and of new; one may be empty."""
    low, high = np.concatenate([[0], at + 1]), np.concatenate([at, [len(rows[0])]])
    start, end = np.concatenate([[0], to + 1]), np.concatenate([to, [len(rows[1])]])
    left = (high > low) | (end > start)
    yield from zip(*(edge[left].tolist() for edge in (low, high, start, end)), strict=True)


def _block(base: list[int], new: list[int]) -> Block:
    if not base or not new:
        return Block(NEW if new else GONE, base, new)
    if len(base) == len(new) == 1:
        return Block(KERNEL, base, new)
    return Block(FUSED if len(new) <= len(base) else SPLIT, base, new)


def _by_range(base: pl.DataFrame, new: pl.DataFrame, block: Block) -> Iterator[Block]:
    """A block by the ranges that both sides launched from; what has no such range stays together."""
    before, after = base.get_column("range"), new.get_column("range")
    common = ({before[i] for i in block.base} & {after[j] for j in block.new}) - {None}
    rest: tuple[list[int], list[int]] = ([], [])
    parts: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in sorted(common)}
    for side, (rows, names) in enumerate(((block.base, before), (block.new, after))):
        for row in rows:
            parts.get(names[row], rest)[side].append(row)
    for mine, theirs in (*parts.values(), rest):
        if mine or theirs:
            yield _block(mine, theirs)


def _moved(blocks: Iterable[Block], tokens: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers, list[Block]]:
    """Of blocks of one side alone what has the same name and shape on the other side, in pairs; and the rest."""
    gone: dict[int, list[int]] = {}
    fresh: list[int] = []
    for block in blocks:
        fresh += block.new
        for row in reversed(block.base):
            gone.setdefault(int(tokens[0][row]), []).append(row)
    mine, theirs, rest = [], [], []
    for row in fresh:
        rows = gone.get(int(tokens[1][row]))
        if rows:
            mine.append(rows.pop())
            theirs.append(row)
        else:
            rest.append(Block(NEW, [], [row]))
    rest += [Block(GONE, [row], []) for rows in gone.values() for row in rows]
    return np.array(mine, np.int64), np.array(theirs, np.int64), rest
