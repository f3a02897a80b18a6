"""Captures made small: all files are cut after the same iteration."""

import re
import tarfile

import pytest
import store

from support.command import SAMPLES


@pytest.mark.slow
def test_a_stored_capture_is_smaller_and_says_the_same(tmp_path):
    said = store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=0.01, largest_mb=1)
    with tarfile.open(tmp_path / "streams.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert re.fullmatch(r"streams: 0\.\d\d MB, stored 0\.\d\d MB, cut", said)
    assert store.first_rules(tmp_path / "streams") == store.first_rules(SAMPLES / "streams")
    assert "left out" in store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=1, largest_mb=0.001)
    assert not (tmp_path / "streams.tar.xz").exists()
