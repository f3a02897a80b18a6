"""What the payloads of NCCL's ranges say, on a report of a program that calls each kind with known sizes."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.readers.nsys.read_sqlite_folder import communicator_calls
from kanalyze.several import Asked
from kanalyze.several.jobs import job

REPORT = Path(__file__).parents[2] / "reports" / "communicators.sqlite"
MB = 1 << 20

#: Kind and bytes as nccl-tests counts them, in the order in which the program calls them (groups.py).
CALLED = [
    ("all_reduce", 64 * MB), ("all_reduce", 16 * MB), ("all_reduce", 4), ("broadcast", 48 * MB), ("reduce", 40 * MB),
    ("all_gather", 48 * MB), ("all_gather", 40 * MB), ("reduce_scatter", 56 * MB), ("reduce_scatter", 24 * MB),
    ("all_to_all", 64 * MB),
]  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    return job([REPORT], Asked()).table("collectives")


def test_kinds_and_sizes_are_those_that_the_program_called(rows):
    first = rows.filter(pl.col("rank") == 0, pl.col("stream") == 7).sort("start_ns")
    assert list(first.select("kind", "bytes").head(len(CALLED)).iter_rows()) == CALLED
    assert first.get_column("size").head(len(CALLED)).to_list() == [2] * len(CALLED)


def test_every_collective_is_on_both_ranks_with_the_same_kind_and_size(rows):
    pairs = rows.group_by("id").agg(pl.len(), pl.col("bytes").n_unique(), pl.col("group").n_unique())
    assert rows.get_column("id").null_count() == 0
    assert pairs.select(pl.col("len").unique()).to_series().to_list() == [2]
    assert pairs.select((pl.col("bytes") == 1) & (pl.col("group") == 1)).to_series().all()


def test_a_send_is_matched_with_its_receive(rows):
    pairs = rows.filter(pl.col("kind").is_in(["send", "recv"])).group_by("id").agg(pl.col("kind").sort())
    assert pairs.get_column("kind").to_list()
    assert all(kinds == ["recv", "send"] for kinds in pairs.get_column("kind").to_list())


def test_communicators_on_two_streams_are_two_groups(rows):
    groups = rows.filter(pl.col("stream").is_in([33, 37])).group_by("stream").agg(pl.col("group").unique())
    assert [len(one) for one in groups.get_column("group").to_list()] == [1, 1]
    assert groups.get_column("group").explode().n_unique() == 2


class Table:
    """An export with one call of NCCL, whose payload is `blob`."""

    def __init__(self, blob):
        self.blob = blob

    def columns(self, table):
        return ("binaryData",) if table == "NVTX_EVENTS" else ()

    def frame(self, table, schema):
        if table == "NVTX_EVENTS":
            return pl.DataFrame({"binaryData": pl.Series([self.blob], dtype=pl.Object)})
        rows = [(7, 18, "NCCL communicator ID", None), (7, 22, "Message size [bytes]", 8)]
        return pl.DataFrame(rows, schema=schema, orient="row")


def payload(schema, data, size=None):
    header = (1).to_bytes(8, "little") + schema.to_bytes(8, "little")
    return header + (len(data) if size is None else size).to_bytes(8, "little") + (32).to_bytes(8, "little") + data


def test_a_payload_is_read_by_its_schema():
    found = communicator_calls(Table(payload(7, bytes([5]) + bytes(7) + bytes([0, 1]) + bytes(6))), 40, {})
    assert found.row(0, named=True) == {
        "event_id": 40, "communicator": f"{5:016x}", "message_bytes": 256, "peer_rank": None, "root_rank": None,
        "size": None, "rank": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("blob", "undecoded"),
    [
        (None, 0),
        (payload(8, bytes(16)), 0),
        (b"", 1),
        (b"short", 1),
        (payload(7, bytes(12)), 1),
        (payload(7, bytes(16), 400), 1),
        (3, 1),
    ],
    ids=["none", "another schema", "empty", "short", "shorter than its schema", "cut", "a number"],
)
def test_what_is_no_payload_of_nccl_is_no_call(blob, undecoded):
    counts = {}
    assert communicator_calls(Table(blob), 0, counts).is_empty()
    assert counts == {"payloads of ranges that cannot be decoded": undecoded}
