"""A page of the database that lies over another: an error, or nothing that is printed changes; never other figures."""

import sqlite3
from contextlib import closing

import pytest

from kanalyze.readers.storage import table_files
from support.command import REPORTS, refused, run

GRAPH_NODE = REPORTS / "graph_node.sqlite"
PAGE_BYTES = 4096
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def leaves(path, table):
    """The numbers of a table's leaf pages, from its root, which has no further level between."""
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        ((root,),) = connection.execute(sql, (table,)).fetchall()
    data = path.read_bytes()
    page = data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES]
    assert page[0] == 5
    cells = [int.from_bytes(page[12 + 2 * cell :][:2], "big") for cell in range(int.from_bytes(page[3:5], "big"))]
    found = [int.from_bytes(page[at:][:4], "big") for at in cells] + [int.from_bytes(page[8:12], "big")]
    assert all(data[(number - 1) * PAGE_BYTES] == 13 for number in found)
    return found


def copied(folder, pairs):
    """A copy of the report for each pair of pages, the first of which lies over the second."""
    data = GRAPH_NODE.read_bytes()
    path = folder / GRAPH_NODE.name
    for one, other in pairs:
        changed = bytearray(data)
        changed[(other - 1) * PAGE_BYTES : other * PAGE_BYTES] = data[(one - 1) * PAGE_BYTES : one * PAGE_BYTES]
        path.write_bytes(changed)
        yield path


@pytest.mark.parametrize("from_rows", [0, 1 << 40], ids=["pages", "cursor"])
def test_a_leaf_over_another_leaf_is_an_error(tmp_path, monkeypatch, from_rows):
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", from_rows)
    kernels, calls = leaves(GRAPH_NODE, KERNEL), leaves(GRAPH_NODE, RUNTIME)
    assert (len(kernels), len(calls)) > (3, 1)
    pairs = [(kernels[0], kernels[1]), (kernels[2], kernels[1]), (kernels[-2], kernels[-1]), (calls[1], kernels[2])]
    for path in copied(tmp_path, pairs):
        message, remedy = refused(run("show", "kernels", path))
        assert message.startswith(f"{path}: damaged at table {KERNEL}: ")
        assert remedy.endswith("[report-damaged]")


def test_a_page_of_a_table_that_is_not_read_is_a_word_on_standard_error(tmp_path):
    one, other, *_ = leaves(GRAPH_NODE, RUNTIME)
    (path,) = [*copied(tmp_path, [(one, other)])]
    ran = run("show", "kernels", path, "--format", "csv")
    assert (ran.status, ran.text) == (0, run("show", "kernels", GRAPH_NODE, "--format", "csv").text)
    (line,) = ran.doubts
    assert line.startswith(f"kanalyze: not all of it can be read: {path}: damaged at table {RUNTIME}: ")
