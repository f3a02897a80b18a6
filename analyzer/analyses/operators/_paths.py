"""What is around the rows of a host tree: the nearest one that says something, and all the way down to a row.

All rows look up at once, first one step, then two, four…: as many passes as the depth has binary digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Callable

#: Multiplying by it spreads numbers over all 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: Where an object was, in Python's own description of it.
_ADDRESS: Final = r" at 0x[0-9a-fA-F]+"

#: What stands between the names of a path.
ARROW: Final = " → "


def inherited(rows: pl.DataFrame, own: pl.Series) -> pl.Series:
    """The value of each row, or of the nearest row around it that has one; null where none has."""
    found, up = own, rows.get_column("parent")
    while (found.is_null() & up.is_not_null()).any():
        found = found.zip_with(found.is_not_null(), gathered(found, up))
        up = gathered(up, up)
    return found


def plain_names(rows: pl.DataFrame) -> pl.Series:
    """The names of rows, without the addresses of objects in those of Python's built-in functions."""
    names = rows.get_column("name")
    different = names.unique().drop_nulls()
    texts = different.cast(pl.String)
    addressed = texts.str.contains(_ADDRESS)
    if not addressed.any():
        return names
    plain = texts.filter(addressed).str.replace(_ADDRESS, "").cast(pl.Categorical)
    known = pl.DataFrame({"name": different.filter(addressed), "plain": plain})
    found = rows.select("name").join(known, on="name", how="left", maintain_order="left")
    return found.select(pl.coalesce("plain", "name").alias("name")).to_series()


def path_numbers(rows: pl.DataFrame, included: pl.Series, labels: pl.Series) -> pl.Series:
    """A number (UInt64) for the `labels` of the `included` rows around each row and its own, outermost first.

    Rows have the same number if these labels are the same, others once in 10¹⁹ pairs; 0 is that of no labels.
    """
    # the number of a path is that of the path above it, times the multiplier, plus a hash of the label: a linear map,
    # and maps of pieces of the way are put together as the pieces are
    own = pl.when(included).then
    frame = pl.select(
        times=own(pl.lit(_MULTIPLIER, dtype=pl.UInt64)).otherwise(pl.lit(1, dtype=pl.UInt64)),
        plus=own(labels.hash()).otherwise(pl.lit(0, dtype=pl.UInt64)),
    )
    times, plus, up = frame.get_column("times"), frame.get_column("plus"), rows.get_column("parent")
    while up.is_not_null().any():
        plus = plus + times * gathered(plus, up).fill_null(0)
        times = times * gathered(times, up).fill_null(1)
        up = gathered(up, up)
    return plus.alias("path")


def path_texts(nodes: pl.DataFrame, joined: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> pl.DataFrame:
    """The text of each path of `nodes` (path, outer, label): columns path, text.

    `outer` is the number of the path without its last label; one that is not among the paths ends the way up.
    `joined` puts a text and a label together.
    """
    found = [nodes.select("path", text=pl.col("label").cast(pl.String)).clear()]
    known = nodes.join(nodes.select(outer="path"), on="outer", how="semi").get_column("path")
    level = nodes.filter(~pl.col("path").is_in(known.implode())).select("path", text=pl.col("label").cast(pl.String))
    while level.height:
        found.append(level)
        inner = nodes.join(level.rename({"path": "outer", "text": "above"}), on="outer")
        level = inner.select("path", text=joined(pl.col("above"), pl.col("label").cast(pl.String)))
    return pl.concat(found)


def path_nodes(rows: pl.DataFrame, numbers: pl.Series, included: pl.Series, labels: pl.Series) -> pl.DataFrame:
    """The different paths of `included` rows: columns path, outer (the path around it; 0 for none), label, row.

    `row` is the first row with this path.
    """
    outer = gathered(numbers, rows.get_column("parent")).fill_null(0)
    frame = pl.DataFrame({"path": numbers, "outer": outer, "label": labels})
    frame = frame.with_row_index("row").filter(included)
    return frame.unique("path", keep="first", maintain_order=True).select("path", "outer", "label", "row")
