"""Damage to a baseline: to the file as git may leave it, and to what is in it, put together again with right sums."""

from __future__ import annotations

import io
import warnings
import zipfile
from typing import TYPE_CHECKING

import polars as pl

from fuzz.damage_tables import FRAMES
from fuzz.damage_texts import TREES, damage_json

if TYPE_CHECKING:
    from random import Random

_HEAD = "kanalyze-baseline.json"


def merge(rng: Random, data: bytes) -> bytes:
    """Both versions of a stretch stand there, between the marks of a merge that nobody finished."""
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    middle = data[start:stop]
    return data[:start] + b"<<<<<<< HEAD\n" + middle + b"=======\n" + middle + b">>>>>>> other\n" + data[stop:]


def lf(data: bytes) -> bytes:
    """Each end of a line is one character, and bytes that only look like two are one as well."""
    made = data.replace(b"\r\n", b"\n")
    return made if made != data else data.replace(b"\r", b"\n")


#: Lines end in two characters, as in a checkout on Windows, or in one; a merge, or what is no UTF-8, was left in it.
ENDS = {
    "crlf": lambda _, data: data.replace(b"\n", b"\r\n"),
    "lf": lambda _, data: lf(data),
    "merge": merge,
    "utf8": lambda _, data: data.decode("utf-8", "replace").encode(),
}

#: What becomes of a member of the archive.
MEMBERS = ("lose", "repeat", "rename", "empty", "exchange", "add")


def damage_head(rng: Random, data: bytes, how: str) -> bytes:
    """The head's tree is another, and its sums are right."""
    members = _members(data)
    members[_HEAD] = damage_json(rng, members[_HEAD], how)
    return _archive([*members.items()])


def damage_table(rng: Random, data: bytes, how: str) -> bytes:
    """A table's rows, columns or types are others, and its sums are right."""
    members = _members(data)
    name = rng.choice(sorted({*members} - {_HEAD}))
    made = io.BytesIO()
    FRAMES[how](rng, pl.read_parquet(members[name])).write_parquet(made)
    members[name] = made.getvalue()
    return _archive([*members.items()])


def damage_members(rng: Random, data: bytes, how: str) -> bytes:
    """A member is gone, stands twice, or is another, and its sums are right."""
    members = [*_members(data).items()]
    at, other = rng.sample(range(len(members)), 2)
    name, content = members[at]
    if how == "lose":
        del members[at]
    elif how == "repeat":
        members.append((name, rng.choice([content, members[other][1]])))
    elif how == "rename":
        members[at] = (rng.choice([name.upper(), f"../{name}", "other.parquet", ""]), content)
    elif how == "empty":
        members[at] = (name, b"")
    elif how == "exchange":
        members[at], members[other] = (name, members[other][1]), (members[other][0], content)
    else:
        members.append((rng.choice(["counters.parquet", "ops.parquet", "x", "a/b"]), rng.choice([content, b"", b"x"])))
    return _archive(members)


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: list[tuple[str, bytes]]) -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # that a name stands twice is meant
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return made.getvalue()


#: All kinds, as cases name them.
KINDS = (
    *(f"git {how}" for how in ENDS),
    *(f"head {how}" for how in TREES),
    *(f"digest {how}" for how in FRAMES),
    *(f"member {how}" for how in MEMBERS),
)


#: Those that leave no sum right, or a member that no baseline has.
SEEN = (*(f"git {how}" for how in ENDS), *(f"member {how}" for how in MEMBERS if how != "lose"))


def damage(rng: Random, data: bytes, kind: str, how: str) -> bytes:
    """The file damaged in one of :data:`KINDS`."""
    if kind == "git":
        return ENDS[how](rng, data)
    of_kind = {"head": damage_head, "digest": damage_table, "member": damage_members}
    return of_kind[kind](rng, data, how)
