"""The values of metrics on ncu's pages: of all texts of a page at once, each text once.

Nearly all are plain numbers, with a point for decimals; what is none is looked at more closely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.readers import ncu_errors
from kanalyze.readers.ncu_numbers import POINT, AmbiguousError, base_unit, missing, numbers, plainly, way_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    #: Numbers of a page that are known from elsewhere on it, with their texts.
    Known = Callable[[], Iterable[tuple[str, int]]]

#: Metrics that the columns of a launch tell, too: they show how numbers are written where nothing else does.
KNOWN: Final = {
    "Grid Size": "Grid Size",
    "launch__grid_size": "Grid Size",
    "Block Size": "Block Size",
    "launch__block_size": "Block Size",
}


def parsed(path: Path, where: str, texts: pl.Series, known: Known) -> pl.DataFrame:
    """Columns place (in `texts`), plain and value, of those of `texts` that say that there is a value.

    Value is null, where that is no number, and plain where it is one.

    Raises:
        DamagedReportError: The numbers can be read in two ways, and `known` decides nothing.
    """
    every = pl.DataFrame({"text": texts})
    value = pl.col("value")
    different = every.unique().select("text", plain=pl.col("text").str.strip_chars())
    different = different.with_columns(value=plainly("plain")).with_columns(
        value=pl.when(value.is_finite()).then("value")
    )
    try:
        way = way_of(different.get_column("plain"), different.get_column("value"), known)
    except AmbiguousError as error:
        raise ncu_errors.damaged(path, where, f"{error}; print it with LC_ALL=C") from error
    odd = value.is_null() if way == POINT else pl.lit(value=True)
    careful = different.filter(odd).filter(~missing("plain")).with_columns(value=numbers("plain", way))
    read = pl.concat([different.filter(~odd), careful])
    return (
        every.with_row_index("place")
        .join(read, on="text", how="inner", maintain_order="left")
        .select("place", plain=pl.when(value.is_null()).then("plain"), value="value")
    )


def scales(units: Iterable[str]) -> pl.DataFrame:
    """For each unit how a value in it is scaled, and its base unit: columns unit, scale, base."""
    rows = [(unit, *base_unit(unit)) for unit in units]
    return pl.DataFrame(rows, schema={"unit": pl.String, "scale": pl.Float64, "base": pl.String}, orient="row")


def product(size: str | None) -> int:
    """The product of a launch dimension such as ``(4096, 1, 1)``; 0 where there is none."""
    found = 1 if size else 0
    for part in (size or "").strip("()").split(","):
        found *= int(part) if part.strip().isdigit() else 0
    return found
