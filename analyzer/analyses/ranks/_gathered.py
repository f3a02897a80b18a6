"""Tables of many reductions as those of one job: what is needed at once in little memory, the rest in a second turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import NO_ID, NO_SEQUENCE, Rows, narrow
from kanalyze.errors import BadReductionError, NoJobError
from kanalyze.reduction.tables import LATER, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from kanalyze.analyses.communication._matching import Ints, Small
    from kanalyze.reduction.tables import Reduction


#: Tables with a row or more per collective, and the others but the ranks.
_SHORT: Final = ("steps", "ledgers", "kernels")

#: Reductions that are put together at once.
_AT_ONCE: Final = 64


class Gathered(NamedTuple):
    """The tables of all reductions, before it is known which of their ranks are which.

    Attributes:
        ranks: The ranks, with `member`, their number, and `reduction`.
        tables: The short tables, and `hidden`, the time of collectives beside kernels by member and step.
        columns: The columns of :class:`Rows` in parts, of some reductions each.
        calls: Those of `calls`, in the same parts.
        first: Where the collectives of each member begin, as if all parts were one.
    """

    ranks: pl.DataFrame
    tables: dict[str, pl.DataFrame]
    columns: dict[str, list[npt.NDArray[Any]]]
    calls: list[pl.DataFrame]
    first: Ints


def batched(reductions: Iterable[Reduction], names: Sequence[str]) -> Iterator[dict[str, pl.DataFrame]]:
    """The tables `names` of some reductions each, with members numbered through all of them.

    `ranks` has `reduction`, the number of its reduction.
    """
    some: list[Reduction] = []
    number = member = 0

    def made() -> dict[str, pl.DataFrame]:
        heights = [one.ranks.height for one in some]
        shift = member + np.cumsum([0, *heights[:-1]])
        found = {}
        for name in names:
            parts = [getattr(one, name) for one in some]
            whole = pl.concat(parts)
            own = np.repeat(shift, [one.height for one in parts])
            if name == "ranks":
                told = np.repeat(np.arange(number, number + len(some)), heights)
                whole = whole.with_columns(member=pl.int_range(pl.len()) + member, reduction=pl.Series(told))
            else:
                whole = whole.with_columns(pl.col("member") + pl.Series(own, dtype=pl.Int64))
            found[name] = whole
        return found

    for one in reductions:
        some.append(one)
        if len(some) == _AT_ONCE:
            yield made()
            number, member = number + len(some), member + sum(one.ranks.height for one in some)
            some = []
    if some:
        yield made()


def gathered(reductions: Iterable[Reduction]) -> Gathered:
    """The tables of all reductions one after the other, but for those of :data:`LATER`.

    Raises:
        NoJobError: There is no rank.
        BadReductionError: Collectives or steps of a rank are not numbered through.
    """
    parts: dict[str, list[pl.DataFrame]] = {name: [TABLES[name].empty()] for name in _SHORT} | {"hidden": [_NONE]}
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    ranks: list[pl.DataFrame] = []
    calls: list[pl.DataFrame] = []
    counts = [np.zeros(1, dtype=np.int64)]
    for tables in batched(reductions, ["ranks", "collectives", *_SHORT]):
        ranks.append(tables["ranks"])
        tables["steps"], steps = _numbered(tables["steps"], tables["ranks"], "index")
        _check(tables["ledgers"], "ledgers", ("index", steps), tables["ranks"])
        for name in _SHORT:
            parts[name].append(tables[name])
        rows, own = _numbered(tables["collectives"], tables["ranks"], "number")
        counts.append(own)
        columns_of, said = narrow(rows, sum(one.height for one in calls))
        columns_of["inside"] = _inside(rows, tables["steps"])
        calls.append(said)
        for name, column in columns_of.items():
            columns.setdefault(name, []).append(column)
        beside = rows.select(
            "member", index=pl.Series(columns_of["inside"]), hidden_ns=pl.col("dur_ns") - pl.col("exposed_ns")
        )
        parts["hidden"].append(beside.filter(pl.col("index") >= 0).group_by("member", "index").agg(pl.all().sum()))
    if not ranks:
        raise NoJobError.empty()
    whole = {name: pl.concat(some) for name, some in parts.items()}
    return Gathered(pl.concat(ranks), whole, columns, calls, np.cumsum(np.concatenate(counts)))


_NONE: Final = pl.DataFrame(schema={"member": pl.Int64, "index": pl.Int32, "hidden_ns": pl.Int64})


def _numbered(rows: pl.DataFrame, ranks: pl.DataFrame, number: str) -> tuple[pl.DataFrame, Ints]:
    """The rows by member and their `number`, which has to count from 0 on; and how many each rank has."""
    member = rows.get_column("member").to_numpy() - (ranks.get_column("member").min() or 0)
    counts = np.bincount(member, minlength=ranks.height)
    place = (np.cumsum(counts) - counts)[member] + rows.get_column(number).to_numpy()
    if (place == np.arange(rows.height)).all():
        return rows, counts
    order = np.argsort(place, kind="stable")
    wrong = np.flatnonzero((place[order] != np.arange(rows.height)) | (member[order] != np.sort(member)))
    if len(wrong):
        raise _damaged(ranks, int(member[order[wrong[0]]]), f"{number} is not a number from 0 on in each rank's rows")
    return rows[order], counts


def _check(table: pl.DataFrame, name: str, numbers: tuple[str, Ints], ranks: pl.DataFrame) -> None:
    """Refuses rows whose number, a column, is that of no collective or step: of each rank there are so many."""
    number, counts = numbers
    member = table.get_column("member").to_numpy() - (ranks.get_column("member").min() or 0)
    told = table.get_column(number).to_numpy()
    wrong = np.flatnonzero((told < 0) | (told >= counts[member]))
    if len(wrong):
        raise _damaged(ranks, int(member[wrong[0]]), f"{name} has rows of another {number} than there are")


def _damaged(ranks: pl.DataFrame, member: int, why: str) -> BadReductionError:
    return BadReductionError.damaged(Path(ranks.item(member, "report")), why)


def _inside(rows: pl.DataFrame, steps: pl.DataFrame) -> Small:
    """The row of the step of their rank that each row begins in; -1 outside."""
    line = steps.select("member", "end_ns", step="index", begin_ns="start_ns").sort("begin_ns")
    starts = rows.select("member", "start_ns").with_row_index("row").sort("start_ns")
    placed = starts.join_asof(line, left_on="start_ns", right_on="begin_ns", by="member", check_sortedness=False)
    step = pl.when(pl.col("start_ns") < pl.col("end_ns")).then("step").fill_null(-1).cast(pl.Int32)
    return placed.sort("row").select(step).to_series().to_numpy()


def put_together(found: Gathered, members: Ints) -> Rows:
    """The collectives of `members`, which are numbered anew in their order; `found` has none left."""
    low, high = found.first[members], found.first[members + 1]
    at = np.concatenate([np.zeros(0, dtype=np.int64), *map(np.arange, low, high)])

    def whole(name: str, missing: int | None = None) -> npt.NDArray[Any]:
        column = np.concatenate(found.columns.pop(name))
        return column[:0] if missing is not None and (column == missing).all() else column[at]

    calls = pl.concat(found.calls)
    told = renumbered(members, len(found.first) - 1)[calls.get_column("member").to_numpy()]
    return Rows(
        first=np.r_[0, np.cumsum(high - low)],
        call=whole("call"),
        start=whole("start"),
        dur=whole("dur"),
        exposed=whole("exposed"),
        inside=whole("inside"),
        sequence=whole("sequence", NO_SEQUENCE),
        id=whole("id", NO_ID),
        calls=calls.with_columns(member=pl.Series(told)),
    )


def renumbered(members: Ints, number: int) -> Ints:
    """The place in `members` of each of so many; -1 of those that are left out."""
    found = np.full(number, -1)
    found[members] = np.arange(len(members))
    return found


def later(
    reductions: Iterable[Reduction], ranks: pl.DataFrame, rows: Rows
) -> Iterator[dict[str, tuple[pl.DataFrame, Ints]]]:
    """The tables of :data:`LATER` by name, of some reductions each, with the collective of each row, as its row there.

    Members are as in :class:`Rows`; `ranks` tells by `read` which rank is which.

    Raises:
        BadReductionError: They are of no collective.
    """
    numbers = renumbered(ranks.get_column("read").to_numpy(), int(ranks.get_column("read").max() or 0) + 1)  # type: ignore[arg-type]
    counts = np.diff(rows.first)
    for tables in batched(reductions, ["ranks", *LATER]):
        found = {}
        for name in LATER:
            read = tables[name].get_column("member").to_numpy()
            member = np.where(read < len(numbers), numbers[np.minimum(read, len(numbers) - 1)], -1)
            table = tables[name].with_columns(member=pl.Series(member)).filter(pl.col("member") >= 0)
            member = member[member >= 0]
            _check(table, name, ("number", counts), ranks)
            found[name] = table, rows.first[member] + table.get_column("number").to_numpy()
        yield found


def step_of(steps: pl.DataFrame, member: Small, inside: Small) -> pl.Series:
    """The number of the step of each member that is in its row `inside`; null where that is -1."""
    place = places(steps, member, inside)
    return steps.get_column("step").gather(pl.Series(place).set(pl.Series(inside < 0), None))


def places(steps: pl.DataFrame, member: Small | Ints, index: Small | Ints) -> Ints:
    """Rows of the steps of members in `steps`, by their place in those of the member."""
    known = steps.get_column("member").to_numpy()
    firsts = np.searchsorted(known, np.arange(int(member.max(initial=-1)) + 1))
    return np.asarray(firsts[member] + index, dtype=np.int64)
