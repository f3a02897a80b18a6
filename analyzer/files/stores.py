"""Reports on object stores, by their addresses (``s3://…``), read with fsspec where that is installed."""

from __future__ import annotations

import re
import tempfile
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kanalyze.errors import UnreadableReportError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

#: How the names of reports of one file end.
_REPORTS: Final = (".json", ".json.gz", ".sqlite", ".nsys-rep")

_WILD: Final = re.compile(r"[*?\[]")

#: What stores call a tag of an object's content.
_TAGS: Final = ("ETag", "etag", "md5Hash", "content_md5")


class Stored(NamedTuple):
    """A file on an object store, as it is now.

    Attributes:
        address: Its address.
        size_bytes: Its size.
        mtime_ns: When it was written, in Unix time; 0 where the store does not tell.
        tag: The store's tag of its content; empty where it has none.
    """

    address: str
    size_bytes: int
    mtime_ns: int
    tag: str


def is_address(text: str) -> bool:
    """Whether `text` is an address on an object store, not a path."""
    return _ADDRESS.match(text) is not None


def reports_at(address: str) -> list[Stored]:
    """The reports at an address: of that file, of a folder, or of a pattern with ``*``; by name.

    Raises:
        UnreadableReportError: fsspec, or what it needs for that store, is missing, or the store refuses.
    """
    with _told(address):
        store, path = import_module("fsspec.core").url_to_fs(address)
        if _WILD.search(path):
            found = store.glob(path)
        elif store.isdir(path):
            found = [one for one in store.ls(path, detail=False) if one.endswith(_REPORTS)]
        else:
            found = [path]
        return [_state(store, one) for one in sorted(found)]


def _state(store: Any, path: str) -> Stored:  # noqa: ANN401 - fsspec may be missing
    told = store.info(path)
    tag = next((str(told[name]) for name in _TAGS if told.get(name)), "")
    changed = next((told[name] for name in ("mtime", "LastModified", "last_modified", "created") if name in told), None)
    return Stored(str(store.unstrip_protocol(path)), int(told["size"]), _ns(changed), tag)


def _ns(changed: object) -> int:
    if isinstance(changed, datetime):
        return int(changed.timestamp() * 1_000_000) * 1000
    return int(changed * 1_000_000) * 1000 if isinstance(changed, int | float) else 0


@contextmanager
def fetched(address: str) -> Iterator[Path]:
    """A copy of the file at an address on a local disk, removed afterwards.

    Raises:
        UnreadableReportError: As of :func:`reports_at`.
    """
    with tempfile.TemporaryDirectory(prefix="kanalyze-") as folder:
        with _told(address):
            store, path = import_module("fsspec.core").url_to_fs(address)
            copy = Path(folder) / path.rstrip("/").rpartition("/")[2]
            store.get_file(path, str(copy))
        yield copy


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Turns what fsspec and the packages of stores raise, of whatever type, into our error."""
    try:
        yield
    except ImportError as error:
        missing = "fsspec is not installed" if error.name and error.name.startswith("fsspec") else str(error)
        raise _refused(address, missing) from error
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        reason = "no such file" if isinstance(error, FileNotFoundError) else said
        raise _refused(address, reason) from error


def _refused(address: str, reason: str) -> UnreadableReportError:
    """Error: reading the file at `address` failed for `reason`."""
    return UnreadableReportError(
        f"{address}: cannot be read ({reason}).",
        "Reading from object stores takes `pip install 'kanalyze[objects]'` and the store's own package, such as s3fs; "
        "or copy the files to a disk.",
    )
