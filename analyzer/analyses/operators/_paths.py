"""Lookups along the ancestors of a host tree's rows: nearest value, and path from the root.

Pointer doubling: all rows look up at once, first one level, then two, four…, in log2(depth) passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Callable

#: Multiplier of a hash that spreads numbers over 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: The address of an object in its Python repr.
_ADDRESS: Final = r" at 0x[0-9a-fA-F]+"

#: Separator of the names in a path.
ARROW: Final = " → "


def inherited(rows: pl.DataFrame, own: pl.Series) -> pl.Series:
    """The value of each row, or of its nearest ancestor with one; null if none has one."""
    found, up = own, rows.get_column("parent")
    while (found.is_null() & up.is_not_null()).any():
        found = found.zip_with(found.is_not_null(), gathered(found, up))
        up = gathered(up, up)
    return found


def plain_names(rows: pl.DataFrame) -> pl.Series:
    """The names of rows, without object addresses in the names of Python's built-in functions."""
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
    """A hash (UInt64) of the `labels` along the path to each row, outermost first, of `included` rows only.

    Equal paths have equal hashes, different ones collide once in 10¹⁹ pairs; 0 stands for the empty path.
    """
    # a path's hash is its parent path's hash times the multiplier, plus the hash of the label: a linear map, and the
    # maps of consecutive parts of a path can be composed
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


def _by_arrows(above: pl.Expr, label: pl.Expr) -> pl.Expr:
    """A path and what it goes on with."""
    return above + pl.lit(ARROW) + label


def path_texts(nodes: pl.DataFrame, joined: Callable[[pl.Expr, pl.Expr], pl.Expr] = _by_arrows) -> pl.DataFrame:
    """The text of each path in `nodes` (path, outer, label): columns path, text.

    `outer` is the number of the parent path; a number that is not among the paths ends the way to the root.
    `joined` appends a label to a text.
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
    """The distinct paths of `included` rows: columns path, outer (the parent path; 0 for none), label, row.

    `row` is the first row with this path.
    """
    outer = gathered(numbers, rows.get_column("parent")).fill_null(0)
    frame = pl.DataFrame({"path": numbers, "outer": outer, "label": labels})
    frame = frame.with_row_index("row").filter(included)
    return frame.unique("path", keep="first", maintain_order=True).select("path", "outer", "label", "row")


def labelled_paths(rows: pl.DataFrame, included: pl.Series, labels: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """The paths of `labels` to all rows: the number of each row's, and their texts by number (path, text)."""
    numbers = path_numbers(rows, included, labels)
    return numbers, path_texts(path_nodes(rows, numbers, included, labels))


def operator_paths(rows: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """The :func:`labelled_paths` of operators."""
    operators = rows.select(pl.col("kind") == "op").to_series()
    return labelled_paths(rows, operators, rows.get_column("name").cast(pl.String))
