"""What is kept of a trace: the same tables again, never of another state of the file, and never half of it."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import kanalyze
from kanalyze.model import KINDS
from kanalyze.readers.torch import read_json as read_torch_json
from kanalyze.readers.torch import read_json as torch_cache
from kanalyze.readers.user_cache import make_room

TRACE = Path(__file__).parents[3] / "sample_reports" / "mlp_train" / "torch.json.gz"

TABLES = (
    "kernel_config",
    "copy_detail",
    "range_detail",
    "op_detail",
    "collective_detail",
    "devices",
    "processes",
    "notes",
)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A trace, with a cache of its own that keeps even small ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch_cache, "_LEAST_BYTES", 0)
    path = tmp_path / "trace.json.gz"
    shutil.copy(TRACE, path)
    return path


def folders(tmp_path):
    return sorted((tmp_path / "cache" / "kanalyze").glob("*"))


def no_decoding(*_):
    raise AssertionError("it was decoded again")


def same(one, other):
    assert one.kinds == other.kinds
    for kind in KINDS:
        assert one.kind(kind).equals(other.kind(kind)), kind
    for name in TABLES:
        assert one.table(name).equals(other.table(name)), name
    assert one.meta == other.meta


def test_a_second_read_gives_the_same_and_decodes_nothing(kept, monkeypatch):
    first = kanalyze.read(kept)
    monkeypatch.setattr(read_torch_json, "decoded", no_decoding)
    same(first, kanalyze.read(kept))


def test_without_cache_nothing_is_kept_or_taken(kept, tmp_path, monkeypatch):
    kanalyze.read(kept, cache=False)
    assert folders(tmp_path) == []
    kanalyze.read(kept)
    monkeypatch.setattr(read_torch_json, "decoded", no_decoding)
    with pytest.raises(AssertionError, match="again"):
        kanalyze.read(kept, cache=False)


@pytest.mark.usefixtures("kept")
def test_another_file_in_its_place_is_read_even_with_size_and_times_set_back(tmp_path):
    plain = tmp_path / "plain.json"
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::one", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    text = json.dumps({"traceEvents": events})
    plain.write_text(text)
    before = plain.stat()
    assert kanalyze.read(plain).kind("op")["name"].to_list() == ["aten::one"]
    plain.write_text(text.replace("aten::one", "aten::two"))
    os.utime(plain, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kanalyze.read(plain).kind("op")["name"].to_list() == ["aten::two"]
    assert len(folders(tmp_path)) == 1  # what was made of the trace before it changed is gone


def test_small_traces_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kanalyze.read(TRACE)
    assert folders(tmp_path) == []


def test_of_too_much_the_oldest_goes(kept, tmp_path, monkeypatch):
    kanalyze.read(kept)
    (first,) = folders(tmp_path)
    size = sum(file.stat().st_size for file in first.iterdir())
    monkeypatch.setattr(torch_cache, "make_room", partial(make_room, most=2 * size + size // 2))
    for number in (1, 2):
        other = tmp_path / f"trace{number}.json.gz"
        shutil.copy(TRACE, other)
        os.utime(first, ns=(number, number))
        kanalyze.read(other)
    assert len(folders(tmp_path)) == 2
    assert first not in folders(tmp_path)
