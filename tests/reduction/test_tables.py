"""Folders of reductions: all of one or nothing, checked file by file, replaced where their report changes."""

import json
import os
import shutil
import time

import polars as pl
import pytest

from kanalyze import read
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.errors import BadReductionError, OutputError
from kanalyze.reduction import tables
from support.command import REPORTS
from support.lost_reports import load

NCCL = REPORTS / "nccl.sqlite"


@pytest.fixture(scope="module")
def reduction():
    with read(NCCL) as report:
        return reduced(report)


@pytest.fixture
def folder(reduction, tmp_path):
    return tables.write(tables.packed(reduction, tables.origin_of(NCCL)), tmp_path / "out")


def copied(tmp_path, name="trace.json", content=b"x" * 300_000):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_state_of_a_file_is_its_name_size_time_and_both_ends(tmp_path):
    path = copied(tmp_path)
    assert tables.origin_of(path) == tables.origin_of(path)
    states = {tables.origin_of(path).state}
    os.utime(path, ns=(0, 0))
    states.add(tables.origin_of(path).state)
    for content in (b"y" + b"x" * 299_999, b"x" * 299_999 + b"y", b"x" * 300_001):
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
        states.add(tables.origin_of(path).state)
    os.utime(path.rename(tmp_path / "other.json"), ns=(0, 0))
    states.add(tables.origin_of(tmp_path / "other.json").state)
    assert len(states) == 6


def test_a_folder_has_the_state_of_its_files(tmp_path):
    copied(tmp_path, "export/A.parquet")
    copied(tmp_path, "export/B.parquet")
    first = tables.origin_of(tmp_path / "export")
    assert first.size_bytes == 600_000
    copied(tmp_path, "export/B.parquet", b"z" * 300_000)
    assert tables.origin_of(tmp_path / "export").state != first.state


@pytest.mark.parametrize("name", ["a trace of rank 1.json", "../..", "ünï.json", "x" * 200, "-"])
def test_the_name_of_a_folder_is_a_plain_one(name):
    folder = tables.origin_of(NCCL)._replace(path=f"/tmp/{name}").folder  # noqa: S108 - nothing is written there
    assert len(folder) < 130
    assert folder.isascii()
    assert not {*folder} & {*"/\\ \0"}
    assert not folder.startswith(".")


def test_what_is_read_is_what_was_written_and_a_damaged_one_is_named(folder, reduction):
    alone = {"ranks": reduction["ranks"]}
    other = tables.write(tables.packed(alone, tables.origin_of(NCCL)._replace(path="a")), folder.parent)
    damaged = tables.write(tables.packed(reduction, tables.origin_of(NCCL)._replace(path="b")), folder.parent)
    (damaged / "collectives.parquet").write_bytes(b"")
    with pytest.raises(BadReductionError, match=str(damaged)):
        tables.load([folder, damaged, other])
    for at, expected in ((folder, reduction), (other, alone)):
        found = load(at)
        assert all(table.equals(found[name]) for name, table in expected.items() if table.height)
    # the members of several are numbered through
    both, number = tables.load([folder, other, folder]), reduction["ranks"].height
    assert both["ranks"].get_column("reduction").to_list() == [0] * number + [1] * number + [2] * number
    steps = reduction["collectives"]
    shifted = steps.with_columns(pl.col("member") + 2 * number)
    assert both["collectives"].equals(pl.concat([steps, shifted]))


@pytest.mark.parametrize("table", ["ranks", "collectives", "pieces"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "longer", "missing", "a folder"])
def test_a_damaged_table_is_named(folder, table, damage):
    file = folder / f"{table}.parquet"
    content = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "missing":
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"cut": content[:-7], "flipped": flipped, "longer": content + b"PAR1"}[damage])
    with pytest.raises(BadReductionError, match=f"damaged reduction .*{table}.parquet") as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "`kanalyze reduce`" in caught.value.remedy
    assert not tables.is_whole(folder)


