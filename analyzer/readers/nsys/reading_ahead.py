"""Begins to read an export of nsys before polars is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.storage.decoded_ahead import decoding_ahead

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

#: How the names of tables begin that hold what was traced, which every page reads; samples are read by few.
TRACED: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS")


def reading_ahead(path: Path) -> AbstractContextManager[None]:
    """Reads the largest tables of an export in another process meanwhile, where that saves time (`decoded_ahead`)."""
    return decoding_ahead(path, TRACED)
