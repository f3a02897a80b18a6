"""Extracts the CSV pages from a file that ncu wrote, ignoring lines of the log around them.

``ncu --csv`` prints its page to standard output, mixed with the program's output and its own log lines (``==PROF==
…``). A page begins with its header line; records begin with a quotation mark, and may span lines.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from kanalyze.errors import DamagedReportError, UnknownFormatError
from kanalyze.files import readable, regular

#: First lines of pages: the header of pages of launches, and the kernel line of the source page.
_LAUNCHES: Final = b'"ID","'
_SOURCE: Final = b'"Kernel Name","'
_BEGINNINGS: Final = (_LAUNCHES, _SOURCE)
#: Messages of ncu in a log.
_WARNING: Final = re.compile(rb"^==WARNING==(.*)$", re.MULTILINE)
_ERROR: Final = re.compile(rb"^==ERROR== *(.*\S)", re.MULTILINE)
_OWN: Final = re.compile(rb"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)
#: Most errors of a failed run that are quoted.
_SHOWN: Final = 2

NO_PERMISSION: Final = "ERR_NVGPUCTRPERM"
PERMISSION: Final = (
    "Let an administrator allow it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/nvidia-profiling.conf and a reboot, or run ncu as root; in a container, start it with "
    "--cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
_NOTHING: Final = "Run it again with a filter (--kernel-name, --launch-skip, --launch-count) that some launch passes."

_ENCODINGS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


#: Columns that identify a launch.
KEYS: Final = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size")

#: Launch columns that precede the metrics of a raw page.
OF_LAUNCH: Final = (
    *KEYS,
    *("Process Name", "Host Name", "Kernel Time", "Context", "Stream", "Device", "CC", "Demangled Name"),
    *("thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",),
)


def damaged(path: Path, where: str, what: str) -> DamagedReportError:
    """Error: `what` is wrong in the ncu file at `path`, at `where` (page or file)."""
    return DamagedReportError(
        f"{path}: damaged at {where}: {what}.",
        "Copy the file again, or print it again: `ncu --import REPORT --csv --page details --print-units base`.",
    )


class Page(NamedTuple):
    """One page of a file: its kind (details, raw or source) and its records as text columns.

    The columns of a source page are those of one kernel's instructions; `kernel` is the kernel's name.
    """

    kind: str
    rows: pl.DataFrame
    kernel: str = ""


class PagesFile(NamedTuple):
    """Content of one file: its pages, ncu's warnings and errors, and whether the file is truncated."""

    path: Path
    pages: Sequence[Page]
    warnings: tuple[str, ...] = ()
    cut: bool = False
    errors: tuple[str, ...] = ()

    def of(self, kind: str) -> list[Page]:
        """The pages of one kind, in file order."""
        return [page for page in self.pages if page.kind == kind]


def looks_like_ncu(text: bytes) -> bool:
    """Whether the (beginning of a) file is a page or a log of ncu."""
    return any(_starts_line(text, beginning) for beginning in _BEGINNINGS) or _OWN.search(text) is not None


def content(path: Path) -> bytes:
    """The file at `path` decoded to UTF-8 with LF line ends.

    Raises:
        UnreadableReportError: The operating system refuses to read it.
    """
    with readable(path):
        text = regular(path).read_bytes()
    for mark, encoding in _ENCODINGS:  # what PowerShell makes of `ncu … > file`
        if text.startswith(mark):
            text = text.decode(encoding, errors="replace").encode()
            break
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


def pages_in(path: Path, text: bytes | None = None) -> PagesFile:
    """Extracts the pages of the file at `path`, or from the `text` that was printed of it.

    Raises:
        UnknownFormatError: It has none: it is something else, or a log of a run that profiled nothing, and why.
        DamagedReportError: A page is no CSV.
        UnreadableReportError: The operating system refuses to read it.
    """
    text = content(path) if text is None else text
    found, cut = list[Page](), False
    for records in _records_of_pages(text):
        endless = records.count(b'"') % 2 == 1  # the last record has no end
        found += _page(path, records[: records.rfind(b'\n"') + 1] if endless else records)
        cut |= endless
    if not any(page.rows.height for page in found):
        raise _without_kernels(path, text)
    return PagesFile(path, found, _said(_WARNING, text), cut, _said(_ERROR, text))


def _said(pattern: re.Pattern[bytes], text: bytes) -> tuple[str, ...]:
    """The messages of ncu that match `pattern`, deduplicated."""
    return tuple(dict.fromkeys(line.decode(errors="replace").strip() for line in pattern.findall(text)))


def _starts_line(text: bytes, beginning: bytes) -> bool:
    return text.startswith(beginning) or b"\n" + beginning in text


def _records_of_pages(text: bytes) -> list[bytes]:
    """The records of each page, which extends from its header to the next one, without lines of the log in between."""
    lines = text.split(b"\n")
    # a page of launches has no further line that begins like this, since an ID is a number
    starts = [number for number, line in enumerate(lines) if line.startswith(_BEGINNINGS)]
    pages = []
    for start, end in pairwise([*starts, len(lines)]):
        kept, within = [], False
        for line in lines[start:end]:
            if within or line.startswith(b'"'):
                kept.append(line)
                within ^= bool(line.count(b'"') % 2)
        pages.append(b"\n".join([*kept, b""]))
    return pages


def _page(path: Path, records: bytes) -> list[Page]:
    if records.startswith(_SOURCE):
        first, _, rest = records.partition(b"\n")
        name = _read(path, b'"a","b"\n' + first.rstrip(b",") + b"\n").item(0, "b")
        return [Page("source", _read(path, rest), str(name))] if rest.strip() else []
    kind = "details" if records.find(b'"Metric Name"', 0, records.find(b"\n")) >= 0 else "raw"
    return [Page(kind, _read(path, records))]


def _read(path: Path, records: bytes) -> pl.DataFrame:
    """Parses CSV records into text columns, with polars."""
    try:
        rows = pl.read_csv(records, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError as error:
        raise damaged(path, "a page of CSV", str(error).splitlines()[0]) from error
    unnamed = [name for name in rows.columns if name == "" or name.startswith("_duplicated_")]
    return rows.drop(unnamed) if unnamed else rows


def _without_kernels(path: Path, text: bytes) -> UnknownFormatError:
    """The error for a file without kernels, with the reason."""
    if NO_PERMISSION.encode() in text:
        found = "a log of ncu, which was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
        return UnknownFormatError.of(path, found, PERMISSION)
    if b"No kernels were profiled" in text or any(_starts_line(text, beginning) for beginning in _BEGINNINGS):
        return UnknownFormatError.of(path, "a log of ncu, which profiled no kernel", _NOTHING)
    errors = _said(_ERROR, text)
    if errors:
        said = "; ".join(line.rstrip(".") for line in errors[:_SHOWN])  # the first errors are the cause
        remedy = "Do what it says, and run ncu again."
        return UnknownFormatError.of(path, f"a log of ncu, which failed ({said})", remedy)
    if _OWN.search(text):
        remedy = "Give the page that `ncu --import REPORT --csv --page details` prints, or the .ncu-rep file."
        return UnknownFormatError.of(path, "a log of ncu without a page in CSV", remedy)
    return UnknownFormatError.of(path, "no page of ncu")
