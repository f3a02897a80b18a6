"""The CSV pages in a file that ncu wrote, whatever stands around them.

``ncu --csv`` prints its page to where the program prints, too, among lines of its own (``==PROF== …``). A page begins
with its line of headings; its records begin with a quotation mark, and may go on over several lines.
"""

from __future__ import annotations

import codecs
import io
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import UnknownFormatError, UnreadableReportError
from kanalyze.readers import ncu_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: How pages begin: those of launches, and a kernel on the page of sources.
_LAUNCHES: Final = b'"ID","'
_SOURCE: Final = b'"Kernel Name","'
_BEGINNINGS: Final = (_LAUNCHES, _SOURCE)

#: What ncu itself says in a log.
_OWN: Final = re.compile(rb"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)

_NO_PERMISSION: Final = b"ERR_NVGPUCTRPERM"
PERMISSION: Final = (
    "Let an administrator allow it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/nvidia-profiling.conf and a reboot, or run ncu as root; in a container, start it with "
    "--cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
_NOTHING: Final = "Run it again with a filter (--kernel-name, --launch-skip, --launch-count) that some launch passes."

_ENCODINGS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class Page:
    """One page of a file: its kind (details, raw or source), and its records as texts.

    The columns of a page of sources are those of one kernel's instructions; `kernel` is its name.
    """

    kind: str
    rows: pl.DataFrame
    kernel: str = ""


@dataclass(frozen=True)
class PagesFile:
    """What is in one file: its pages, what ncu warned of around them, and whether it is cut off."""

    path: Path
    pages: tuple[Page, ...]
    warnings: tuple[str, ...] = ()
    cut: bool = False

    def of(self, kind: str) -> list[Page]:
        """The pages of one kind, in their order."""
        return [page for page in self.pages if page.kind == kind]


def looks_like_ncu(text: bytes) -> bool:
    """Whether a file's content, or its beginning, is a page or a log of ncu."""
    return any(_starts_line(text, beginning) for beginning in _BEGINNINGS) or _OWN.search(text) is not None


def content(path: Path) -> bytes:
    """The file at `path` as UTF-8 with plain line ends.

    Raises:
        UnreadableReportError: The operating system does not let us read it.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UnreadableReportError.because(path, error.strerror or str(error)) from error
    for mark, encoding in _ENCODINGS:  # what PowerShell makes of `ncu … > file`
        if text.startswith(mark):
            text = text.decode(encoding, errors="replace").encode()
            break
    return text.replace(b"\r\n", b"\n")


def pages_in(path: Path) -> PagesFile:
    """The pages of the file at `path`.

    Raises:
        UnknownFormatError: It has none: it is something else, or a log of a run that profiled nothing, and why.
        DamagedReportError: A page is no CSV.
        UnreadableReportError: The operating system does not let us read it.
    """
    return pages_of(path, content(path))


def pages_of(path: Path, text: bytes) -> PagesFile:
    """The pages in a `text` that was printed of the report at `path`; errors as there."""
    found: list[Page] = []
    cut = False
    for begin, end in _spans(text):
        records = _records(text[begin:end])
        if records.count(b'"') % 2:  # the last one has no end
            records, cut = records[: records.rfind(b'\n"') + 1], True
        found += _page(path, records)
    if not any(page.rows.height for page in found):
        raise _without_kernels(path, text)
    said = [line.removeprefix(b"==WARNING==").strip().decode(errors="replace") for line in text.split(b"\n")
            if line.startswith(b"==WARNING==")]  # fmt: skip
    return PagesFile(path, tuple(found), tuple(dict.fromkeys(said)), cut)


def _starts_line(text: bytes, beginning: bytes) -> bool:
    return text.startswith(beginning) or b"\n" + beginning in text


def _lines_with(text: bytes, beginning: bytes) -> Iterator[int]:
    """Where the lines are that begin so."""
    if text.startswith(beginning):
        yield 0
    found = text.find(b"\n" + beginning)
    while found >= 0:
        yield found + 1
        found = text.find(b"\n" + beginning, found + 1)


def _spans(text: bytes) -> list[tuple[int, int]]:
    """Where pages begin and end: a page ends where the next one begins."""
    starts = sorted(start for beginning in _BEGINNINGS for start in _lines_with(text, beginning))
    # a page of launches has no further line that begins like this, since an ID is a number
    return list(pairwise([*starts, len(text)]))


def _records(text: bytes) -> bytes:
    """The records of a page, without the lines of others after or between them."""
    if text.count(b'\n"') + 1 >= text.count(b"\n") and b"\n==" not in text:
        return text  # nothing but records of one line each
    kept, within = [], False
    for line in text.split(b"\n"):
        if within or line.startswith(b'"'):
            kept.append(line)
            within ^= bool(line.count(b'"') % 2)
    return b"\n".join([*kept, b""])


def _page(path: Path, records: bytes) -> list[Page]:
    if records.startswith(_SOURCE):
        first, _, rest = records.partition(b"\n")
        return [Page("source", _read(path, rest), _read_line(path, first))] if rest.strip() else []
    rows = _read(path, records)
    kind = "details" if "Metric Name" in rows.columns else "raw"
    return [Page(kind, rows)]


def _read(path: Path, records: bytes) -> pl.DataFrame:
    """Records as texts; polars reads them."""
    try:
        rows = pl.read_csv(io.BytesIO(records), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError as error:
        raise ncu_errors.damaged(path, "a page of CSV", str(error).splitlines()[0]) from error
    unnamed = [name for name in rows.columns if name == "" or name.startswith("_duplicated_")]
    return rows.drop(unnamed)


def _read_line(path: Path, line: bytes) -> str:
    """The second field of a line."""
    row = _read(path, b'"a","b"\n' + line.rstrip(b",") + b"\n")
    return str(row.item(0, "b"))


def _without_kernels(path: Path, text: bytes) -> UnknownFormatError:
    """Why a file has no kernels in it."""
    if _NO_PERMISSION in text:
        found = "a log of ncu, which was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
        return UnknownFormatError.of(path, found, PERMISSION)
    if b"No kernels were profiled" in text or any(_starts_line(text, beginning) for beginning in _BEGINNINGS):
        return UnknownFormatError.of(path, "a log of ncu, which profiled no kernel", _NOTHING)
    errors = re.findall(rb"^==ERROR== *(.*)$", text, re.MULTILINE)
    if errors:
        said = errors[-1].decode(errors="replace").strip().rstrip(".")
        remedy = "Do what it says, and run ncu again."
        return UnknownFormatError.of(path, f"a log of ncu, which failed ({said})", remedy)
    if _OWN.search(text):
        remedy = "Give the page that `ncu --import REPORT --csv --page details` prints, or the .ncu-rep file."
        return UnknownFormatError.of(path, "a log of ncu without a page in CSV", remedy)
    return UnknownFormatError.of(path, "no page of ncu")
