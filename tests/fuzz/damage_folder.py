"""Damage to the tables of a folder of Parquet files, and to its files as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from fuzz.damage_values import scalar

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


def lose_rows(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """Some rows are gone, or all."""
    return frame.sample(fraction=rng.choice([0.0, 0.7, 0.99]), seed=rng.randrange(1 << 30))


def repeat_rows(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """Some rows stand twice."""
    return pl.concat([frame, frame.sample(min(3, frame.height), seed=rng.randrange(1 << 30))])


def drop_column(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """A column is gone."""
    return frame.drop(rng.choice(frame.columns))


def swap_values(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """A column's values stand in other rows."""
    return frame.with_columns(pl.col(rng.choice(frame.columns)).shuffle(seed=rng.randrange(1 << 30)))


def change_type(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """A column is of another type."""
    name = rng.choice(frame.columns)
    other = rng.choice([pl.String, pl.Float64, pl.Int8, pl.Boolean, pl.Binary, pl.Datetime, pl.Categorical])
    made = rng.choice(
        [
            pl.col(name).cast(other, strict=False),
            pl.struct(pl.col(name), other=pl.lit(1)).alias(name),
            pl.concat_list(pl.col(name)).alias(name),
            pl.lit(None).alias(name),
            pl.lit(scalar(rng)).alias(name),
        ]
    )
    try:
        return frame.with_columns(made)
    except pl.exceptions.PolarsError:  # no such cast
        return frame.with_columns(pl.lit(None).alias(name))


FRAMES = {of.__name__: of for of in (lose_rows, repeat_rows, drop_column, swap_values, change_type)}


def damage(rng: Random, folder: Path, how: str) -> str:
    """Damage one table of the folder and say which."""
    files = sorted(folder.glob("*.parquet"))
    filled = [file for file in files if pl.read_parquet(file).height]
    file = rng.choice(filled)
    frame = FRAMES[how](rng, pl.read_parquet(file))
    frame.write_parquet(file)
    return file.stem


def damage_file(rng: Random, folder: Path) -> str:
    """Put something else in the place of a file of the folder and say which."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    file.unlink()
    kind = rng.randrange(5)
    if kind == 1:
        file.write_bytes(b"")
    elif kind == 2:
        file.mkdir()
    elif kind == 3:
        file.symlink_to(file.name)
    elif kind == 4:
        file.symlink_to(folder)
    return file.name
