"""Do the tools tell the same? Every figure that two of them have of one program, and why it differs where it does.

Definitions: docs/definitions.md, section 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._agreed import groups_with_config
from kanalyze.analyses._common import require
from kanalyze.analyses._kernel_groups import GROUP_KEYS, SHAPE
from kanalyze.analyses._same_kernels import same_kernels
from kanalyze.analyses._together import Together, of_each, several, together
from kanalyze.analyses.copies import copies
from kanalyze.errors import CannotTellError
from kanalyze.model import COMPILED_KERNELS, LAUNCH_SHAPE
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

#: What a comparison can end with.
VERDICTS: Final = ("equal", "explained", "unexplained")

#: What is compared of a kernel, with its unit.
_FIGURES: Final = {"launches": "", "registers": "", "shared memory": "bytes", "duration": "ns"}

#: Two runs of one program are as far apart in a kernel's mean duration: in parts of it, or in nanoseconds.
_RUNS_SHARE: Final = 0.25
_RUNS_NS: Final = 2000

_TWO_RUNS: Final = "two runs of the program"
_REPLAY: Final = "ncu measures a kernel alone, again and again, at other clocks and with cold caches"
_FILTER: Final = "ncu measured some of the launches only"
_STEPS: Final = "the trace is of some steps of the program only"
_TRIED: Final = "Triton's autotuner tries as often as time allows"

TABLE: Final = Table(
    "agreement",
    "One figure that two tools tell of one program.",
    (
        Column("figure", pl.String, f"What it is: {', '.join(_FIGURES)}, copies, bytes copied."),
        Column("name", pl.String, "The kernel, copy or memset.", nullable=True),
        *(Column(column.name, column.dtype, column.doc, nullable=True) for column in LAUNCH_SHAPE),
        Column("first_tool", pl.String, "One of the tools."),
        Column("first", pl.Float64, "What it tells, of durations the mean; null: it did not see this.", nullable=True),
        Column("second_tool", pl.String, "The other."),
        Column("second", pl.Float64, "What that tells.", nullable=True),
        Column("difference", pl.Float64, "The second less the first.", nullable=True),
        Column("unit", pl.String, "Of all three; empty for counts."),
        Column("verdict", pl.String, f"{', '.join(VERDICTS)}."),
        Column("why", pl.String, "What explains the difference.", nullable=True),
    ),
    together=True,
)  # fmt: skip


SEVERAL: Final = several(TABLE)


def agreement(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Every figure that two of the reports tell, those first that differ without a known reason.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: There is but one report, or none gives time or has kernels.
    """
    found = together(TABLE.name, reports, where)
    if all(len(one.reports) == 1 for one in found):
        raise CannotTellError.without_second(TABLE.name, found[0].base.meta.path)
    return of_each(TABLE, [one for one in found if len(one.reports) > 1], _agreement_of)


def _agreement_of(found: Together) -> pl.DataFrame:
    """The same of reports of which one gives the time."""
    require(found.base, TABLE.name, "kernel")
    parts = [_kernels(found.base, other) for other in found.reports[1:]]
    if found.torch is not None:
        parts.append(_copied(found.base, found.torch))
    order = pl.col("verdict").replace_strict(VERDICTS, range(len(VERDICTS)), return_dtype=pl.Int64)
    frame = pl.concat(parts, how="diagonal_relaxed").with_columns(difference=pl.col("second") - pl.col("first"))
    keys = ["figure", "name", *SHAPE, "second_tool"]
    return TABLE.select(frame.sort(order, *keys, descending=[True, *(False for _ in keys)]))


