"""The user's cache: the same again, of no other state of a file, as the user wrote it, and within its limit."""

import json
import os
import shutil

import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.model import KINDS
from kanalyze.readers import user_cache
from kanalyze.readers.torch import read_json
from support.command import SAMPLES

TRACE = SAMPLES / "square" / "torch.json.gz"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, which keeps even small traces."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(read_json, "_LEAST_BYTES", 0)
    return tmp_path / "caches" / "kanalyze"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json.gz"
    shutil.copy(TRACE, path)
    return path


@pytest.fixture
def decoded(monkeypatch):
    """How often a trace was decoded."""
    calls = []
    made = read_json._decoded  # noqa: SLF001 - what the cache saves
    monkeypatch.setattr(read_json, "_decoded", lambda *given: calls.append(1) or made(*given))
    return calls


TABLES = ("kernel_config", "copy_detail", "range_detail", "op_detail", "collective_detail", "devices", "notes")


def same(one, other):
    assert (one.kinds, one.meta) == (other.kinds, other.meta)
    for name in KINDS:
        assert one.kind(name).equals(other.kind(name)), name
    for name in (*TABLES, "processes"):
        assert one.table(name).equals(other.table(name)), name


def test_a_second_read_gives_the_same_and_decodes_nothing(cache, trace, decoded):
    first = kanalyze.read(trace, cache=False)
    assert not cache.exists()
    same(first, kanalyze.read(trace))
    same(first, kanalyze.read(trace))
    assert len(decoded) == 2
    kanalyze.read(trace, cache=False)
    assert len(decoded) == 3


def test_another_file_in_its_place_is_read_even_with_size_and_times_set_back(tmp_path, cache):
    plain = tmp_path / "plain.json"
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::one", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    text = json.dumps({"traceEvents": events})
    plain.write_text(text)
    before = plain.stat()
    assert kanalyze.read(plain).kind("op")["name"].to_list() == ["aten::one"]
    plain.write_text(text.replace("aten::one", "aten::two"))
    os.utime(plain, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kanalyze.read(plain).kind("op")["name"].to_list() == ["aten::two"]
    assert len([*cache.iterdir()]) == 1  # what was made of the trace before it changed is gone


def test_small_traces_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kanalyze.read(TRACE)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("change", [lambda old: old + b"\0", lambda old: old[:-1], lambda old: old[::-1], None])
def test_files_that_are_others_are_decoded_again(cache, trace, decoded, change):
    first = kanalyze.read(trace)
    (place,) = cache.iterdir()
    kernel, op = place / "Kernel.frame.arrow", place / "Op.frame.arrow"
    if change:
        kernel.write_bytes(change(kernel.read_bytes()))
    else:
        kernel.unlink()
        kernel.symlink_to(op)
    decoded.clear()
    same(first, kanalyze.read(trace))
    assert len(decoded) == 1


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_a_sum_tells_every_change(tmp_path_factory, content, data):
    path = tmp_path_factory.mktemp("summed") / "file"
    path.write_bytes(content)
    told = user_cache.checksum(path)
    at = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    assert user_cache.checksum(path) != told
    path.write_bytes(content[:at])
    assert user_cache.checksum(path) != told
    path.write_bytes(content)
    assert user_cache.checksum(path) == told


UNTRUSTED = {
    "as group-writable": lambda place: place.chmod(0o770),
    "as world-writable": lambda place: place.chmod(0o707),
    "as a link": lambda place: place.rename(place.with_name("elsewhere")).parent and place.symlink_to("elsewhere"),
}
if hasattr(os, "geteuid") and os.geteuid() == 0:  # only root may give files away
    UNTRUSTED["as somebody else's"] = lambda place: os.chown(place, 12345, 12345)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("what", ["cache", "entry"])
@pytest.mark.parametrize("make", UNTRUSTED.values(), ids=UNTRUSTED)
def test_what_others_may_write_to_is_not_used(cache, trace, decoded, make, what):
    first = kanalyze.read(trace)
    (place,) = cache.iterdir()
    make(cache if what == "cache" else place)
    decoded.clear()
    same(first, kanalyze.read(trace))
    same(first, kanalyze.read(trace))
    assert len(decoded) == (2 if what == "cache" else 1)
    assert what == "entry" or [path.name for path in cache.iterdir()] == [place.name]


def test_a_file_or_a_link_in_place_of_the_folder_is_left_alone(cache, trace, decoded):
    cache.parent.mkdir()
    cache.symlink_to("nothing")
    assert kanalyze.read(trace).kind("kernel").height > 0
    assert not cache.exists()
    cache.unlink()
    cache.write_text("mine")
    same(kanalyze.read(trace), kanalyze.read(trace))
    assert len(decoded) == 3
    assert cache.read_text() == "mine"


def test_what_is_made_is_the_users_alone_whatever_the_mask(cache, trace, decoded):
    mask = os.umask(0)
    try:
        kanalyze.read(trace)
        assert cache.stat().st_mode & 0o777 == 0o700
        decoded.clear()
        kanalyze.read(trace)
    finally:
        os.umask(mask)
    assert decoded == []


def filled(folder, sizes):
    """A cache with entries of these sizes, each older than the one before it."""
    folder.mkdir(parents=True, mode=0o700)
    for number, size in enumerate(sizes):
        place = folder / f"{number:04}-state.trace3"
        place.mkdir(mode=0o700)
        (place / "frame").write_bytes(bytes(size))
        os.utime(place, ns=(10**18 - number, 10**18 - number))


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 60), st.integers(0, 120))
def test_what_stays_is_the_newest_that_fits(tmp_path_factory, sizes, written, most):
    folder = tmp_path_factory.mktemp("cache") / "kanalyze"
    filled(folder, sizes)
    with user_cache.scratch(folder) as scratch:
        (scratch / "file").write_bytes(bytes(written))
        there = user_cache.make_room(folder, "none", most)
    left = sorted(path.name for path in folder.iterdir())
    kept, total = [], written
    for number, size in enumerate(sizes):
        if total + size <= most:
            kept.append(f"{number:04}-state.trace3")
            total += size
    assert (there, left) == (written <= most, kept)


def test_exports_and_traces_count_together(cache):
    cache.mkdir(parents=True, mode=0o700)
    export = cache / "aa-bb-cc.sqlite"
    export.write_bytes(bytes(100))
    os.utime(export, ns=(1, 1))
    trace = cache / "dd-ee.trace3"
    trace.mkdir()
    (trace / "frame").write_bytes(bytes(100))
    (cache / "builds").mkdir()
    (cache / "builds" / "workload").write_bytes(bytes(1000))
    assert user_cache.make_room(cache, "none", 150)
    assert sorted(path.name for path in cache.iterdir()) == ["builds", trace.name]
