"""Readers: a file in, a :class:`kanalyze.report.Report` out. They know the tools' formats and no analysis.

Each subpackage belongs to a tool, or is shared by several. A reader is a module in it named ``read_<format>``, or after
several formats (``read_csv_rep``), with two functions; adding the file adds the reader:

``accepts(path: Path, head: bytes) -> bool``
    Whether the file at `path`, with the first bytes `head`, is in this format; for a folder `head` is empty.
``open_report(path: Path, progress: Progress, *, cache: bool) -> Report``
    Opens the report; tables are read on demand. A slow opening reports progress, and may store its result in the
    user's cache, or load it from there if `cache` allows.
"""

import atexit
import io
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

from kanalyze import errors, files, outlets
from kanalyze.machinery import modules
from kanalyze.report import Report

#: Told what is being done, and which share of it is done.
Progress = Callable[[str, float], object]


def read(path: str | os.PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """The report in the file or folder at `path`, whatever tool wrote it.

    Args:
        path: A file or folder written by a tool.
        progress: Called during slow steps with a description and the share done: the export of a report in NVIDIA's own
            format, or decoding of a large trace.
        cache: Whether cached results of an earlier opening may be used.

    Raises:
        ReportNotFoundError: There is no such file.
        UnreadableReportError: The operating system refuses to read it.
        UnknownFormatError: It is not a report that kanalyze reads.
        DamagedReportError: Part of it is missing or invalid.
        ExportError: It is in NVIDIA's own format, and cannot be exported here.
    """
    given = Path(path)
    report_progress = progress or (lambda *_: None)
    path = unpacked(given)
    head = _first_bytes(path)
    with files.readable(path):
        if head:
            _refuse_other_programs(path)
        name = _reader(path, head)
        if name is not None:
            report: Report = import_module(name).open_report(path, report_progress, cache=cache and path == given)
            return report if path == given else replace(report, meta=replace(report.meta, path=given))
    raise _unknown_format(path, head)


def room_at(path: Path) -> str | None:
    """The room of the reader that opens the file or folder at `path`: ``nsys``, ``torch``, ``ncu`` or ``capture``.

    None where no reader does, judged by the first bytes; damage shows when it is read.
    """
    try:
        path = unpacked(path)
        head = _first_bytes(path)
    except errors.KanalyzeError:
        return None
    with files.readable(path):
        name = _reader(path, head)
    return name and name.split(".")[-2]


def _reader(path: Path, head: bytes) -> str | None:
    """The reader module of the file or folder at `path`, which begins with `head`; that of its suffix comes first."""
    readers = [(room, name, module) for room, name, module in modules(__name__, __path__) if name.startswith("read_")]
    ending = {*path.suffix.removeprefix(".").split("-")} - {""}
    readers.sort(key=lambda reader: (not ending.issubset({reader[0], *reader[1].split("_")[1:]}), reader))
    return next((module for *_, module in readers if import_module(module).accepts(path, head)), None)


def _first_bytes(path: Path) -> bytes:
    with files.readable(path):
        try:
            if path.is_dir():
                return b""
            if path.exists() and not path.is_file():
                raise errors.UnknownFormatError.of(path, "a pipe or a device")
            with path.open("rb") as file:
                return file.read(64)
        except FileNotFoundError as error:
            raise errors.ReportNotFoundError.at(path) from error


def _unknown_format(path: Path, head: bytes) -> errors.UnknownFormatError:
    if path.is_dir():
        if import_module("kanalyze.reduction.tables").reductions_at(path):  # with polars, for mistakes only
            remedy = f"See it with `{outlets.command('kanalyze', 'ranks', path)}`, or give the reports themselves."
            return errors.UnknownFormatError.of(path, "what `kanalyze reduce` left", remedy)
        return errors.UnknownFormatError.of(path, "a folder without tables")
    if not head:
        return errors.UnknownFormatError.of(path, "an empty file")
    if path.suffix == ".qdstrm":
        remedy = f"Finish it with `{outlets.command('QdstrmImporter', '-i', path)}`, which comes with Nsight Systems."
        return errors.UnknownFormatError.of(path, "an unfinished Nsight Systems recording", remedy)
    if path.suffix == _BASELINE:
        remedy = f"Compare a run with it: `{outlets.command('kanalyze', 'compare', path)} REPORT`."
        return errors.UnknownFormatError.of(path, "a baseline, which has figures of a run and no events", remedy)
    return errors.UnknownFormatError.of(path, "a file in an unknown format")


#: Bytes of a file that are looked at.
_WINDOW_BYTES: Final = 1 << 18


def other_programs(kind: str) -> list[dict[str, Any]]:
    """Files of other programs, or their traces, as other_programs.toml tells them."""
    import tomllib  # noqa: PLC0415 - nothing else of what a command imports needs it

    text = Path(__file__).with_name("other_programs.toml").read_text(encoding="utf-8")
    return cast("list[dict[str, Any]]", tomllib.loads(text)[kind])


def _refuse_other_programs(path: Path) -> None:
    """Raise :class:`UnknownFormatError`, which names the program, if another one wrote the file at `path`."""
    with path.open("rb") as file:
        text = file.read(_WINDOW_BYTES)
    if text.startswith(GZIP):
        text = inflated(text, _WINDOW_BYTES)
    for program in other_programs("files"):
        if re.match(program["begins"].encode(), text, re.DOTALL):
            raise errors.UnknownFormatError.of(path, program["what"], program["remedy"])


_ZIP, GZIP, _ZST = b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: How compressed files begin, and the module whose `open` reads them, imported for such files only.
_MODULES: Final = {GZIP: "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma", _ZST: "pyarrow"}
#: Most bytes that an archive may hold: this many, or so many times its own size; and most files.
_LEAST_BYTES, _RATIO, _MOST_FILES = 1 << 30, 100, 10_000

_HEAD_BYTES, _PART_BYTES = 1 << 16, 1 << 20
_REMEDY: Final = "Unpack it yourself, and give the report in it."
#: As reduction.baselines names a baseline; it would import polars.
_BASELINE: Final = ".kz"
#: Unpacked archives of this process: by path and state the report, and the folders to remove at the end.
_UNPACKED: Final[dict[tuple[str, int, int], Path]] = {}
_FOLDERS: Final[list[tuple[int, Path]]] = []


def unpacked(path: Path) -> Path:
    """The report in the archive at `path`; `path` itself if it is no archive.

    Raises UnknownFormatError if it holds links, paths outside of it, or too much; DamagedReportError if it is damaged,
    or encrypted.
    """
    try:
        if not os.path.isfile(path):  # noqa: PTH113 - never raises
            return path
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        state = path.stat()
    except OSError:  # which reading it says
        return path
    if path.suffix == _BASELINE:
        return path
    magic = next((magic for magic in _MODULES if head.startswith(magic)), b"")
    if not (head.startswith(_ZIP) or _is_tar(head) or magic) or (
        magic == GZIP and not _is_tar(inflated(head, _HEAD_BYTES))
    ):
        return path
    key = (os.path.abspath(path), state.st_mtime_ns, state.st_size)  # noqa: PTH100 - as the user names it
    if key not in _UNPACKED:
        _UNPACKED[key] = _unpack(path, magic)
    return _UNPACKED[key]


def remove_unpacked() -> None:
    """Removes what this process has unpacked."""
    for process, folder in _FOLDERS:
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
    _FOLDERS.clear()
    _UNPACKED.clear()


atexit.register(remove_unpacked)


def _is_tar(head: bytes) -> bool:
    return head.startswith(b"ustar", 257)


def inflated(head: bytes, most: int) -> bytes:
    """What the first bytes of a gzip file hold, of it `most` bytes; nothing if they are damaged."""
    with suppress(zlib.error):  # a damaged trace is read as far as it goes
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, most)
    return b""


