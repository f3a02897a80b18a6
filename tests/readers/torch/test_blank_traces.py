"""Compressed traces that unpack to far more than they hold: bounded time and memory."""

import gzip
import tracemalloc

import pytest

import kanalyze
from kanalyze.readers.torch.pieces import TraceText

EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1}'


def blank(path, megabytes, sign):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [' + EVENT % 1 + b",")
        for _ in range(megabytes):
            file.write(sign * (1 << 20))
        file.write(EVENT % 9 + b"]}")
    return path


@pytest.mark.parametrize("sign", [b" ", b"\n"])
def test_blanks_take_no_memory(tmp_path, sign):
    path = blank(tmp_path / "trace.json.gz", 192, sign)
    tracemalloc.start()
    size = sum(map(len, TraceText(path).pieces()))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 40 << 20
    assert most < 150 << 20


def test_what_stands_around_them_is_read(tmp_path):
    made = kanalyze.read(blank(tmp_path / "trace.json.gz", 40, b"\n"), cache=False)
    assert made.table("events").get_column("start_ns").to_list() == [1000, 9000]