@pytest.mark.parametrize(
    "content",
    [
        None,
        *(b"", b"{", b"[]", b"null", b"{}", b'{"reduction": 3}', b"[" * 100_000, b"\xff"),
        *(b'{"reduction": 3, "tables": []}', b'{"reduction": 3, "tables": {"ranks": 1}}'),
        *(
            b'{"reduction": 3, "tables": {"%s": {"rows": 1, "bytes": %s, "checksum": ""}}}' % told
            for told in ((b"ranks", b'"1"'), (b"../ranks", b"1"), (b"health", b"1"))
        ),
    ],
    ids=lambda content: str(len(content or "")),
)
def test_a_damaged_or_missing_manifest_is_named(folder, content):
    (folder / tables.MANIFEST).unlink() if content is None else (folder / tables.MANIFEST).write_bytes(content)
    assert tables.reductions_at(folder.parent) == [folder]
    assert not tables.is_whole(folder)
    with pytest.raises(BadReductionError, match="a damaged reduction"):
        load(folder)


def test_another_version_is_made_again(folder):
    head = json.loads((folder / tables.MANIFEST).read_text())
    (folder / tables.MANIFEST).write_text(json.dumps(head | {"reduction": tables.VERSION + 1}))
    with pytest.raises(
        BadReductionError, match=f"of version {tables.VERSION + 1}; this kanalyze reads version {tables.VERSION}"
    ):
        load(folder)
    assert not tables.is_whole(folder)


def test_rows_of_no_rank_are_damage(reduction, tmp_path):
    other = reduction["collectives"].with_columns(member=pl.lit(7, dtype=pl.Int64))
    made = tables.write(tables.packed(reduction | {"collectives": other}, tables.origin_of(NCCL)), tmp_path)
    with pytest.raises(BadReductionError, match=r"collectives\.parquet has rows of no rank"):
        load(made)


def test_a_damaged_one_is_replaced_and_a_whole_one_stays(folder, reduction):
    made = tables.packed(reduction, tables.origin_of(NCCL))
    before = (folder / tables.MANIFEST).stat().st_ino
    assert tables.write(made, folder.parent) == folder
    assert (folder / tables.MANIFEST).stat().st_ino == before
    (folder / "steps.parquet").unlink()
    assert tables.write(made, folder.parent) == folder
    assert tables.is_whole(folder)
    assert [*folder.parent.iterdir()] == [folder]


def test_a_changed_file_supersedes_its_reduction(reduction, tmp_path):
    path, out = copied(tmp_path), tmp_path / "out"
    old = tables.write(tables.packed(reduction, tables.origin_of(path)), out)
    other = tables.write(tables.packed(reduction, tables.origin_of(copied(tmp_path, "rank1/trace.json"))), out)
    path.write_bytes(b"new")
    new = tables.write(tables.packed(reduction, tables.origin_of(path)), out)
    assert new != old
    assert tables.reductions_at(out) == sorted([new, other])


@pytest.mark.parametrize(("rank", "left"), [(0, 1), (1, 2), (None, 2)])
def test_files_of_one_path_on_two_machines_are_two_unless_of_one_rank(reduction, tmp_path, rank, left):
    origin = tables.origin_of(copied(tmp_path))._replace(host="node1")
    ranks = reduction["ranks"].head(1).with_columns(rank=pl.lit(0 if rank is not None else None, dtype=pl.Int64))
    tables.write(tables.packed({"ranks": ranks}, origin), tmp_path / "out")
    ranks = ranks.with_columns(rank=pl.lit(rank, dtype=pl.Int64))
    there = origin._replace(host="node2", state="0" * 16)
    tables.write(tables.packed({"ranks": ranks}, there), tmp_path / "out")
    assert len(tables.reductions_at(tmp_path / "out")) == left


def test_what_a_killed_program_left_is_no_reduction_and_goes_after_a_day(folder):
    left = folder.parent / ".reducing-x"
    shutil.copytree(folder, left / "new")
    assert tables.reductions_at(folder.parent) == [folder]
    tables.clear_forgotten(folder.parent)
    assert left.exists()
    long_ago = time.time() - 100_000
    os.utime(left, (long_ago, long_ago))
    tables.clear_forgotten(folder.parent)
    assert [*folder.parent.iterdir()] == [folder]


def test_a_folder_that_cannot_be_written(reduction, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        tables.write(tables.packed(reduction, tables.origin_of(NCCL)), tmp_path / "file")
