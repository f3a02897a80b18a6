"""Archives of reports read as what is in them; what leaves them or is too large is refused, and nothing is left."""

import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pyarrow as pa
import pytest

import kanalyze
from kanalyze import readers as archives
from kanalyze.errors import DamagedReportError, UnknownFormatError
from support.command import ADD, SAMPLES, run


@pytest.fixture(autouse=True)
def unpacked_here(tmp_path, monkeypatch):
    """A temporary folder of its own, which is empty at the end."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    yield
    archives.remove_unpacked()
    assert not [*place.iterdir()]


def zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def tarred(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        tar.add(ADD, "add.sqlite")
    return file.getvalue()


def zipped(*entries: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return file.getvalue()


PACKED = {
    "r.zip": lambda: zipped(("add.sqlite", ADD.read_bytes())),
    "r.tar": lambda: tarred("w"),
    "r.tgz": lambda: tarred("w:gz"),
    "r.tar.xz": lambda: tarred("w:xz"),
    "r.tar.zst": lambda: zst(tarred("w")),
    "r.sqlite.zst": lambda: zst(ADD.read_bytes()),
    "r.sqlite.xz": lambda: lzma.compress(ADD.read_bytes()),
    "told by content": lambda: zst(ADD.read_bytes()),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_report_in_an_archive_reads_as_that_report(tmp_path, name):
    (tmp_path / name).write_bytes(PACKED[name]())
    with kanalyze.read(tmp_path / name) as report:
        assert report.meta.path == tmp_path / name
        assert kanalyze.kernels(report).equals(kanalyze.kernels(kanalyze.read(ADD)))


@pytest.mark.slow
def test_a_capture_in_a_zip_reads_as_the_capture(tmp_path):
    capture = next(path.parent for path in sorted(SAMPLES.glob("*/manifest.json")))
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", capture.parent, capture.name)
    for command in (["summarize"], ["show", "joined"], ["show", "ledger"]):
        inside, outside = run(*command, packed, columns=300), run(*command, capture, columns=300)
        assert inside.status == outside.status
        assert inside.text.split("More:")[0].split("\n")[1:] == outside.text.split("More:")[0].split("\n")[1:]
        assert "kanalyze-" not in inside.text


@pytest.mark.slow
def test_a_command_leaves_nothing_behind(tmp_path):
    (tmp_path / "r.zip").write_bytes(PACKED["r.zip"]())
    left = tmp_path / "left"
    left.mkdir()
    program = [sys.executable, "-m", "kanalyze", "show", "kernels", str(tmp_path / "r.zip")]
    subprocess.run(program, env=os.environ | {"TMPDIR": str(left)}, check=True, capture_output=True)  # noqa: S603
    assert not [*left.iterdir()]


def linked(kind: bytes, name: str = "link") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        *((zipped((name, b"x")), "leaves it") for name in ("../out", "/out", "a\\..\\..\\out")),
        *((linked(kind), "a link or device") for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)),
        (linked(tarfile.REGTYPE, "../out"), "leaves it"),
        (zipped(("folder/", b"")), "without a file"),
        *((data, "holds more than") for data in (zst(bytes(1 << 20)), zipped(("zeros", bytes(1 << 20))))),
    ],
    ids=["above", "absolute", "backslashes", "link", "hard link", "pipe", "tar above", "no file", "zst", "zip"],
)
def test_what_leaves_an_archive_or_grows_beyond_bounds_is_refused(tmp_path, data, found, monkeypatch):
    monkeypatch.setattr(archives, "_LEAST_BYTES", 1 << 16)
    (tmp_path / "r.zip").write_bytes(data)
    with pytest.raises(UnknownFormatError, match=found):
        kanalyze.read(tmp_path / "r.zip")
    assert not [*tmp_path.rglob("out*")]


@pytest.mark.parametrize("name", ["r.zip", "r.tar.xz", "r.sqlite.zst", "r.tar.zst"])
def test_a_cut_archive_is_damaged(tmp_path, name):
    (tmp_path / name).write_bytes(PACKED[name]()[:-2000])
    with pytest.raises(DamagedReportError, match="compressed data"):
        kanalyze.read(tmp_path / name)
