"""Redacts the lines that a program's threads were in, as the collector noted them beside a recording.

What stands in the lines is the program itself: it goes, unless the user lets it stay.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from kanalyze.errors import DamagedReportError

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

#: What is noted of each thread.
_PARTS: Final = ("lines", "loops")

#: What is wrong with a file that the collector did not write.
_WRONG: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, EOFError, zlib.error)


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the files and lines at `path` into `names`.

    Raises:
        DamagedReportError: It is not what the collector writes.
    """
    content = _checked(path)
    for text in (*content["files"], *(text for *_, text in content["places"])):
        names.text(text)


def copy(path: Path, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the lines at `path` to `target`; without a target, only count the removals.

    Raises:
        DamagedReportError: It is not what the collector writes.
        OSError: The target cannot be written.
    """
    content = _checked(path)
    content["files"] = [texts.path(file) for file in content["files"]]
    content["places"] = [
        (file, line, texts.name(function), texts.free(text) if texts.names.source else texts.blank("lines", text))
        for file, line, function, text in content["places"]
    ]
    if target is not None:
        target.write_bytes(gzip.compress(json.dumps(content).encode(), 6, mtime=0))


def _numbers(part: dict[str, Any]) -> dict[str, list[int]]:
    return {name: [*map(int, part[name])] for name in ("times", "places")}


def _checked(path: Path) -> dict[str, Any]:
    """What the file is known to hold, and nothing else: numbers, names of files, and lines with their texts."""
    try:
        packed = path.read_bytes()
        content = json.loads(gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed)
        places = [(int(file), int(line), str(function), str(text)) for file, line, function, text in content["places"]]
        threads = [
            {"id": int(one["id"])} | {part: _numbers(one[part]) for part in _PARTS} for one in content["threads"]
        ]
        return {
            "schema": int(content["schema"]),
            "process": int(content["process"]),
            "exact": bool(content["exact"]),
            "clocks": [(int(unix), int(own)) for unix, own in content["clocks"]],
            "files": [*map(str, content["files"])],
            "places": places,
            "threads": threads,
        }
    except _WRONG as error:
        raise DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error
