"""One file, whatever it is: what it calls its machine and user, and its redacted copy."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from kanalyze.collectors.redact import documents, ncu_report, nsys_sqlite, plain_text, torch_trace
from kanalyze.collectors.redact.packed import Unpacked, opened, written
from kanalyze.collectors.redact.sqlite_files import holds
from kanalyze.errors import DamagedReportError, RedactError, UnknownFormatError, UnreadableReportError

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.collectors.redact.formats import Kind
    from kanalyze.collectors.redact.names import Names
    from kanalyze.collectors.redact.texts import Texts

_PIECE: Final = 1 << 22

#: Shorter names occur in numbers by chance.
_LONG_ENOUGH: Final = 6


class _Nowhere:
    """Takes everything and keeps nothing."""

    def write(self, data: bytes) -> int:
        """Forget `data`."""
        return len(data)


def learn(path: Path, kind: Kind, names: Names) -> None:
    """Add to `names` what the file at `path` calls its machine and user.

    Raises:
        UnknownFormatError: It is a database that nsys did not write.
        DamagedReportError: It cannot be followed.
        UnreadableReportError: The operating system does not let us read it.
    """
    try:
        names.text(path.name)
        if kind == "nsys":
            if not holds(path, nsys_sqlite.SIGNS):
                raise UnknownFormatError.of(path, "an SQLite database that nsys did not write")
            nsys_sqlite.learn(path, names)
        elif kind == "ncu":
            ncu_report.learn(path, names)
        elif kind == "document":
            documents.learn(path, names)
        else:
            with opened(path) as source:
                (torch_trace if kind == "trace" else plain_text).learn(source, names)
    except OSError as error:
        raise UnreadableReportError.because(path, error.strerror or str(error)) from error


def copy(path: Path, kind: Kind, target: Path | None, texts: Texts, names: Names) -> None:
    """Write the redacted copy of the file at `path` to `target`; without one only count what goes.

    Raises:
        RedactError: Something that identifies would be left.
        OSError: The target cannot be written.
    """
    if kind == "nsys":
        nsys_sqlite.copy(path, target, texts)
    elif kind in ("ncu", "document"):
        data = ncu_report.redacted(path, texts, names) if kind == "ncu" else documents.redacted(path, texts)
        if target is not None:
            target.write_bytes(data)
    else:
        _copy_stream(path, kind, target, texts)
    if target is not None and _survives(target, names):
        remedy = (
            "Please report it. Until then, `--remove TEXT` takes out more, and a name that is none may be `--keep`."
        )
        raise RedactError.of(path, "a report with a name in it that is left after redaction", remedy)


def _copy_stream(path: Path, kind: Kind, target: Path | None, texts: Texts) -> None:
    with opened(path) as source:
        if target is None:
            _pass_on(source, cast("BinaryIO", _Nowhere()), kind, texts)
        else:
            with written(target, packed=target.suffix == ".gz") as sink:
                _pass_on(source, sink, kind, texts)
        if isinstance(source, Unpacked) and not source.whole:
            if kind != "trace":
                raise DamagedReportError.at(path, "its end", "the packed data end early")
            texts.removed.notes.append(f"{texts.name(path.name)} is cut off, as it was before")


def _pass_on(source: BinaryIO, sink: BinaryIO, kind: Kind, texts: Texts) -> None:
    if kind == "trace":
        torch_trace.copy(source, sink, texts)
    else:
        plain_text.copy(source, sink, texts, cells=kind == "csv")


def _survives(path: Path, names: Names) -> bool:
    """Whether a name that was to go stands anywhere in the file: a second look, at bytes."""
    sought = [os.fsencode(name.lower()) for name in names.hosts | names.users if len(name) >= _LONG_ENOUGH]
    asked = [os.fsencode(text.lower()) for text in names.secrets if len(text) >= _LONG_ENOUGH]
    if not sought and not asked:
        return False
    longest = max(map(len, (*sought, *asked))) + 2
    with opened(path) as file:
        before = b""
        while piece := file.read(_PIECE):
            text = (before + piece).lower()
            if any(name in text for name in asked) or any(_alone(name, text) for name in sought if name in text):
                return True
            before = piece[-longest:]
    return False


def _alone(name: bytes, text: bytes) -> bool:
    return re.search(rb"(?<![a-z0-9])" + re.escape(name) + rb"(?![a-z0-9])", text) is not None