def _unpack(path: Path, magic: bytes) -> Path:
    import lzma  # noqa: PLC0415 - for such files only, as those below
    import tarfile  # noqa: PLC0415
    import zipfile  # noqa: PLC0415

    damages = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, RuntimeError, OSError)
    folder = Path(tempfile.mkdtemp(prefix="kanalyze-"))
    _FOLDERS.append((os.getpid(), folder))
    try:
        return _written(path, magic, folder / path.name)
    except damages as error:
        if isinstance(error, OSError) and error.errno is not None:  # no decompressor's
            raise errors.UnreadableReportError.of(path, error) from error
        raise errors.DamagedReportError.at(path, "its compressed data", str(error)) from error


def _written(path: Path, magic: bytes, folder: Path) -> Path:
    """The report in an archive, written into a folder."""
    most = left = max(_LEAST_BYTES, _RATIO * path.stat().st_size)
    for count, (name, content) in enumerate(_files(path, magic)):
        place = PurePosixPath(name.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or ":" in place.parts[0] or "\0" in name:
            raise errors.UnknownFormatError.of(path, f"an archive with a path that leaves it ({name})", _REMEDY)
        if content is None:
            raise errors.UnknownFormatError.of(path, f"an archive with a link or device in it ({name})", _REMEDY)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        with content, (folder / place).open("wb") as file:
            while part := content.read(_PART_BYTES):
                left -= len(part)
                if left < 0 or count >= _MOST_FILES:
                    held = f"an archive that holds more than {most:,} bytes or {_MOST_FILES:,} files"
                    raise errors.UnknownFormatError.of(path, held, _REMEDY)
                file.write(part)
    entries = [*folder.iterdir()] if folder.exists() else []
    if not entries:
        raise errors.UnknownFormatError.of(path, "an archive without a file in it", _REMEDY)
    return entries[0] if len(entries) == 1 else folder


def _files(path: Path, magic: bytes) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content of each file in the archive; links and devices have none."""
    import tarfile  # noqa: PLC0415 - for such files only, as the one below
    import zipfile  # noqa: PLC0415

    module: Any = import_module(_MODULES.get(magic, "io"))
    opened = module.input_stream(str(path), compression="zstd") if magic == _ZST else module.open(path, "rb")
    with io.BufferedReader(opened, _HEAD_BYTES) as stream:
        if _is_tar(stream.peek()):
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    if not member.isdir():
                        yield member.name, members.extractfile(member) if member.isreg() else None
        elif magic:
            yield path.stem, stream
        else:
            with zipfile.ZipFile(stream) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        yield info.filename, None if stat.S_ISLNK(info.external_attr >> 16) else archive.open(info)