def _kernels(base: Report, other: Report) -> pl.DataFrame:
    ours, theirs = _figures(base), _figures(other)
    pairs = same_kernels(base, other)
    both = pairs.join(ours, left_on="left", right_on="group").join(
        theirs, left_on="right", right_on="group", suffix="_other"
    )
    rows = [
        both.filter(pl.col(figure).is_not_null() & pl.col(f"{figure}_other").is_not_null()).select(
            *("name", *SHAPE), figure=pl.lit(figure), unit=pl.lit(unit), first=figure, second=f"{figure}_other"
        )
        for figure, unit in _FIGURES.items()
    ]
    shapes = [name for name in SHAPE if name in both.columns]
    other_shape = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in shapes)
    rows.append(_alone(both.filter(other_shape), "second"))  # the first has that name in other shapes only
    rows.append(_alone(theirs.join(pairs, left_on="group", right_on="right", how="anti"), "second"))
    if not other.meta.timeless:  # ncu is told which kernels to measure
        rows.append(_alone(ours.join(pairs, left_on="group", right_on="left", how="anti"), "first"))
    frame = pl.concat(rows, how="diagonal_relaxed").with_columns(
        first_tool=pl.lit(base.meta.tool), second_tool=pl.lit(other.meta.tool)
    )
    return _judged(frame, base, other)


def _figures(report: Report) -> pl.DataFrame:
    """The groups of kernels with the figures to compare."""
    found = groups_with_config(report).rename({"shared": "shared memory", "count": "launches"})
    return found.select("group", *GROUP_KEYS, pl.col(*_FIGURES).cast(pl.Float64))


def _alone(groups: pl.DataFrame, side: str) -> pl.DataFrame:
    """What only one of both tools saw."""
    return groups.select("name", *SHAPE, figure=pl.lit("launches"), unit=pl.lit(""), **{side: pl.col("launches")})


def _judged(frame: pl.DataFrame, base: Report, other: Report) -> pl.DataFrame:
    """With verdict and why."""
    for side in ("first", "second"):
        if side not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.Float64).alias(side))
    off = (pl.col("first") - pl.col("second")).abs()
    near = (off <= _RUNS_NS) | (off <= _RUNS_SHARE * pl.max_horizontal("first", "second"))
    duration, launches = pl.col("figure") == "duration", pl.col("figure").is_in(["launches", "copies", "bytes copied"])
    if other.meta.timeless:
        fewer = pl.col("second") <= pl.col("first")
        why = pl.when(duration).then(pl.lit(_REPLAY)).when(launches & fewer).then(pl.lit(_FILTER))
    else:
        why = pl.when(duration & near).then(pl.lit(_TWO_RUNS)).when(launches).then(_of_counts(base, other))
    equal = pl.col("first") == pl.col("second")
    return frame.with_columns(why=pl.when(~equal.fill_null(value=False)).then(why)).with_columns(
        verdict=pl.when(equal)
        .then(pl.lit("equal"))
        .when(pl.col("why").is_not_null())
        .then(pl.lit("explained"))
        .otherwise(pl.lit("unexplained"))
    )


def _of_counts(base: Report, other: Report) -> pl.Expr:
    """Why two tools that record everything count differently."""
    fewer = pl.col("second").fill_null(0) < pl.col("first").fill_null(0)
    steps = pl.lit(_STEPS if other.steps().height else None, dtype=pl.String)
    tried = pl.lit(_TRIED if _tunes(base) else None, dtype=pl.String)
    return pl.coalesce(pl.when(fewer).then(steps), tried)


def _tunes(report: Report) -> bool:
    """Whether Triton compiled kernels of the program, which it may have tuned."""
    try:
        return report.table(COMPILED_KERNELS.name).height > 0
    except CannotTellError:
        return False


def _copied(base: Report, other: Report) -> pl.DataFrame:
    """Copies and memsets: how many, and how many bytes."""
    columns = {"copies": "count", "bytes copied": "total_bytes"}
    sums = [
        copies(one).select("operation", *(pl.col(name).cast(pl.Float64).alias(key) for key, name in columns.items()))
        for one in (base, other)
    ]
    both = sums[0].join(sums[1], on="operation", how="full", coalesce=True, suffix="_other")
    rows = [
        both.select(
            name="operation",
            figure=pl.lit(figure),
            unit=pl.lit("bytes" if figure == "bytes copied" else ""),
            first=figure,
            second=f"{figure}_other",
        )
        for figure in columns
    ]
    tools = {"first_tool": pl.lit(base.meta.tool), "second_tool": pl.lit(other.meta.tool)}
    return _judged(pl.concat(rows).with_columns(**tools), base, other)
