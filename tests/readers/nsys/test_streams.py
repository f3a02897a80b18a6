"""The streams of an nsys export: types, priorities and names, also where older exports say them elsewhere."""

import kanalyze
from kanalyze.model import STREAMS
from support.command import REPORTS
from support.exports import altered

TWO_GPUS = REPORTS / "two_gpus.sqlite"


def rows(path, *numbers):
    found = kanalyze.read(path).table("streams")
    assert found.schema == STREAMS.schema
    by_number = {row["stream"]: row for row in found.iter_rows(named=True)}
    return [tuple(by_number[number].values()) for number in numbers] if numbers else found.height


def test_types_priorities_and_names():
    assert rows(TWO_GPUS, 7, 13, 14, 17, 19) == [
        (926, 1, 7, "null", 0, None),
        (926, 1, 13, "blocking", -5, None),
        (926, 1, 14, "blocking", 0, "gpu0 stream0"),
        (926, 1, 17, "non-blocking", -5, "gpu0 stream3"),
        (926, 2, 19, "null", 0, None),
    ]


def test_without_a_list_of_streams_the_contexts_name_their_null_streams(tmp_path):
    path = altered(tmp_path, TWO_GPUS, "DROP TABLE TARGET_INFO_CUDA_STREAM")
    assert rows(path, 7, 19) == [(926, 1, 7, "null", None, None), (926, 2, 19, "null", None, None)]
    assert rows(path) == 2


def test_older_exports_have_a_table_of_null_streams(tmp_path):
    older = (
        "CREATE TABLE TARGET_INFO_CUDA_NULL_STREAM AS "
        "SELECT nullStreamId AS streamId, hwId, vmId, processId, deviceId, contextId FROM TARGET_INFO_CUDA_CONTEXT_INFO"
    )
    tables = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_NVTX_CUDA_STREAM", "TARGET_INFO_CUDA_STREAM")
    path = altered(tmp_path, TWO_GPUS, older, *(f"DROP TABLE {name}" for name in tables))
    assert rows(path, 7, 19) == [(926, 1, 7, "null", None, None), (926, 2, 19, "null", None, None)]


def test_a_type_that_nobody_knows_is_null(tmp_path):
    path = altered(tmp_path, TWO_GPUS, "UPDATE TARGET_INFO_CUDA_STREAM SET flag = 0 WHERE streamId IN (14, 7)")
    assert rows(path, 7, 14) == [(926, 1, 7, "null", 0, None), (926, 1, 14, None, 0, "gpu0 stream0")]


def test_a_report_without_cuda_has_none():
    assert rows(REPORTS / "empty.sqlite") == 0
