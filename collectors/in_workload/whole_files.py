"""Files that are whole or not there: written under another name beside their own, and renamed when complete."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The name under which to write `path`, which it gets at the end; nothing is left of it after an error."""
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write `path` atomically."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `path` atomically."""
    with whole(path) as part:
        part.write_bytes(content)
    return path


def write_json(path: Path, document: object) -> Path:
    """Write `path` as JSON, atomically."""
    return write_text(path, json.dumps(document, indent=1) + "\n")
